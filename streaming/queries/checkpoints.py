"""What Spark's checkpoints say about our queries: how far each partition was read, and whether its topic is the same.

`<folder>/offsets/N` holds a version line, a line of Spark's own, and one JSON object for each source: partition -> the
bytes of a MessageIdData (Pulsar's message id), as signed numbers. `commits/N` exists once batch N is done.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable

import pyarrow.fs as pafs

from streaming.config.settings import Settings
from streaming.config.stores import located
from streaming.errors import ConfigError, UnavailableError
from streaming.queries.names import FURTHER, Query, checkpoint_of, queries_of
from streaming.state.filesystem import Folder, folder_of, open_filesystem
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.formats.message_id import parse_message_id
from udfs.paths import base_topic, partition_index

NOTHING_READ: Position = (-1, -1)
MOST_LEFT_BEHIND = 20  # a read of the store and a question to a broker each
_WAY_OUT = "checkpoints/README.md, `How to retire one`, has the way"


def root_of(settings: Settings) -> str:
    """Return checkpoints.dir as open_filesystem takes it."""
    return located(settings.s3, settings.checkpoints.dir)


def location_of(settings: Settings, query: str) -> str:
    """Return a query's checkpoint as the functions here take it; names.checkpoint_of returns it as Spark takes it."""
    return located(settings.s3, checkpoint_of(settings, query))


def committed_positions(checkpoint: str) -> dict[str, Position]:
    """Return by partition the last (ledger, entry) that the newest committed batch read; empty before the first."""
    positions: dict[str, Position] = {}
    for partition, signed in _newest(checkpoint, "commits").items():
        with contextlib.suppress(FormatError):  # "earliest": nothing of this partition was read yet
            message_id = parse_message_id(bytes(byte & 0xFF for byte in signed))
            positions[partition] = (message_id.ledger_id, message_id.entry_id)
    return positions


def partitions_of(checkpoint: str) -> set[str]:
    """Return the partitions that the newest batch looked at, whether it is done or not."""
    return set(_newest(checkpoint, "offsets"))


def is_unfinished(checkpoint: str) -> bool:
    """Whether the newest batch was begun and not committed; it then runs again at the next start."""
    return newest_number(checkpoint, "offsets") > newest_number(checkpoint, "commits")


def what_is_left(settings: Settings, queries: Iterable[Query], *, was_idle: bool, cut_short: Iterable[str] = ()) -> str:
    """Tell what will run again at the next start, for the log. was_idle: no request was waiting any more.

    cut_short: names of what else was begun and has not ended.
    """
    try:
        unfinished = [each.name for each in queries if is_unfinished(location_of(settings, each.name))]
        unfinished += cut_short
    except UnavailableError as error:  # must not hide why the service stopped
        return f"whether all was finished could not be read: {error}"
    if not unfinished:
        return "all finished"
    names = ", ".join(unfinished)
    # where no request was waiting, such a batch is mostly an empty first one
    return f"all finished; a batch begun since runs again: {names}" if was_idle else f"abandoned, to run again: {names}"


def changes(settings: Settings, partitions: Callable[[str], int | None]) -> list[str]:
    """Name what has changed since a checkpoint was written, and what to do. partitions: how many a topic has."""
    return [fault for query in queries_of(settings) for fault in changes_of(settings, query, partitions)]


def changes_of(settings: Settings, query: Query, partitions: Callable[[str], int | None]) -> list[str]:
    """Do so for one query's checkpoint."""
    checkpoint = checkpoint_of(settings, query.name)
    read = partitions_of(location_of(settings, query.name))
    faults = [
        f"{checkpoint} has read {topic}, which is not its topic now ({', '.join(query.topics)}): what is unread "
        f"there would stay unread. Name it in [topics] as before, or begin a new checkpoint: {_WAY_OUT}."
        for topic in sorted({base_topic(each) for each in read} - set(query.topics))
    ]
    return faults + [
        f"{checkpoint} has read partition {number} of {topic}, which has {found or 'no'} partitions now: the topic "
        f"was deleted and made anew. Begin a new checkpoint: {_WAY_OUT}."
        for topic, number in _highest(read).items()
        if topic in query.topics and (found := partitions(topic) or 0) <= number
    ]


def left_behind(settings: Settings, queries: Collection[Query], partitions: Callable[[str], int | None]) -> list[str]:
    """Return a sentence for each topic that a checkpoint has read and no query reads now.

    At most MOST_LEFT_BEHIND such checkpoints are read, and the last sentence counts the others: topics that come and go
    leave any number.
    """
    used, read = {query.name for query in queries}, {topic for query in queries for topic in query.topics}
    names = sorted(name for name in _names(root_of(settings)) if name.startswith(FURTHER) and name not in used)
    found = [
        f"{topic}, which {checkpoint_of(settings, name)} has read, {_why_unread(partitions(topic))}. If that is meant: "
        f"{_WAY_OUT}."
        for name in names[:MOST_LEFT_BEHIND]
        for topic in sorted({base_topic(each) for each in partitions_of(location_of(settings, name))} - read)
    ]
    if further := names[MOST_LEFT_BEHIND:]:
        found.append(
            f"{len(further)} more checkpoints in {settings.checkpoints.dir} belong to no query that runs, such as "
            f"{further[0]}. If that is meant: {_WAY_OUT}."
        )
    return found


def _why_unread(partitions: int | None) -> str:
    if partitions is None:
        return "does not exist any more, and what was unread there is gone with it"
    return (
        "is not read now: it is neither in topics.requests nor taken up by topics.requests_pattern, and what is unread "
        "there waits until it is"
    )


def refuse_changes(settings: Settings, partitions: Callable[[str], int | None]) -> None:
    """Raise ConfigError where a topic is not the one that a checkpoint has read. Added partitions are read whole."""
    faults = changes(settings, partitions)
    if faults:
        raise ConfigError("the checkpoints can't be gone on with:\n  " + "\n  ".join(faults))


def _highest(partitions: Iterable[str]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for partition in partitions:
        topic = base_topic(partition)
        highest[topic] = max(highest.get(topic, -1), partition_index(partition))
    return highest


def offsets_in(checkpoint: Folder, path: str) -> dict[str, list[int]]:
    """Return partition -> the signed bytes of its offset, as a file below offsets/ or sources/ names them.

    Raises UnavailableError.
    """
    header_lines = 2 if path.startswith("offsets/") else 1
    try:
        lines = (checkpoint.read(path) or b"").decode().splitlines()
        if len(lines) <= header_lines:
            raise ValueError("it is missing or cut short")
        return {partition: signed for line in lines[header_lines:] for partition, signed in json.loads(line).items()}
    except ValueError as error:
        raise UnavailableError(
            f"{checkpoint.root}/{path} can't be read: {error}; checkpoints/README.md, `Damaged?`"
        ) from error


def _newest(checkpoint: str, kind: str) -> dict[str, list[int]]:
    """Return the offsets of the newest batch that has a file of that kind."""
    newest = newest_number(checkpoint, kind)
    if newest < 0:
        return {}
    return offsets_in(folder_of(checkpoint), f"offsets/{newest}")


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
