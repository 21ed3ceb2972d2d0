"""Converts the checkpoints of a stopped service between the connector's form and that of "pulsar-frames".

udfs/pulsar_source/conversion.py decides for each partition, and refuses what can't be proven.

1. plan() changes nothing, and refuses unless all checkpoints can be converted.
2. carry_out() writes the plan with the contents of all new files to `converting.json`, before anything else. As long as
   this file exists, no service starts (checkpoints.refuse_other_writer), so a run that was killed is repeated from it.
3. Before any checkpoint is changed, the files with which Spark resumes are copied to a folder beside each.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import pyarrow.fs as pafs

from streaming.config.settings import Settings
from streaming.errors import SafetyError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import CONVERTING, copy_resumed, root_of
from streaming.queries.names import FURTHER, VERSION
from streaming.queries.stored_checkpoint import StoredCheckpoint, newest_done, stats_of
from streaming.schemas import REQUESTS, RETRY
from streaming.state.filesystem import Folder, below, folder_of, translated
from udfs.entry_ranges import count_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.formats.spark_offsets import Writer, connector_offset, frames_offset
from udfs.paths import base_topic
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
    stored = [each for name in names if (each := StoredCheckpoint.read(settings, name)) is not None]
    found = [each for each in stored if each.newest.writer is not writer]
    topics = {topic for each in found for topic in each.topics}
    done = newest_done(settings.state_dir, topics) if writer is Writer.FRAMES else {}
    converted, faults = [], []
    for checkpoint in found:
        try:
            converted.append(_converted(checkpoint, admin, done))
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


def _converted(stored: StoredCheckpoint, admin: TopicAdmin, done: Mapping[str, Position]) -> Converted:
    """Convert a checkpoint. Raises _RefusedError, UnavailableError.

    done: by partition, the newest entry that may have been processed.
    """
    partitions = {*stored.newest.positions, *(stored.before.positions if stored.before else ())}
    if stored.newest.writer is Writer.FRAMES:
        return _to_connector(stored, stats_of(admin, partitions))
    partitions |= {partition for partition in done if base_topic(partition) in stored.topics}
    return _to_frames(stored, stats_of(admin, partitions), done)


def _to_frames(
    stored: StoredCheckpoint, stats: Mapping[str, InternalStats | None], done: Mapping[str, Position]
) -> Converted:
    committed = stored.before.positions if stored.before else {}
    started = stored.newest.positions if stored.started > stored.committed else {}

    def part(name: str) -> FramesPart:
        upto = max(started.get(name, BEFORE_ALL), done.get(name, BEFORE_ALL))
        return to_frames(committed.get(name, BEFORE_ALL), upto, stats[name])

    parts = _each(stats, part)
    read = {name: part.committed for name, part in parts.items() if part.committed is not None}
    repeated = {name: part.repeated for name, part in parts.items() if part.repeated is not None}
    files = stored.files(frames_offset(read))
    says = f"{stored.query}: read up to batch {stored.number}"
    if repeated:
        files[f"offsets/{stored.number + 1}"] = stored.offsets(frames_offset(read | repeated))
        entries = sum(count_of(part.spans) for part in repeated.values())
        says += f"; the first batch is the next {entries:,} entries, because these may have receipts"
    return Converted(stored.query, files, says)


def _to_connector(stored: StoredCheckpoint, stats: Mapping[str, InternalStats | None]) -> Converted:
    committed = stored.before.frames if stored.before else {}
    started = stored.newest.frames if stored.started > stored.committed else {}
    positions = _each(stats, lambda name: to_connector(committed.get(name), started.get(name), stats[name]))
    says = f"{stored.query}: read up to batch {stored.number}; the first batch is all later entries"
    return Converted(stored.query, stored.files(connector_offset(positions)), says)


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


def _empty(folder: Folder) -> None:
    """Remove a query's checkpoint, and leave what is beside it."""
    path = f"{folder.root}/{VERSION}"
    with translated(path, "removed"):
        if folder.filesystem.get_file_info(path).type is pafs.FileType.Directory:
            folder.filesystem.delete_dir(path)


def _is_query(name: str) -> bool:
    return name in (REQUESTS, RETRY) or name.startswith(FURTHER)
