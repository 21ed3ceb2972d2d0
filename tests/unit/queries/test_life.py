"""The life of a query: when its fallback runs, when it is started, after which pauses, and when it is given up."""

import itertools
import logging
import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.errors import FencedError, SafetyError, StopRequestedError, UnavailableError
from streaming.queries.life import FallbackResult, ManagedQuery, QueryTools, TopicLog
from streaming.queries.names import Query
from streaming.state.notes.parked_queries import ParkedQuery
from udfs.backoff import LONG
from udfs.query_life import FALLBACK_S, SOON, Phase, QueryLife, Rules

QUERY = Query("requests-1", ("persistent://acme/reaper/d",))
BUG, AWAY = Exception("a bug"), UnavailableError("no broker answers")


class PaperStream:
    """A query that runs until it fails."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: object = None
        self.status = {"message": "Waiting for next trigger"}
        self.failure: Exception | None = None

    def exception(self) -> Exception | None:
        return self.failure


class World:
    """A query on a clock of its own. answers: the results of its fallbacks, in turn; the last one repeats."""

    def __init__(
        self, *answers: FallbackResult | Exception, most_failures: int | None = None, has_fallback: bool = True
    ) -> None:
        self.now_s = 0.0
        self.answers = list(answers)
        self.fallbacks: list[float] = []
        self.shown: list[ParkedQuery | None] = []
        self.stream = PaperStream()
        self.starts = 0
        tools = QueryTools(
            admin=MemoryPulsar(),
            start=self._start,
            restart=lambda _name: None,
            fallback=self._fallback,
            show=lambda _name, parked: self.shown.append(parked),
            rules=Rules(patience_s=90, most_failures=most_failures, has_fallback=has_fallback),
            monotonic=lambda: self.now_s,
            now_ms=lambda: 7,
        )
        self.managed = ManagedQuery(QUERY, cast("Any", self.stream), tools, TopicLog())

    def _start(self, _query: Query) -> Any:
        self.starts += 1
        self.stream = PaperStream()
        return self.stream

    def _fallback(self, _query: Query) -> FallbackResult:
        self.fallbacks.append(self.now_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fail(self, why: Exception = BUG) -> None:
        """End the query with this error."""
        self.stream.isActive, self.stream.failure = False, why
        assert self.managed.check() is None

    def step(self) -> bool | Exception:
        """Check the query once; return whether that started it, or the error that must end the service."""
        starts = self.starts
        failure = self.managed.check()
        assert self.managed.join(10)
        return failure or self.starts > starts

    def until_started(self, most_s: float = 10_000) -> float:
        """Let time pass until the query is started; return the time of the start."""
        until_s = self.now_s + most_s
        while self.now_s <= until_s:
            if self.step() is True:
                return self.now_s
            self.now_s += 0.5
        raise AssertionError("never started")


def test_the_fallback_runs_at_once_and_the_query_starts_when_it_is_over() -> None:
    world = World(FallbackResult(has_news=True))
    world.fail()
    assert world.managed.life.rests
    assert world.step() is False
    assert world.fallbacks == [0]
    assert world.step() is True
    assert world.managed.life.is_parked
    assert not world.managed.life.rests
    world.stream.lastProgress = {}
    assert world.step() is False
    assert not world.managed.life.is_parked
    assert [parked and (parked.failures, parked.is_read) for parked in world.shown] == [(1, False), (0, True), None]
    why = "query requests-1 failed: a bug"
    assert world.shown[0] == ParkedQuery(topic=QUERY.topics[0], why=why, since_ms=7, failures=1)


def test_a_query_that_fails_repeatedly_is_started_after_pauses_while_the_fallback_works() -> None:
    world = World(FallbackResult(has_news=False))
    started = []
    for _ in range(8):
        world.fail()
        started.append(world.until_started())
    pauses = [later - earlier for earlier, later in itertools.pairwise(started)]
    expected = [*SOON.pauses_s[1:], SOON.pauses_s[-1], SOON.pauses_s[-1]]
    assert all(pause - 2 <= least <= pause for pause, least in zip(pauses, expected, strict=True)), pauses


def test_a_query_of_which_the_fallback_reads_every_batch_is_not_slowed_down() -> None:
    world = World(FallbackResult(has_news=True))
    for _ in range(20):
        world.fail()
        world.until_started(most_s=3)


@pytest.mark.parametrize(
    ("failure", "longest_s"), [pytest.param(BUG, 600, id="of anything"), pytest.param(AWAY, 60, id="of an outage")]
)
def test_if_the_fallback_fails_too_the_query_is_started_after_pauses_that_grow(
    failure: Exception, longest_s: float
) -> None:
    world = World(failure)
    started = []
    for _ in range(9):
        world.fail()
        started.append(world.until_started())
    pauses = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert pauses[0] <= LONG.pauses_s[3]
    assert all(earlier <= later for earlier, later in itertools.pairwise(pauses))
    assert longest_s <= pauses[-1] <= longest_s + 2
    last = world.shown[-1]
    assert last is not None
    assert not last.is_read


def test_while_no_batch_can_be_planned_the_fallback_runs_again_and_again_and_the_query_rests() -> None:
    reached = {"persistent://acme/reaper/d-partition-0": (7, 3)}
    waits = FallbackResult(has_news=False, may_start=False, reached=reached)
    world = World(FallbackResult(has_news=True, may_start=False), *[waits] * 5, FallbackResult(has_news=True))
    world.fail()
    world.until_started()
    between = [later - earlier for earlier, later in itertools.pairwise(world.fallbacks)]
    assert len(world.fallbacks) == 7
    assert all(FALLBACK_S <= pause <= FALLBACK_S + 2 for pause in between)


def test_the_positions_that_the_fallback_reached_without_a_batch_are_known_until_the_query_works_again() -> None:
    reached = {"persistent://acme/reaper/d-partition-0": (7, 3)}
    world = World(FallbackResult(has_news=True, reached=reached))
    assert world.managed.reached == {}
    world.fail()
    for _ in range(2):
        world.step()
    assert world.managed.reached == reached
    world.stream.lastProgress = {}
    world.step()
    assert world.managed.reached == {}


def test_a_query_that_failed_too_often_is_given_up_if_the_run_is_to_end() -> None:
    world = World(AWAY, most_failures=4)
    for number in range(3):
        assert not world.managed.is_given_up
        world.fail()
        if number < 2:
            world.until_started()
    for _ in range(4000):
        assert world.step() is False
        world.now_s += 0.5
    assert world.managed.is_given_up


def test_a_query_whose_fallback_has_news_is_never_given_up() -> None:
    world = World(FallbackResult(has_news=True), most_failures=4)
    for _ in range(20):
        world.fail()
        world.until_started()
    assert not world.managed.is_given_up


def test_a_fallback_that_another_instance_has_fenced_ends_the_service() -> None:
    world = World(FencedError("another"))
    world.fail()
    world.step()
    assert isinstance(world.step(), FencedError)


def test_a_fault_of_the_querys_checkpoint_keeps_it_parked_and_ends_nothing() -> None:
    world = World(SafetyError("batch 3 is not the one to commit"))
    world.fail()
    started = [world.until_started()]
    world.fail()
    started.append(world.until_started())
    assert world.managed.life.is_parked
    assert started[1] - started[0] > started[0], "after pauses that grow"
    assert "not the one to commit" in str(world.shown[-1])


def test_a_fallback_that_a_stop_interrupted_is_no_failure() -> None:
    world = World(StopRequestedError())
    world.fail()
    world.step()
    assert world.step() is False
    assert len(world.shown) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fallback_that_ends_without_a_result_counts_as_failed() -> None:
    world = World(FallbackResult(has_news=True))
    world.fail()

    def exit_thread(_query: Query) -> FallbackResult:
        raise SystemExit

    world.managed._tools = replace(world.managed._tools, fallback=exit_thread)
    world.step()
    world.step()
    assert "without a result" in str(world.shown[-1])


def test_a_stop_waits_for_a_fallback_only_as_long_as_it_may_and_the_query_as_long_as_it_runs() -> None:
    ended = threading.Event()

    def slow(_query: Query) -> FallbackResult:
        ended.wait(30)
        return FallbackResult(has_news=False)

    world = World(BUG)
    world.managed._tools = replace(world.managed._tools, fallback=slow)
    world.fail()
    world.managed.check()
    assert not world.managed.join(0.05)
    assert world.managed.check() is None
    assert world.managed.life.phase is Phase.FALLBACK_RUNS, "the query must not start beside its fallback"
    ended.set()
    assert world.managed.join(10)


def test_a_query_without_a_fallback_is_an_error_only_if_it_fails_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World(has_fallback=False)
    with caplog.at_level(logging.INFO, "ledger-reaper"):
        world.fail()
        world.until_started()
        world.fail(RuntimeError("another bug"))
        world.until_started()
        world.stream.lastProgress = {}
        world.step()
    assert world.fallbacks == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR, logging.INFO]
    assert [parked and (parked.failures, parked.is_read) for parked in world.shown] == [(1, False), (2, False), None]


def test_a_source_may_wait_for_messages_while_it_plans() -> None:
    world = World(has_fallback=False)
    world.stream.status = {"message": "Getting offsets from our source"}
    for _ in range(30):
        world.now_s += 1
        assert world.step() is False
    assert world.managed.life == QueryLife()
