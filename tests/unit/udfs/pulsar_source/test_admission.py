"""How a batch is shared among topics."""

from udfs.formats.entry import Weight
from udfs.pulsar_source.admission import Admission, Limits, Turns

ALL = Limits()


def _weights(*messages: int) -> list[Weight]:
    return [Weight(count, 10 * count) for count in messages]


def test_topics_get_equal_shares_and_partitions_equal_shares_of_these() -> None:
    shares = Admission(Limits(messages=120, size=1200)).shares({"a": ["a-0", "a-1", "a-2"], "b": ["b-0"]})
    assert shares == {
        "a-0": Limits(20, 200),
        "a-1": Limits(20, 200),
        "a-2": Limits(20, 200),
        "b-0": Limits(60, 600),
    }


def test_a_share_has_room_for_an_entry_of_one_message() -> None:
    shares = Admission(Limits(messages=2, size=2)).shares({name: [name] for name in "abcdefgh"})
    assert {*shares.values()} == {Limits(1, 1)}


def test_a_batch_keeps_both_limits() -> None:
    by_messages = Admission(Limits(messages=10))
    assert by_messages.admit(_weights(4, 4, 4), ALL) == 2
    assert by_messages.admit(_weights(2, 1), ALL) == 1
    assert by_messages.left.is_none
    by_size = Admission(Limits(size=100))
    assert by_size.admit(_weights(4, 4, 4), ALL) == 2


def test_only_the_first_entry_of_a_batch_may_exceed_its_limits() -> None:
    admission = Admission(Limits(messages=10))
    assert admission.admit(_weights(1_000_000, 1), ALL) == 1
    assert admission.admit(_weights(1), ALL) == 0
    fair = Admission(Limits(messages=10))
    assert fair.admit(_weights(1), ALL) == 1
    assert fair.admit(_weights(1_000_000), ALL) == 0


def test_a_partition_exceeds_its_share_by_its_first_entry_only() -> None:
    admission = Admission(Limits(messages=100))
    assert admission.admit(_weights(30, 1), Limits(messages=20)) == 1
    assert admission.admit(_weights(10, 10, 1), Limits(messages=20)) == 2
    assert admission.admit(_weights(60), Limits(messages=20)) == 0
    assert admission.left == Limits(50, Limits().size - 500)


def test_what_did_not_fit_comes_first_in_the_next_batch() -> None:
    turns = Turns()
    assert turns.ordered(["b", "a"]) == ["a", "b"]
    turns.took("a")
    assert turns.ordered(["a", "b"]) == ["b", "a"]
    turns.took("b")
    assert turns.ordered(["b", "a"]) == ["a", "b"]
