"""Lists every ledger in BookKeeper's metadata: the folders of the last level first, and then what is in them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.clients import clients_for
from streaming.config.settings import Settings
from streaming.ports import MetadataStore, Unreadable
from streaming.sweep.pace import Pace
from udfs.columns import DETAIL, LEDGER_ID
from udfs.paths import Layout

_FOLDERS_PER_READ = 64  # 64 folders of 10,000 names of 6 bytes take 4 MB of memory
_LONG = re.compile(r"[0-9]{3}")
_SHORT = re.compile(r"[0-9]{2}")
_PART = re.compile(r"[0-9]{4}")
_LEAF = re.compile(r"L[0-9]{4}")
_LONG_LEVELS = 3  # levels between 000 and L0000 in /ledgers/000/0000/0000/0000/L0000
_SHORT_LEVELS = 1  # the same in /ledgers/00/0000/L0000

Problem = tuple[str, str]  # a path, and why nothing is known at and below it


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of the last level, which contain the ledgers."""

    paths: tuple[str, ...]  # ascending
    problems: tuple[Problem, ...]  # paths that could not be listed, or whose name is not a ledgers folder's


def find_folders(store: MetadataStore, root: str, layout: Layout) -> Folders:
    """Walk down to the folders that hold ledgers, level by level. Raises UnavailableError."""
    problems: list[Problem] = []
    top = _below(store, [root], None, problems)
    long = _descend(store, [path for path in top if _LONG.fullmatch(_name(path))], _LONG_LEVELS, problems)
    short = []
    if layout is Layout.HIERARCHICAL:  # in this layout too, ids from 2^31 on have the long form
        short = _descend(store, [path for path in top if _SHORT.fullmatch(_name(path))], _SHORT_LEVELS, problems)
    return Folders((*short, *long), tuple(problems))


def ids_in(
    root: str, folders: Sequence[str], names: Sequence[list[str] | Unreadable | None], problems: list[Problem]
) -> list[int]:
    """Return the ledger ids in listed folders. A folder that is gone by now had no ledger left."""
    ids: list[int] = []
    for folder, children in zip(folders, names, strict=True):
        if isinstance(children, Unreadable):
            problems.append((folder, children.detail))
        elif children:
            base = int(folder.removeprefix(root).replace("/", "")) * 10_000
            for name in children:
                if _LEAF.fullmatch(name):
                    # ids only: the metadata is read only of ledgers without a reference
                    ids.append(base + int(name[1:]))
                else:
                    problems.append((f"{folder}/{name}", "not the name of a ledger"))
    return ids


@dataclass(frozen=True, slots=True)
class ListTask:
    """A task: turns folders (audit_columns.LOCATION) into the ledgers in them (audit_columns.LISTED)."""

    settings: Settings
    reads_per_second: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """List every folder of every batch. Raises UnavailableError."""
        store = clients_for(self.settings).store
        pace = Pace(self.reads_per_second)
        root = self.settings.zookeeper.ledgers_root
        for batch in batches:
            folders = batch.column(0).to_pylist()
            for start in range(0, len(folders), _FOLDERS_PER_READ):
                group = folders[start : start + _FOLDERS_PER_READ]
                pace.wait_for(len(group))
                problems: list[Problem] = []
                ids = ids_in(root, group, store.children_many(group), problems)
                yield from _batches(ids, problems)


def _descend(store: MetadataStore, folders: list[str], levels: int, problems: list[Problem]) -> list[str]:
    for _level in range(levels):
        folders = _below(store, folders, _PART, problems)
    return folders


def _below(
    store: MetadataStore, folders: Sequence[str], pattern: re.Pattern[str] | None, problems: list[Problem]
) -> list[str]:
    """Return the children of all folders, ascending. pattern None: any name; the root has other znodes too."""
    paths: list[str] = []
    for folder, children in zip(folders, store.children_many(folders), strict=True):
        if isinstance(children, Unreadable):
            problems.append((folder, children.detail))
        for name in children if isinstance(children, list) else ():
            if pattern is None or pattern.fullmatch(name):
                paths.append(f"{folder}/{name}")
            else:
                problems.append((f"{folder}/{name}", "not the name of a ledgers folder"))
    return sorted(paths)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _batches(ids: list[int], problems: list[Problem]) -> Iterator[pa.RecordBatch]:
    if ids:
        nothing = pa.nulls(len(ids), pa.string())
        yield pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), nothing, nothing], schema=a.LISTED)
    if problems:
        rows = [{LEDGER_ID: None, a.PATH: path, DETAIL: detail} for path, detail in problems]
        yield pa.RecordBatch.from_pylist(rows, schema=a.LISTED)
