"""Reads the metadata of all ledgers into a table, in several processes if there are many."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from streaming.audit.walk.listing import Problem, find_folders, ids_in
from streaming.audit.workers import Workers
from streaming.clients import process_store
from streaming.config.settings import Settings
from streaming.ports import MetadataStore, Unreadable
from streaming.space.reading.owner_reading import Node
from streaming.space.reading.unread import Unread
from streaming.sweep.jobs import Limiter
from streaming.sweep.pace import Pace
from udfs.formats.errors import FormatError
from udfs.paths import Layout, ledger_path
from udfs.space.ledger_table import LedgerRows, LedgerTable, TableBuilder

_FOLDERS_PER_READ = 64
_LEDGERS_PER_READ = 5_000
_LEDGERS_PER_PART = 20_000  # of 100 bytes; a part also has the names of its ledgers' owners


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Ledgers that one process read together."""

    listed: int  # how many were to be read; some may have been deleted since
    rows: LedgerRows
    unreadable: list[tuple[int, str]]  # ledgers that exist, and why their metadata could not be read


PartReader = Callable[[Iterable[Sequence[int]]], Iterable[ReadPart]]  # of lists of ids, in any order


class LedgerReading:
    """Lists ledgers and reads their metadata. Ledgers that are deleted in between are left out."""

    def __init__(
        self, store: MetadataStore, root: str, layout: Layout, pace: Limiter, read_parts: PartReader | None = None
    ) -> None:
        """Create a reading. read_parts: reads the table's parts, instead of this object."""
        self._store, self._root, self._layout, self._pace = store, root, layout, pace
        self._read_parts = read_parts or self.parts

    def table(self, unread: Unread, progress: Callable[[int], None]) -> LedgerTable:
        """Read all ledgers. Raises UnavailableError.

        Args:
            unread: gets what can't be read.
            progress: called with the number of ledgers that were read so far.
        """
        rows = LedgerRows()
        problems: list[Problem] = []
        unreadable: list[tuple[int, str]] = []
        read = 0
        for part in self._read_parts(self._ids(_LEDGERS_PER_PART, lambda *problem: problems.append(problem))):
            rows.extend(part.rows)
            unreadable += part.unreadable
            read += part.listed
            progress(read)
        for ledger_id, detail in sorted(unreadable):
            unread.ledgers.add(ledger_id)
            unread.add_path(self.path(ledger_id), detail)
        for path, detail in problems:
            unread.add_path(path, detail)
        return rows.build()

    def parts(self, ids: Iterable[Sequence[int]]) -> Iterator[ReadPart]:
        """Read the metadata of ledgers, a part for each list of ids. Raises UnavailableError."""
        builder = TableBuilder()
        for of_part in ids:
            unreadable: list[tuple[int, str]] = []
            for start in range(0, len(of_part), _LEDGERS_PER_READ):
                chunk = of_part[start : start + _LEDGERS_PER_READ]
                for ledger_id, node in zip(chunk, self._nodes(chunk), strict=True):
                    if node is None:
                        continue
                    try:
                        if isinstance(node, Unreadable):
                            raise FormatError(node.detail)
                        builder.add_znode(ledger_id, node.data, max(node.ctime_ms, node.mtime_ms))
                    except FormatError as error:
                        unreadable.append((ledger_id, str(error)))
            yield ReadPart(len(of_part), builder.taken(), unreadable)

    def batches(self, could_not_list: Callable[[str, str], None]) -> Iterator[tuple[list[int], list[Node | None]]]:
        """Yield ids of ledgers with their znodes; None: it was deleted since it was listed. Raises UnavailableError.

        Args:
            could_not_list: called with a path, and why nothing is known at and below it.
        """
        for ids in self._ids(_LEDGERS_PER_READ, could_not_list):
            yield ids, self._nodes(ids)

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

    def _ids(self, at_once: int, could_not_list: Callable[[str, str], None]) -> Iterator[list[int]]:
        """List all ledgers, at most at_once of them in a list."""
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
            for first in range(0, len(ids), at_once):
                yield ids[first : first + at_once]

    def _nodes(self, ledger_ids: Sequence[int]) -> list[Node | None]:
        self._pace.wait_for(len(ledger_ids))
        return self._store.read_many([self.path(each) for each in ledger_ids])


@dataclass(frozen=True, slots=True)
class PartsTask:
    """A task of Workers: reads ledgers by a column of their ids. A batch of its results is a pickled ReadPart."""

    settings: Settings
    layout: Layout
    reads_per_second: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the ledgers of every batch. Raises UnavailableError."""
        store, root = process_store(self.settings), self.settings.zookeeper.ledgers_root
        reading = LedgerReading(store, root, self.layout, Pace(self.reads_per_second))
        for part in reading.parts(batch.column(0).to_pylist() for batch in batches):
            yield pa.record_batch([pa.array([pickle.dumps(part)], pa.binary())], ["part"])


def in_processes(workers: Workers, settings: Settings, layout: Layout, reads_per_second: float) -> PartReader:
    """Return a reader of parts in this process, and in several processes if that takes long."""

    def read(ids: Iterable[Sequence[int]]) -> Iterator[ReadPart]:
        batches = (pa.record_batch([pa.array(of_part, pa.int64())], ["id"]) for of_part in ids)
        for batch in workers.run(PartsTask(settings, layout, reads_per_second), batches):
            yield pickle.loads(batch.column(0)[0].as_py())  # noqa: S301  from this process, or one that it started

    return read
