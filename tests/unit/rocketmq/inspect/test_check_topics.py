from pathlib import Path

import pytest

from streaming.rocketmq.inspect.check_topics import without_deleted
from tests.rocketmq_store import Message, small_store
from tests.unit.rocketmq.converted import backfill, check
from udfs.rocketmq.compare import Finding, FindingKind


def test_messages_of_a_deleted_topic_are_a_note(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.put(Message("Gone", 0))
    store.delete_topic("Gone")
    store.write()
    backfill(tmp_path)
    result = check(tmp_path)
    assert result.findings == ()
    assert [note for note in result.notes if "Gone" in note]


@pytest.mark.parametrize("topic", [b"%LMQ%left", b"RMQ_SYS_TRANS_HALF_TOPIC", b"rmq_sys_wheel_timer", b"Orders"])
def test_a_topic_whose_rows_the_broker_keeps_does_not_count_as_deleted(topic: bytes) -> None:
    finding = Finding(topic=topic, queue_id=0, kind=FindingKind.MISSING, count=1, offset=0, text="")
    assert without_deleted([finding], {b"Orders"}) == ([finding], [])


def test_where_no_topic_is_known_none_counts_as_deleted() -> None:
    finding = Finding(topic=b"T", queue_id=0, kind=FindingKind.MISSING, count=1, offset=0, text="")
    assert without_deleted([finding], set()) == ([finding], [])


def test_what_is_about_no_queue_stays() -> None:
    finding = Finding(topic=b"", queue_id=-1, kind=FindingKind.CHECKPOINT, count=1, offset=-1, text="")
    assert without_deleted([finding], {b"Orders"}) == ([finding], [])
