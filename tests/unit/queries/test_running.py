"""Queries that are restarted, added and ended while the service runs, with Pulsar in memory and fake queries."""

import json
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.pulsar.admin_api.admin import is_busy
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import RefusedError, SafetyError
from streaming.prometheus.health import Health
from streaming.queries import checkpoints as checkpoints_of
from streaming.queries.checkpoints import MOST_LEFT_BEHIND, left_behind, partitions_of
from streaming.queries.life import FallbackResult, QueryTools
from streaming.queries.names import Query, checkpoint_of, further_query, queries_of
from streaming.queries.running import RunningQueries
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.topics.setup import watch_topic
from udfs.requests.lanes import ALL_LANES

FIRST = "persistent://pulsar/system/__ledger_deletion"
WATCH = "persistent://pulsar/ledger-deletion/__ledger_deletion-WATCH"
ACMES, RIVALS = "persistent://acme/reaper/d1", "persistent://rival/reaper/d2"
BUSY = Exception("terminated with exception: HTTP 412 Precondition Failed")


def pulsar(*topics: str) -> MemoryPulsar:
    """The namespaces of the operator and of two tenants, and these topics with four partitions."""
    memory = MemoryPulsar()
    memory.known_namespaces = {"pulsar/system", "pulsar/ledger-deletion", "acme/reaper", "rival/reaper"}
    make_topics(memory, *topics)
    return memory


def make_topics(memory: MemoryPulsar, *topics: str) -> None:
    for topic in topics:
        memory.create_partitioned_topic(topic, 4)
        if topic == WATCH:
            memory.set_deduplication(topic, enabled=True)


def asked_of(memory: MemoryPulsar, *operations: str) -> list[str]:
    """Record its calls from now on: topic or namespace of these operations, or the operation's name."""
    asked: list[str] = []
    memory.faults.before(
        lambda operation, names: asked.append(names[0] or operation) if operation in operations else None
    )
    return asked


class PaperStream:
    def __init__(self) -> None:
        self.isActive = True
        self.progress: object = None
        self.looks = 0
        self.failure: Exception | None = None
        self.status = {"message": "Waiting for next trigger"}
        self.may_end = threading.Event()
        self.may_end.set()

    @property
    def lastProgress(self) -> object:  # noqa: N802  as Spark names it
        self.looks += 1
        return self.progress

    def fail(self, why: Exception) -> None:
        self.isActive, self.failure = False, why

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        """As in Spark, the query counts as ended before its thread has ended."""
        self.isActive = False
        self.may_end.wait(10)


class World:
    def __init__(self, settings: Settings, admin: MemoryPulsar) -> None:
        self.now_s = 0.0
        self.admin = admin
        self.subscribed = asked_of(admin, "ensure_subscription")
        self.streams: dict[str, list[PaperStream]] = {}
        self.again: list[str] = []
        self.let_go: list[str] = []
        self.forgotten: list[Query] = []
        self.untold: set[str] = set()
        self.rescues: list[str] = []
        self.shown: dict[str, ParkedQuery] = {}
        self.rescued: FallbackResult | Exception = FallbackResult(has_news=False)
        self.not_begun: Exception | None = None
        self.tools = QueryTools(
            admin=admin,
            start=self._begin,
            restart=self.again.append,
            fallback=self._rescue,
            show=self._show,
            close_client=self.let_go.append,
            forget=self.forgotten.append,
            reports_last_message=lambda partition: partition not in self.untold,
            subscription=settings.topics.subscription,
            monotonic=lambda: self.now_s,
            now_ms=lambda: 5,
        )
        self.in_passes: list[str] = []
        self.claimed: list[str] = []
        self.queries = RunningQueries(
            settings, self.tools, read_in_passes=lambda: self.in_passes, claimed=lambda: self.claimed
        )

    def _begin(self, query: Query) -> Any:
        if self.not_begun is not None:
            raise self.not_begun
        made = PaperStream()
        self.streams.setdefault(query.topics[0], []).append(made)
        return made

    def _rescue(self, query: Query) -> FallbackResult:
        self.rescues.append(query.topics[0])
        if isinstance(self.rescued, Exception):
            raise self.rescued
        return self.rescued

    def _show(self, name: str, lane: ParkedQuery | None) -> None:
        if lane is None:
            del self.shown[name]
        else:
            self.shown[name] = lane

    def check_once(self, after_s: float = 0.5) -> dict[str, Exception]:
        self.now_s += after_s
        assert self.queries.join(10)
        return {query.topics[0]: why for query, why in self.queries.check_once().items()}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return load(file)


@pytest.fixture
def make(settings: Settings) -> Callable[..., World]:
    def made(*topics: str) -> World:
        world = World(settings, pulsar(*topics))
        world.queries.start()
        return world

    return made


