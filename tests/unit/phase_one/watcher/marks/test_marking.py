"""Ledgers that a broker is about to drop are marked first, and processed even if watcher, broker and state are lost."""

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from streaming.adapters.memory.trims import MemoryTrimFacts
from streaming.errors import ForbiddenError, UnavailableError
from streaming.phase_one.watcher.marks import mark_removal, marking, marking_thread
from streaming.phase_one.watcher.marks.mark_removal import Tools
from streaming.phase_one.watcher.marks.marking import Marking
from streaming.phase_one.watcher.marks.marking_thread import MarkingThread
from streaming.phase_one.watcher.marks.signs import SignCollector, TopicSigns
from streaming.phase_one.watcher.unlisted import broker_sessions
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.prometheus.registry import Registry
from tests.builders import CURSOR, MINUTE_MS, TOPIC, UUID, cursor_znode, put
from tests.unit.phase_one.marked_topic import OFFLOAD, OURS, Topic
from tests.unit.phase_one.watcher.watching import World
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, serialize_managed_ledger
from udfs.paths import BROKERS, cursor_path, managed_ledger_path
from udfs.phase_one.marks import Marks, properties_of
from udfs.phase_one.trim_forecast import Retention
from udfs.units import HOUR_MS

V1_TOPIC = "public/standalone/default/persistent/orders"
OTHER = "public/default/persistent/payments"
POLL_S, DELAY_S = 60, 60


class Scene:
    """A topic with a cursor, a broker, and a watcher that marks ahead; the retention is an hour."""

    def __init__(self, state: Path) -> None:
        self.world = World(state)
        self.topic = Topic(tree=self.world.tree, now_ms=self.world.clock.now_ms)
        self.facts = MemoryTrimFacts()
        self.facts.kept, self.facts.cursors = Retention(60, -1), {TOPIC: {CURSOR: (99, -1)}}
        self.facts.loaded = {TOPIC}
        self.asked: Counter[str] = Counter()
        self.facts.faults.before(lambda operation, _topics: self.asked.update([operation]))
        put(self.world.tree, f"{BROKERS}/one")

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    def start(self) -> None:
        """Start a watcher that has not scanned yet."""
        self.registry = Registry()
        self.marking = Marking(POLL_S, DELAY_S, WatchMetrics(self.registry))
        self.world.signs = SignCollector(lambda seen: self.marking.take(seen, self.now_ms))
        store = self.world.store
        self.tools = Tools(self.topic.api(), self.facts, lambda: broker_sessions(store))
        self.watcher = self.world.start()

    def look(self) -> None:
        """Let a minute pass in which the watcher scans everything, and the marking does its work."""
        self.world.clock.advance(POLL_S * 1000)
        self.watcher.scan_soon()
        self.watcher.turn()
        while self.marking.has_work(self.now_ms) and self.marking.step(self.tools, self.now_ms):
            pass

    def looks(self, minutes: int) -> None:
        for _ in range(minutes):
            self.look()

    def has_work(self) -> bool:
        return self.marking.has_work(self.now_ms)

    def step(self) -> bool:
        return self.marking.step(self.tools, self.now_ms)

    def run_for(self, minutes: int, loaded: set[str]) -> None:
        """Let time pass as MarkingThread does; a scan in each minute finds these topics changed."""
        for _ in range(minutes):
            end_ms = self.now_ms + MINUTE_MS
            self.marking.take(TopicSigns(loaded=set(loaded)), self.now_ms)
            while self.now_ms < end_ms:
                try:
                    self.world.clock.advance(200 if self.has_work() and self.step() else 1000)
                except UnavailableError:
                    self.world.clock.advance(15_000)

    def closed(self, ledger_id: int, minutes_ago: int, *, is_uploaded: bool = False) -> LedgerInfo:
        offload = OFFLOAD if is_uploaded else None
        return LedgerInfo(
            ledger_id=ledger_id,
            entries=10,
            size_bytes=1000,
            timestamp_ms=self.now_ms - minutes_ago * MINUTE_MS,
            offload=offload,
        )

    def marked(self) -> set[int]:
        return self.topic.api().get_all_deletable_ledgers(TOPIC)

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"ledger_reaper_watcher_{name}_total")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.topic.lists(1, 99)
    made.start()
    made.look()
    return made


