"""Converts the checkpoints of a stopped service between the connector's form and that of "pulsar-frames".

udfs/pulsar_source/conversion.py decides for each partition, and refuses what can't be proven.

1. plan() changes nothing, and refuses unless all checkpoints can be converted.
2. carry_out() writes the plan with the contents of all new files to `converting.json`, before anything else. As long as
   this file exists, no service starts (checkpoints.refuse_other_writer), so a run that was killed is repeated from it.
3. Before any checkpoint is changed, the files with which Spark resumes are copied to a folder beside each.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow.fs as pafs

from streaming.config.settings import Settings
from streaming.errors import SafetyError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import (
    CONVERTING,
    copy_resumed,
    location_of,
    newest_number,
    offsets_in,
    root_of,
)
from streaming.queries.delivery.batches import COMMIT
from streaming.queries.names import FURTHER, VERSION, checkpoint_of
from streaming.schemas import REQUESTS, RETRY
from streaming.state import receipts, waiting
from streaming.state.filesystem import Folder, below, folder_of, translated
from udfs.entry_ranges import count_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.formats.spark_offsets import VERSION_LINE, StoredOffsets, Writer, connector_offset, frames_offset
from udfs.paths import base_topic, partition_index
from udfs.pulsar_source.conversion import FramesPart, NotConvertibleError, to_connector, to_frames

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Converted:
    """A checkpoint after its conversion."""

    query: str
    files: Mapping[str, str]  # path in the checkpoint's folder -> content; there are no others
    says: str  # for the operator


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion. The field names are the keys of converting.json."""

    writer: Writer  # of the new checkpoints
    aside: str  # folder beside each checkpoint, for what it was
    checkpoints: tuple[Converted, ...]
    is_aside: bool = False  # whether all copies were made


