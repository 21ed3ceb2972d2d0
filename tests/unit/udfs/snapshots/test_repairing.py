"""The value that makes a broker replay a topic is the one that was seen to do so."""

from dataclasses import replace

from tests.unit.udfs.snapshots.test_audit import NAMED, WELL
from udfs.snapshots.codec import decode_index
from udfs.snapshots.repairing import empty_index, refusal_of


def test_an_empty_index_is_as_long_as_the_one_that_was_seen_to_work() -> None:
    topic = "persistent://public/t/orde"
    assert (len(topic), len(empty_index(topic))) == (26, 35)
    assert decode_index(empty_index(topic)).tail.rows == 0


def test_only_a_topic_that_is_not_ready_and_lacks_a_segment_may_be_repaired() -> None:
    broken = replace(WELL, named=(NAMED, replace(NAMED, sequence=1, is_readable=False)), buffer=None)
    assert refusal_of(broken) == ""
    assert refusal_of(replace(broken, buffer=WELL.buffer))
    assert refusal_of(replace(broken, named=(NAMED,)))
    assert refusal_of(replace(broken, named=()))
    assert refusal_of(replace(broken, ledgers=frozenset()))
