"""How many ledgers each owner's sources named at the last look that can be trusted: the next look is compared with it.

We learn it from the certificates in the receipts (udfs.completeness), so that it survives a restart. If a topic's list
suddenly names far fewer ledgers, we don't learn that: we delete nothing of the topic until a person has looked and
says so (`ledger-reaper accept`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streaming.coordination.own_znodes import read_own
from streaming.ports import MetadataStore
from udfs.completeness import baseline_in, is_unread, shrunk
from udfs.judge import Policy
from udfs.paths import schema_id_of
from udfs.records import Counts, Presence, Reference
from udfs.references import owner_of

ALL = "*"
_OWNERS_AT_MOST = 200_000  # about 200 bytes each; above this number we forget the owner that we learnt of first
_ACCEPTED_AT_MOST = 1_000
_NAMED_AT_MOST = 5


@dataclass(slots=True)
class Baseline:
    """Counts by reference key."""

    policy: Policy
    _counts: dict[str, Counts] = field(default_factory=dict)

    def of(self, keys: Iterable[str]) -> dict[str, Counts]:
        """Return the counts of these owners, as far as we know them."""
        return {key: self._counts[key] for key in keys if key in self._counts}

    def learn(self, certificates: Iterable[tuple[str, str]]) -> None:
        """Learn from (key, certificate); where an owner named far fewer ledgers than before, keep the old counts."""
        for key, text in certificates:
            now = baseline_in(text)
            if now is not None and not self._is_less(key, now):
                self._counts.pop(key, None)
                self._counts[key] = now
        while len(self._counts) > _OWNERS_AT_MOST:
            del self._counts[next(iter(self._counts))]

    def vanished(self, references: Mapping[str, Reference]) -> str:
        """Say why the sources can't be trusted: too many of the known owners are gone at once. "" where they can."""
        gone = [key for key, each in references.items() if each.presence is Presence.GONE and key in self._counts]
        most = self.policy.max_shrink * len(self._counts)
        if len(gone) <= self.policy.shrink_applies_above or len(gone) <= most:
            return ""
        return f"{len(gone)} of the {len(self._counts)} owners known are gone at once, for example {gone[0]}"

    def forget(self, topics: Iterable[str]) -> None:
        """Begin anew with these owners, which a person has looked at (managed ledger names; ALL: every one)."""
        names = set(topics)
        if ALL in names:
            self._counts.clear()
            return
        schemas = {schema_id_of(name) for name in names}
        for key in [key for key in self._counts if owner_of(key).name in names | schemas]:
            del self._counts[key]

    def _is_less(self, key: str, now: Counts) -> bool:
        most, above = self.policy.max_shrink, self.policy.shrink_applies_above
        return bool(shrunk(self._counts.get(key), now, most=most, above=above))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The znode <root>/instances/<name>/accepted: which owners a person has looked at, and when (ms)."""

    store: MetadataStore
    path: str

    def read(self) -> dict[str, int]:
        """Return the time by managed ledger name, or ALL. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return {str(name): int(at_ms) for name, at_ms in json.loads(node.data).items()}
        except (ValueError, TypeError, AttributeError):
            return {}  # a znode that we can't read accepts nothing

    def add(self, topics: Iterable[str], *, now_ms: int) -> None:
        """Write down that a person has looked at these."""
        known = sorted((self.read() | dict.fromkeys(topics, now_ms)).items(), key=lambda each: each[1])
        self.store.create(self.path, b"", parents=True)
        self.store.set_data(self.path, json.dumps(dict(known[-_ACCEPTED_AT_MOST:])).encode())


def accepted_path(own_root: str, name: str) -> str:
    """Return the path of the znode that Accepted reads and writes."""
    return f"{own_root}/instances/{name}/accepted"


def is_accepted(key: str, at_ms: int, accepted: Mapping[str, int]) -> bool:
    """Whether a person has looked at this owner since at_ms, when a receipt was written."""
    owner = owner_of(key)
    names = (name for name in accepted if name == ALL or owner.name in (name, schema_id_of(name)))
    return any(at_ms <= accepted[name] for name in names)


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
