"""A temporary error makes the watcher start again; others end it, or are retried next to a service."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from streaming.adapters.memory.changes import MemoryChanges
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.config.load import load
from streaming.coordination.lock import WATCH, InstanceLock, lock_path
from streaming.errors import ConfigError, RefusedError, SafetyError, StopRequestedError, UnavailableError
from streaming.phase_one.watcher import watch_loop
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.ports import ChangedPaths
from streaming.prometheus.health import STALLED_S, Health
from streaming.prometheus.registry import Registry
from streaming.state.notes.watcher_note import WatcherNote, note, noted
from tests.builders import ROOT, put
from tests.unit.phase_one.watcher.watching import World
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import BROKERS, MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT


def raising(errors: list[Exception]) -> Callable[..., None]:
    def once(*_arguments: object) -> None:
        raise errors.pop(0)

    return once


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_loop, "_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(watch_loop, "_TICK_S", 0.01)


def test_temporary_errors_are_retried_until_a_stop() -> None:
    errors: list[Exception] = [UnavailableError("a"), RefusedError("b"), UnavailableError("c"), StopRequestedError()]
    metrics = WatchMetrics(registry := Registry())
    watch_loop.repeat(raising(errors), metrics, threading.Event())
    assert errors == []
    assert registry.get_sample_value("ledger_reaper_watcher_failures_total") == 3


def test_a_watcher_that_waits_for_zookeeper_is_alive() -> None:
    now_s, stop, stalled = 0.0, threading.Event(), list[str]()
    health = Health(lambda: now_s)
    health.beat()

    def once() -> None:
        nonlocal now_s
        stalled.append(health.stalled)
        now_s += STALLED_S / 2
        if now_s > 2 * STALLED_S:
            stop.set()
        raise UnavailableError("ZooKeeper is away")

    watch_loop.repeat(once, WatchMetrics(Registry(), health), stop)
    assert not any(stalled)


def test_after_it_has_watched_for_a_while_an_error_costs_a_second_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_loop, "_AGAIN_S", (1.0, 60.0))
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    ran_s = iter([0.0, 1.0, 1.0, 2.0, 2.0, 100.0, 100.0, 101.0, 101.0])
    errors: list[Exception] = [*(UnavailableError("a") for _ in range(4)), StopRequestedError()]
    watch_loop.repeat(raising(errors), WatchMetrics(Registry()), Stop(), ran_s.__next__)
    assert waits == [1.0, 60.0, 1.0, 60.0]


def test_a_topic_that_no_watcher_may_use_is_refused_before_anything(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[topics]\nrequests = ["persistent://acme/reaper/r"]\n')
    with pytest.raises(ConfigError, match=r"topics\.watch"):
        watch_loop.watch(load(file), threading.Event())


def test_an_error_that_an_operator_must_see_ends_the_watcher() -> None:
    with pytest.raises(SafetyError):
        watch_loop.repeat(raising([SafetyError("a")]), WatchMetrics(Registry()), threading.Event())


@pytest.mark.parametrize("is_in_a_look", [False, True])
def test_a_lost_lock_is_no_stop(world: World, *, is_in_a_look: bool) -> None:
    stop, over = threading.Event(), threading.Event()
    world.list(1)
    watcher = world.start(lambda: stop.is_set() or over.is_set())
    if is_in_a_look:
        world.hints.take = lambda: over.set() or ChangedPaths(has_gap=True)  # type: ignore[method-assign,func-returns-value]
    else:
        over.set()
    with pytest.raises(UnavailableError, match="has ended"):
        watch_loop.take_turns(watcher, world.state, stop, over, lambda: None)


def test_a_stop_ends_the_watcher_and_each_scan_is_noted(world: World) -> None:
    stop = threading.Event()
    world.list(1)
    watcher = world.start()
    turn = watcher.turn

    def last() -> None:
        turn()
        stop.set()

    watcher.turn = last  # type: ignore[method-assign]
    watch_loop.take_turns(watcher, world.state, stop, threading.Event(), lambda: None)
    found = noted(world.state)
    assert found is not None
    assert found.znodes == 1


def test_beside_a_service_nothing_ends_it_but_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [SafetyError("held by another"), ValueError("a fault of ours"), StopRequestedError()]
    is_over = threading.Event()

    def once(settings: object, metrics: object, stop: threading.Event, doors: object) -> None:
        if not errors:
            is_over.set()
            stop.wait()
            return
        raise errors.pop(0)

    monkeypatch.setattr(watch_loop, "watch_once", once)
    with watch_loop.watching(load(None), Registry()):
        assert is_over.wait(10)
    assert caplog.text.count("ALARM: the watcher does not run") == 2


class Cluster:
    """A cluster in memory for a watcher's clients. is_away: no broker answers."""

    def __init__(self, folder: Path, instance_id: bytes = b"id") -> None:
        self.tree = MemoryTree()
        for path in (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, BROKERS):
            put(self.tree, path)
        put(self.tree, f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
        put(self.tree, f"{ROOT}/INSTANCEID", instance_id)
        self.pulsar = MemoryPulsar()
        self.metrics = WatchMetrics(Registry())
        (folder / "config.toml").write_text(f'[state]\ndir = "{folder / "state"}"\n')
        self.settings = load(folder / "config.toml")
        self.lock = lock_path(self.settings.zookeeper.own_root, self.settings.service.name + WATCH)

    def watch(self, stop: threading.Event, store: MemoryStore | None = None) -> None:
        """Watch; if stop is set, as a process that gets a signal before its first turn."""
        doors = watch_loop.Connections(
            store=lambda _settings: store or MemoryStore(self.tree),
            hints=lambda _settings, roots: MemoryChanges(self.tree, roots),
            admin=lambda _settings: nullcontext(self.pulsar),
        )
        watch_loop.watch_once(self.settings, self.metrics, stop, doors)


@pytest.fixture
def stopped() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


def test_a_second_watcher_of_the_name_is_refused_and_the_first_gives_its_lock_back(
    tmp_path: Path, stopped: threading.Event
) -> None:
    cluster = Cluster(tmp_path)
    with InstanceLock(
        MemoryStore(cluster.tree),
        cluster.settings.zookeeper.own_root,
        cluster.settings.service.name + WATCH,
        on_lost=lambda: None,
    ):
        with pytest.raises(SafetyError, match="already runs"):
            cluster.watch(stopped)
        assert not (tmp_path / "state").exists(), "it has touched nothing"
    cluster.watch(stopped)
    assert cluster.lock not in cluster.tree.paths()


def test_a_lock_that_is_lost_ends_the_watching(tmp_path: Path) -> None:
    class Losing(MemoryStore):
        def when_session_ends(self, callback: Callable[[], None]) -> None:
            callback()

    cluster, stop = Cluster(tmp_path), threading.Event()
    give_up = threading.Timer(5.0, stop.set)
    give_up.start()
    with pytest.raises(UnavailableError, match="has ended"):
        cluster.watch(stop, Losing(cluster.tree))
    give_up.cancel()


def test_a_migration_to_another_metadata_store_ends_the_watching(tmp_path: Path, stopped: threading.Event) -> None:
    cluster = Cluster(tmp_path)
    cluster.watch(stopped)
    put(cluster.tree, MIGRATION_PATH, b'{"phase":"PREPARATION","targetUrl":"oxia://oxia1:6648/default"}')
    with pytest.raises(UnavailableError, match="has phase PREPARATION"):
        cluster.watch(stopped)
    assert cluster.lock not in cluster.tree.paths()


def test_a_migration_that_starts_later_ends_the_watching_before_the_next_turn(tmp_path: Path) -> None:
    cluster, turns = Cluster(tmp_path), []

    class Migrating(threading.Event):
        def wait(self, _timeout: float | None = None) -> bool:
            turns.append(1)
            put(cluster.tree, MIGRATION_PATH, b"")
            return False

    with pytest.raises(UnavailableError, match="its phase is unknown"):
        cluster.watch(Migrating())
    assert turns == [1]


@pytest.mark.parametrize("is_away", [False, True])
def test_another_clusters_state_is_refused_whether_a_broker_answers_or_not(
    tmp_path: Path, stopped: threading.Event, *, is_away: bool
) -> None:
    Cluster(tmp_path).watch(stopped)
    other = Cluster(tmp_path, b"another")
    other.pulsar.faults.away = is_away
    with pytest.raises(UnavailableError if is_away else SafetyError):
        other.watch(stopped)


def test_without_a_broker_it_watches_a_cluster_that_it_knows_and_no_other(
    tmp_path: Path, stopped: threading.Event
) -> None:
    cluster = Cluster(tmp_path)
    cluster.pulsar.faults.away = True
    with pytest.raises(UnavailableError):
        cluster.watch(stopped)
    cluster.pulsar.faults.away = False
    cluster.watch(stopped)
    cluster.pulsar.faults.away = True
    cluster.watch(stopped)


def test_the_metrics_name_the_cluster_also_without_a_broker_and_show_the_scan_before_the_restart(
    tmp_path: Path, stopped: threading.Event
) -> None:
    cluster = Cluster(tmp_path)
    cluster.watch(stopped)
    note(cluster.settings.state_dir, WatcherNote(at_ms=7_000, znodes=3, waiting=2, unreadable=0))
    cluster.pulsar.faults.away = True
    cluster.metrics = WatchMetrics(Registry())
    cluster.watch(stopped)
    (sample,) = [
        sample
        for family in cluster.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "ledger_reaper_watcher_last_scan_timestamp_seconds"
    ]
    assert sample.labels == {"instance_name": "main", "cluster": "standalone"}
    assert sample.value == 7
    assert cluster.metrics.registry.get_sample_value("ledger_reaper_watcher_requests_waiting") == 2
