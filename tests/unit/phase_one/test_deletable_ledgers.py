"""PIP-129's API: a mark survives every crash, never deletes a ledger in use, and is removed only after its ledger."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from streaming.adapters.memory.properties import MemoryTopicProperties
from streaming.adapters.memory.store import CrashError
from streaming.errors import ReaperError, RefusedError, UnavailableError
from streaming.phase_one.deletable_ledgers import Removal
from tests.builders import SEGMENT, TOPIC
from tests.unit.phase_one.marked_topic import OFFLOAD, OURS, Topic
from udfs.formats.managed_ledger import (
    LedgerInfo,
)
from udfs.phase_one.marks import MOST_IDS, PREFIX
from udfs.records import PendingDelete

V1_TOPIC = "public/standalone/default/persistent/orders"
SCATTERED = range(10**12, 10**12 + 60_000, 2)  # some 420 KB as marks
Deletes = Callable[[PendingDelete], bool]


@pytest.fixture(params=[TOPIC, f"{TOPIC}-partition-0"])
def topic(request: pytest.FixtureRequest) -> Topic:
    made = Topic(request.param)
    made.lists(5, 6, LedgerInfo(ledger_id=7, entries=10, offload=OFFLOAD), 8)
    return made


def test_marks_are_listed_and_other_properties_stay(topic: Topic) -> None:
    api = topic.api()
    api.mark_deletable_ledgers(topic.name, [5, 6], [7])
    assert api.get_all_deletable_ledgers(topic.name) == {5, 6}
    assert api.get_all_deletable_offloaded_ledgers(topic.name) == {7}
    assert topic.info().properties.items() >= OURS.items()
    api.mark_deletable_ledgers(topic.name, [5, 6], [7])
    assert len(topic.keys()) == 2, "what is marked already needs no new key"


def test_a_ledger_that_is_listed_is_not_even_asked_about(topic: Topic) -> None:
    topic.api().mark_deletable_ledgers(topic.name, [5, 6], [7])
    keys = topic.keys()
    assert topic.api().remove_all_deletable_ledgers(topic.name) == Removal(listed=3)
    assert topic.keys() == keys, "a mark whose ledgers all exist is not rewritten"
    assert (topic.sent, topic.api().get_all_deletable_ledgers(topic.name)) == ([], {5, 6})


def test_a_marked_ledger_that_the_list_has_dropped_is_deleted_and_its_mark_removed(topic: Topic) -> None:
    topic.api().mark_deletable_ledgers(topic.name, [5, 6], [7])
    topic.lists(6, 8)
    assert topic.api().remove_all_deletable_ledgers(topic.name) == Removal(gone=2, listed=1)
    assert not topic.exists(5)
    assert topic.objects == set()
    assert topic.api().get_all_deletable_ledgers(topic.name) == {6}
    topic.lists(8)
    assert topic.api().remove_all_deletable_ledgers(topic.name) == Removal(gone=1)
    assert topic.info().properties == OURS
    assert [topic.exists(each) for each in (5, 6, 7, 8)] == [False, False, True, True]


def test_while_the_sweep_has_not_finished_the_mark_stays(topic: Topic) -> None:
    topic.sweeps = False
    topic.api().mark_deletable_ledgers(topic.name, [5], [7])
    topic.lists(6, 8)
    assert topic.api().remove_all_deletable_ledgers(topic.name) == Removal(asked=2)
    assert topic.api().get_all_deletable_ledgers(topic.name) == {5}
    topic.sweeps = True
    assert topic.api().remove_all_deletable_ledgers(topic.name).is_done


def test_a_copy_in_bookkeeper_that_the_list_needs_no_more_counts_as_dropped(topic: Topic) -> None:
    """The list keeps naming an offloaded ledger, although its copy in BookKeeper is to be deleted."""
    topic.api().mark_deletable_ledgers(topic.name, [7])
    topic.lists(5, 6, LedgerInfo(ledger_id=7, entries=10, offload=replace(OFFLOAD, bookkeeper_deleted=True)), 8)
    topic.api().remove_all_deletable_ledgers(topic.name)
    assert [each.ledger_id for each in topic.sent] == [7]


def test_an_upload_that_the_list_does_not_name_cannot_be_marked(topic: Topic) -> None:
    for ledger_id in (5, 99):
        with pytest.raises(RefusedError, match=f"names no upload of ledger {ledger_id}"):
            topic.api().mark_deletable_ledgers(topic.name, [6], [ledger_id])
    assert topic.keys() == set()


@pytest.mark.parametrize("ledger_id", [-1, 1 << 63, True])
def test_an_invalid_ledger_id_is_not_marked(topic: Topic, ledger_id: int) -> None:
    with pytest.raises(ValueError, match="is no ledger id"):
        topic.api().mark_deletable_ledgers(topic.name, [5, ledger_id])
    assert topic.keys() == set()


def test_a_topic_of_a_v1_name_has_no_marks_because_brokers_have_no_call_for_them() -> None:
    topic = Topic(V1_TOPIC)
    topic.lists(5, 6)
    with pytest.raises(RefusedError, match="send requests"):
        topic.api().mark_deletable_ledgers(V1_TOPIC, [5])
    assert topic.api().get_all_deletable_ledgers(V1_TOPIC) == set()
    assert topic.api().remove_all_deletable_ledgers(V1_TOPIC) == Removal()


def test_a_segment_has_no_marks_because_brokers_have_no_call_for_them() -> None:
    topic = Topic(SEGMENT)
    topic.lists(5, 6)
    with pytest.raises(RefusedError, match="send requests"):
        topic.api().mark_deletable_ledgers(SEGMENT, [5])
    assert topic.api().get_all_deletable_ledgers(SEGMENT) == set()
    assert topic.api().remove_all_deletable_ledgers(SEGMENT) == Removal()


def test_marks_that_would_make_the_topics_znode_too_large_are_refused_and_removals_still_work(topic: Topic) -> None:
    api = topic.api()
    api.mark_deletable_ledgers(topic.name, [5, *SCATTERED])
    with pytest.raises(RefusedError, match=r"would have \d+ KiB"):
        api.mark_deletable_ledgers(topic.name, [each + 1 for each in SCATTERED])
    assert api.get_all_deletable_ledgers(topic.name) == {5, *SCATTERED}
    topic.lists(6, 8)
    assert api.remove_all_deletable_ledgers(topic.name).is_done
    assert topic.keys() == set()


def test_more_marks_than_are_read_again_are_refused_and_none_of_them_is_written(topic: Topic) -> None:
    api = topic.api()
    with pytest.raises(RefusedError, match="could not be read again"):
        api.mark_deletable_ledgers(topic.name, range(MOST_IDS + 1))
    assert topic.keys() == set()
    api.mark_deletable_ledgers(topic.name, range(10, MOST_IDS + 9))
    with pytest.raises(RefusedError, match="could not be read again"):
        api.mark_deletable_ledgers(topic.name, [5, 6])
    api.mark_deletable_ledgers(topic.name, [5])
    assert len(api.get_all_deletable_ledgers(topic.name)) == MOST_IDS


def test_nothing_of_a_gone_topic_is_marked_and_nothing_is_left_to_remove(topic: Topic) -> None:
    topic.api().mark_deletable_ledgers(topic.name, [5])
    topic.delete_topic()
    assert topic.api().remove_all_deletable_ledgers(topic.name) == Removal()
    with pytest.raises(RefusedError, match=r"there is no topic .* name the partition"):
        topic.api().mark_deletable_ledgers(topic.name, [5])
    assert topic.sent == []


def test_a_topic_that_is_deleted_in_between_takes_its_marks_along(topic: Topic) -> None:
    topic.api().mark_deletable_ledgers(topic.name, [5, 6])
    topic.lists(6, 8)
    topic.sends = topic.delete_topic
    assert topic.api().remove_all_deletable_ledgers(topic.name) == Removal(gone=1, listed=1)


def test_an_unreadable_key_stays_and_is_reported(topic: Topic) -> None:
    topic.properties.update(topic.name, {f"{PREFIX}newer.0": '{"v":2}'})
    found = topic.api().remove_all_deletable_ledgers(topic.name)
    assert (found.unreadable, found.is_done) == ((f"{PREFIX}newer.0",), False)
    assert topic.keys() == {f"{PREFIX}newer.0"}


def test_two_markers_at_once_lose_none_of_each_others_marks(topic: Topic) -> None:
    """The second marks between the first marker's read of the properties and its write."""
    first, second = topic.api(), topic.api()
    is_begun: list[bool] = []

    def interleave(operation: str, _paths: object) -> None:
        if operation == "update" and not is_begun:
            is_begun.append(True)
            second.mark_deletable_ledgers(topic.name, [6, 8])

    topic.properties.faults.before(interleave)
    first.mark_deletable_ledgers(topic.name, [5, 6])
    assert topic.api().get_all_deletable_ledgers(topic.name) == {5, 6, 8}


