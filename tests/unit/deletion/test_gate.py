"""A reached limit holds every later run until an operator has seen it; outages are waited for with growing pauses."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.clock import ManualClock
from streaming.deletion.gate import Outages
from streaming.deletion.instance import Coordination
from streaming.errors import (
    FencedError,
    RefusedError,
    SafetyError,
    StopRequestedError,
    UnavailableError,
    WorkersLostError,
)
from streaming.limits.breaker import Breaker
from streaming.limits.enforcement import BlastRadius
from streaming.metrics import Metrics
from streaming.state.notes import hold
from tests.services import service_of
from udfs.backoff import Backoff
from udfs.blast_radius import Chunk, DryRunPlan, Limits, Planned
from udfs.units import HOUR_MS

LIMITS = Limits(
    per_batch=10,
    per_hour=10,
    per_hour_per_tenant=10**9,
    per_hour_per_owner=10**9,
    share_per_hour=1.0,
    share_applies_above=0,
)
A, B = ("shop", "data:a"), ("shop", "data:b")
NOW_MS = 10 * HOUR_MS


class Operator(threading.Event):
    """A stop event that is set only if `gives_up`; can resume at the first wait."""

    def __init__(self, resume: Callable[[], object] | None) -> None:
        super().__init__()
        self._resume = resume
        self.looks: list[float] = []
        self.look: Callable[[], float] = lambda: -1

    def wait(self, _timeout: float | None = None) -> bool:
        self.looks.append(self.look())
        if self._resume is None:
            return True
        self._resume()
        return False


class Run:
    """A run of the service on a breaker that outlives it. resumes: whether an operator resumes while it waits."""

    def __init__(self, state_dir: str, breaker: Breaker, *, resumes: bool) -> None:
        self.clock = ManualClock(NOW_MS)
        self.is_mine = True
        self.migration = ""
        self.has_broker = True
        self.radius = BlastRadius(
            limits=LIMITS, breaker=breaker, census=lambda: 1000, clock=self.clock, journaled=lambda *_: {}
        )
        self.radius.recall([(NOW_MS - 1000, *B)] * 8)
        self.stop = Operator((lambda: breaker.clear(now_ms=NOW_MS)) if resumes else None)
        metrics = Metrics()
        self.shown: Callable[[], float] = lambda: cast(
            "float", metrics.registry.get_sample_value("ledger_reaper_limit_reached")
        )
        self.stop.look = self.shown
        self.gate = service_of(
            coordination=Coordination(
                still_mine=lambda: self.is_mine,
                paused=lambda: "",
                migration=lambda: self.migration,
                await_broker=self._await_broker,
                published=lambda: "",
                mark_published=lambda _text: None,
                agreed_ms=lambda: NOW_MS,
                later_ms=lambda: NOW_MS,
                start_plan=lambda: "",
            ),
            blast_radius=self.radius,
            metrics=metrics,
            clock=self.clock,
            stop=self.stop,
            state_dir=state_dir,
        ).gate

    def _await_broker(self) -> None:
        if not self.has_broker:
            raise UnavailableError("no broker has a session")

    def chunk(self, query: str, planned: Planned) -> tuple[int, ...] | None:
        """Judge a chunk as its sweep does; return how much each task may delete."""
        self.gate.wait_until_open()
        return self.gate.bound(Chunk(query, 7, NOW_MS), planned, lambda: DryRunPlan(planned, (sum(planned.values()),)))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    breaker = Breaker(MemoryStore(), "/lr/breaker")
    return lambda *, resumes=False: Run(str(tmp_path / "state"), breaker, resumes=resumes)


def _tripped(run: Callable[..., Run], planned: Planned) -> None:
    first = run()
    with pytest.raises(StopRequestedError):
        first.chunk("requests", planned)
    assert first.shown() == 1


@pytest.mark.parametrize("planned", [{A: 11}, {A: 3}], ids=["by itself too much", "too much within the hour"])
def test_a_run_that_starts_held_shows_it_and_one_resume_lets_the_chunk_go_on(
    run: Callable[..., Run], planned: Planned
) -> None:
    _tripped(run, planned)
    second = run(resumes=True)
    most = second.chunk("requests", planned)
    assert most in (None, (sum(planned.values()),))
    assert second.stop.looks == [1]
    assert second.shown() == 0


def test_a_migration_holds_the_next_chunk_until_its_znode_is_gone(run: Callable[..., Run]) -> None:
    service = run(resumes=True)
    service.chunk("requests", {A: 1})
    service.migration = "the migration has phase FAILED"

    def end() -> float:
        service.migration = ""
        return 0

    service.stop.look = end  # the operator deletes the znode while the chunk waits
    assert service.chunk("requests", {A: 1}) in (None, (1,))
    assert service.stop.looks == [0]


def test_a_migration_that_lasts_holds_the_chunk_until_the_service_stops(run: Callable[..., Run]) -> None:
    service = run()
    service.migration = "the migration has phase COMPLETED"
    with pytest.raises(StopRequestedError):
        service.chunk("requests", {A: 1})


def test_a_chunk_waits_while_no_broker_has_a_session_and_goes_on_with_the_first(run: Callable[..., Run]) -> None:
    service = run()
    service.has_broker = False
    for _ in range(3):
        with pytest.raises(UnavailableError, match="no broker has a session"):
            service.chunk("requests", {A: 1})
    service.has_broker = True
    assert service.chunk("requests", {A: 1}) in (None, (1,))


def test_a_resume_while_nothing_ran_counts_as_well(run: Callable[..., Run]) -> None:
    _tripped(run, {A: 11})
    run().radius.breaker.clear(now_ms=NOW_MS)
    later = run()
    assert later.chunk("requests", {A: 11}) == (11,)
    assert not later.stop.looks


def test_an_outage_while_it_is_held_needs_no_second_resume(run: Callable[..., Run]) -> None:
    first = run()
    with pytest.raises(StopRequestedError):
        first.chunk("requests", {A: 11})
    first.radius.breaker.clear(now_ms=NOW_MS)
    assert first.chunk("requests", {A: 11}) == (11,)


@pytest.mark.parametrize(
    ("query", "planned"),
    [
        pytest.param("requests", {A: 12}, id="one delete more"),
        pytest.param("requests", {B: 11}, id="another owner's"),
        pytest.param("requests-1a2b3c4d", {A: 11}, id="another query's"),
    ],
)
def test_a_resume_releases_nothing_that_no_operator_has_seen(
    run: Callable[..., Run], query: str, planned: Planned
) -> None:
    _tripped(run, {A: 11})
    run().radius.breaker.clear(now_ms=NOW_MS)
    with pytest.raises(StopRequestedError):
        run().chunk(query, planned)


def test_a_resume_is_good_for_one_chunk(run: Callable[..., Run]) -> None:
    _tripped(run, {A: 11})
    run().radius.breaker.clear(now_ms=NOW_MS)
    later = run()
    later.chunk("requests", {A: 11})
    for again in (run(), later):
        with pytest.raises(StopRequestedError):
            again.chunk("requests", {A: 11})


@pytest.mark.parametrize(
    ("query", "deleted"),
    [
        pytest.param("retry", 1, id="another query deleted something"),
        pytest.param("requests", 0, id="the chunk itself has gone by"),
    ],
)
def test_a_resume_is_over_when_something_has_come_between(run: Callable[..., Run], query: str, deleted: int) -> None:
    _tripped(run, {A: 11})
    run().radius.breaker.clear(now_ms=NOW_MS)
    later = run()
    later.chunk(query, {B: 1})
    later.radius.count({B: deleted}, is_doubtful=False)
    with pytest.raises(StopRequestedError):
        later.chunk("requests", {A: 11})


def test_a_chunk_of_another_query_that_deleted_nothing_does_not_come_between(run: Callable[..., Run]) -> None:
    _tripped(run, {A: 11})
    run().radius.breaker.clear(now_ms=NOW_MS)
    later = run()
    later.chunk("retry", {B: 1})
    later.radius.count({}, is_doubtful=False)
    assert later.chunk("requests", {A: 11}) == (11,)


def test_a_run_that_was_outdated_takes_no_resume_away(run: Callable[..., Run]) -> None:
    _tripped(run, {A: 11})
    outdated = run(resumes=True)
    outdated.is_mine = False
    with pytest.raises(FencedError):
        outdated.chunk("requests", {A: 11})
    assert run().chunk("requests", {A: 11}) == (11,)


def test_a_resume_after_a_doubt_releases_only_the_same_doubt(run: Callable[..., Run]) -> None:
    first = run()
    with pytest.raises(StopRequestedError):
        first.gate.hold_if_doubted("requests", "9 of 10 owners")
    first.radius.breaker.clear(now_ms=NOW_MS)
    later = run().radius
    assert later.doubt("requests", "10 of 10 owners")
    assert later.doubt("retry", "9 of 10 owners")
    assert not later.doubt("requests", "9 of 10 owners")
    assert later.doubt("requests", "9 of 10 owners")


def test_a_pause_holds_the_work_and_a_note_has_the_reason_until_it_ends(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    state_dir, paused, noted = str(tmp_path / "state"), ["maintenance"], []
    only = run()

    def resume() -> None:
        noted.append((*hold.noted(state_dir), only.gate.held))
        paused[0] = ""

    only.gate.stop = Operator(resume)
    only.gate.coordination = replace(only.gate.coordination, paused=lambda: paused[0])
    only.gate.wait_until_open()
    assert noted == [("paused: maintenance", NOW_MS, "paused: maintenance")]
    assert (hold.noted(state_dir), only.gate.held) == (("", 0), "")


def test_a_chunk_that_no_longer_waits_at_the_gate_is_not_held(run: Callable[..., Run]) -> None:
    only = run()
    answers = iter(["maintenance"])

    def paused() -> str:
        for answer in answers:
            return answer
        raise UnavailableError("ZooKeeper is away")

    only.gate.stop = Operator(lambda: None)
    only.gate.coordination = replace(only.gate.coordination, paused=paused)
    with pytest.raises(UnavailableError):
        only.gate.wait_until_open()
    assert only.gate.held == ""


def test_a_run_that_is_not_held_takes_an_earlier_runs_note_away(run: Callable[..., Run], tmp_path: Path) -> None:
    _tripped(run, {A: 11})
    state_dir = str(tmp_path / "state")
    assert hold.noted(state_dir)[0].startswith("LIMIT REACHED")
    later = run()
    later.radius.breaker.clear(now_ms=NOW_MS)
    later.gate.wait_until_open()
    assert hold.noted(state_dir) == ("", 0)


def test_a_stop_ends_the_wait_before_anything_is_asked(run: Callable[..., Run]) -> None:
    later = run()
    later.gate.stop.set()
    later.is_mine = False
    with pytest.raises(StopRequestedError):
        later.gate.wait_until_open()


def test_a_hold_and_its_end_are_logged_once_each_whether_or_not_a_chunk_waits(
    run: Callable[..., Run],
) -> None:
    only, said, paused = run(), list[str](), ["maintenance"]
    only.gate.log = said.append
    only.gate.coordination = replace(only.gate.coordination, paused=lambda: paused[0])
    only.gate.log_hold()
    only.gate.stop = Operator(lambda: paused.__setitem__(0, ""))
    only.gate.wait_until_open()
    only.gate.log_hold()
    only.radius.breaker.trip("60 deletes")
    only.gate.log_hold()
    assert said == [
        "paused: maintenance",
        "resumed; it was paused: maintenance",
        "LIMIT REACHED, nothing more is deleted: 60 deletes. Find out why, then `ledger-reaper resume --limit`.",
    ]


class Stop(threading.Event):
    """An event that never waits, and is set after this number of waits."""

    def __init__(self, after: int = 100) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._after = after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) >= self._after


def _outages(stop: Stop) -> Outages:
    return Outages(stop=stop, metrics=Metrics(), log=lambda _text: None, backoff=Backoff((1, 2)))


def test_a_step_is_tried_until_no_service_is_away() -> None:
    stop, left = Stop(), [UnavailableError("away")] * 2 + [RuntimeError("streaming.errors.UnavailableError: in a task")]
    outages, shown = _outages(stop), list[float | None]()

    def in_metrics(name: str) -> float | None:
        return outages.metrics.registry.get_sample_value(name)

    def step() -> None:
        shown.append(in_metrics("ledger_reaper_outages"))
        if left:
            raise left.pop()

    outages.wait_through(step)
    assert stop.waits == [1, 2, 2]
    assert in_metrics("ledger_reaper_outages_waited_total") == 3
    assert shown == [None, 1, 1, 1], "an alert waits until the step succeeds"
    assert in_metrics("ledger_reaper_outages") == 0
    assert not stop.is_set()


def test_a_stop_is_not_kept_waiting_by_an_outage() -> None:
    def step() -> None:
        raise UnavailableError("away")

    with pytest.raises(StopRequestedError):
        _outages(Stop(after=2)).wait_through(step)


def test_lost_executors_are_waited_for_but_not_for_ever_should_the_step_itself_end_them() -> None:
    stop, left = Stop(), [WorkersLostError("gone"), UnavailableError("away")] * 2 + [WorkersLostError("gone")] * 2

    def step() -> None:
        if left:
            raise left.pop(0)

    _outages(stop).wait_through(step)
    assert len(stop.waits) == 6

    def ends_them() -> None:
        raise WorkersLostError("gone")

    stop = Stop()
    with pytest.raises(WorkersLostError):
        _outages(stop).wait_through(ends_them)
    assert stop.waits == [1, 2]
    assert not stop.is_set()


@pytest.mark.parametrize(
    ("failure", "raised", "is_fatal"),
    [
        pytest.param(SafetyError("look"), SafetyError, True, id="an operator has to act"),
        pytest.param(RuntimeError("streaming.errors.FencedError: another"), FencedError, True, id="told by a task"),
        pytest.param(RefusedError("no rights"), RefusedError, False, id="the service said no"),
        pytest.param(StopRequestedError(), StopRequestedError, False, id="a stop"),
        pytest.param(ValueError("a bug"), ValueError, False, id="a bug"),
    ],
)
def test_any_other_failure_is_raised_at_once_and_those_of_safety_stop_the_service(
    failure: Exception, raised: type[Exception], *, is_fatal: bool
) -> None:
    def step() -> None:
        raise failure

    stop = Stop()
    outages = _outages(stop)
    with pytest.raises(raised):
        outages.wait_through(step)
    assert stop.waits == []
    assert stop.is_set() is is_fatal
    assert [type(each) for each in outages.fatal] == ([raised] if is_fatal else [])
