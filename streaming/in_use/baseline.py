"""The baseline: how many ledgers each owner's sources named in the last trusted read; later reads are compared with it.

The baseline is rebuilt from the certificates in the receipts (udfs.owners.completeness), so it survives a restart.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from streaming.coordination.own_znodes import read_own, write_own
from streaming.ports import MetadataStore
from streaming.terminal import count_of
from udfs.owners.completeness import baseline_in, is_unread, shrunk
from udfs.owners.mass_loss import Doubts, Losses, doubts
from udfs.owners.references import owner_of, tenant_of_key
from udfs.paths import schema_id_of
from udfs.records import Counts, Presence, Reference
from udfs.verdicts.judge import Policy

ALL = "*"
_OF_TENANT = "/*"  # suffix of a tenant's name: all of its owners
_OWNERS_AT_MOST = 200_000  # about 200 bytes each
_ACCEPTED_AT_MOST = 1_000
_NAMED_AT_MOST = 5


@dataclass(slots=True)
class Baseline:
    """Counts of all known owners.

    Thread-safe: the thread of one query learns from its last chunk while that of another reads counts for its next.
    """

    policy: Policy
    # Above this limit the tenants with the most owners lose the owners that were learnt first, so that no tenant
    # displaces the counts of another.
    owners_at_most: int = _OWNERS_AT_MOST
    _tenants: dict[str, dict[str, Counts]] = field(default_factory=dict)  # tenant -> reference key -> counts
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def of(self, keys: Iterable[str]) -> dict[str, Counts]:
        """Return the counts of these owners; omits owners without known counts."""
        with self._lock:
            counts_of = ((key, self._of(key)) for key in keys)
            return {key: counts for key, counts in counts_of if counts is not None}

    def learn(self, certificates: Iterable[tuple[str, str]]) -> None:
        """Learn from (key, certificate) pairs; an owner that names far fewer ledgers than before keeps its counts."""
        named = [(key, baseline_in(text)) for key, text in certificates]
        with self._lock:
            for key, now in named:
                # a topic whose list suddenly names far fewer ledgers keeps the old count: nothing of it is deleted
                # until an operator has checked the topic and run `ledger-reaper accept`
                if now is not None and not self._is_less(key, now):
                    owners = self._tenants.setdefault(tenant_of_key(key), {})
                    owners[key] = _new_baseline(owners.pop(key, None), now)
            if sum(map(len, self._tenants.values())) > self.owners_at_most:
                self._forget_some()

    def mass_loss(self, references: Mapping[str, Reference]) -> Doubts:
        """Return doubts about the sources if too many of the known owners are gone at once."""
        gone: defaultdict[str, list[str]] = defaultdict(list)
        with self._lock:
            for key, reference in references.items():
                if reference.presence is Presence.GONE and self._of(key) is not None:
                    gone[tenant_of_key(key)].append(key)
            losses = {
                tenant: Losses(len(owners), len(gone[tenant]), gone[tenant][0])
                if tenant in gone
                else Losses(len(owners))
                for tenant, owners in self._tenants.items()
            }
        return doubts(losses, most=self.policy.max_shrink, above=self.policy.shrink_applies_above)

    def forget(self, names: Iterable[str]) -> None:
        """Delete the counts of these owners, because an operator has accepted their present state.

        Args:
            names: managed ledgers, all_of(tenant), or ALL.
        """
        accepted = set(names)
        tenants = {name for name in accepted if name.endswith(_OF_TENANT)}
        topics = accepted - tenants - {ALL}
        topics |= {schema_id_of(name) for name in topics}
        with self._lock:
            if ALL in accepted:
                self._tenants.clear()
            for name in tenants:
                self._tenants.pop(name.removesuffix(_OF_TENANT), None)
            for owners in self._tenants.values() if topics else ():
                for key in [key for key in owners if owner_of(key).name in topics]:
                    del owners[key]

    def _of(self, key: str) -> Counts | None:
        return self._tenants.get(tenant_of_key(key), {}).get(key)

    def _forget_some(self) -> None:
        """Reduce tenants to equal shares of owners_at_most; what a smaller tenant leaves unused goes to the others."""
        left = self.owners_at_most
        for done, owners in enumerate(sorted(self._tenants.values(), key=len)):
            share = left // (len(self._tenants) - done)
            for key in list(islice(owners, max(0, len(owners) - share))):
                del owners[key]
            left -= len(owners)

    def _is_less(self, key: str, now: Counts) -> bool:
        most, above = self.policy.max_shrink, self.policy.shrink_applies_above
        return bool(shrunk(self._of(key), now, most=most, above=above))


def _new_baseline(before: Counts | None, now: Counts) -> Counts:
    if before is None or now.remembered >= 0:
        return now
    # no broker had the topic loaded, so none was asked: keep what the broker named before
    return replace(now, remembered=min(before.remembered, now.listed))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The znode <root>/instances/<name>/accepted: which owners an operator has accepted, and when."""

    store: MetadataStore
    path: str

    def read(self) -> dict[str, int]:
        """Return name -> time in ms, with the names of Baseline.forget. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return {str(name): int(at_ms) for name, at_ms in json.loads(node.data).items()}
        except (ValueError, TypeError, AttributeError):
            return {}  # unreadable data accepts nothing

    def add(self, names: Iterable[str], *, now_ms: int) -> None:
        """Record that an operator has accepted these owners; only the newest _ACCEPTED_AT_MOST names are kept."""
        by_time = sorted((self.read() | dict.fromkeys(names, now_ms)).items(), key=lambda item: item[1])
        write_own(self.store, self.path, json.dumps(dict(by_time[-_ACCEPTED_AT_MOST:])).encode())


def accepted_path(own_root: str, name: str) -> str:
    """Return the path of the znode that Accepted reads and writes."""
    return f"{own_root}/instances/{name}/accepted"


def is_accepted(key: str, at_ms: int, accepted: Mapping[str, int]) -> bool:
    """Whether an operator has accepted this owner since at_ms, when a receipt was written."""
    return any(at_ms <= accepted_ms and _covers(name, key) for name, accepted_ms in accepted.items())


def all_of(tenant: str) -> str:
    """Return the name that accepts all owners of a tenant."""
    return f"{tenant}{_OF_TENANT}"


def _covers(name: str, key: str) -> bool:
    if name.endswith(_OF_TENANT):
        return tenant_of_key(key) == name.removesuffix(_OF_TENANT)
    return name == ALL or owner_of(key).name in (name, schema_id_of(name))


def summary(certificates: Iterable[tuple[str, str]]) -> str:
    """Sum up a chunk's certificates in one line for the log."""
    by_owner = dict(certificates)
    named = [counts for text in by_owner.values() if (counts := baseline_in(text.partition(" was=")[0]))]
    unread = [f"{key}: {text[2:120]}" for key, text in by_owner.items() if is_unread(text)]
    shrunken = [key for key, text in by_owner.items() if " was=" in text]
    parts = [
        f"sources of {count_of(len(by_owner), 'owner')}: ZooKeeper named {sum(max(c.listed, 0) for c in named)} ids",
        f"brokers {sum(max(c.remembered, 0) for c in named)}",
        f"{len(unread)} could not be read" + _examples(unread),
        f"{len(shrunken)} shrank"
        + _examples(shrunken)
        + (": check them, then run `ledger-reaper accept`" if shrunken else ""),
    ]
    return ", ".join(parts)


def _examples(owners: list[str]) -> str:
    return f" ({'; '.join(owners[:_NAMED_AT_MOST])})" if owners else ""