def test_ledgers_about_to_be_dropped_are_marked_once_their_topic_has_changed(scene: Scene) -> None:
    ledgers = [
        scene.closed(5, 100),
        scene.closed(6, 58, is_uploaded=True),
        scene.closed(7, 10),
        LedgerInfo(ledger_id=99),
    ]
    scene.topic.lists(*ledgers)
    scene.look()
    assert scene.marked() == {5, 6}
    assert scene.topic.api().get_all_deletable_offloaded_ledgers(TOPIC) == {6}
    assert scene.topic.info().properties.items() >= OURS.items()
    assert scene.metric("marks_set") == 3
    keys = scene.topic.keys()
    scene.topic.lists(*ledgers, LedgerInfo(ledger_id=100))
    scene.look()
    assert scene.topic.keys() == keys, "what is marked already is not marked again"
    assert scene.topic.sent == []


def test_a_topic_that_has_not_changed_is_not_asked_about(scene: Scene) -> None:
    scene.looks(5)
    assert not scene.asked


def test_topics_that_changed_before_the_first_scan_are_not_queried(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.topic.lists(1, 99)
    scene.start()
    scene.look()
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.start()  # a watcher that was away: the topic may be unloaded long since
    scene.looks(3)
    assert not scene.asked


def test_ledgers_that_are_too_young_are_marked_at_their_time_and_cursors_are_only_read_then(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 0), LedgerInfo(ledger_id=99))
    scene.look()
    assert scene.asked == {"is_loaded": 1, "retention": 1}
    scene.looks(55)
    assert (scene.marked(), scene.asked["retention"]) == (set(), 1)
    scene.looks(2)
    assert scene.marked() == {5}
    assert scene.asked["internal_stats"] == 1


def test_a_topic_whose_cursor_was_closed_is_not_queried(scene: Scene) -> None:
    put(scene.world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(50))
    scene.topic.lists(scene.closed(5, 50), LedgerInfo(ledger_id=99))
    scene.look()
    assert scene.asked["retention"] == 1
    put(scene.world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(-1))
    scene.topic.lists(
        scene.closed(5, 51), scene.closed(6, 0), LedgerInfo(ledger_id=99)
    )  # both in one scan: which was last?
    scene.looks(20)
    assert (scene.marked(), scene.asked["retention"]) == (set(), 1)


def test_a_topic_that_its_broker_has_not_loaded_is_not_queried(scene: Scene) -> None:
    scene.facts.loaded.clear()
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.looks(3)
    assert (scene.marked(), scene.asked) == (set(), {"is_loaded": 1})


def test_without_retention_and_without_a_turn_in_time_no_ledger_is_marked(scene: Scene) -> None:
    scene.facts.kept = Retention(0, 0)
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.look()
    assert (scene.marked(), scene.asked["internal_stats"]) == (set(), 0)
    scene.marking.take(TopicSigns(loaded={TOPIC}), scene.now_ms)
    scene.facts.kept = Retention(60, -1)
    scene.world.clock.advance(3 * MINUTE_MS)
    assert not scene.marking.step(scene.tools, scene.now_ms), "the sign that it is loaded is too old by now"


def test_a_topic_with_a_v1_name_is_left_alone(scene: Scene) -> None:
    put(scene.world.tree, managed_ledger_path(V1_TOPIC))
    scene.look()
    for ledgers in ((1, 2), (2, 3)):
        infos = tuple(LedgerInfo(ledger_id=each, entries=10) for each in ledgers)
        scene.world.tree.write(managed_ledger_path(V1_TOPIC), serialize_managed_ledger(ManagedLedgerInfo(infos)))
        scene.look()
    assert not scene.asked


