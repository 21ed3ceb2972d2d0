import struct
from pathlib import Path

import numpy as np
import pytest

from tests.rocketmq_store import V2, Message, Store
from udfs.rocketmq import commitlog as c

# A record of version 1 by hand: topic "T", queue 2, queue offset 3, at 0 of the log, tag "a", body "hi".
RECORD = bytes.fromhex(
    "00000065" "daa320a7" "00000000" "00000002" "00000000" "0000000000000003" "0000000000000000" "00000000"
    "0000000000000001" "7f00000100001f90" "0000019000000005" "7f00000100001f90" "00000000" "0000000000000000"
    "00000002" "6869" "01" "54" "0007" "54414753016102"
)  # fmt: skip


def log_of(tmp_path: Path, *messages: Message) -> tuple[memoryview, Store]:
    store = Store(tmp_path, log_file_bytes=4096)
    for message in messages:
        store.put(message)
    return memoryview(bytes(store.log) + bytes(4096 - len(store.log))), store


def test_a_record_by_hand_is_read() -> None:
    record = c.record_at(memoryview(RECORD), 0, 0)
    assert record == c.CommitLogRecord(
        phy=0,
        size=101,
        queue_id=2,
        queue_offset=3,
        sys_flag=0,
        store_time=0x19000000005,
        topic=b"T",
        properties=b"TAGS\x01a\x02",
    )


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message(), id="plain"),
        pytest.param(Message(magic=V2, topic="长" * 60), id="version 2, a name of 180 bytes"),
        pytest.param(Message(sys_flag=0x10), id="born at an IPv6 address"),
        pytest.param(Message(sys_flag=0x30, body=b""), id="both IPv6, no body"),
        pytest.param(Message(sys_flag=4), id="prepared"),
    ],
)
def test_one_by_one_and_many_at_once_read_the_same(tmp_path: Path, message: Message) -> None:
    log, store = log_of(tmp_path, Message("first"), message, Message("last"))
    walked = list(c.walk(log, 0))
    assert [each.topic.decode() for each in walked] == ["first", message.topic, "last"]
    positions = np.array([each.phy for each in walked])
    headers = c.headers_at(np.frombuffer(log, dtype=np.uint8), positions)
    assert headers.size.tolist() == [each.size for each in walked]
    assert headers.store_time.tolist() == [each.store_time for each in walked]
    assert headers.queue_offset.tolist() == [each.queue_offset for each in walked]
    assert headers.queue_id.tolist() == [each.queue_id for each in walked]
    assert headers.phy.tolist() == positions.tolist()
    assert c.end_of(log, 0) == len(store.log)


@pytest.mark.parametrize(("sys_flag", "is_indexed"), [(0, True), (4, False), (8, True), (12, False), (0x31, True)])
def test_prepared_and_rolled_back_messages_are_in_no_queue(sys_flag: int, is_indexed: bool) -> None:
    assert (
        c.CommitLogRecord(
            phy=0, size=91, queue_id=0, queue_offset=0, sys_flag=sys_flag, store_time=0, topic=b"T", properties=b""
        ).is_indexed
        == is_indexed
    )


def test_a_walk_ends_at_a_blank_at_zeros_and_at_the_end() -> None:
    blank = struct.pack(">iI", 50, 0xCBD43194) + bytes(42)
    assert c.end_of(memoryview(RECORD + blank), 0) == len(RECORD)
    assert c.end_of(memoryview(RECORD + bytes(50)), 0) == len(RECORD)
    assert c.end_of(memoryview(RECORD), 0) == len(RECORD)
    assert c.end_of(memoryview(b""), 0) == 0


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        pytest.param(RECORD[:4] + b"\xda\xa3\x20\xa8" + RECORD[8:], "wrong magic 0xdaa320a8", id="magic"),
        pytest.param(b"\x00\x00\x00\x66" + RECORD[4:], "can't have 102 bytes", id="longer than the file"),
        pytest.param(b"\x00\x00\x00\x5a" + RECORD[4:], "can't have 90 bytes", id="shorter than any record"),
        pytest.param(RECORD[:35] + b"\x01" + RECORD[36:], "names 1 as its own position", id="another place"),
        pytest.param(RECORD[:84] + b"\x7f\xff\xff\xff" + RECORD[88:], "ends before its parts", id="a huge body"),
        pytest.param(RECORD[:92] + b"\x00\x08" + RECORD[94:], "do not fit into it", id="properties one byte too long"),
    ],
)
def test_damaged_records_are_named_with_their_position(damaged: bytes, said: str) -> None:
    with pytest.raises(c.BadRecordError) as error:
        list(c.walk(memoryview(damaged), 0))
    assert error.value.position == 0
    assert said in error.value.text


def test_a_position_without_a_record_is_named() -> None:
    log = np.frombuffer(RECORD + bytes(100), dtype=np.uint8)
    with pytest.raises(c.BadRecordError) as error:
        c.headers_at(log, np.array([0, 101]))
    assert error.value.position == 101
    with pytest.raises(c.BadRecordError) as error:
        c.headers_at(log, np.array([0, 126]))
    assert error.value.position == 126
