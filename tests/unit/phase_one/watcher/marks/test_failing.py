"""A failed topic waits alone, longer and longer; several failed topics in a row indicate an outage."""

import pytest

from streaming.phase_one.watcher.marks.failing import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Failing, FailureStreak

TOPIC, OTHER = "t/ns/persistent/a", "t/ns/persistent/b"
EVER_MS = 1 << 50


def test_each_failure_makes_the_wait_twice_as_long_up_to_an_hour() -> None:
    failing, now_ms, pauses = Failing(), 0, []
    for _ in range(12):
        again_ms = failing.failed(TOPIC, EVER_MS, now_ms)
        pauses.append(again_ms - now_ms)
        assert failing.next(again_ms - 1) is None
        assert failing.next(again_ms) == TOPIC
        now_ms = again_ms
    assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert pauses[-2:] == [LONGEST_PAUSE_MS, LONGEST_PAUSE_MS]


def test_a_topic_that_answers_starts_with_the_first_pause_again() -> None:
    failing = Failing()
    failing.failed(TOPIC, EVER_MS, 0)
    failing.failed(OTHER, EVER_MS, 0)
    failing.drop(TOPIC)
    assert (list(failing), failing.next(FIRST_PAUSE_MS)) == ([OTHER], OTHER)
    assert failing.failed(TOPIC, EVER_MS, 0) == FIRST_PAUSE_MS


@pytest.mark.parametrize(("until_ms", "expected"), [(FIRST_PAUSE_MS, TOPIC), (FIRST_PAUSE_MS - 1, None)])
def test_a_failed_topic_is_tried_while_its_sign_is_valid(until_ms: int, expected: str | None) -> None:
    failing = Failing()
    failing.failed(TOPIC, until_ms, 0)
    assert failing.next(FIRST_PAUSE_MS) == expected


def test_a_later_sign_counts_and_shortens_no_wait() -> None:
    failing = Failing()
    failing.failed(TOPIC, 0, 0)
    assert failing.next(FIRST_PAUSE_MS) is None
    assert failing.sign(TOPIC, EVER_MS)
    assert failing.next(FIRST_PAUSE_MS - 1) is None
    assert failing.next(FIRST_PAUSE_MS) == TOPIC
    failing.failed(TOPIC, 0, FIRST_PAUSE_MS)
    assert failing.next(3 * FIRST_PAUSE_MS) == TOPIC, "the sign from before still holds"
    assert not failing.sign(OTHER, EVER_MS)


def test_a_topic_without_a_sign_for_hours_is_forgotten() -> None:
    failing = Failing()
    failing.failed(TOPIC, EVER_MS, 0)
    failing.forget_old(FIRST_PAUSE_MS + 2 * LONGEST_PAUSE_MS)
    assert list(failing) == [TOPIC]
    failing.forget_old(FIRST_PAUSE_MS + 2 * LONGEST_PAUSE_MS + 1)
    assert (list(failing), failing.next(EVER_MS)) == ([], None)


def test_five_topics_in_a_row_then_ten_then_twenty_are_a_sign_of_an_outage() -> None:
    streak = FailureStreak()
    assert [n for n in range(1, 41) if streak.failed(str(n))] == [5, 10, 20, 40]
    streak.answered()
    assert [n for n in range(1, 6) if streak.failed(str(n))] == [5]


def test_one_topic_that_fails_repeatedly_is_no_outage() -> None:
    streak = FailureStreak()
    assert not any(streak.failed(TOPIC) for _ in range(100))
