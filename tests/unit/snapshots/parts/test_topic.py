"""A snapshot in parts survives a crash behind any message, and is never taken for whole where it is not."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from streaming.errors import RefusedError, UnavailableError
from streaming.snapshots.parts import topic as module
from streaming.snapshots.parts.topic import PartsTopic, ensure
from udfs.formats.entry import Content
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, Position
from udfs.snapshots.aborts import Aborts, aborts_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.keys import Capacity, SnapshotKind
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import UndeliveredMessage

OWNER, OTHER = "persistent://t/ns/orders", "persistent://t/ns/others"
CAPACITY = Capacity(3, 1_000)
MAX_READ = (5, 99)


@dataclass
class Stored:
    """A topic that keeps every message. crash_at: the send that fails, and did not store anything."""

    messages: list[tuple[str, bytes | None]] = field(default_factory=list)
    crash_at: int = -1

    def send(self, key: str, value: bytes | None) -> Position:
        if self.crash_at == 0:
            raise UnavailableError("killed")
        self.crash_at -= 1
        self.messages.append((key, value))
        return 1, len(self.messages)

    def read(self) -> Iterator[ReadValue]:
        for number, (key, value) in enumerate(self.messages):
            found = UndeliveredMessage(
                batch_index=-1,
                content=Content(key=key.encode(), payload=value or b"", properties={}, is_null=value is None),
            )
            yield read_message(SnapshotKind.PARTS, "t/ns", (1, number), found, lambda _version: SchemaOrigin.BROKERS)

    @property
    def topic(self) -> PartsTopic:
        return PartsTopic("parts", self.read)


def _aborts(first: int, last: int) -> Aborts:
    return aborts_of((0, number, 5, number) for number in range(first, last))


def _ids(stored: Stored, owner: str = OWNER) -> list[int]:
    return [least for _most, least in stored.topic.recover(owner, {5}).aborts.ids.pairs()]


def test_what_was_written_is_recovered_and_shorter_snapshots_leave_nothing_behind() -> None:
    stored = Stored()
    stored.topic.write(stored, OTHER, _aborts(50, 52), MAX_READ, CAPACITY)
    stored.topic.write(stored, OWNER, _aborts(0, 11), MAX_READ, CAPACITY)
    stored.topic.write(stored, OWNER, _aborts(8, 11), MAX_READ, CAPACITY)
    assert _ids(stored) == [8, 9, 10]
    assert _ids(stored, OTHER) == [50, 51]
    assert stored.topic.recover(OWNER, {5}).max_read == MAX_READ
    stored.topic.retire(stored, OWNER)
    assert stored.topic.recover(OWNER, {5}).generation == 0
    assert _ids(stored, OTHER) == [50, 51]


@pytest.mark.parametrize("crash_at", range(8))
def test_a_write_that_was_cut_short_loses_nothing_and_is_written_again(crash_at: int) -> None:
    stored = Stored()
    stored.topic.write(stored, OWNER, _aborts(0, 9), MAX_READ, CAPACITY)
    stored.crash_at = crash_at
    newer = _aborts(4, 14)  # ids before 4 were trimmed
    try:
        stored.topic.write(stored, OWNER, newer, (5, 100), CAPACITY)
    except UnavailableError:
        assert len(stored.messages) == 3 + crash_at
    stored.crash_at = -1
    assert set(range(4, 9)) <= set(_ids(stored))
    stored.topic.write(stored, OWNER, newer, (5, 100), CAPACITY)
    assert _ids(stored) == list(range(4, 14))


def test_a_torn_part_is_an_error_and_not_an_empty_one() -> None:
    stored = Stored()
    stored.topic.write(stored, OWNER, _aborts(0, 9), MAX_READ, CAPACITY)
    key, value = stored.messages[0]
    stored.messages.append((key, value[:-1] if value else b""))
    with pytest.raises(FormatError):
        _ids(stored)
    assert _ids(stored, OTHER) == []


def test_more_than_one_topic_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored()
    stored.topic.write(stored, OWNER, _aborts(0, 30), MAX_READ, CAPACITY)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    with pytest.raises(FormatError, match="more than"):
        _ids(stored)
    monkeypatch.setattr(module, "MOST_KEYS", 5)
    with pytest.raises(RefusedError, match="who publishes"):
        stored.topic.write(stored, OWNER, _aborts(0, 3), MAX_READ, CAPACITY)


@dataclass
class Admin:
    """A broker that makes the cursor of compaction at the n-th look."""

    looks: int
    made: list[str] = field(default_factory=list)

    def create_topic(self, topic: str) -> bool:
        self.made.append(topic)
        return True

    def set_compaction_threshold(self, topic: str, *, size_bytes: int) -> None:
        self.made.append(str(size_bytes))

    def internal_stats(self, topic: str) -> InternalStats:
        self.looks -= 1
        return InternalStats(ledgers=(), cursors={} if self.looks else {"__compaction": (1, -1)}, pending_adds=0)


def test_the_topic_is_used_only_once_compaction_keeps_its_ledgers() -> None:
    assert ensure(Admin(3), "t/ns", lambda _seconds: None) == "persistent://t/ns/transaction_buffer_snapshot_parts"
    with pytest.raises(UnavailableError, match="cursor of compaction"):
        ensure(Admin(1_000), "t/ns", lambda _seconds: None)
