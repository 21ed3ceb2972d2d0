"""Topics come in the order of their times, however often the times change."""

from streaming.phase_one.watcher.marks import agenda
from streaming.phase_one.watcher.marks.agenda import Agenda


def test_topics_come_in_the_order_of_their_times_and_never_early() -> None:
    found = Agenda()
    assert found.next(0) is None
    found.put("late", 20)
    found.put("early", 10)
    assert found.next(9) is None
    assert found.next(10) == "early"
    found.drop("early")
    assert (found.next(19), found.next(20)) == (None, "late")


def test_the_last_time_that_was_given_counts() -> None:
    found = Agenda()
    for at_ms in (5, 30, 10, 10):
        found.put("a", at_ms)
    found.put("b", 20)
    assert (found.next(9), found.next(10)) == (None, "a")
    found.put("a", 40)
    assert (found.next(39), "a" in found, sorted(found)) == ("b", True, ["a", "b"])
    found.drop("b")
    found.drop("b")
    assert (found.next(40), "b" in found) == ("a", False)


def test_times_that_count_no_more_are_forgotten() -> None:
    found = Agenda()
    for at_ms in range(10 * agenda._STALE_AT_MOST):
        found.put("a", 10**6 + at_ms)
    assert len(found._heap) <= agenda._STALE_AT_MOST + 2
    assert found.next(10**7) == "a"
