"""Writes a RocketMQ store in file form byte by byte, as a broker does, without any code of the program."""

import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Unit = tuple[int, int, int, int, int]  # queue offset, physical offset, size, tags code, store time
V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
BASE_TIME = 1_790_000_000_000


@dataclass(frozen=True)
class Message:
    """A message to be stored."""

    topic: str = "T"
    queue_id: int = 0
    tag: str = ""
    body: bytes = b"body"
    magic: int = V1
    sys_flag: int = 0
    level: int = 0
    lmq: tuple[str, ...] = ()


def java_hash(text: str) -> int:
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (value * 31 + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


@dataclass
class Store:
    """A store in memory: `put` messages, then `write` the store."""

    root: Path
    log_file_bytes: int = 2048
    queue_file_units: int = 8
    log_start: int = 0
    is_lmq: bool = False
    begins: dict[tuple[str, int], int] = field(default_factory=dict)  # the offset of a queue's first message
    units: dict[tuple[str, int], list[Unit]] = field(default_factory=lambda: defaultdict(list))
    log: bytearray = field(default_factory=bytearray)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    lmq_offsets: dict[str, int] = field(default_factory=dict)
    counter: int = 3

    @property
    def end(self) -> int:
        return self.log_start + len(self.log)

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self.begins.get((topic, queue_id), 0) + len(self.units[topic, queue_id])

    def put(self, message: Message) -> int:
        """Append a message, and return its physical offset."""
        is_indexed = message.sys_flag & 0xC in (0, 8)
        offset = self.next_offset(message.topic, message.queue_id) if is_indexed else 0
        time = BASE_TIME + len(self.log)
        record = self._record(message, offset, time, 0)
        left = self.log_file_bytes - len(self.log) % self.log_file_bytes
        if len(record) + 8 > left:
            self.log += struct.pack(">iI", left, BLANK) + bytes(left - 8)
        phy, time = self.end, BASE_TIME + len(self.log)
        record = self._record(message, offset, time, phy)
        self.log += record
        if is_indexed:
            tags = java_hash(message.tag) if message.tag else 0
            if message.level and message.topic == SCHEDULE:
                tags = time + DELAYS_S[message.level - 1] * 1000
            self.units[message.topic, message.queue_id].append((offset, phy, len(record), tags, time))
            for name in message.lmq:
                queue_offset = self.next_offset(name, 0)
                self.units[name, 0].append((queue_offset, phy, len(record), tags, time))
        return phy

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic; its messages stay in the log."""
        for name in [name for name in self.units if name[0] == topic]:
            del self.units[name]

    def _record(self, message: Message, offset: int, time: int, phy: int) -> bytes:
        properties = {"UNIQ_KEY": "0A0B"}
        if message.tag:
            properties["TAGS"] = message.tag
        if message.level:
            properties["DELAY"] = str(message.level)
        if message.lmq:
            properties["INNER_MULTI_DISPATCH"] = ",".join(message.lmq)
            properties["INNER_MULTI_QUEUE_OFFSET"] = ",".join(str(self.next_offset(name, 0)) for name in message.lmq)
        raw = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        topic = message.topic.encode()
        born = bytes(20 if message.sys_flag & 0x10 else 8)
        stored = bytes(20 if message.sys_flag & 0x20 else 8)
        rest = struct.pack(">iiiqqiq", 0, message.queue_id, 0, offset, phy, message.sys_flag, time - 7) + born
        rest += struct.pack(">q", time) + stored + struct.pack(">iqi", 0, 0, len(message.body)) + message.body
        rest += struct.pack(">B" if message.magic == V1 else ">h", len(topic)) + topic
        rest += struct.pack(">h", len(raw)) + raw
        return struct.pack(">iI", len(rest) + 8, message.magic) + rest

    def write(self, *, expired_files: int = 0, unused_file: bool = False) -> "Store":
        """Write all files except the first `expired_files` of the commitlog, which retention has deleted."""
        size = self.log_file_bytes
        folder = self.root / "commitlog"
        folder.mkdir(parents=True)
        padded = bytes(self.log) + bytes(-len(self.log) % size)
        padded += bytes(size) if unused_file or not padded else b""
        for number in range(len(padded) // size):
            if number >= expired_files:
                name = f"{self.log_start + number * size:020d}"
                (folder / name).write_bytes(padded[number * size : (number + 1) * size])
        self.first_live_phy = self.log_start + expired_files * size
        for (topic, queue_id), units in self.units.items():
            self._write_queue(topic, queue_id, units)
        self.write_config()
        (self.root / "lock").write_bytes(b"lock")
        return self

    def _write_queue(self, topic: str, queue_id: int, units: list[Unit]) -> None:
        start, per_file = self.begins.get((topic, queue_id), 0), self.queue_file_units
        first_file = start // per_file
        raw = struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * (start - first_file * per_file)
        raw += b"".join(struct.pack(">qiq", phy, size, tags) for _offset, phy, size, tags, _time in units)
        raw += bytes(-len(raw) % (per_file * 20)) or (bytes(per_file * 20) if not raw else b"")
        folder = self.root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True)
        for number in range(len(raw) // (per_file * 20)):
            name = f"{(first_file + number) * per_file * 20:020d}"
            (folder / name).write_bytes(raw[number * per_file * 20 : (number + 1) * per_file * 20])

    def write_config(self) -> None:
        config = self.root / "config"
        config.mkdir(exist_ok=True)
        version = {"counter": self.counter, "stateVersion": 0, "timestamp": BASE_TIME}
        topics = {
            name: {"attributes": {}, "order": False, "perm": 6, "readQueueNums": 4, "topicName": name}
            for name, _queue in self.units
            if not name.startswith("%LMQ%")
        }
        self._json("topics.json", {"dataVersion": version, "topicConfigTable": topics})
        groups = {name.partition("@")[2]: {"groupName": name.partition("@")[2]} for name in self.offsets}
        self._json(
            "subscriptionGroup.json",
            {"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": groups},
        )
        table: dict[str, Any] = {"dataVersion": version, "groupTopicMap": {}}
        if self.is_lmq:
            table["lmqOffsetTable"] = self.lmq_offsets
        table["offsetTable"] = self.offsets
        self._json("lmqConsumerOffset.json" if self.is_lmq else "consumerOffset.json", table)

    def _json(self, name: str, value: Any) -> None:
        (self.root / "config" / name).write_text(bare_keys(value), encoding="utf-8")

    def live(self, topic: str, queue_id: int) -> list[Unit]:
        return [unit for unit in self.units[topic, queue_id] if unit[1] >= self.first_live_phy]


def bare_keys(value: Any) -> str:
    """Return JSON whose integer keys have no quotation marks."""
    if isinstance(value, dict):
        entries = (
            f"{key if isinstance(key, int) else json.dumps(key)}:{bare_keys(each)}" for key, each in value.items()
        )
        return "{" + ",".join(entries) + "}"
    return json.dumps(value)


def small_store(root: Path, **options: Any) -> Store:
    """Return a store with tags, LMQ, delays, transactions, IPv6, both versions and several files."""
    store = Store(root, **({"is_lmq": True} | options))
    for number in range(40):
        store.put(Message("Orders", number % 3, tag=("a", "订单", "😀", "")[number % 4], magic=(V1, V2)[number % 2]))
        if number % 5 == 0:
            store.put(Message("Sources", 0, lmq=("%LMQ%left", "%LMQ%right")))
        if number % 7 == 0:
            store.put(Message(SCHEDULE, 2, level=3, sys_flag=0x10))
        if number % 6 == 0:
            store.put(Message("Orders", 1, sys_flag=4))  # prepared
            store.put(Message("Orders", 1, sys_flag=8 | 0x30, tag="committed"))
            store.put(Message("Orders", 1, sys_flag=12))  # rolled back
    store.offsets = {"Orders@readers": {0: 3, 1: 5, 2: 1}, "%RETRY%readers@readers": {0: 0}}
    store.lmq_offsets = {"%LMQ%left@%LMQ%readers": 2} if store.is_lmq else {}
    return store