def interrupted(settings: Settings) -> Plan | None:
    """Return the plan of a conversion that has started and not ended. Raises UnavailableError, SafetyError."""
    content = folder_of(root_of(settings)).read(CONVERTING)
    if content is None:
        return None
    try:
        stored: dict[str, Any] = json.loads(content)
        checkpoints = tuple(Converted(**each) for each in stored["checkpoints"])
        return Plan(Writer(stored["writer"]), str(stored["aside"]), checkpoints, bool(stored["is_aside"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SafetyError(f"{settings.checkpoints.dir}/{CONVERTING} can't be read: {error}") from error


def plan(settings: Settings, admin: TopicAdmin, writer: Writer, stamp: str) -> Plan:
    """Plan the conversion of all checkpoints that another writer wrote. No service may run.

    stamp: makes the name of the folder for the old checkpoints unique.

    Raises SafetyError, which names all that can't be converted, and UnavailableError.
    """
    names = [name for name in folder_of(root_of(settings)).folders() if _is_query(name)]
    found = [each for name in names if (each := _Checkpoint.read(settings, name)) and each.newest.writer is not writer]
    topics = {topic for each in found for topic in each.topics}
    done = _newest_done(settings.state_dir, topics) if writer is Writer.FRAMES else {}
    converted, faults = [], []
    for checkpoint in found:
        try:
            converted.append(checkpoint.converted(admin, done))
        except _RefusedError as error:
            faults += [f"{checkpoint.shown}, {fault}" for fault in error.faults]
    if faults:
        raise SafetyError("nothing was converted:\n  " + "\n  ".join(faults))
    return Plan(writer, f"{VERSION}-before-{stamp}", tuple(converted))


def carry_out(settings: Settings, plan: Plan) -> None:
    """Carry out a plan, or what is left of it. No service may run. Raises UnavailableError.

    After an error, or a kill, no service starts until another call has ended.
    """
    root = folder_of(root_of(settings))
    root.write(CONVERTING, json.dumps(asdict(plan)).encode())
    folders = {each.query: folder_of(below(root.location, each.query)) for each in plan.checkpoints}
    if not plan.is_aside:
        for folder in folders.values():
            copy_resumed(folder_of(below(folder.location, VERSION)), folder_of(below(folder.location, plan.aside)))
        root.write(CONVERTING, json.dumps(asdict(replace(plan, is_aside=True))).encode())
    for each in plan.checkpoints:
        folder = folders[each.query]
        _empty(folder)
        for name, content in each.files.items():
            folder.write(f"{VERSION}/{name}", content.encode())
    root.delete(CONVERTING, durably=True)


class _RefusedError(Exception):
    def __init__(self, faults: list[str]) -> None:
        super().__init__(faults)
        self.faults = faults


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint as it is."""

    query: str
    shown: str
    metadata: str  # contents of the file
    started: int  # number of the last started batch
    newest: StoredOffsets  # of that batch
    spark_line: str  # Spark's own line in the same file
    committed: int  # number of the last committed batch; -1: none was
    before: StoredOffsets | None  # of that batch

    @classmethod
    def read(cls, settings: Settings, name: str) -> "_Checkpoint | None":
        """Return a query's checkpoint; None if it has no batch. Raises UnavailableError, SafetyError."""
        location, where = location_of(settings, name), checkpoint_of(settings, name)
        folder = folder_of(location)
        started, committed = newest_number(location, "offsets"), newest_number(location, "commits")
        if started < 0 and committed < 0:
            return None
        metadata = folder.read("metadata")
        if metadata is None or committed not in (started, started - 1):
            raise SafetyError(
                f"{where} is damaged: batch {started} was started last, and {committed} committed last; "
                "see checkpoints/README.md, `Damaged?`"
            )
        newest = offsets_in(folder, f"offsets/{started}")
        before = offsets_in(folder, f"offsets/{committed}") if committed >= 0 else None
        if before is not None and before.writer is not newest.writer:
            raise SafetyError(f"{where} has batches of {before.writer} and of {newest.writer}: move it away")
        spark_line = (folder.read(f"offsets/{started}") or b"").decode().splitlines()[1]
        return cls(name, where, metadata.decode(), started, newest, spark_line, committed, before)

    @property
    def topics(self) -> set[str]:
        """The topics that were read."""
        return {base_topic(partition) for partition in self.newest.positions}

    def converted(self, admin: TopicAdmin, done: Mapping[str, Position]) -> Converted:
        """Convert it. Raises _RefusedError, UnavailableError.

        done: by partition, the newest entry that may have been processed.
        """
        partitions = {*self.newest.positions, *(self.before.positions if self.before else ())}
        if self.newest.writer is Writer.FRAMES:
            return self._to_connector(_stats(admin, partitions))
        partitions |= {partition for partition in done if base_topic(partition) in self.topics}
        return self._to_frames(_stats(admin, partitions), done)

    def _to_frames(self, stats: Mapping[str, InternalStats | None], done: Mapping[str, Position]) -> Converted:
        committed = self.before.positions if self.before else {}
        started = self.newest.positions if self.started > self.committed else {}

        def part(name: str) -> FramesPart:
            upto = max(started.get(name, BEFORE_ALL), done.get(name, BEFORE_ALL))
            return to_frames(committed.get(name, BEFORE_ALL), upto, stats[name])

        parts = _each(stats, part)
        read = {name: part.committed for name, part in parts.items() if part.committed is not None}
        repeated = {name: part.repeated for name, part in parts.items() if part.repeated is not None}
        files = self._files(frames_offset(read))
        says = f"{self.query}: read up to batch {self.number}"
        if repeated:
            files[f"offsets/{self.number + 1}"] = self._offsets(frames_offset(read | repeated))
            entries = sum(count_of(part.spans) for part in repeated.values())
            says += f"; the first batch is the next {entries:,} entries, because these may have receipts"
        return Converted(self.query, files, says)

    def _to_connector(self, stats: Mapping[str, InternalStats | None]) -> Converted:
        committed = self.before.frames if self.before else {}
        started = self.newest.frames if self.started > self.committed else {}
        positions = _each(stats, lambda name: to_connector(committed.get(name), started.get(name), stats[name]))
        says = f"{self.query}: read up to batch {self.number}; the first batch is all later entries"
        return Converted(self.query, self._files(connector_offset(positions)), says)

    @property
    def number(self) -> int:
        """The last committed batch of the converted checkpoint, which has one even if nothing was committed before."""
        return max(self.committed, 0)

    def _files(self, offset: str) -> dict[str, str]:
        """Return the files of a checkpoint whose last batch is committed."""
        return {
            "metadata": self.metadata,
            f"offsets/{self.number}": self._offsets(offset),
            f"commits/{self.number}": COMMIT,
        }

    def _offsets(self, offset: str) -> str:
        return f"{VERSION_LINE}\n{self.spark_line}\n{offset}"


def _each(stats: Mapping[str, InternalStats | None], convert: Callable[[str], _Part]) -> dict[str, _Part]:
    """Convert each partition. Raises _RefusedError, which names all that can't be converted."""
    converted, faults = {}, []
    for name in sorted(stats):
        try:
            converted[name] = convert(name)
        except NotConvertibleError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise _RefusedError(faults)
    return converted


def _stats(admin: TopicAdmin, partitions: Iterable[str]) -> dict[str, InternalStats | None]:
    """Return the stats of each partition; None: it does not exist."""
    counts: dict[str, int | None] = {}
    stats: dict[str, InternalStats | None] = {}
    for partition in partitions:
        topic, index = base_topic(partition), partition_index(partition)
        if topic not in counts:
            counts[topic] = admin.partitions(topic)
        count = counts[topic]
        exists = count is not None and (index < count if index >= 0 else count == 0)
        stats[partition] = admin.internal_stats(partition) if exists else None
    return stats


def _newest_done(state_dir: str, topics: Collection[str]) -> dict[str, Position]:
    """Return, by partition, the newest entry that has a receipt or waits as a retry."""

    @lru_cache(maxsize=4096)
    def is_wanted(partition: str) -> bool:
        return base_topic(partition) in topics

    done: dict[str, Position] = {}
    for table in (receipts.TABLE, waiting.TABLE):
        for partition, at in receipts.newest_positions(state_dir, is_wanted, table=table).items():
            done[partition] = max(at, done.get(partition, at))
    return done


def _empty(folder: Folder) -> None:
    """Remove a query's checkpoint, and leave what is beside it."""
    path = f"{folder.root}/{VERSION}"
    with translated(path, "removed"):
        if folder.filesystem.get_file_info(path).type is pafs.FileType.Directory:
            folder.filesystem.delete_dir(path)


def _is_query(name: str) -> bool:
    return name in (REQUESTS, RETRY) or name.startswith(FURTHER)
