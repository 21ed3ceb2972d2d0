"""Collects everything that a measurement could not read."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from streaming.coordination.live_store import migration
from streaming.ports import MetadataStore
from udfs.space.ledger_table import Kind
from udfs.space.space_report import Unknown


@dataclass(slots=True)
class Unread:
    """Collects what could not be read, and the owners whose ledgers may therefore not count as unreferenced."""

    paths: set[str] = field(default_factory=set)  # of znodes; nothing is known at and below each
    owners: set[tuple[str, Kind]] = field(default_factory=set)  # (managed ledger, kind of its ledgers)
    ledgers: set[int] = field(default_factory=set)  # that exist, without readable metadata
    _faults: dict[str, list[Unknown]] = field(default_factory=dict)  # by detail: the first, and the sum of all
    _counts: dict[str, int] = field(default_factory=dict)

    def add_path(self, path: str, detail: str) -> None:
        """Add a znode that could not be read."""
        self.paths.add(path)
        self.add(Unknown(what=path, detail=detail))

    def add(self, unknown: Unknown) -> None:
        """Add anything else. Faults with the same detail become one, which names the first of them."""
        had = self._faults.get(unknown.detail)
        self._counts[unknown.detail] = self._counts.get(unknown.detail, 0) + 1
        if had is None:
            self._faults[unknown.detail] = [unknown, unknown]
        else:
            had[1] = Unknown(
                what=had[0].what,
                detail=unknown.detail,
                at_least=_sum(had[1].at_least, unknown.at_least),
                at_most=_sum(had[1].at_most, unknown.at_most),
            )

    def add_migration(self, store: MetadataStore) -> None:
        """Add that ZooKeeper's content may be old, if the cluster leaves ZooKeeper. Raises UnavailableError."""
        if why := migration(store):
            self.add(Unknown(what="whether ZooKeeper's content is current", detail=why))

    def is_unread(self, paths: Iterable[str]) -> bool:
        """Whether a path, or one above it, could not be read."""
        return any(ancestor in self.paths for path in paths for ancestor in _and_above(path))

    def unknown(self) -> tuple[Unknown, ...]:
        """Return everything that could not be read."""
        return tuple(
            Unknown(
                what=first.what if self._counts[detail] == 1 else f"{first.what} and {self._counts[detail] - 1} more",
                detail=detail,
                at_least=total.at_least,
                at_most=total.at_most,
            )
            for detail, (first, total) in self._faults.items()
        )


def _and_above(path: str) -> Iterable[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
