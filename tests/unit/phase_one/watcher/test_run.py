"""An error that may pass makes the watcher begin anew; others end it, or are tried again beside a service."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streaming.config.load import load
from streaming.errors import ConfigError, RefusedError, SafetyError, StopRequestedError, UnavailableError
from streaming.phase_one.watcher import run
from streaming.phase_one.watcher.metrics import WatchMetrics
from streaming.ports import ChangedPaths
from streaming.state.watcher_note import noted
from tests.unit.phase_one.watcher.watching import World


def raising(errors: list[Exception]) -> Callable[..., None]:
    def once(*_arguments: object) -> None:
        raise errors.pop(0)

    return once


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(run, "_TICK_S", 0.01)


def test_what_may_pass_is_tried_again_until_a_stop() -> None:
    errors: list[Exception] = [UnavailableError("a"), RefusedError("b"), UnavailableError("c"), StopRequestedError()]
    metrics = WatchMetrics(registry := CollectorRegistry())
    run.repeat(raising(errors), metrics, threading.Event())
    assert errors == []
    assert registry.get_sample_value("ledger_deletion_watch_failures_total") == 3


def test_after_it_has_watched_for_a_while_an_error_costs_a_second_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_AGAIN_S", (1.0, 60.0))
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    ran_s = iter([0.0, 1.0, 1.0, 2.0, 2.0, 100.0, 100.0, 101.0, 101.0])
    errors: list[Exception] = [*(UnavailableError("a") for _ in range(4)), StopRequestedError()]
    run.repeat(raising(errors), WatchMetrics(CollectorRegistry()), Stop(), ran_s.__next__)
    assert waits == [1.0, 60.0, 1.0, 60.0]


def test_a_topic_that_no_watcher_may_use_is_refused_before_anything(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[topics]\nrequests = ["persistent://acme/reaper/r"]\n')
    with pytest.raises(ConfigError, match=r"topics\.watch"):
        run.watch(load(file), threading.Event())


def test_what_a_person_must_see_ends_it() -> None:
    with pytest.raises(SafetyError):
        run.repeat(raising([SafetyError("a")]), WatchMetrics(CollectorRegistry()), threading.Event())


@pytest.mark.parametrize("is_in_a_look", [False, True])
def test_a_lost_lock_is_no_stop(world: World, *, is_in_a_look: bool) -> None:
    stop, over = threading.Event(), threading.Event()
    world.list(1)
    watcher = world.start(lambda: stop.is_set() or over.is_set())
    if is_in_a_look:
        world.hints.take = lambda: over.set() or ChangedPaths(has_gap=True)  # type: ignore[method-assign,func-returns-value]
    else:
        over.set()
    with pytest.raises(UnavailableError, match="is over"):
        run.take_turns(watcher, world.state, stop, over)


def test_a_stop_ends_it_and_each_look_is_noted(world: World) -> None:
    stop = threading.Event()
    world.list(1)
    watcher = world.start()
    turn = watcher.turn

    def last() -> None:
        turn()
        stop.set()

    watcher.turn = last  # type: ignore[method-assign]
    run.take_turns(watcher, world.state, stop, threading.Event())
    found = noted(world.state)
    assert found is not None
    assert found.znodes == 1


def test_beside_a_service_nothing_ends_it_but_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [SafetyError("held by another"), ValueError("a fault of ours"), StopRequestedError()]
    is_over = threading.Event()

    def once(settings: object, metrics: object, stop: threading.Event) -> None:
        if not errors:
            is_over.set()
            stop.wait()
            return
        raise errors.pop(0)

    monkeypatch.setattr(run, "_watch_once", once)
    with run.watching(load(None), CollectorRegistry()):
        assert is_over.wait(10)
    assert caplog.text.count("ALARM: the watcher does not run") == 2