def test_a_query_whose_subscription_is_held_is_started_again_and_logged_once(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    for _ in range(3):
        world.streams[FIRST][-1].fail(BUSY)
        assert world.check_once() == {}
        assert world.check_once(2) == {}
    assert len(world.streams[FIRST]) == 4
    assert world.again == ["requests"] * 3
    assert [each.getMessage() for each in caplog.records if "is waited for, 90 s at most" in each.getMessage()] == [
        f"{FIRST} is waited for, 90 s at most: its subscription ledger-reaper is held, perhaps by a run that was killed"
    ]


def test_patience_ends_with_a_parked_query_whose_reason_names_the_holder(make: Callable[..., World]) -> None:
    world = make()
    for _ in range(200):
        world.streams[FIRST][-1].fail(BUSY)
        assert world.check_once(1) == {}
        if world.shown:
            break
    assert 90 < world.now_s <= 92
    (lane,) = world.shown.values()
    assert "has been held by another client for 90 s" in lane.why


def test_patience_starts_again_for_a_query_that_made_progress(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    for _ in range(5):
        world.streams[FIRST][-1].fail(BUSY)
        assert world.check_once(40) == {}
        assert world.check_once(2) == {}
        world.streams[FIRST][-1].progress = {}
        assert world.check_once() == {}
    assert sum("is waited for" in each.getMessage() for each in caplog.records) == 5


def test_a_query_that_nothing_was_wrong_with_is_not_asked_how_far_it_is(make: Callable[..., World]) -> None:
    world = make()
    for _ in range(10):
        assert world.check_once() == {}
    assert world.streams[FIRST][-1].looks == 0


def test_a_query_with_another_failure_is_parked_read_by_the_fallback_and_started_again(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make(WATCH)
    caplog.set_level("INFO")
    (name,) = (query.name for query in world.queries.running if query.topics == (WATCH,))
    world.streams[WATCH][-1].fail(Exception("a bug\n=== Streaming Query ===\nplan"))
    assert world.check_once() == {}
    assert world.shown == {name: ParkedQuery(topic=WATCH, why=f"query {name} failed: a bug", since_ms=5, failures=1)}
    assert world.let_go == [name]
    assert f"{WATCH} is parked, and the other topics continue. Its query failed: query {name} failed" in caplog.text
    assert world.check_once() == {}
    assert world.check_once() == {}
    assert (world.rescues, world.again) == ([WATCH], [name])
    assert [len(world.streams[topic]) for topic in (WATCH, FIRST)] == [2, 1]
    assert world.shown[name].is_read
    world.streams[WATCH][-1].progress = {}
    assert world.check_once() == {}
    assert world.shown == {}
    assert f"{WATCH} is read again" in caplog.text


def test_a_query_that_cannot_plan_is_stopped_and_rescued_once_its_thread_has_ended(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make(WATCH)
    stream = world.streams[WATCH][-1]
    world.untold = {f"{WATCH}-partition-3"}
    stream.status = {"message": "Getting offsets from PulsarSource[...]"}
    stream.may_end.clear()
    for _ in range(16):
        assert world.check_once() == {}
    assert stream.isActive, "the connector has eight seconds"
    for _ in range(3):
        world.check_once()
    assert (stream.isActive, world.shown, world.rescues) == (False, {}, [])
    stream.may_end.set()
    for thread in threading.enumerate():
        if thread.name == "stop-query":
            thread.join(10)
    for _ in range(2):
        world.check_once()
    assert world.rescues == [WATCH]
    assert f"the broker does not return the last message of {WATCH}-partition-3" in caplog.text
    for _ in range(60):
        world.streams[FIRST][-1].status = stream.status
        world.check_once()
    assert world.streams[FIRST][-1].isActive, "it plans for long, and its broker answers"


def test_a_query_that_plans_now_and_then_is_not_asked_about(make: Callable[..., World]) -> None:
    world = make(WATCH)
    stream = world.streams[WATCH][-1]
    world.untold = {f"{WATCH}-partition-0"}
    for number in range(100):
        stream.status = {"message": "Getting offsets from x" if number % 15 else "Waiting for next trigger"}
        world.check_once()
    assert stream.isActive


def test_a_fault_of_one_querys_checkpoint_ends_nothing(make: Callable[..., World]) -> None:
    world = make(WATCH)
    world.rescued = SafetyError("batch 3 is not the one to commit")
    world.streams[WATCH][-1].fail(Exception("a bug"))
    for _ in range(5):
        assert world.check_once() == {}
    assert [lane.why for lane in world.shown.values()] == ["batch 3 is not the one to commit"]
    assert world.streams[FIRST][-1].isActive


def test_the_watchers_topic_goes_on_with_its_short_named_checkpoint(
    make: Callable[..., World], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: True)  # which wrote it
    _read(settings, f"requests-{sha256(WATCH.encode()).hexdigest()[:8]}", WATCH)
    world = make(WATCH)
    (query,) = [each for each in world.queries.running if each.topics == (WATCH,)]
    assert partitions_of(checkpoint_of(settings, query.name)) == {f"{WATCH}-partition-0"}


def test_a_topic_whose_query_cannot_be_started_yet_is_tried_again_and_ends_nothing(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    make_topics(world.admin, WATCH)
    # as for a topic that was deleted and created again while its old query still waits for its turn
    world.not_begun = Exception("Cannot start query with name ledger_deletion_x as a query with that name is active")
    for _ in range(3):
        assert world.check_once(60) == {}
    assert (world.queries.unlisted, len(world.queries.running)) == ((), 2)
    assert sum("a query with that name is active" in each.getMessage() for each in caplog.records) == 1
    world.not_begun = None
    assert world.check_once(60) == {}
    assert [*world.queries.unlisted] == [WATCH]


def test_a_query_that_cannot_be_started_again_after_its_subscription_was_held_is_parked(
    make: Callable[..., World],
) -> None:
    world = make(WATCH)
    world.streams[WATCH][-1].fail(BUSY)
    assert world.check_once() == {}
    world.not_begun = Exception("no such topic")
    assert world.check_once(2) == {}
    (lane,) = world.shown.values()
    assert (lane.topic, "no such topic" in lane.why) == (WATCH, True)
    world.not_begun = None
    for _ in range(3):
        assert world.check_once() == {}
    assert len(world.streams[WATCH]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "not enough messages of persistent://a/b/streaming.errors.SafetyError: x",
        "StopRequestedError",
        "\nSafetyError: x",
    ],
)
def test_no_text_of_a_sender_ends_the_service_or_the_tries(make: Callable[..., World], text: str) -> None:
    world = make()
    world.streams[FIRST][-1].fail(Exception(text))
    for _ in range(3):
        assert world.check_once() == {}
    assert len(world.streams[FIRST]) == 2


def test_a_topic_that_is_deleted_while_its_query_is_parked_is_forgotten(make: Callable[..., World]) -> None:
    world = make(WATCH)
    world.rescued = Exception("no such topic")
    world.streams[WATCH][-1].fail(Exception("a bug"))
    for _ in range(2):
        world.check_once()
    world.admin.delete_topic(WATCH, force=True)
    world.check_once(60)
    assert (world.shown, world.queries.unlisted) == ({}, ())


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("Failed for Subscription Busy: Failed to fence subscription", True),
        ("PulsarClientException$ConsumerBusyException: Exclusive consumer is already connected", True),
        ("412 Precondition Failed", True),
        ("Topic not found", False),
    ],
)
def test_pulsars_messages_for_busy_are_known(text: str, holds: bool) -> None:
    assert is_busy(text) is holds


def test_a_watchers_topic_that_could_hold_requests_twice_is_not_read_and_the_log_has_the_reason_once(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    make_topics(world.admin, WATCH)
    world.admin.set_deduplication(WATCH, enabled=False)
    for _ in range(3):
        assert world.check_once(60) == {}
    assert [*world.queries.unlisted] == []
    assert f"{WATCH} is topics.watch and is not read" in caplog.text
    assert sum("has no deduplication" in each.getMessage() for each in caplog.records) == 1
    world.admin.set_deduplication(WATCH, enabled=True)
    assert world.check_once(60) == {}
    assert [*world.queries.unlisted] == [WATCH]


def test_the_watchers_topic_is_read_once_it_is_there_until_it_is_gone(
    make: Callable[..., World], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    make_topics(world.admin, WATCH, ACMES)
    assert world.check_once(59) == {}
    assert [*world.queries.unlisted] == []
    assert world.check_once(1) == {}
    assert ([*world.queries.unlisted], world.subscribed) == ([WATCH], [WATCH])
    assert world.check_once(60) == {}
    assert len(world.streams[WATCH]) == 1
    world.admin.delete_topic(WATCH, force=True)
    world.streams[WATCH][-1].fail(Exception("Failed to get last messageId"))
    assert world.check_once() == {}
    for thread in threading.enumerate():
        if thread.name == "end-query":
            thread.join(10)
    assert [query.topics for query in world.forgotten] == [(WATCH,)]
    assert len(world.let_go) == 1
    assert [query.topics[0] for query in world.queries.running] == [FIRST, settings.topics.retry]
    assert f"{WATCH} is gone, and its unread messages with it" in caplog.text
    make_topics(world.admin, WATCH)
    world.check_once(60)
    assert [*world.queries.unlisted] == [WATCH]
    world.admin.delete_topic(WATCH, force=True)
    world.check_once(60)
    assert [*world.queries.unlisted] == []


def test_a_slow_broker_of_the_watchers_topic_does_not_look_like_a_main_loop_that_hangs(
    make: Callable[..., World],
) -> None:
    world = make()
    health, stalled = Health(lambda: world.now_s), list[str]()

    def answer_slowly(operation: str, _names: Sequence[str]) -> None:
        if operation == "ensure_subscription":
            world.now_s += 60
            stalled.append(health.stalled)

    world.queries.beat = health.beat
    world.admin.faults.before(answer_slowly)
    make_topics(world.admin, WATCH)
    health.beat()
    world.check_once(60)
    assert (world.queries.unlisted, stalled) == ((WATCH,), [""])


def test_topics_that_passes_read_are_not_left_behind(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    for name, topic in ((further_query(ACMES).name, ACMES), ("requests-5e6f7081", RIVALS)):
        _read(settings, name, topic)
    world = World(settings, pulsar(ACMES))
    world.in_passes = [ACMES]
    world.queries.start()
    assert f"{RIVALS}, which" in caplog.text
    assert ACMES not in caplog.text


def test_topics_that_passes_have_read_and_the_pattern_no_longer_matches_are_left_behind(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    gone, both = "persistent://acme/reaper/gone", "persistent://acme/reaper/both"
    _read(settings, further_query(both).name, both)
    world = World(settings, pulsar(ACMES, RIVALS, both))
    world.claimed = [*settings.topics.claims, ACMES, RIVALS, gone, both]
    world.queries.start()
    named = [each.message.partition(",")[0] for each in caplog.records if "is not read now" in each.message]
    assert named == [both, ACMES, RIVALS], "each once, without what is gone and what is read"
    assert f"`ledger-reaper release --topic {ACMES}`" in caplog.text


def test_a_bounded_number_of_topics_that_passes_have_read_is_checked(settings: Settings) -> None:
    owned = [f"persistent://acme/reaper/d{number:03}" for number in range(MOST_LEFT_BEHIND + 5)]
    assert ALL_LANES not in settings.topics.claims, "an earlier configuration had lanes, and no start has released them"
    admin = pulsar(*owned)
    asked = asked_of(admin, "partitions")
    said = left_behind(settings, queries_of(settings), admin.partitions, claimed=[ALL_LANES, *owned])
    assert len(asked) == MOST_LEFT_BEHIND
    assert said[-1] == f"5 more topics that this service owns are not read now, such as {owned[-1]}."


def test_a_start_checks_a_bounded_number_of_topics_that_came_and_went(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MOST_LEFT_BEHIND + 5):
        _read(settings, f"requests-{number:064}", f"persistent://acme/reaper/d{number}")
    world = World(settings, pulsar())
    asked = asked_of(world.admin, "partitions")
    world.queries.start()
    for _ in range(3):
        world.check_once(60)
    assert sum("/reaper/" in each for each in asked) == MOST_LEFT_BEHIND, "once a start, and not all of them"
    assert "5 more checkpoints in" in caplog.text


@pytest.mark.parametrize("is_enabled", [False, True])
def test_without_a_watcher_no_right_to_its_topic_is_needed(settings: Settings, *, is_enabled: bool) -> None:
    admin = pulsar()

    def refuse(operation: str, names: Any) -> None:
        if operation == "partitions" and names[0] == settings.topics.watch:
            raise RefusedError("403")

    admin.faults.before(refuse)
    mine = settings.model_copy(update={"watch": settings.watch.model_copy(update={"enabled": is_enabled})})
    if is_enabled:
        with pytest.raises(RefusedError):
            watch_topic(admin, mine)
    else:
        assert watch_topic(admin, mine) == ()


def test_brokers_that_are_away_end_nothing(make: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    world = make(WATCH)
    world.admin.faults.away = True
    assert world.check_once(60) == {}
    assert "could not look up the watcher's topic, trying again later" in caplog.text
    assert [*world.queries.unlisted] == [WATCH]


def _read(settings: Settings, name: str, topic: str) -> None:
    offsets = Path(checkpoint_of(settings, name), "offsets")
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n{}\n" + json.dumps({f"{topic}-partition-0": [8, 1, 16, 1]}))


def test_a_topic_that_was_read_and_is_not_read_now_is_named(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    for name, topic in (("requests", FIRST), ("requests-1a2b3c4d", ACMES), ("requests-5e6f7081", RIVALS)):
        _read(settings, name, topic)
    admin = pulsar(ACMES)
    said = left_behind(settings, queries_of(settings), admin.partitions)
    assert [each.partition(",")[0] for each in said] == [ACMES, RIVALS]
    assert "is not read now" in said[0]
    assert "no longer exists" in said[1]

    world = World(settings, pulsar())
    world.queries.start()
    assert f"{RIVALS}, which {settings.checkpoints.dir}/requests-5e6f7081/v1 has read, no longer exists" in caplog.text
