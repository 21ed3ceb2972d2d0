"""Counts the ledgers that exist, by listing their names parent by parent; it reads no ledger."""

from streaming.errors import UnavailableError
from streaming.ports import MetadataStore
from udfs.paths import Layout

_LEVELS = {Layout.HIERARCHICAL: (2, 4), Layout.LONG_HIERARCHICAL: (3, 4, 4, 4)}


def count_ledgers(store: MetadataStore, root: str) -> int:
    """Count the ledgers of both layouts below the root. Raises UnavailableError if a parent can't be listed."""
    return sum(_count(store, root, widths) for widths in _LEVELS.values())


def _count(store: MetadataStore, root: str, widths: tuple[int, ...]) -> int:
    parents = [root]
    for width in widths:
        parents = [
            f"{parent}/{name}"
            for parent, names in zip(parents, _names(store, parents), strict=True)
            for name in names
            if len(name) == width and name.isdigit()
        ]
    return sum(sum(1 for name in names if name.startswith("L")) for names in _names(store, parents))


def _names(store: MetadataStore, parents: list[str]) -> list[list[str]]:
    children = store.children_many(parents) if parents else []
    unreadable = [
        parent for parent, names in zip(parents, children, strict=True) if names and not isinstance(names, list)
    ]
    if unreadable:
        raise UnavailableError(f"{unreadable[0]} can't be listed: its ledgers can't be counted")
    return [names if isinstance(names, list) else [] for names in children]
