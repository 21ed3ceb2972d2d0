import pytest

from tests.rocketmq_store import java_hash as known_hash
from udfs.rocketmq import dispatch as d
from udfs.rocketmq.commitlog import CommitLogRecord

DELAYS = d.delays_of(d.DEFAULT_DELAYS)
MULTI = d.DispatchRules(DELAYS, is_multi=True)
LMQ = b"INNER_MULTI_DISPATCH\x01%LMQ%a,other\x02INNER_MULTI_QUEUE_OFFSET\x017,9\x02"


def record(topic: bytes = b"T", properties: bytes = b"", sys_flag: int = 0) -> CommitLogRecord:
    return CommitLogRecord(
        phy=100,
        size=200,
        queue_id=3,
        queue_offset=4,
        sys_flag=sys_flag,
        store_time=5_000,
        topic=topic,
        properties=properties,
    )


def units(one: CommitLogRecord, rules: d.DispatchRules = MULTI) -> list[tuple[bytes, int, int]]:
    return [tuple(each) for each in d.units_of(one, d.properties_of(one.properties), rules)]  # type: ignore[misc]


@pytest.mark.parametrize(("text", "code"), [("", 0), ("a", 97), ("TagA", 2598919), ("订单", 1129459), ("😀", 1772899)])
def test_the_hash_of_a_string_is_javas(text: str, code: int) -> None:
    assert d.java_hash(text) == code == known_hash(text)


def test_a_hash_beyond_31_bits_is_negative() -> None:
    assert d.java_hash("polygenelubricants") == -(2**31)


def test_a_message_is_in_the_queue_that_it_names() -> None:
    assert units(record()) == [(b"T", 3, 4)]


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_prepared_and_rolled_back_messages_are_in_none(sys_flag: int) -> None:
    assert units(record(properties=LMQ, sys_flag=sys_flag)) == []


def test_a_message_is_in_each_queue_that_it_lists_and_lmq_queues_have_the_number_0() -> None:
    assert units(record(properties=LMQ)) == [(b"T", 3, 4), (b"%LMQ%a", 0, 7), (b"other", 3, 9)]


def test_a_broker_in_file_mode_creates_no_queue_that_would_be_a_folder_within_a_folder() -> None:
    one = record(properties=LMQ.replace(b"%LMQ%a", b"%LMQ%a/b"))
    assert units(one, d.DispatchRules(DELAYS, is_multi=True, is_file_mode=True)) == [(b"T", 3, 4), (b"other", 3, 9)]
    assert (b"%LMQ%a/b", 0, 7) in units(one)


@pytest.mark.parametrize("topic", [b"%RETRY%g", b"rmq_sys_wheel_timer", b"SCHEDULE_TOPIC_XXXX"])
def test_the_brokers_own_topics_list_no_queues(topic: bytes) -> None:
    assert units(record(topic, LMQ)) == [(topic, 3, 4)]


def test_without_multi_dispatch_no_list_counts() -> None:
    assert units(record(properties=LMQ), d.DispatchRules(DELAYS, is_multi=False)) == [(b"T", 3, 4)]


@pytest.mark.parametrize(
    ("names", "offsets", "further"),
    [
        pytest.param(b"%LMQ%a,other", b"7", [], id="fewer offsets"),
        pytest.param(b"%LMQ%a", b"7,9", [], id="fewer names"),
        pytest.param(b"%LMQ%a,,", b"7", [(b"%LMQ%a", 0, 7)], id="empty names at the end"),
        pytest.param(b"%LMQ%a,other", b"7,9,", [(b"%LMQ%a", 0, 7), (b"other", 3, 9)], id="an empty offset at the end"),
        pytest.param(b"%LMQ%a,other", b"x,9", [], id="no number"),
        pytest.param(b"%LMQ%a,other", b"7,1_0", [(b"%LMQ%a", 0, 7)], id="no number later"),
        pytest.param(b",", b",", [], id="nothing"),
    ],
)
def test_a_list_is_read_as_the_broker_reads_it(
    names: bytes, offsets: bytes, further: list[tuple[bytes, int, int]]
) -> None:
    """A message's sender writes the names, and must not be able to stop whoever reads the log."""
    raw = b"INNER_MULTI_DISPATCH\x01%s\x02INNER_MULTI_QUEUE_OFFSET\x01%s\x02" % (names, offsets)
    assert units(record(properties=raw)) == [(b"T", 3, 4), *further]


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        pytest.param(b"T", b"TAGS\x01a\x02", 97, id="the hash of the tag"),
        pytest.param(b"T", b"DELAY\x013\x02", 0, id="a level counts in the schedule topic only"),
        pytest.param(b"SCHEDULE_TOPIC_XXXX", b"DELAY\x013\x02TAGS\x01a\x02", 15_000, id="the time when it is due"),
        pytest.param(b"SCHEDULE_TOPIC_XXXX", b"DELAY\x0199\x02", 7_205_000, id="the last level"),
        pytest.param(b"SCHEDULE_TOPIC_XXXX", b"DELAY\x010\x02TAGS\x01a\x02", 97, id="no level"),
    ],
)
def test_tags_code(topic: bytes, properties: bytes, code: int) -> None:
    one = record(topic, properties)
    assert d.tags_code(one, d.properties_of(properties), DELAYS) == code


def test_delay_levels_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match="messageDelayLevel"):
        d.delays_of("1s 5x")