def test_two_removers_at_once_lose_no_mark_of_a_ledger_that_is_there(topic: Topic) -> None:
    topic.api().mark_deletable_ledgers(topic.name, [5, 6])
    topic.lists(6, 8)
    is_begun: list[bool] = []

    def interleave(operation: str, _paths: object) -> None:
        if operation == "remove" and not is_begun:
            is_begun.append(True)
            topic.api().remove_all_deletable_ledgers(topic.name)

    topic.properties.faults.before(interleave)
    topic.api().remove_all_deletable_ledgers(topic.name)
    assert topic.api().get_all_deletable_ledgers(topic.name) == {6}


def _work(topic: Topic) -> None:
    topic.api().mark_deletable_ledgers(topic.name, [5, 6], [7])
    topic.lists(6, 8)
    topic.api().remove_all_deletable_ledgers(topic.name)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("crash_at", range(1, 7))
def test_a_marker_that_is_killed_at_any_effect_leaves_marks_that_the_next_processes(
    crash_at: int, applied: bool
) -> None:
    topic = Topic()
    topic.lists(5, 6, LedgerInfo(ledger_id=7, entries=10, offload=OFFLOAD), 8)
    effects = topic.properties.faults
    effects.fail_at(crash_at, applied=applied, crash=True)
    topic.sends = lambda: effects.effect(lambda: None)
    with suppress(CrashError):
        _work(topic)
    effects.fail_at(10**9)
    marked = topic.api()
    everything = marked.get_all_deletable_ledgers(topic.name) | marked.get_all_deletable_offloaded_ledgers(topic.name)
    assert topic.exists(5) <= (5 in everything or crash_at == 1), "a mark was lost before its ledger was"
    if 5 in everything or not topic.exists(5):
        topic.lists(8)
        assert topic.api().remove_all_deletable_ledgers(topic.name).is_done
        assert not topic.exists(5)
    assert topic.exists(8)
    assert topic.info().properties == OURS or crash_at == 1


def test_every_effect_of_that_work_was_killed_once() -> None:
    topic = Topic()
    topic.lists(5, 6, LedgerInfo(ledger_id=7, entries=10, offload=OFFLOAD), 8)
    topic.sends = lambda: topic.properties.faults.effect(lambda: None)
    _work(topic)
    assert topic.properties.faults.effects == 6


def test_a_mark_that_the_broker_accepted_and_zookeeper_does_not_have_is_no_mark() -> None:
    topic = Topic()
    topic.lists(5)
    topic.properties.faults.fail_at(1)
    with pytest.raises(UnavailableError):
        topic.api().mark_deletable_ledgers(topic.name, [5])
    topic.properties = _Forgetful(topic.tree)
    with pytest.raises(ReaperError, match="ZooKeeper does not have them"):
        topic.api().mark_deletable_ledgers(topic.name, [5])


class _Forgetful(MemoryTopicProperties):
    def update(self, topic: str, properties: object) -> None:
        """Return success, and change nothing."""
