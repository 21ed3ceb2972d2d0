"""Finds the owners that refer to one ledger, for `explain`, without a call to any broker."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from streaming.audit import audit_columns as a
from streaming.audit.walk.owner_listing import find_namespaces, listed
from streaming.audit.walk.reference_scan import ReferenceReader
from streaming.ports import MetadataStore, Unreadable
from streaming.sweep.jobs import Limiter
from udfs import columns as c

_OWNERS_AT_ONCE = 1000


@dataclass(slots=True)
class Referring:
    """The owners found."""

    owners: list[tuple[str, str]] = field(default_factory=list)  # (component, managed ledger)
    unreadable: list[str] = field(default_factory=list)  # paths that may refer to the ledger too


def referring_to(store: MetadataStore, ledger_id: int, pace: Limiter) -> Referring:
    """Read every topic, cursor and schema in ZooKeeper, and return those that name the ledger. Raises UnavailableError.

    A broker may know a ledger that ZooKeeper does not name yet.

    Args:
        store: the metadata store.
        ledger_id: the ledger.
        pace: the rate at which znodes are read or listed, so that the search does not slow ZooKeeper for brokers.
    """
    referring, reader = Referring(), ReferenceReader(store, pace)
    # brokers are not asked, because they would load topics
    for paths in _owners(store, referring.unreadable, pace):
        for row in reader.rows(paths):
            if row.get(a.PATH):
                referring.unreadable.append(row[a.PATH])
            elif row[c.LEDGER_ID] == ledger_id and row.get(a.IN_BOOKKEEPER):
                referring.owners.append((row[c.COMPONENT], row[a.MANAGED_LEDGER]))
    return referring


def _owners(store: MetadataStore, unreadable: list[str], pace: Limiter) -> Iterator[list[str]]:
    namespaces = find_namespaces(store, pace)
    unreadable += [path for path, _detail in namespaces.problems]
    for namespace, names in listed(store, namespaces.paths, pace):
        if isinstance(names, Unreadable):
            unreadable.append(namespace)
            continue
        for start in range(0, len(names), _OWNERS_AT_ONCE):
            yield [f"{namespace}/{name}" for name in names[start : start + _OWNERS_AT_ONCE]]
