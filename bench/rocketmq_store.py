"""Simulated RocketMQ stores of any size, in 16 queues, which numpy writes in seconds."""

import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

QUEUES = tuple((f"T{number // 4}", number % 4) for number in range(16))
RECORD_BYTES = 120
LOG_FILE_BYTES = 1 << 30
QUEUE_FILE_UNITS = 300_000
BASE_TIME = 1_790_000_000_000
_BODY = RECORD_BYTES - 95
_MAGIC = 0xDAA320A7 - 2**32
_BLANK = 0xCBD43194 - 2**32
_RECORD = np.dtype([
    ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"), ("queue_offset", ">i8"),
    ("phy", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"), ("born_host", ">i8"), ("stored", ">i8"),
    ("store_host", ">i8"), ("again", ">i4"), ("prepared", ">i8"), ("body_bytes", ">i4"), ("body", f"V{_BODY}"),
    ("topic_bytes", "u1"), ("topic", "S2"), ("property_bytes", ">i2"), ("properties", "V2"),
])  # fmt: skip
_UNIT = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_CHUNK = 2_000_000


def make(folder: Path, messages: int) -> None:
    """Write a store of this many messages, which rotate over the queues. Earlier contents of the folder are deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("commitlog", "config"):
        (folder / name).mkdir(parents=True)
    for first in range(0, messages, _per_file()):
        _write_log(folder, first, min(messages, first + _per_file()))
    for number, (topic, queue_id) in enumerate(QUEUES):
        _write_queue(folder / "consumequeue" / topic / str(queue_id), np.arange(number, messages, len(QUEUES)))
    _write_config(folder / "config")
    (folder / "lock").write_bytes(b"lock")


def positions(messages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the physical offsets of these messages."""
    return messages // _per_file() * LOG_FILE_BYTES + messages % _per_file() * RECORD_BYTES


def _per_file() -> int:
    return (LOG_FILE_BYTES - 8) // RECORD_BYTES


def _write_log(folder: Path, first: int, end: int) -> None:
    start = first // _per_file() * LOG_FILE_BYTES
    with (folder / "commitlog" / f"{start:020d}").open("wb") as file:
        for some in range(first, end, _CHUNK):
            _records(np.arange(some, min(end, some + _CHUNK), dtype=np.int64)).tofile(file)
        if end - first == _per_file():
            np.array([LOG_FILE_BYTES - file.tell(), _BLANK], dtype=">i4").tofile(file)
        file.truncate(LOG_FILE_BYTES)


def _records(messages: NDArray[np.int64]) -> NDArray[np.void]:
    made = np.zeros(len(messages), dtype=_RECORD)
    made["size"], made["magic"], made["phy"] = RECORD_BYTES, _MAGIC, positions(messages)
    made["queue_offset"], made["queue_id"] = messages // len(QUEUES), messages % 4
    made["stored"] = made["born"] = BASE_TIME + messages // 10
    made["body_bytes"], made["topic_bytes"], made["property_bytes"] = _BODY, 2, 2
    made["topic"] = np.char.add("T", (messages % len(QUEUES) // 4).astype(str)).astype("S2")
    return made


def _write_queue(folder: Path, messages: NDArray[np.int64]) -> None:
    folder.mkdir(parents=True)
    for first in range(0, len(messages), QUEUE_FILE_UNITS):
        some = messages[first : first + QUEUE_FILE_UNITS]
        units = np.zeros(len(some), dtype=_UNIT)
        units["phy"], units["size"] = positions(some), RECORD_BYTES
        with (folder / f"{first * _UNIT.itemsize:020d}").open("wb") as file:
            units.tofile(file)
            file.truncate(QUEUE_FILE_UNITS * _UNIT.itemsize)


def _write_config(config: Path) -> None:
    version = {"counter": 1, "stateVersion": 0, "timestamp": BASE_TIME}
    topics = {topic: {"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for topic, _ in QUEUES}
    tables = {
        "topics.json": {"dataVersion": version, "topicConfigTable": topics},
        "subscriptionGroup.json": {"dataVersion": version, "subscriptionGroupTable": {}},
        "consumerOffset.json": {"dataVersion": version, "offsetTable": {}},
    }
    for name, table in tables.items():
        (config / name).write_text(json.dumps(table))
