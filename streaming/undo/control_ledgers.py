"""Finds control entries: entries of existing ledgers, which certain bookies should store.

If a bookie answers that it does not store an entry, we believe it only after it has returned another entry. These are
the entries to try for that.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from streaming.ports import MetadataStore, PlacedEntry, Znode
from udfs.formats.errors import FormatError
from udfs.formats.ledger_placement import bookies_of_entry, placement_of
from udfs.paths import Layout, ledger_id_of
from udfs.records import LedgerMetadata, LedgerState

_FOLDERS_BELOW = {2: 1, 3: 3}  # digits of a folder's name below the root -> levels of folders below that
_LEDGERS = 5_000  # that are read at most
_READ_AT_ONCE = 500
# The entries for a bookie weigh up to _ENOUGH: an entry of a closed ledger weighs _OF_A_CLOSED, of an open ledger 1. So
# a bookie is asked for up to 8 entries of closed ledgers, because one may be missing there, or for up to 64 of open
# ledgers, because those may be empty. More entries would take hours at a bookie that answers slowly.
_ENOUGH = 64
_OF_A_CLOSED = 8


def entries_on(store: MetadataStore, layout: Layout, root: str, bookies: frozenset[str]) -> Iterator[PlacedEntry]:
    """Yield (ledger id, entry id, its bookies), newest first. Raises UnavailableError.

    It stops when it has read enough ledgers, or has named each of `bookies` often enough.
    """
    named = dict.fromkeys(bookies, 0)
    found = ((ledger_id_of(layout, root, path), path) for path in _newest(store, root, None))
    ledgers = islice(((ledger_id, path) for ledger_id, path in found if ledger_id is not None), _LEDGERS)
    while some := list(islice(ledgers, _READ_AT_ONCE)):
        for (ledger_id, _), node in zip(some, store.read_many([path for _, path in some]), strict=True):
            if not isinstance(node, Znode):
                continue
            with suppress(FormatError):
                placement = placement_of(node.data)
                weight = _OF_A_CLOSED if placement.metadata.state is LedgerState.CLOSED else 1
                for entry in _entries(placement.metadata):
                    on = bookies_of_entry(placement, entry)
                    if any(named.get(bookie, _ENOUGH) < _ENOUGH for bookie in on):
                        named |= {bookie: named[bookie] + weight for bookie in bookies.intersection(on)}
                        yield ledger_id, entry, on
        if all(times >= _ENOUGH for times in named.values()):
            return


def _entries(metadata: LedgerMetadata) -> tuple[int, ...]:
    if metadata.state is not LedgerState.CLOSED:
        return (0,)  # unless the ledger is empty
    return (0, metadata.last_entry_id) if metadata.last_entry_id >= 0 else ()


def _by_number(name: str) -> tuple[int, str]:
    # ids beyond 31 bits are in longer folders ("000" besides "00"), and ids of more digits sort after others
    return len(name), name


def _newest(store: MetadataStore, parent: str, levels: int | None) -> Iterator[str]:
    """Yield the paths of leaves, newest first. levels: of folders below `parent`; None: `parent` is the root."""
    listed = store.children_many([parent])[0]
    for name in sorted(listed, key=_by_number, reverse=True) if isinstance(listed, list) else ():
        path = f"{parent}/{name}"
        if levels == 0:
            yield path
        elif name.isdecimal():
            below = _FOLDERS_BELOW.get(len(name)) if levels is None else levels - 1
            if below is not None:
                yield from _newest(store, path, below)
