"""Reads Spark's checkpoints of our queries: how far each partition was read, and whether its topic is the same.

`<folder>/offsets/N` contains how far batch N reads (udfs/formats/spark_offsets.py), in the form of the connector or of
our source "pulsar-frames". `commits/N` exists once batch N is done.
"""

from collections.abc import Callable, Collection, Iterable

import pyarrow.fs as pafs

from streaming.config.settings import Settings
from streaming.config.stores import located
from streaming.errors import ConfigError, UnavailableError
from streaming.queries.names import FURTHER, Query, checkpoint_of, further_query, queries_of, short_name_of
from streaming.spark.installed import has_connector, spark_version
from streaming.state.filesystem import Folder, folder_of, open_filesystem, shown
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.formats.spark_offsets import StoredOffsets, Writer, parse_offsets
from udfs.paths import base_topic, partition_index
from udfs.requests.lanes import ALL_LANES

NOTHING_READ: Position = (-1, -1)
MOST_LEFT_BEHIND = 20  # each takes a read of the store and a request to a broker
FIRST = "sources/0/0"  # the position where the connector started; Spark keeps it as long as the checkpoint
CONVERTING = "converting.json"  # in checkpoints.dir while checkpoints are converted (queries/conversion.py)
_WAY_OUT = "see checkpoints/README.md, `How to retire one`"
_CONVERT = "`ledger-reaper checkpoints convert`"


class DamagedCheckpointError(UnavailableError):
    """A file of a checkpoint is missing or has an unknown form: it stays unreadable until an operator repairs it."""


def root_of(settings: Settings) -> str:
    """Return checkpoints.dir in the form that open_filesystem takes."""
    return located(settings.s3, settings.checkpoints.dir)


def location_of(settings: Settings, query: str) -> str:
    """Return a query's checkpoint in the form that the functions here take (names.checkpoint_of: Spark's form)."""
    return located(settings.s3, checkpoint_of(settings, query))


def committed_positions(checkpoint: str) -> dict[str, Position]:
    """Return by partition the last (ledger, entry) that the newest committed batch read; empty before the first.

    Entry -1: everything before the ledger's first entry was read.
    """
    committed = _newest(checkpoint, "commits")
    # a partition that was not read yet is left out
    return {name: at for name, at in committed.positions.items() if at > NOTHING_READ} if committed else {}


def partitions_of(checkpoint: str) -> set[str]:
    """Return the partitions of the newest batch, whether it is done or not."""
    newest = _newest(checkpoint, "offsets")
    return set(newest.positions) if newest else set()


def installed_writer() -> Writer:
    """Return what reads Pulsar with the installed PySpark."""
    return Writer.CONNECTOR if has_connector() else Writer.FRAMES


def refuse_other_writer(settings: Settings) -> None:
    """Raise ConfigError if the installed PySpark can't resume a checkpoint, or while checkpoints are being converted.

    To be called before anything else reads or moves checkpoints. Raises UnavailableError.
    """
    if folder_of(root_of(settings)).read(CONVERTING) is not None:
        raise ConfigError(
            f"the conversion of the checkpoints in {settings.checkpoints.dir} was interrupted, and nothing was read or "
            f"deleted since: run {_CONVERT} again, which completes it"
        )
    queries = queries_of(settings)
    names = [name for query in queries for name in (query.name, short_name_of(query)) if name is not None]
    if faults := [fault for name in names for fault in _writer_faults(settings, name)]:
        raise ConfigError("nothing was read or deleted:\n  " + "\n  ".join(faults))


def _writer_faults(settings: Settings, name: str) -> list[str]:
    newest = _newest(location_of(settings, name), "offsets")
    if newest is None or newest.writer is installed_writer():
        return []
    return [
        f"{checkpoint_of(settings, name)} was written by {newest.writer}, and PySpark {spark_version()} reads through "
        f"{installed_writer()}. {_CONVERT} converts all checkpoints (checkpoints/README.md, `To another PySpark`)."
    ]


