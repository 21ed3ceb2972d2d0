"""What a store holds: its queues with the ends of each, its commitlog, and its JSON files.

Nothing is written, and no file is read whole. So an inventory of a copy, or of a store whose broker runs, costs little.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.errors import SafetyError
from streaming.rocketmq.log_files import LOST_AND_FOUND, CommitLog, commitlog_of, start_of
from streaming.rocketmq.place import BARRIER, Place
from streaming.rocketmq.queue_files import QueueFiles, files_of
from udfs.rocketmq import metadata as m
from udfs.rocketmq.json_text import BadJsonError, parse
from udfs.rocketmq.parts import QueueRange, in_key_order


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue. first: queue offset of its first live unit; end: that of the next message. last_phy: where the message
    of its last unit begins, -1 where the queue has no unit.
    """

    range: QueueRange
    files: QueueFiles
    last_phy: int

    @property
    def name(self) -> str:
        """Topic and queue id, for people."""
        return f"{self.range.topic.decode('utf-8', 'replace')}-{self.range.queue_id}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """queues: in the order of their keys; a queue's number is its place here."""

    place: Place
    log: CommitLog
    queues: tuple[Queue, ...]

    @property
    def units(self) -> int:
        """Units that have their message still."""
        return sum(each.range.end - each.range.first for each in self.queues)

    @property
    def lacks_queues(self) -> bool:
        """Whether the log has messages that belong into queues, and no queue has any. Raises SafetyError."""
        return all(queue.last_phy < 0 for queue in self.queues) and self.log.has_indexed

    @property
    def checkpoint(self) -> int:
        """What CHECKPOINT has to say: where the last message begins that is in any queue.

        A broker indexes at its start what begins behind CHECKPOINT. So it finds whatever the queues lack, be it that a
        broker stopped before its queues had all, or that one has worked in file mode since.
        """
        last = max((queue.last_phy for queue in self.queues), default=-1)
        return last if last >= 0 else self.log.end

    @property
    def unindexed_bytes(self) -> int:
        """Bytes of the log after the last message that any queue has. Raises SafetyError."""
        record = self.log.record_at(self.checkpoint)
        return max(self.log.end - self.checkpoint - (record.size if record else 0), 0)

    def fingerprint(self) -> str:
        """Return a digest of what a conversion depends on.

        That is names, sizes and times of all files, which change when a broker has worked on the store; which file of
        offsets counts; and where the databases go. Raises SafetyError where nobody has said which offsets count.
        """
        digest = hashlib.sha256(
            "\n".join([offsets_name(self.place), *map(str, (self.place.rocksdb, self.place.config)), ""]).encode()
        )
        paths = [file.path for queue in self.queues for file in queue.files.files]
        paths += [file.path for file in self.log.files]
        paths += [str(self.place.config / f"{name}{suffix}") for name in JSON_FILES for suffix in ("", ".bak")]
        for path in paths:
            digest.update(_stamp(path).encode())
        return digest.hexdigest()


_QUEUE_ID, _MOST_QUEUE_ID = re.compile("0|[1-9][0-9]*"), 2**31 - 1
_NO_TOPICS = (LOST_AND_FOUND, BARRIER)
# A file of a million offsets has about 60 MB. To parse one takes ten times its size of memory.
JSON_BYTES_MAX = 128 << 20
_HEAD_BYTES = 64 << 10
JSON_FILES = (m.TOPICS_JSON, m.GROUPS_JSON, m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON)


def inventory_of(place: Place, log: CommitLog | None = None) -> Inventory:
    """Look at a store. Raises SafetyError, which names the file, at bytes that no healthy store has.

    log: its commitlog, if that was looked at already.
    """
    start = log.start if log else start_of(place.commitlog)
    found = [(topic, queue_id, files_of(folder)) for topic, queue_id, folder in _folders(place.consumequeue)]
    ends = [files.end() for _topic, _queue_id, files in found]
    ranges = [
        QueueRange(number, topic.encode(), queue_id, files.first_live(end, start), end)
        for number, ((topic, queue_id, files), end) in enumerate(zip(found, ends, strict=True))
    ]
    queues = []
    for place_in_order, each in enumerate(in_key_order(ranges)):
        files = found[each.number][2]
        queues.append(Queue(each._replace(number=place_in_order), files, _last_phy(files, each.end)))
    last = max((queue.last_phy for queue in queues), default=-1)
    return Inventory(place, log or commitlog_of(place.commitlog, last), tuple(queues))


