"""What a chunk has to know of owners before it is swept: which tenants are held, and what the others' owners refer to.

1. We read nothing of an owner before a request for it was admitted (streaming.sweep.admitted).
2. Where so many owners are gone at once that the sources are doubted, the chunk waits for a person. Where only one
   tenant's are, that tenant is held, and the others' requests go on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from streaming.deletion.gate import Gate
from streaming.deletion.tenants import HeldTenants
from streaming.in_use.baseline import ALL
from streaming.in_use.cache import InUseCache
from streaming.in_use.watch import SourceWatch
from udfs.records import Counts, Reference

_KEYS_PER_CHUNK = 100_000  # owners whose sets travel with a broadcast; executors read the rest themselves


@dataclass(frozen=True, slots=True)
class KnownOwners:
    """held: why each held tenant is held. references, baselines: of the others' owners, by reference key."""

    held: Mapping[str, str]
    references: Mapping[str, Reference]
    baselines: Mapping[str, Counts]


@dataclass(slots=True)
class OwnersInUse:
    """One per service; only whoever has the turn may call it."""

    cache: InUseCache
    watch: SourceWatch
    gate: Gate
    tenants: HeldTenants

    def __call__(self, query: str, admitted: Iterable[tuple[str, str]]) -> KnownOwners:
        """Read what is needed for a query's chunk with admitted requests for these (tenant, reference key).

        Raises what Gate.wait_until_open does.
        """
        held = self.tenants.now()
        keys = list(islice((key for tenant, key in admitted if tenant not in held), _KEYS_PER_CHUNK))
        references = self.cache.references(keys)
        baselines, doubts = self.watch.before(references, keys)
        if doubts.everything:
            self.gate.hold_if_doubted(query, doubts.everything)
            self.watch.baseline.forget([ALL])
        if doubts.tenants:
            held = self.tenants.hold(doubts.tenants)
        return KnownOwners(held, references, baselines)