def is_unfinished(checkpoint: str) -> bool:
    """Whether the newest batch was started but not committed; it then runs again at the next start."""
    return newest_number(checkpoint, "offsets") > newest_number(checkpoint, "commits")


def what_is_left(settings: Settings, queries: Iterable[Query], *, was_idle: bool, cut_short: Iterable[str] = ()) -> str:
    """Describe for the log what will run again at the next start.

    Args:
        was_idle: whether no request was waiting any more.
        cut_short: names of other work that was started and has not ended.
    """
    try:
        unfinished = [query.name for query in queries if is_unfinished(location_of(settings, query.name))]
        unfinished += cut_short
    except UnavailableError as error:  # must not hide why the service stopped
        return f"whether all was finished could not be read: {error}"
    if not unfinished:
        return "all finished"
    names = ", ".join(unfinished)
    # if no request was waiting, such a batch is usually an empty first batch
    return f"all finished; a batch started since runs again: {names}" if was_idle else f"abandoned, runs again: {names}"


def changes(settings: Settings, partitions: Callable[[str], int | None]) -> list[str]:
    """Name what has changed since the checkpoints were written, and what to do.

    partitions: returns how many partitions a topic has, None if it does not exist.
    """
    return [fault for query in queries_of(settings) for fault in changes_of(settings, query, partitions)]


def changes_of(settings: Settings, query: Query, partitions: Callable[[str], int | None]) -> list[str]:
    """Name what has changed since one query's checkpoint was written, and what to do."""
    if faults := _writer_faults(settings, query.name):
        return faults
    checkpoint = checkpoint_of(settings, query.name)
    read = partitions_of(location_of(settings, query.name))
    faults = [
        f"{checkpoint} has read {topic}, which is not its topic now ({', '.join(query.topics)}): what is unread "
        f"there would stay unread. Name it in [topics] as before, or start a new checkpoint: {_WAY_OUT}."
        for topic in sorted({base_topic(partition) for partition in read} - set(query.topics))
    ]
    return faults + [
        f"{checkpoint} has read partition {number} of {topic}, which has {count or 'no'} partitions now: the topic "
        f"was deleted and created again. Start a new checkpoint: {_WAY_OUT}."
        for topic, number in _highest(read).items()
        if topic in query.topics and (count := partitions(topic) or 0) <= number
    ]


def left_behind(
    settings: Settings,
    queries: Collection[Query],
    partitions: Callable[[str], int | None],
    read_in_passes: Collection[str] = (),
    claimed: Collection[str] = (),
) -> list[str]:
    """Return a sentence for each topic that was read before, and that neither a query nor a pass reads now.

    At most MOST_LEFT_BEHIND checkpoints and as many topics without one are checked, and a sentence counts the others:
    topics that come and go leave any number.

    Args:
        settings: of the service.
        queries: those that run.
        partitions: returns how many partitions a topic has, None if it does not exist.
        read_in_passes: the topics that passes read; they leave no checkpoint.
        claimed: the topics that the service owns (coordination.ownership).
    """
    readers = (*queries, *map(further_query, read_in_passes))
    used, read = {query.name for query in readers}, {topic for query in readers for topic in query.topics}
    names = sorted(name for name in _names(root_of(settings)) if name.startswith(FURTHER) and name not in used)
    left = [
        (topic, name)
        for name in names[:MOST_LEFT_BEHIND]
        for topic in sorted({base_topic(partition) for partition in partitions_of(location_of(settings, name))} - read)
    ]
    sentences = [
        f"{topic}, which {checkpoint_of(settings, name)} has read, {_why_unread(partitions(topic))}. If that is "
        f"intended: {_WAY_OUT}."
        for topic, name in left
    ]
    named = {topic for topic, _name in left}
    others = {*claimed} - {*settings.topics.claims, ALL_LANES}
    unread = sorted(topic for topic in others if not settings.topics.takes(topic))
    sentences += [
        f"{topic}, which this service owns, {_why_unread(count)}. If that is intended: `ledger-reaper release --topic "
        f"{topic}`."
        for topic in unread[:MOST_LEFT_BEHIND]
        if topic not in named and (count := partitions(topic)) is not None  # the next start releases one that is gone
    ]
    if more := len(unread[MOST_LEFT_BEHIND:]):
        sentences.append(f"{more} more topics that this service owns are not read now, such as {unread[-1]}.")
    if further := names[MOST_LEFT_BEHIND:]:
        sentences.append(
            f"{len(further)} more checkpoints in {settings.checkpoints.dir} belong to no query that runs, such as "
            f"{further[0]}. If that is intended: {_WAY_OUT}."
        )
    return sentences


