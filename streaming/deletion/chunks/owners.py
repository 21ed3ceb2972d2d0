"""Reads what a chunk needs about owners before it is swept: which tenants are held, and what other owners refer to.

Nothing of an owner is read before a request for it was admitted (streaming.sweep.admitted).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.gate import Gate
from streaming.in_use.baseline import ALL
from streaming.in_use.cache import InUseCache
from streaming.in_use.source_watch import SourceWatch
from udfs.records import Counts, Reference

_KEYS_PER_CHUNK = 100_000  # owners whose sets are broadcast; executors read the rest themselves


@dataclass(frozen=True, slots=True)
class KnownOwners:
    """Held tenants, and the in-use sets of other tenants' owners."""

    held: Mapping[str, str]  # tenant -> why it is held
    references: Mapping[str, Reference]  # by reference key
    baselines: Mapping[str, Counts]  # by reference key


@dataclass(slots=True)
class OwnersInUse:
    """One per service; the caller must hold the fair lock."""

    cache: InUseCache
    watch: SourceWatch
    gate: Gate
    tenants: HeldTenants

    def __call__(self, query: str, admitted: Iterable[tuple[str, str]]) -> KnownOwners:
        """Read what a query's chunk needs that has admitted requests for these (tenant, reference key).

        Raises what Gate.wait_until_open does.
        """
        # first: owners of held tenants are not read, so that their requests wait without costing others a read
        # (decision 21)
        held = self.tenants.now()
        keys = list(islice((key for tenant, key in admitted if tenant not in held), _KEYS_PER_CHUNK))
        references = self.cache.references(keys)
        baselines, doubts = self.watch.before(references, keys)
        # owners of several tenants are gone at once: the sources are doubted, and the chunk waits for the operator
        if doubts.everything:
            self.gate.hold_if_doubted(query, doubts.everything)
            # the operator has resumed, so what was known of all owners no longer counts as the state before
            self.watch.baseline.forget([ALL])
        # all that are gone belong to these tenants: they are held, and the requests of others continue
        if doubts.tenants:
            held = self.tenants.hold(doubts.tenants)
        return KnownOwners(held, references, baselines)