def json_table(config: Path, name: str) -> tuple[dict[str, Any], str] | None:
    """Read a JSON file, or where that is empty or missing its .bak, as the broker does; and say which one it was.

    None if neither is there. Raises SafetyError, which names file and character, at one that is no JSON.
    """
    for each in (name, f"{name}.bak"):
        path = config / each
        text = read_bounded(path)
        if not text.strip():
            continue
        try:
            table = parse(text)
        except BadJsonError as error:
            raise SafetyError(f"{path}, character {error.position}: {error.text}") from error
        if not isinstance(table, dict):
            raise SafetyError(f"{path} holds no object")
        return table, each
    return None


def offsets_name(place: Place) -> str:
    """Return the name of the file that the broker keeps its offsets in.

    Raises SafetyError where both names are there and nobody has said which one counts.
    """
    if place.conf.is_lmq is not None:
        return m.LMQ_OFFSETS_JSON if place.conf.is_lmq else m.OFFSETS_JSON
    there = [name for name in (m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON) if _is_there(place.config, name)]
    if len(there) == 2:
        raise SafetyError(
            f"{place.config} has {m.OFFSETS_JSON} and {m.LMQ_OFFSETS_JSON}, and the broker reads one of them: name its "
            "configuration with --broker-conf, or say --lmq (enableLmq=true) or --no-lmq"
        )
    return there[0] if there else m.OFFSETS_JSON


def is_name_told(place: Place) -> bool:
    """Whether a file of offsets is there, whose name says which one the broker reads."""
    return any(_is_there(place.config, name) for name in (m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON))


def _is_there(config: Path, name: str) -> bool:
    return any((config / each).is_file() and (config / each).stat().st_size for each in (name, f"{name}.bak"))


def read_bounded(path: Path) -> str:
    """Return the text of a JSON file; "" where there is none.

    Raises SafetyError for a file that is too large or no UTF-8. A file that starts with no object is read no further:
    after a power cut, a file may have its full size and hold zeros.
    """
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if size > JSON_BYTES_MAX:
                raise SafetyError(f"{path} has {size} bytes, and at most {JSON_BYTES_MAX} of a JSON file are read")
            data = handle.read(_HEAD_BYTES)
            if data.strip() and not data.lstrip().startswith((b"{", b"[")):
                raise SafetyError(f"{path}, character {len(data) - len(data.lstrip())}: no object starts here")
            data += handle.read(JSON_BYTES_MAX + 1 - len(data))
    except FileNotFoundError:
        return ""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SafetyError(f"{path}, byte {error.start}: this is no UTF-8") from error


def _folders(consumequeue: Path) -> Iterator[tuple[str, int, Path]]:
    """Folders of queues. Plain files beside the topics' folders are RocksDB's."""
    if not consumequeue.is_dir():
        return
    for topic in os.scandir(consumequeue):
        if not topic.is_dir() or topic.name in _NO_TOPICS:
            continue
        if os.fsencode(topic.name).decode("utf-8", "ignore") != topic.name:
            raise SafetyError(
                f"the name of {os.fsencode(topic.path)!r} is no UTF-8, as which a message names its topic"
            )
        for queue in os.scandir(topic.path):
            if not (queue.is_dir() and _QUEUE_ID.fullmatch(queue.name) and int(queue.name) <= _MOST_QUEUE_ID):
                raise SafetyError(f"{queue.path} is no folder of a queue")
            yield topic.name, int(queue.name), Path(queue.path)


def _last_phy(files: QueueFiles, end: int) -> int:
    if end <= files.start:
        return -1
    return int(files.read(end - 1, end).phy[0])


def _stamp(path: str) -> str:
    try:
        seen = Path(path).stat()
    except FileNotFoundError:
        return f"{path}\n"
    return f"{path} {seen.st_size} {seen.st_mtime_ns}\n"
