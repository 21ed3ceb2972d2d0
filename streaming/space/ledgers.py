"""Reads the metadata of all ledgers into a table."""

from collections.abc import Callable, Iterator, Sequence

from streaming.audit.walk.listing import Problem, find_folders, ids_in
from streaming.ports import MetadataStore, Unreadable
from streaming.space.owners import Node
from streaming.space.unread import Unread
from streaming.sweep.jobs import Limiter
from udfs.formats.errors import FormatError
from udfs.paths import Layout, ledger_path
from udfs.space.ledger_table import LedgerTable, TableBuilder

_FOLDERS_PER_READ = 64
_LEDGERS_PER_READ = 5_000


class LedgerReading:
    """Lists ledgers and reads their metadata. Ledgers that are deleted in between are left out."""

    def __init__(self, store: MetadataStore, root: str, layout: Layout, pace: Limiter) -> None:
        self._store, self._root, self._layout, self._pace = store, root, layout, pace

    def table(self, unread: Unread, progress: Callable[[int], None]) -> LedgerTable:
        """Read all ledgers. Raises UnavailableError.

        Args:
            unread: gets what can't be read.
            progress: called with the number of ledgers that were read so far.
        """
        builder = TableBuilder()
        problems: list[Problem] = []
        read = 0
        for ids, nodes in self.batches(lambda path, detail: problems.append((path, detail))):
            self._add(ids, nodes, builder, unread)
            read += len(ids)
            progress(read)
        for path, detail in problems:
            unread.add_path(path, detail)
        return builder.build()

    def batches(self, could_not_list: Callable[[str, str], None]) -> Iterator[tuple[list[int], list[Node | None]]]:
        """Yield ids of ledgers with their znodes; None: it was deleted since it was listed. Raises UnavailableError.

        Args:
            could_not_list: called with a path, and why nothing is known at and below it.
        """
        folders = find_folders(self._store, self._root, self._layout)
        for path, detail in folders.problems:
            could_not_list(path, detail)
        for start in range(0, len(folders.paths), _FOLDERS_PER_READ):
            group = folders.paths[start : start + _FOLDERS_PER_READ]
            self._pace.wait_for(len(group))
            problems: list[Problem] = []
            ids = ids_in(self._root, group, self._store.children_many(group), problems)
            for path, detail in problems:
                could_not_list(path, detail)
            for first in range(0, len(ids), _LEDGERS_PER_READ):
                chunk = ids[first : first + _LEDGERS_PER_READ]
                yield chunk, self._nodes(chunk)

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

    def path(self, ledger_id: int) -> str:
        """Return the path of a ledger's znode."""
        return ledger_path(self._layout, self._root, ledger_id)

    def _add(
        self, ledger_ids: Sequence[int], nodes: Sequence[Node | None], builder: TableBuilder, unread: Unread
    ) -> None:
        for ledger_id, node in zip(ledger_ids, nodes, strict=True):
            if node is None:
                continue
            try:
                if isinstance(node, Unreadable):
                    raise FormatError(node.detail)
                builder.add_znode(ledger_id, node.data, max(node.ctime_ms, node.mtime_ms))
            except FormatError as error:
                unread.ledgers.add(ledger_id)
                unread.add_path(self.path(ledger_id), str(error))

    def _nodes(self, ledger_ids: Sequence[int]) -> list[Node | None]:
        self._pace.wait_for(len(ledger_ids))
        return self._store.read_many([self.path(each) for each in ledger_ids])
