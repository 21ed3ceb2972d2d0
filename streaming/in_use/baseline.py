"""How many ledgers each owner's sources named at the last look that can be trusted: the next look is compared with it.

We learn it from the certificates in the receipts (udfs.completeness), so that it survives a restart. If a topic's list
suddenly names far fewer ledgers, we don't learn that: we delete nothing of the topic until a person has looked and
says so (`ledger-reaper accept`).
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from streaming.coordination.own_znodes import read_own, write_own
from streaming.ports import MetadataStore
from udfs.completeness import baseline_in, is_unread, shrunk
from udfs.judge import Policy
from udfs.mass_loss import Doubts, Losses, doubts
from udfs.paths import schema_id_of
from udfs.records import Counts, Presence, Reference
from udfs.references import owner_of, tenant_of_key

ALL = "*"
_OF_TENANT = "/*"  # after a tenant's name: all of its owners
_OWNERS_AT_MOST = 200_000  # about 200 bytes each
_ACCEPTED_AT_MOST = 1_000
_NAMED_AT_MOST = 5


@dataclass(slots=True)
class Baseline:
    """Counts by reference key, kept by tenant.

    Above owners_at_most, we forget owners of the tenants that have the most, first those that we learnt of first: no
    tenant drives out what we know of another one.

    One query's thread learns from its last chunk while another query asks about its next one, so a lock covers each
    question and each change.
    """

    policy: Policy
    owners_at_most: int = _OWNERS_AT_MOST
    _tenants: dict[str, dict[str, Counts]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def of(self, keys: Iterable[str]) -> dict[str, Counts]:
        """Return the counts of these owners, as far as we know them."""
        with self._lock:
            found = ((key, self._of(key)) for key in keys)
            return {key: counts for key, counts in found if counts is not None}

    def learn(self, certificates: Iterable[tuple[str, str]]) -> None:
        """Learn from (key, certificate); where an owner named far fewer ledgers than before, keep the old counts."""
        named = [(key, baseline_in(text)) for key, text in certificates]
        with self._lock:
            for key, now in named:
                if now is not None and not self._is_less(key, now):
                    mine = self._tenants.setdefault(tenant_of_key(key), {})
                    mine[key] = _kept_from(mine.pop(key, None), now)
            if sum(map(len, self._tenants.values())) > self.owners_at_most:
                self._forget_some()

    def vanished(self, references: Mapping[str, Reference]) -> Doubts:
        """Say whether the sources can't be trusted: too many of the known owners are gone at once."""
        gone: defaultdict[str, list[str]] = defaultdict(list)
        with self._lock:
            for key, each in references.items():
                if each.presence is Presence.GONE and self._of(key) is not None:
                    gone[tenant_of_key(key)].append(key)
            losses = {
                tenant: Losses(len(known), len(gone[tenant]), gone[tenant][0]) if tenant in gone else Losses(len(known))
                for tenant, known in self._tenants.items()
            }
        return doubts(losses, most=self.policy.max_shrink, above=self.policy.shrink_applies_above)

    def forget(self, names: Iterable[str]) -> None:
        """Begin anew with these owners, which a person has looked at.

        names: of managed ledgers, all_of a tenant, or ALL.
        """
        looked_at = set(names)
        tenants = {name for name in looked_at if name.endswith(_OF_TENANT)}
        topics = looked_at - tenants - {ALL}
        topics |= {schema_id_of(name) for name in topics}
        with self._lock:
            if ALL in looked_at:
                self._tenants.clear()
            for name in tenants:
                self._tenants.pop(name.removesuffix(_OF_TENANT), None)
            for known in self._tenants.values() if topics else ():
                for key in [key for key in known if owner_of(key).name in topics]:
                    del known[key]

    def _of(self, key: str) -> Counts | None:
        return self._tenants.get(tenant_of_key(key), {}).get(key)

    def _forget_some(self) -> None:
        """Leave every tenant what it has, up to a share that is the same for all."""
        left = self.owners_at_most
        for done, known in enumerate(sorted(self._tenants.values(), key=len)):
            share = left // (len(self._tenants) - done)
            for key in list(islice(known, max(0, len(known) - share))):
                del known[key]
            left -= len(known)

    def _is_less(self, key: str, now: Counts) -> bool:
        most, above = self.policy.max_shrink, self.policy.shrink_applies_above
        return bool(shrunk(self._of(key), now, most=most, above=above))


def _kept_from(before: Counts | None, now: Counts) -> Counts:
    """Return the new baseline: where no broker had the topic loaded, none was asked, and what it named before stays."""
    if before is None or now.remembered >= 0:
        return now
    return replace(now, remembered=min(before.remembered, now.listed))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The znode <root>/instances/<name>/accepted: which owners a person has looked at, and when (ms)."""

    store: MetadataStore
    path: str

    def read(self) -> dict[str, int]:
        """Return the time by name, as Baseline.forget takes names. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return {str(name): int(at_ms) for name, at_ms in json.loads(node.data).items()}
        except (ValueError, TypeError, AttributeError):
            return {}  # a znode that we can't read accepts nothing

    def add(self, names: Iterable[str], *, now_ms: int) -> None:
        """Write down that a person has looked at these."""
        known = sorted((self.read() | dict.fromkeys(names, now_ms)).items(), key=lambda each: each[1])
        write_own(self.store, self.path, json.dumps(dict(known[-_ACCEPTED_AT_MOST:])).encode())


def accepted_path(own_root: str, name: str) -> str:
    """Return the path of the znode that Accepted reads and writes."""
    return f"{own_root}/instances/{name}/accepted"


def is_accepted(key: str, at_ms: int, accepted: Mapping[str, int]) -> bool:
    """Whether a person has looked at this owner since at_ms, when a receipt was written."""
    return any(at_ms <= accepted_ms and _covers(name, key) for name, accepted_ms in accepted.items())


def all_of(tenant: str) -> str:
    """Return the name that stands for all owners of a tenant, in what a person accepts."""
    return f"{tenant}{_OF_TENANT}"


def _covers(name: str, key: str) -> bool:
    if name.endswith(_OF_TENANT):
        return tenant_of_key(key) == name.removesuffix(_OF_TENANT)
    return name == ALL or owner_of(key).name in (name, schema_id_of(name))


def told(certificates: Iterable[tuple[str, str]]) -> str:
    """Sum up a chunk's certificates for the log: one line for all its owners."""
    by_owner = dict(certificates)
    named = [counts for text in by_owner.values() if (counts := baseline_in(text.partition(" was=")[0]))]
    unread = [f"{key}: {text[2:120]}" for key, text in by_owner.items() if is_unread(text)]
    less = [key for key, text in by_owner.items() if " was=" in text]
    parts = [
        f"sources of {len(by_owner)} owners: ZooKeeper named {sum(max(c.listed, 0) for c in named)} ids",
        f"brokers {sum(max(c.remembered, 0) for c in named)}",
        f"{len(unread)} could not be read" + _examples(unread),
        f"{len(less)} shrank" + _examples(less) + (": look, then `ledger-reaper accept`" if less else ""),
    ]
    return ", ".join(parts)


def _examples(some: list[str]) -> str:
    return f" ({'; '.join(some[:_NAMED_AT_MOST])})" if some else ""
