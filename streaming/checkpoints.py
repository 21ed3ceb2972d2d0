"""What Spark's checkpoints say of our queries: how far each partition was read, and whether that still makes sense.

`<folder>/offsets/N` is a version line, a line of Spark's own, and one JSON object a source: partition -> the bytes of
a MessageIdData, signed. `commits/N` exists once batch N is done.
"""

import contextlib
import json
from collections.abc import Callable, Iterable

import pyarrow.fs as pafs

from streaming.config import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.journal import open_filesystem
from streaming.queries import FURTHER, Query, checkpoint_of, queries_of
from udfs.formats.errors import FormatError
from udfs.formats.message_id import parse_message_id
from udfs.paths import base_topic, partition_index

Position = tuple[int, int]
NOTHING_READ: Position = (-1, -1)
_WAY_OUT = "checkpoints/README.md, `How to retire one`, has the way"


def committed_positions(checkpoint: str) -> dict[str, Position]:
    """Partition -> (ledger, entry) up to which the newest committed batch read; empty before the first."""
    positions: dict[str, Position] = {}
    for partition, signed in _newest(checkpoint, "commits").items():
        with contextlib.suppress(FormatError):  # "earliest": nothing was read of this partition yet
            message_id = parse_message_id(bytes(byte & 0xFF for byte in signed))
            positions[partition] = (message_id.ledger_id, message_id.entry_id)
    return positions


def partitions_of(checkpoint: str) -> set[str]:
    """Partitions that the newest batch looked at, done or not."""
    return set(_newest(checkpoint, "offsets"))


def is_unfinished(checkpoint: str) -> bool:
    """Whether the newest batch was begun and not committed: it runs again at the next start."""
    return _number(checkpoint, "offsets") > _number(checkpoint, "commits")


def changes(settings: Settings, partitions: Callable[[str], int | None]) -> list[str]:
    """What is not as it was when a checkpoint was written, with the way out. partitions: how many a topic has."""
    return [fault for query in queries_of(settings) for fault in changes_of(settings, query, partitions)]


def changes_of(settings: Settings, query: Query, partitions: Callable[[str], int | None]) -> list[str]:
    """The same of one query's checkpoint."""
    checkpoint = checkpoint_of(settings, query.name)
    read = partitions_of(checkpoint)
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


def left_behind(
    settings: Settings, queries: Iterable[Query], partitions: Callable[[str], int | None]
) -> dict[str, str]:
    """Topic -> what is to be said of it, of those that a checkpoint has read and no query reads now."""
    used = {query.name for query in queries}
    filesystem, root = open_filesystem(settings.checkpoints.dir)
    folders = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    said = {}
    for name in sorted(each.base_name for each in folders if each.base_name.startswith(FURTHER)):
        checkpoint = checkpoint_of(settings, name)
        for topic in sorted({base_topic(each) for each in partitions_of(checkpoint)}) if name not in used else ():
            what = (
                "does not exist any more, and what was unread there is gone with it"
                if partitions(topic) is None
                else "is not read now: it is neither in topics.requests nor taken up by topics.requests_pattern, and "
                "what is unread there waits until it is"
            )
            said[topic] = f"{topic}, which {checkpoint} has read, {what}. If that is meant: {_WAY_OUT}."
    return said


def refuse_changes(settings: Settings, partitions: Callable[[str], int | None]) -> None:
    """Raise ConfigError where a checkpoint can not be gone on with. More partitions are fine: they are read whole."""
    faults = changes(settings, partitions)
    if faults:
        raise ConfigError("the checkpoints can't be gone on with:\n  " + "\n  ".join(faults))


def _highest(partitions: Iterable[str]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for partition in partitions:
        topic = base_topic(partition)
        highest[topic] = max(highest.get(topic, -1), partition_index(partition))
    return highest


def _newest(checkpoint: str, kind: str) -> dict[str, list[int]]:
    """Offsets of the newest batch of which there is a file of that kind."""
    newest = _number(checkpoint, kind)
    if newest < 0:
        return {}
    filesystem, root = open_filesystem(checkpoint)
    path = f"{root}/offsets/{newest}"
    try:
        with filesystem.open_input_stream(path) as stream:
            lines = stream.read().decode().splitlines()
        return {partition: signed for line in lines[2:] for partition, signed in json.loads(line).items()}
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{path} can't be read: {error}; checkpoints/README.md, `Damaged?`") from error


def _number(checkpoint: str, kind: str) -> int:
    filesystem, root = open_filesystem(checkpoint)
    infos = filesystem.get_file_info(pafs.FileSelector(f"{root}/{kind}", allow_not_found=True))
    return max((int(info.base_name) for info in infos if info.base_name.isdigit()), default=-1)
