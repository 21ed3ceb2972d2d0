"""How much each owner's sources named when they were last believed: what the next look is compared with.

Learnt from the certificates in the receipts, so that a restart knows it too; what shrank too far is not learnt, and
stays where it was until a person accepts it (`ledger-reaper accept`).
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
_OWNERS_AT_MOST = 200_000  # about 200 bytes each; the one learnt first is forgotten first
_ACCEPTED_AT_MOST = 1_000
_NAMED_AT_MOST = 5


@dataclass(slots=True)
class Baseline:
    """Counts by reference key."""

    policy: Policy
    _counts: dict[str, Counts] = field(default_factory=dict)

    def of(self, keys: Iterable[str]) -> dict[str, Counts]:
        """What is known of these."""
        return {key: self._counts[key] for key in keys if key in self._counts}

    def learn(self, certificates: Iterable[tuple[str, str]]) -> None:
        """Take (key, certificate) as read; what a certificate shows to be too little leaves what was believed."""
        for key, text in certificates:
            now = baseline_in(text)
            if now is not None and not self._is_less(key, now):
                self._counts.pop(key, None)
                self._counts[key] = now
        while len(self._counts) > _OWNERS_AT_MOST:
            del self._counts[next(iter(self._counts))]

    def vanished(self, references: Mapping[str, Reference]) -> str:
        """Say so where so many of the owners known are gone at once that the sources are to be doubted; else ""."""
        gone = [key for key, each in references.items() if each.presence is Presence.GONE and key in self._counts]
        most = self.policy.max_shrink * len(self._counts)
        if len(gone) <= self.policy.shrink_applies_above or len(gone) <= most:
            return ""
        return f"{len(gone)} of the {len(self._counts)} owners known are gone at once, for example {gone[0]}"

    def forget(self, topics: Iterable[str]) -> None:
        """A person has looked at these (managed ledger names; ALL: at every one): begin anew."""
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
    """The znode <root>/instances/<name>/accepted: which owners a person looked at, and when (ms)."""

    store: MetadataStore
    path: str

    def read(self) -> dict[str, int]:
        """Managed ledger name, or ALL, to when. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return {str(name): int(at_ms) for name, at_ms in json.loads(node.data).items()}
        except (ValueError, TypeError, AttributeError):
            return {}  # nobody accepted anything that can be told

    def add(self, topics: Iterable[str], *, now_ms: int) -> None:
        """A person has looked at these."""
        known = sorted((self.read() | dict.fromkeys(topics, now_ms)).items(), key=lambda each: each[1])
        self.store.create(self.path, b"", parents=True)
        self.store.set_data(self.path, json.dumps(dict(known[-_ACCEPTED_AT_MOST:])).encode())


def accepted_path(own_root: str, name: str) -> str:
    """Where it lies what a person has accepted."""
    return f"{own_root}/instances/{name}/accepted"


def is_accepted(key: str, at_ms: int, accepted: Mapping[str, int]) -> bool:
    """Whether a person has looked since a receipt of that time was written."""
    owner = owner_of(key)
    names = (name for name in accepted if name == ALL or owner.name in (name, schema_id_of(name)))
    return any(at_ms <= accepted[name] for name in names)


def told(certificates: Iterable[tuple[str, str]]) -> str:
    """What the log says of a chunk's certificates: one line for all its owners."""
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
