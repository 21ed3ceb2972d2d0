"""Parked lanes: when a rescue is made and when a query is begun, in which pauses, and when a lane is given up."""

import itertools
import threading
from typing import Any

import pytest

from streaming.errors import FencedError, SafetyError, StopRequestedError, UnavailableError
from streaming.queries.names import Query
from streaming.queries.parked import LOOK_S, PAUSES_S, SOON_S, FallbackResult, ParkedQueries
from streaming.state.parked_queries import ParkedQuery

LANE = Query("requests-1", ("persistent://acme/reaper/d",))
BUG, AWAY = Exception("a bug"), UnavailableError("no broker answers")


class World:
    """A lane on a clock of its own. answers: what rescues come to, in turn; the last one again and again."""

    def __init__(self, *answers: FallbackResult | Exception, **options: Any) -> None:
        self.now_s = 0.0
        self.answers = list(answers)
        self.rescues: list[float] = []
        self.shown: list[ParkedQuery | None] = []
        self.parked = ParkedQueries(
            self._rescue,
            lambda _name, lane: self.shown.append(lane),
            monotonic=lambda: self.now_s,
            now_ms=lambda: 7,
            **options,
        )

    def _rescue(self, _query: Query) -> FallbackResult:
        self.rescues.append(self.now_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def step(self) -> bool | Exception:
        made = self.parked.step(LANE)
        assert self.parked.join(10)
        return made

    def until_begun(self, most_s: float = 10_000) -> float:
        """Let time pass until the query is to begin; returns when that is."""
        until_s = self.now_s + most_s
        while self.now_s <= until_s:
            if self.step() is True:
                return self.now_s
            self.now_s += 0.5
        raise AssertionError("never begun")


def test_a_lane_is_rescued_at_once_and_its_query_begins_when_the_rescue_is_over() -> None:
    world = World(FallbackResult(has_news=True))
    world.parked.park(LANE, BUG)
    assert world.parked.rests(LANE)
    assert world.step() is False
    assert world.rescues == [0]
    assert world.step() is True
    assert LANE in world.parked
    assert not world.parked.rests(LANE)
    assert world.parked.recover(LANE)
    assert LANE not in world.parked
    assert not world.parked.recover(LANE)
    assert [lane and (lane.failures, lane.is_read) for lane in world.shown] == [(1, False), (0, True), None]
    assert world.shown[0] == ParkedQuery(topic=LANE.topics[0], why="a bug", since_ms=7, failures=1)


def test_a_query_that_fails_again_and_again_is_begun_after_pauses_while_the_rescue_works() -> None:
    world = World(FallbackResult(has_news=False))
    begun = []
    for _ in range(8):
        world.parked.park(LANE, BUG)
        begun.append(world.until_begun())
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    expected = [*SOON_S[1:], SOON_S[-1], SOON_S[-1]]
    assert all(pause - 2 <= wanted <= pause for pause, wanted in zip(pauses, expected, strict=False)), pauses


def test_a_lane_in_which_every_batch_has_to_be_rescued_is_not_slowed_down() -> None:
    world = World(FallbackResult(has_news=True))
    for _ in range(20):
        world.parked.park(LANE, BUG)
        world.until_begun(most_s=3)


@pytest.mark.parametrize(
    ("failure", "longest_s"), [pytest.param(BUG, 600, id="of anything"), pytest.param(AWAY, 60, id="of an outage")]
)
def test_where_the_rescue_fails_too_the_query_is_begun_after_pauses_that_grow(
    failure: Exception, longest_s: float
) -> None:
    world = World(failure)
    begun = []
    for _ in range(9):
        world.parked.park(LANE, BUG)
        begun.append(world.until_begun())
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert pauses[0] <= PAUSES_S[3]
    assert all(earlier <= later for earlier, later in itertools.pairwise(pauses))
    assert longest_s <= pauses[-1] <= longest_s + 2
    last = world.shown[-1]
    assert last is not None
    assert not last.is_read


def test_while_no_batch_can_be_planned_rescues_look_for_news_and_the_query_rests() -> None:
    reached = {"persistent://acme/reaper/d-partition-0": (7, 3)}
    waits = FallbackResult(has_news=False, may_start=False, reached=reached)
    world = World(FallbackResult(has_news=True, may_start=False), *[waits] * 5, FallbackResult(has_news=True))
    world.parked.park(LANE, BUG)
    world.until_begun()
    between = [later - earlier for earlier, later in zip(world.rescues, world.rescues[1:], strict=False)]
    assert len(world.rescues) == 7
    assert all(LOOK_S <= each <= LOOK_S + 2 for each in between)


def test_how_far_a_lane_without_a_batch_was_worked_off_is_told() -> None:
    reached = {"persistent://acme/reaper/d-partition-0": (7, 3)}
    world = World(FallbackResult(has_news=True, may_start=False, reached=reached))
    assert world.parked.reached == {}
    world.parked.park(LANE, BUG)
    for _ in range(2):
        world.step()
    assert world.parked.reached == reached


def test_a_lane_that_failed_too_often_is_given_up_where_somebody_waits_for_the_end() -> None:
    world = World(AWAY, most_failures=4)
    for number in range(3):
        assert world.parked.given_up == {}
        world.parked.park(LANE, BUG)
        if number < 2:
            world.until_begun()
    for _ in range(4000):
        assert world.step() is False
        world.now_s += 0.5
    assert list(world.parked.given_up) == [LANE]


def test_a_lane_that_comes_to_something_now_and_then_is_never_given_up() -> None:
    world = World(FallbackResult(has_news=True), most_failures=4)
    for _ in range(20):
        world.parked.park(LANE, BUG)
        world.until_begun()
    assert world.parked.given_up == {}


def test_a_rescue_that_another_instance_has_fenced_ends_the_service() -> None:
    world = World(FencedError("another"))
    world.parked.park(LANE, BUG)
    world.step()
    assert isinstance(world.step(), FencedError)


def test_a_fault_of_the_querys_checkpoint_keeps_it_parked_and_ends_nothing() -> None:
    world = World(SafetyError("batch 3 is not the one to commit"))
    world.parked.park(LANE, BUG)
    begun = [world.until_begun()]
    world.parked.park(LANE, BUG)
    begun.append(world.until_begun())
    assert LANE in world.parked
    assert begun[1] - begun[0] > begun[0], "after pauses that grow"
    assert "not the one to commit" in str(world.shown[-1])


def test_a_rescue_that_a_stop_ended_is_no_failure() -> None:
    world = World(StopRequestedError())
    world.parked.park(LANE, BUG)
    world.step()
    assert world.step() is False
    assert len(world.shown) == 1


def test_a_stop_waits_for_rescues_no_longer_than_it_is_told() -> None:
    ended = threading.Event()

    def slow(_query: Query) -> FallbackResult:
        ended.wait(30)
        return FallbackResult(has_news=False)

    lanes = ParkedQueries(slow, lambda _name, _lane: None)
    lanes.park(LANE, BUG)
    lanes.step(LANE)
    assert not lanes.join(0.05)
    ended.set()
    assert lanes.join(10)