def lost(scene: Scene, tmp_path: Path) -> Scene:
    """Mark 5 and 6; then watcher and broker crash, the state is lost, and the list has dropped both."""
    scene.topic.lists(scene.closed(5, 100), scene.closed(6, 100, is_uploaded=True), LedgerInfo(ledger_id=99))
    scene.look()
    assert scene.marked() == {5, 6}
    scene.topic.lists(LedgerInfo(ledger_id=99))
    scene.world.state = str(tmp_path / "new")
    scene.start()
    return scene


def test_a_watcher_without_state_processes_the_marks_of_its_predecessor(scene: Scene, tmp_path: Path) -> None:
    lost(scene, tmp_path).looks(5)
    asked = [(each.ledger_id, each.offload_context.uuid if each.offload_context else "") for each in scene.topic.sent]
    assert asked == [(5, ""), (6, ""), (6, UUID)]
    assert not scene.topic.exists(5)
    assert scene.topic.objects == set()
    assert scene.topic.keys() == set()
    assert scene.metric("marks_removed") == 3
    assert scene.world.topic.requests == [], "the watcher itself knew nothing of them"


def test_without_marks_ledgers_lost_like_this_are_not_requested(scene: Scene, tmp_path: Path) -> None:
    scene.facts.kept = Retention(0, 0)
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.look()
    scene.topic.lists(LedgerInfo(ledger_id=99))
    scene.world.state = str(tmp_path / "new")
    scene.start()
    scene.looks(10)
    assert scene.topic.exists(5)
    assert scene.topic.sent == scene.world.topic.requests == []


def test_ledgers_that_the_sweep_keeps_are_requested_seldom_and_stay_marked(scene: Scene, tmp_path: Path) -> None:
    scene.topic.sweeps = False
    lost(scene, tmp_path).looks(9)
    assert len(scene.topic.sent) == 3
    scene.looks(10)
    assert len(scene.topic.sent) == 6, "ten minutes later, once more"
    assert scene.marked() == {5, 6}
    for each in (5, 6):
        scene.world.tree.remove(f"/ledgers/00/0000/L{each:04}")
    scene.topic.objects.clear()
    scene.looks(10)
    assert scene.topic.keys() == set(), "the marks go when it is seen to be gone"


def test_marks_without_progress_are_checked_less_and_less_often(scene: Scene, tmp_path: Path) -> None:
    scene.topic.sweeps = False
    lost(scene, tmp_path).looks(3)
    looks = [len(scene.topic.looked_since)]
    for _ in range(43):
        scene.look()
        looks.append(len(scene.topic.looked_since))
    at = [minute for minute, (before, now) in enumerate(itertools.pairwise(looks)) if now > before]
    assert at == [0, 2, 6, 9, 19, 29, 39], "after a minute, two, four; then when it is asked for again"
    last_ms = scene.now_ms - 3 * MINUTE_MS
    assert scene.topic.looked_since[-1] == last_ms - 24 * HOUR_MS, "only the receipts of a day are read"
    scene.world.tree.remove("/ledgers/00/0000/L0005")
    scene.looks(6 + 1)
    before = len(scene.topic.looked_since)
    scene.look()
    assert (scene.marked(), len(scene.topic.looked_since)) == ({6}, before + 1), "some were removed"
    scene.topic.sweeps = True
    scene.looks(10)
    assert scene.topic.keys() == set()


def test_many_marks_are_processed_in_groups(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_removal, "_MOST_AT_ONCE", 2)
    scene.topic.lists(5, 6, 7, 8, 99)
    scene.topic.lists(99)
    scene.topic.sweeps = False
    scene.topic.api().mark_deletable_ledgers(TOPIC, [5, 6, 7, 8, 99])
    scene.looks(4)
    assert len(scene.topic.sent) == 2
    scene.topic.sweeps = True
    scene.looks(40)
    assert scene.marked() == {99}
    assert not any(map(scene.topic.exists, (5, 6, 7, 8)))


