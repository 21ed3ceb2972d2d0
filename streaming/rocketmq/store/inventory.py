"""The contents of a store: its queues with the ends of each, its commitlog, and its JSON files.

An inventory writes nothing, and reads no file completely. So it is cheap, and works while the store's broker runs.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.store.json_files import JSON_FILES, offsets_name
from streaming.rocketmq.store.log_files import LOST_AND_FOUND, CommitLog, commitlog_of, start_of
from streaming.rocketmq.store.queue_files import QueueFiles, files_of
from streaming.rocketmq.store.store_paths import BARRIER, StorePaths
from udfs.rocketmq.parts import QueueRange, in_key_order


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: its live units, its files, and its last message."""

    range: QueueRange
    files: QueueFiles
    last_phy: int  # start of the message of its last unit; -1 without a unit

    @property
    def name(self) -> str:
        """Topic and queue id, for messages."""
        return f"{self.range.topic.decode('utf-8', 'replace')}-{self.range.queue_id}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of a store."""

    paths: StorePaths
    log: CommitLog
    queues: tuple[Queue, ...]  # in the order of their keys, which is also the order of their numbers

    @property
    def units(self) -> int:
        """Number of units whose message still exists."""
        return sum(queue.range.end - queue.range.first for queue in self.queues)

    @property
    def has_no_queues(self) -> bool:
        """Whether the log has messages that belong into queues, and no queue has any. Raises SafetyError."""
        return all(queue.last_phy < 0 for queue in self.queues) and self.log.has_indexed

    @property
    def checkpoint(self) -> int:
        """The value of CHECKPOINT: the start of the last message that is in any queue."""
        # At its start, a broker indexes the messages that start after CHECKPOINT. So it finds everything that is
        # missing from the queues, be it that a broker stopped before its queues had all messages, or that it has
        # worked in file mode since.
        last = max((queue.last_phy for queue in self.queues), default=-1)
        return last if last >= 0 else self.log.end

    @property
    def unindexed_bytes(self) -> int:
        """Bytes of the log after the last message that any queue has. Raises SafetyError."""
        record = self.log.record_at(self.checkpoint)
        return max(self.log.end - self.checkpoint - (record.size if record else 0), 0)

    def fingerprint(self) -> str:
        """Return a digest of the inputs of a conversion.

        The inputs are the names, sizes and times of all files; which file of offsets counts; and the folders of the
        databases. Raises SafetyError if it is unknown which offsets count.
        """
        digest = hashlib.sha256(
            "\n".join([offsets_name(self.paths), *map(str, (self.paths.rocksdb, self.paths.config)), ""]).encode()
        )
        listed = [file.path for queue in self.queues for file in queue.files.files]
        listed += [file.path for file in self.log.files]
        listed += [str(self.paths.config / f"{name}{suffix}") for name in JSON_FILES for suffix in ("", ".bak")]
        for path in listed:
            # changes if a broker works on the store
            digest.update(_stamp(path).encode())
        return digest.hexdigest()


_QUEUE_ID, _MOST_QUEUE_ID = re.compile("0|[1-9][0-9]*"), 2**31 - 1
_NO_TOPICS = (LOST_AND_FOUND, BARRIER)


def inventory_of(paths: StorePaths, log: CommitLog | None = None) -> Inventory:
    """Take the inventory of a store. Raises SafetyError, which names the file, at bytes that no healthy store has.

    log: its commitlog, if that was read already.
    """
    start = log.start if log else start_of(paths.commitlog)
    listed = [(topic, queue_id, files_of(folder)) for topic, queue_id, folder in _folders(paths.consumequeue)]
    ends = [files.end() for _topic, _queue_id, files in listed]
    ranges = [
        QueueRange(number=number, topic=topic.encode(), queue_id=queue_id, first=files.first_live(end, start), end=end)
        for number, ((topic, queue_id, files), end) in enumerate(zip(listed, ends, strict=True))
    ]
    queues = []
    for number, live in enumerate(in_key_order(ranges)):
        files = listed[live.number][2]
        queues.append(Queue(live._replace(number=number), files, _last_phy(files, live.end)))
    last = max((queue.last_phy for queue in queues), default=-1)
    return Inventory(paths, log or commitlog_of(paths.commitlog, last), tuple(queues))


def _folders(consumequeue: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield the folders of queues. Plain files beside the topics' folders are RocksDB's."""
    if not consumequeue.is_dir():
        return
    for topic in os.scandir(consumequeue):
        if not topic.is_dir() or topic.name in _NO_TOPICS:
            continue
        if os.fsencode(topic.name).decode("utf-8", "ignore") != topic.name:
            raise SafetyError(
                f"the name of {os.fsencode(topic.path)!r} is no UTF-8, the encoding of topics in messages"
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
        status = Path(path).stat()
    except FileNotFoundError:
        return f"{path}\n"
    return f"{path} {status.st_size} {status.st_mtime_ns}\n"