def _why_unread(partitions: int | None) -> str:
    if partitions is None:
        return "no longer exists, and its unread messages are gone with it"
    return (
        "is not read now: it is neither in topics.requests nor matches topics.requests_pattern, and its unread "
        "messages wait until it is"
    )


def refuse_changes(settings: Settings, partitions: Callable[[str], int | None]) -> None:
    """Raise ConfigError if a topic is not the topic that its checkpoint has read. Added partitions are read whole."""
    faults = changes(settings, partitions)
    if faults:
        raise ConfigError("the checkpoints do not fit the topics:\n  " + "\n  ".join(faults))


def _highest(partitions: Iterable[str]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for partition in partitions:
        topic = base_topic(partition)
        highest[topic] = max(highest.get(topic, -1), partition_index(partition))
    return highest


def offsets_in(checkpoint: Folder, path: str) -> StoredOffsets:
    """Read a file below offsets/, or sources/0/0. Raises UnavailableError, DamagedCheckpointError."""
    try:
        content = checkpoint.read(path)
        if content is None:
            raise FormatError("it does not exist")
        return parse_offsets(content.decode(), is_first=not path.startswith("offsets/"))
    except ValueError as error:
        raise DamagedCheckpointError(
            f"{shown(checkpoint.location)}/{path} can't be read: {error}; checkpoints/README.md, `Damaged?`"
        ) from error


def write_file(checkpoint: Folder, name: str, content: str) -> None:
    """Write a file of a checkpoint as Spark does. Raises UnavailableError."""
    _forget_checksum(checkpoint, name)  # of a file that is replaced, or that Spark did not complete
    checkpoint.write(name, content.encode())


def delete_file(checkpoint: Folder, name: str) -> None:
    """Delete a file of a checkpoint with its checksum. Raises UnavailableError."""
    checkpoint.delete(name)
    _forget_checksum(checkpoint, name)


def _forget_checksum(checkpoint: Folder, name: str) -> None:
    folder, _, file_name = name.rpartition("/")
    checkpoint.delete(f"{folder}/.{file_name}.crc")  # Spark refuses a file whose checksum does not match


def copy_resumed(old: Folder, new: Folder) -> None:
    """Copy the files that Spark reads when it resumes; the offsets last. Raises UnavailableError."""
    newest = newest_number(old.location, "offsets")
    numbers = [number for number in (newest - 1, newest) if number >= 0]
    others = ["metadata", FIRST, *(f"commits/{number}" for number in numbers)]
    for name in (*others, *(f"offsets/{number}" for number in numbers)):
        if (content := old.read(name)) is not None:
            new.write(name, content)


def _newest(checkpoint: str, kind: str) -> StoredOffsets | None:
    """Return the offsets of the newest batch that has a file of that kind."""
    newest = newest_number(checkpoint, kind)
    return None if newest < 0 else offsets_in(folder_of(checkpoint), f"offsets/{newest}")


def newest_number(checkpoint: str, kind: str) -> int:
    """Return the number of the newest batch that has a file of that kind, `offsets` or `commits`; -1 without any."""
    return max((int(name) for name in _names(checkpoint, kind) if name.isdigit()), default=-1)


def _names(location: str, *below: str) -> list[str]:
    filesystem, root = open_filesystem(location)
    folder = "/".join((root, *below))
    try:
        infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    except OSError as error:
        raise UnavailableError(f"{folder} can't be listed: {error}") from error
    return [info.base_name for info in infos]