def test_when_a_broker_deletes_it_by_itself_the_mark_goes_and_marking_sends_nothing(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.look()
    scene.topic.lists(LedgerInfo(ledger_id=99))
    scene.world.tree.remove("/ledgers/00/0000/L0005")
    scene.looks(4)
    assert scene.topic.sent == []
    assert (scene.topic.keys(), scene.metric("marks_removed")) == (set(), 1)
    assert 5 in scene.world.topic.ids, "the watcher's own request, as ever"


def test_a_cursor_that_is_set_back_after_a_mark_costs_nothing_that_is_needed(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.look()
    scene.facts.cursors = {TOPIC: {CURSOR: (0, -1)}}
    put(scene.world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(50))
    scene.looks(30)
    assert (scene.topic.sent, scene.marked()) == ([], {5})
    assert scene.topic.exists(5)


def test_marks_that_stay_for_long_delay_no_other_topic(scene: Scene) -> None:
    scene.topic.sweeps = False
    scene.topic.lists(scene.closed(5, 100), scene.closed(6, 100), LedgerInfo(ledger_id=99))
    scene.marking.take(TopicSigns(loaded={TOPIC, OTHER}, marked={OTHER, V1_TOPIC, TOPIC}), scene.now_ms)
    scene.world.clock.advance(2 * DELAY_S * 1000)  # as soon as it is known that there are marks
    for _ in range(2):
        assert scene.marking.step(scene.tools, scene.now_ms)
    assert scene.marked() == {5, 6}
    while scene.marking.step(scene.tools, scene.now_ms):
        pass
    assert not scene.marking.has_work(scene.now_ms)


def test_a_topic_that_is_deleted_in_between_stops_nothing(scene: Scene, tmp_path: Path) -> None:
    lost(scene, tmp_path).look()
    scene.topic.delete_topic()
    scene.looks(5)
    assert scene.topic.sent == []
    assert scene.metric("marking_failures") == 0


def test_marks_that_would_make_the_znode_too_large_are_refused_once_and_the_watching_goes_on(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    full = properties_of(Marks(frozenset(range(10**12, 10**12 + 74_000, 2))), "full")
    scene.topic.properties.update(TOPIC, full)
    scene.marking._removal.drop(TOPIC)
    ledgers = [scene.closed(each, 100) for each in range(5, 5000, 2)]
    for newest in (9_999, 10_000):
        scene.topic.lists(*ledgers, LedgerInfo(ledger_id=newest))
        scene.watcher.scan_soon()
        scene.watcher.turn()
        scene.marking._removal.drop(TOPIC)
        scene.marking.step(scene.tools, scene.now_ms)
    assert caplog.text.count("mark fewer ledgers") == 1
    assert scene.metric("marking_failures") == 2
    assert not scene.marked() & {5, 7}
    scene.topic.lists(*ledgers[1:], LedgerInfo(ledger_id=10_000))
    scene.world.turns(scene.watcher, 120)
    assert 5 in scene.world.topic.ids


def test_a_broker_that_grants_no_right_is_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_operation: str, topics: Sequence[str]) -> None:
        raise ForbiddenError(f"Pulsar would not write properties of {topics[0]}: 403 Forbidden")

    scene.topic.properties.faults.before(refuse)
    scene.facts.cursors[OTHER] = {}
    scene.facts.loaded.add(OTHER)
    scene.topic.make(managed_ledger_path(OTHER))
    scene.look()
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    infos = (scene.closed(7, 100), LedgerInfo(ledger_id=98))
    scene.world.tree.write(managed_ledger_path(OTHER), serialize_managed_ledger(ManagedLedgerInfo(infos)))
    scene.look()
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99), LedgerInfo(ledger_id=100))
    scene.look()
    assert caplog.text.count("403 Forbidden") == 1
    assert scene.metric("marking_failures") == 3


def test_a_service_that_does_not_answer_is_asked_again_when_a_topics_time_had_come(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 50), LedgerInfo(ledger_id=99))
    scene.look()
    scene.world.clock.advance(10 * MINUTE_MS)
    scene.facts.faults.away = True
    assert scene.step()
    assert not scene.has_work(), "not at once"
    scene.facts.faults.away = False
    scene.looks(3)
    assert scene.marked() == {5}


