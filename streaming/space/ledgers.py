"""Reads the metadata of all ledgers into a table."""

from collections.abc import Callable, Sequence

from streaming.audit.walk.listing import Problem, find_folders, ids_in
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.space.unread import Unread
from streaming.sweep.pace import Pace
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_placed
from udfs.paths import Layout, ledger_path
from udfs.space.ledger_table import LedgerTable, TableBuilder

_FOLDERS_PER_READ = 64
_LEDGERS_PER_READ = 5_000


class LedgerReading:
    """Lists ledgers and reads their metadata. Ledgers that are deleted in between are left out."""

    def __init__(self, store: MetadataStore, root: str, layout: Layout, pace: Pace) -> None:
        self._store, self._root, self._layout, self._pace = store, root, layout, pace

    def table(self, unread: Unread, progress: Callable[[int], None]) -> LedgerTable:
        """Read all ledgers. Raises UnavailableError.

        Args:
            unread: gets what can't be read.
            progress: called with the number of ledgers that were read so far.
        """
        folders = find_folders(self._store, self._root, self._layout)
        problems: list[Problem] = list(folders.problems)
        builder = TableBuilder()
        read = 0
        for start in range(0, len(folders.paths), _FOLDERS_PER_READ):
            group = folders.paths[start : start + _FOLDERS_PER_READ]
            self._pace.wait_for(len(group))
            ids = ids_in(self._root, group, self._store.children_many(group), problems)
            for first in range(0, len(ids), _LEDGERS_PER_READ):
                chunk = ids[first : first + _LEDGERS_PER_READ]
                self._read(chunk, builder, unread)
                read += len(chunk)
                progress(read)
        for path, detail in problems:
            unread.add_path(path, detail)
        return builder.build()

    def existing(self, ledger_ids: Sequence[int]) -> set[int]:
        """Return the ledgers that exist now, readable or not. Raises UnavailableError."""
        nodes = self._nodes(ledger_ids)
        return {ledger_id for ledger_id, node in zip(ledger_ids, nodes, strict=True) if node is not None}

    def gone(self, ledger_ids: Sequence[int]) -> list[int]:
        """Return the ledgers that do not exist now, in order. Raises UnavailableError."""
        gone: list[int] = []
        for start in range(0, len(ledger_ids), _LEDGERS_PER_READ):
            chunk = ledger_ids[start : start + _LEDGERS_PER_READ]
            existing = self.existing(chunk)
            gone += [each for each in chunk if each not in existing]
        return gone

    def _read(self, ledger_ids: Sequence[int], builder: TableBuilder, unread: Unread) -> None:
        for ledger_id, node in zip(ledger_ids, self._nodes(ledger_ids), strict=True):
            if node is None:
                continue
            try:
                if isinstance(node, Unreadable):
                    raise FormatError(node.detail)
                builder.add(ledger_id, parse_placed(node.data), max(node.ctime_ms, node.mtime_ms))
            except FormatError as error:
                unread.ledgers.add(ledger_id)
                unread.add_path(ledger_path(self._layout, self._root, ledger_id), str(error))

    def _nodes(self, ledger_ids: Sequence[int]) -> list[Znode | Unreadable | None]:
        self._pace.wait_for(len(ledger_ids))
        return self._store.read_many([ledger_path(self._layout, self._root, each) for each in ledger_ids])