def test_a_topic_that_is_gone_when_its_time_comes_is_forgotten(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 50), LedgerInfo(ledger_id=99))
    scene.look()
    scene.topic.delete_topic()
    scene.looks(10)
    assert scene.asked["is_loaded"] == 2
    scene.looks(10)
    assert scene.asked["is_loaded"] == 2


def test_a_watcher_that_does_not_mark_ahead_leaves_marks_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.topic.lists(5, 99)
    scene.topic.api().mark_deletable_ledgers(TOPIC, [5, 1000])
    watcher = scene.world.start()
    watcher.turn()
    scene.topic.lists(99)
    scene.world.turns(watcher, 300)
    assert scene.world.topic.ids == [5], "as it is asked for without a mark"
    assert (scene.topic.sent, scene.marked()) == ([], {5, 1000})
    assert not scene.asked


def test_unreadable_keys_are_logged_once_and_stay(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.topic.properties.update(TOPIC, {"ledger-reaper.deletable.x.0": "no json"} | properties_of(gone(7), "y"))
    scene.looks(5)
    scene.topic.properties.update(TOPIC, properties_of(gone(8), "z"))
    scene.looks(5)
    assert scene.topic.keys() == {"ledger-reaper.deletable.x.0"}
    assert caplog.text.count("can't be read and are not removed") == 1


def test_a_mark_without_a_valid_request_delays_no_other_mark(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    forged = '{"v":1,"driver":"d","properties":{},"uploads":[[7,"no UUID"]]}'
    scene.topic.properties.update(TOPIC, {"ledger-reaper.deletable.x.0": forged} | properties_of(gone(5), "y"))
    scene.topic.lists(5, 99)
    scene.topic.lists(99)
    scene.looks(10)
    assert not scene.topic.exists(5)
    assert scene.topic.keys() == {"ledger-reaper.deletable.x.0"}
    assert caplog.text.count("can't be read and are not removed") == 1


def test_an_error_about_one_topic_is_that_topics_alone(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_operation: str, topics: Sequence[str]) -> None:
        if OTHER in topics:
            raise FormatError("internalStats can't be read")

    scene.facts.faults.before(fail)
    scene.facts.loaded.add(OTHER)
    scene.facts.cursors[OTHER] = {}
    scene.topic.make(managed_ledger_path(OTHER))
    scene.look()
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    infos = (scene.closed(7, 100), LedgerInfo(ledger_id=98))
    scene.world.tree.write(managed_ledger_path(OTHER), serialize_managed_ledger(ManagedLedgerInfo(infos)))
    scene.looks(3)
    assert scene.marked() == {5}
    assert caplog.text.count(f"{OTHER}: internalStats can't be read") == 1
    assert scene.metric("marking_failures") == 2, "once for each sign"


def test_a_topic_that_failed_is_asked_about_again_while_the_sign_that_it_is_loaded_holds(scene: Scene) -> None:
    ledgers = [scene.closed(5, 100), LedgerInfo(ledger_id=99)]
    scene.topic.lists(*ledgers)
    scene.marking.take(TopicSigns(loaded={TOPIC}), scene.now_ms)
    scene.facts.faults.away = True
    for _ in range(2):
        assert scene.step()
        scene.world.clock.advance(MINUTE_MS // 2)
    scene.facts.faults.away = False
    assert scene.step()
    assert scene.marked() == {5}
    scene.topic.lists(*ledgers, scene.closed(6, 100), LedgerInfo(ledger_id=100))
    scene.marking.take(TopicSigns(loaded={TOPIC}), scene.now_ms)
    scene.facts.faults.away = True
    assert scene.step()
    scene.facts.faults.away = False
    scene.world.clock.advance(3 * MINUTE_MS)
    assert not scene.has_work() or not scene.step()
    assert scene.marked() == {5}


def test_what_concerns_all_topics_is_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_operation: str, _topics: Sequence[str]) -> None:
        raise UnavailableError("not all brokers list their topics")

    scene.facts.faults.before(fail)
    scene.run_for(5, {f"public/default/persistent/t{n}" for n in range(9)})
    assert caplog.text.count("not all brokers list their topics") == 1


def test_topics_without_an_answer_of_brokers_delay_no_others_and_wait_longer_and_longer(scene: Scene) -> None:
    bad = {f"hostile/ns/persistent/t{n}" for n in range(40)}
    tries: Counter[str] = Counter()

    def fail(_operation: str, topics: Sequence[str]) -> None:
        if bad.intersection(topics):
            tries.update(topics)
            raise UnavailableError("answered 500: the topic can't be loaded")

    scene.facts.faults.before(fail)
    scene.topic.lists(scene.closed(5, 59), LedgerInfo(ledger_id=99))
    scene.run_for(2, bad | {TOPIC})
    scene.run_for(3, bad)
    assert scene.marked() == {5}
    scene.run_for(5, bad)
    for hours in range(1, 4):
        tries.clear()
        scene.topic.lists(scene.closed(5, 100), scene.closed(10 + hours, 100), LedgerInfo(ledger_id=99))
        scene.run_for(1, bad | {TOPIC})
        assert 10 + hours in scene.marked(), "others come first"
        scene.run_for(59, bad)
    assert max(tries.values()) <= 2


def test_a_topic_that_failed_and_now_answers_is_processed_like_all_others(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.facts.faults.away = True
    scene.run_for(10, {TOPIC})
    scene.facts.faults.away = False
    scene.run_for(20, {TOPIC})
    assert scene.marked() == {5}
    for ledger_id in (6, 7):
        scene.topic.lists(scene.closed(5, 100), scene.closed(ledger_id, 100), LedgerInfo(ledger_id=99))
        scene.run_for(1, {TOPIC})
        assert ledger_id in scene.marked()


def test_a_topic_that_failed_and_was_closed_is_not_queried(scene: Scene) -> None:
    scene.marking.take(TopicSigns(loaded={TOPIC}), scene.now_ms)
    scene.facts.faults.away = True
    assert scene.step()
    scene.facts.faults.away = False
    scene.marking.take(TopicSigns(closed={TOPIC}), scene.now_ms)
    scene.world.clock.advance(MINUTE_MS)
    assert not scene.has_work()


def test_marks_of_a_topic_that_no_broker_has_loaded_wait_until_one_has(scene: Scene) -> None:
    scene.topic.lists(5, 99)
    scene.topic.properties.update(TOPIC, properties_of(gone(5), "y"))
    scene.topic.lists(99)
    scene.facts.loaded.clear()
    scene.looks(30)
    assert (scene.topic.sent, scene.marked()) == ([], {5}), "to take a mark away would load the topic"

    scene.facts.loaded.add(TOPIC)
    scene.looks(30)
    assert (scene.topic.exists(5), scene.marked()) == (False, set())


def test_several_topics_in_a_row_that_fail_make_all_pause_and_the_next_time_twice_as_many(scene: Scene) -> None:
    scene.facts.faults.away = True
    scene.marking.take(TopicSigns(loaded={f"public/default/persistent/t{n:02}" for n in range(20)}), scene.now_ms)
    raised = []
    for n in range(20):
        try:
            assert scene.step()
        except UnavailableError:
            raised.append(n + 1)
    assert raised == [5, 10, 20]
    assert scene.metric("marking_failures") == 17, "the thread counts what is raised"
    scene.facts.faults.away = False
    scene.marking.take(TopicSigns(loaded={TOPIC}), scene.now_ms)
    assert scene.step()
    scene.facts.faults.away = True
    scene.marking.take(TopicSigns(loaded={f"public/default/persistent/u{n}" for n in range(5)}), scene.now_ms)
    assert [scene.step() for _ in range(4)] == [True] * 4
    with pytest.raises(UnavailableError):
        scene.step()


def test_if_zookeeper_does_not_answer_all_topics_pause_and_none_counts_as_failed(scene: Scene) -> None:
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    scene.marking.take(TopicSigns(loaded={OTHER, TOPIC}), scene.now_ms)
    assert scene.step()
    scene.facts.faults.away = scene.world.store.faults.away = True
    for _ in range(3):
        with pytest.raises(UnavailableError):
            scene.step()
    scene.facts.faults.away = scene.world.store.faults.away = False
    assert scene.step()
    assert scene.marked() == {5}


def test_marks_that_became_dead_letters_are_requested_once_a_day_and_others_as_often_as_before(scene: Scene) -> None:
    scene.topic.lists(5, 6, 99)
    scene.topic.api().mark_deletable_ledgers(TOPIC, [5, 6])
    scene.topic.refuses = True
    scene.topic.lists(6, 99)
    scene.looks(60)
    assert [each.ledger_id for each in scene.topic.sent] == [5]
    scene.topic.refuses = scene.topic.sweeps = False
    scene.topic.lists(99)
    scene.looks(60)
    again = [each.ledger_id for each in scene.topic.sent]
    assert again.count(5) == 1
    assert again.count(6) >= 4
    scene.topic.sweeps = True
    scene.looks(24 * 60)
    assert (scene.topic.exists(5), scene.topic.exists(6), scene.marked()) == (False, False, set())
    assert len([each for each in scene.topic.sent if each.ledger_id == 5]) == 2


def test_marks_that_cannot_be_processed_are_checked_less_and_less_often(scene: Scene) -> None:
    scene.topic.lists(5, 99)
    scene.topic.api().mark_deletable_ledgers(TOPIC, [5])
    scene.topic.lists(99)
    scene.looks(1)

    def fail() -> None:
        tries.append(scene.now_ms)
        raise UnavailableError("answered 503: the topic can't be loaded")

    tries: list[int] = []
    scene.topic.sends = fail
    scene.looks(60)
    assert 4 <= len(tries) <= 10
    scene.topic.sends = lambda: None
    scene.looks(12)
    assert not scene.topic.exists(5)


def test_a_missing_right_is_always_logged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marking, "_MOST_WARNINGS", 2)
    errors: list[Exception] = [ValueError("odd")] * 4 + [ForbiddenError("403 Forbidden")] * 2

    def fail(_operation: str, _topics: Sequence[str]) -> None:
        raise errors.pop(0)

    scene.facts.faults.before(fail)
    scene.marking.take(TopicSigns(loaded={f"public/default/persistent/t{n}" for n in range(6)}), scene.now_ms)
    while scene.marking.step(scene.tools, scene.now_ms):
        pass
    assert (errors, scene.metric("marking_failures")) == ([], 6)
    assert caplog.text.count("odd") == 2
    assert caplog.text.count("failures of further topics are not logged") == 1
    assert caplog.text.count("403 Forbidden") == 1


def gone(ledger_id: int) -> Marks:
    return Marks(frozenset({ledger_id}))


@contextmanager
def run(scene: Scene, opened: list[Exception]) -> Iterator[MarkingThread]:
    """Run a marking thread whose tools fail to open once for each error."""

    @contextmanager
    def tools() -> Iterator[Tools]:
        if opened:
            raise opened.pop(0)
        yield scene.tools

    metrics = WatchMetrics(registry := Registry())
    scene.registry = registry
    with MarkingThread(scene.marking, tools, metrics, lambda: scene.now_ms, 10) as thread:
        yield thread


def test_no_error_ends_the_thread_and_each_is_logged_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_AGAIN_S", "_IDLE_S", "_BETWEEN_TOPICS_S"):
        monkeypatch.setattr(marking_thread, name, 0.01)
    scene.topic.lists(scene.closed(5, 100), LedgerInfo(ledger_id=99))
    errors: list[Exception] = [UnavailableError("away"), UnavailableError("away"), ValueError("a fault of ours")]
    with caplog.at_level(logging.WARNING), run(scene, errors) as thread:
        thread.hand_over(TopicSigns(loaded={TOPIC}))
        is_marked = threading.Event()
        for _ in range(500):
            if scene.marked() == {5}:
                is_marked.set()
                break
            threading.Event().wait(0.01)
        assert is_marked.is_set()
    assert not thread._thread.is_alive()
    assert scene.metric("marking_failures") == 3
    assert caplog.text.count("no mark is set or removed at the moment: away") == 1
    assert "a fault of ours" in caplog.text
