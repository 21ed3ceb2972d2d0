"""Queries that are restarted, added and ended while the service runs, with Pulsar in memory and fake queries."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.pulsar.admin_api.admin import is_busy
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination.ownership import Ownership
from streaming.errors import RefusedError, SafetyError
from streaming.prometheus.health import Health
from streaming.queries.checkpoints import MOST_LEFT_BEHIND, left_behind, partitions_of
from streaming.queries.life import FallbackResult, ManagedQuery, QueryTools, TopicLog
from streaming.queries.names import Query, checkpoint_of, queries_of
from streaming.queries.running import RunningQueries
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.topics.matching import matched_topics
from streaming.topics.setup import MOST_PARTITIONS
from udfs.requests.lanes import Lanes

FIRST = "persistent://pulsar/system/__ledger_deletion"
PATTERN = "persistent://(acme|rival)/reaper/d.*"
ACMES, RIVALS = "persistent://acme/reaper/d1", "persistent://rival/reaper/d2"
BUSY = Exception("terminated with exception: HTTP 412 Precondition Failed")


def pulsar(*topics: str) -> MemoryPulsar:
    """Four tenants with three namespaces each, one in the old form, and these topics with four partitions."""
    memory = MemoryPulsar()
    memory.known_namespaces = {
        f"{tenant}/{namespace}"
        for tenant in ("acme", "rival", "other", "pulsar")
        for namespace in ("reaper", "system", "cluster/reaper")
    }
    make_topics(memory, *topics)
    return memory


def make_topics(memory: MemoryPulsar, *topics: str) -> None:
    for topic in topics:
        memory.create_partitioned_topic(topic, 4)


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
    def __init__(self, settings: Settings, admin: MemoryPulsar, most_matched: int = 100) -> None:
        self.now_s = 0.0
        self.admin = admin
        self.subscribed = asked_of(admin, "ensure_subscription")
        self.streams: dict[str, list[PaperStream]] = {}
        self.again: list[str] = []
        self.let_go: list[str] = []
        self.forgotten: list[Query] = []
        self.store = MemoryStore()
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
        ownership = Ownership(self.store, "/reaper", "main")
        self.queries = RunningQueries(settings, self.tools, ownership, most_matched=most_matched)

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
    file.write_text(f'[topics]\nrequests_pattern = "{PATTERN}"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return load(file)


@pytest.fixture
def make(settings: Settings) -> Callable[..., World]:
    def made(*topics: str, **options: Any) -> World:
        world = World(settings, pulsar(*topics), **options)
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
    world = make(ACMES)
    caplog.set_level("INFO")
    (name,) = (query.name for query in world.queries.running if query.topics == (ACMES,))
    world.streams[ACMES][-1].fail(Exception("a bug\n=== Streaming Query ===\nplan"))
    assert world.check_once() == {}
    assert world.shown == {name: ParkedQuery(topic=ACMES, why=f"query {name} failed: a bug", since_ms=5, failures=1)}
    assert world.let_go == [name]
    assert f"{ACMES} is parked, and the other topics continue. Its query failed: query {name} failed" in caplog.text
    assert world.check_once() == {}
    assert world.check_once() == {}
    assert (world.rescues, world.again) == ([ACMES], [name])
    assert [len(world.streams[topic]) for topic in (ACMES, FIRST)] == [2, 1]
    assert world.shown[name].is_read
    world.streams[ACMES][-1].progress = {}
    assert world.check_once() == {}
    assert world.shown == {}
    assert f"{ACMES} is read again" in caplog.text


def test_a_query_that_cannot_plan_is_stopped_and_rescued_once_its_thread_has_ended(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make(ACMES)
    stream = world.streams[ACMES][-1]
    world.untold = {f"{ACMES}-partition-3"}
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
    assert world.rescues == [ACMES]
    assert f"the broker does not return the last message of {ACMES}-partition-3" in caplog.text
    for _ in range(60):
        world.streams[FIRST][-1].status = stream.status
        world.check_once()
    assert world.streams[FIRST][-1].isActive, "it plans for long, and its broker answers"


def test_a_query_that_plans_now_and_then_is_not_asked_about(make: Callable[..., World]) -> None:
    world = make(ACMES)
    stream = world.streams[ACMES][-1]
    world.untold = {f"{ACMES}-partition-0"}
    for number in range(100):
        stream.status = {"message": "Getting offsets from x" if number % 15 else "Waiting for next trigger"}
        world.check_once()
    assert stream.isActive


def test_a_fault_of_one_querys_checkpoint_ends_nothing(make: Callable[..., World]) -> None:
    world = make(ACMES)
    world.rescued = SafetyError("batch 3 is not the one to commit")
    world.streams[ACMES][-1].fail(Exception("a bug"))
    for _ in range(5):
        assert world.check_once() == {}
    assert [lane.why for lane in world.shown.values()] == ["batch 3 is not the one to commit"]
    assert world.streams[FIRST][-1].isActive


def test_two_topics_whose_digests_start_alike_are_both_read(make: Callable[..., World]) -> None:
    pair = tuple(f"persistent://acme/reaper/d{number}" for number in (19504, 73725))  # 32 bits of SHA-256 are equal
    world = make(*pair)
    assert set(world.queries.matched) == {*pair}
    assert len({query.name for query in world.queries.running}) == len(world.queries.running)


def test_a_topic_whose_query_name_is_taken_is_not_read(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    world = World(settings, pulsar(ACMES))
    (_, taken, _) = queries_of(settings, (ACMES,))
    other = Query(taken.name, (RIVALS,))
    managed = ManagedQuery(other, cast("StreamingQuery", PaperStream()), world.tools, TopicLog())
    world.queries = replace(world.queries, _queries={other: managed})
    world.queries.start()
    assert not world.queries.matched
    assert f"query {taken.name} reads another topic" in caplog.text


def test_a_matched_topic_goes_on_with_its_short_named_checkpoint(
    make: Callable[..., World], settings: Settings
) -> None:
    _read(settings, f"requests-{sha256(ACMES.encode()).hexdigest()[:8]}", ACMES)
    world = make(ACMES)
    (query,) = [each for each in world.queries.running if each.topics == (ACMES,)]
    assert partitions_of(checkpoint_of(settings, query.name)) == {f"{ACMES}-partition-0"}


def test_a_topic_whose_query_cannot_be_started_yet_is_tried_again_and_ends_nothing(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    make_topics(world.admin, ACMES)
    # as for a topic that was deleted and created again while its old query still waits for its turn
    world.not_begun = Exception("Cannot start query with name ledger_deletion_x as a query with that name is active")
    for _ in range(3):
        assert world.check_once(60) == {}
    assert (world.queries.matched, len(world.queries.running)) == ((), 2)
    assert sum("a query with that name is active" in each.getMessage() for each in caplog.records) == 1
    world.not_begun = None
    assert world.check_once(60) == {}
    assert world.queries.matched == (ACMES,)


def test_a_query_that_cannot_be_started_again_after_its_subscription_was_held_is_parked(
    make: Callable[..., World],
) -> None:
    world = make(ACMES)
    world.streams[ACMES][-1].fail(BUSY)
    assert world.check_once() == {}
    world.not_begun = Exception("no such topic")
    assert world.check_once(2) == {}
    (lane,) = world.shown.values()
    assert (lane.topic, "no such topic" in lane.why) == (ACMES, True)
    world.not_begun = None
    for _ in range(3):
        assert world.check_once() == {}
    assert len(world.streams[ACMES]) == 2


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
    world = make(ACMES)
    world.rescued = Exception("no such topic")
    world.streams[ACMES][-1].fail(Exception("a bug"))
    for _ in range(2):
        world.check_once()
    world.admin.delete_topic(ACMES, force=True)
    world.check_once(60)
    assert (world.shown, world.queries.matched) == ({}, ())


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


def test_matching_topics_are_read_from_the_start_and_new_topics_from_the_next_lookup(
    make: Callable[..., World], settings: Settings
) -> None:
    world = make(ACMES)
    assert [query.topics[0] for query in world.queries.running] == [FIRST, settings.topics.retry, ACMES]
    make_topics(world.admin, RIVALS, f"{RIVALS}-RETRY", "persistent://other/reaper/d3")
    assert world.check_once(59) == {}
    assert RIVALS not in world.streams
    assert world.check_once(1) == {}
    assert world.queries.matched == (ACMES, RIVALS)
    assert world.subscribed == [ACMES, RIVALS]
    assert world.check_once(60) == {}
    assert len(world.streams[ACMES]) == len(world.streams[RIVALS]) == 1
    names = {query.topics[0]: query.name for query in world.queries.running}
    listed = settings.topics.model_copy(update={"requests": (FIRST, ACMES)})
    assert names[ACMES] == queries_of(settings.model_copy(update={"topics": listed}))[1].name


def test_slow_brokers_of_many_topics_do_not_look_like_a_main_loop_that_hangs(make: Callable[..., World]) -> None:
    topics = [f"persistent://acme/reaper/d{number}" for number in range(20)]
    world = make()
    health, stalled, slow = Health(lambda: world.now_s), list[str](), "ensure_subscription"

    def answer_slowly(operation: str, _names: Sequence[str]) -> None:
        if operation == slow:
            world.now_s += 60
            stalled.append(health.stalled)

    world.queries.beat = health.beat
    world.admin.faults.before(answer_slowly)
    make_topics(world.admin, *topics)
    health.beat()
    world.check_once(60)
    assert len(world.queries.matched) == len(stalled) == 20
    for topic in topics:
        world.streams[topic][0].fail(RuntimeError("the broker does not answer"))
    slow = "partitions"
    health.beat()
    world.check_once(1)
    assert len(stalled) >= 40
    assert not any(stalled)


def test_the_watchers_topic_is_read_once_it_is_there_and_counts_as_none_of_the_matches(
    make: Callable[..., World], settings: Settings
) -> None:
    watch = settings.topics.watch
    world = make(ACMES, RIVALS, most_matched=2)
    world.admin.known_namespaces.add("pulsar/ledger-deletion")
    make_topics(world.admin, watch)
    world.admin.set_deduplication(watch, enabled=True)
    assert world.check_once(60) == {}
    assert (world.queries.matched, world.subscribed) == ((ACMES, RIVALS, watch), [ACMES, RIVALS, watch])
    make_topics(world.admin, "persistent://acme/reaper/d3")
    assert world.check_once(60) == {}
    assert world.queries.matched == (ACMES, RIVALS, watch), "there are two matches already"


def test_a_watchers_topic_that_could_hold_requests_twice_is_not_read_and_the_log_has_the_reason(
    make: Callable[..., World], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    world.admin.known_namespaces.add("pulsar/ledger-deletion")
    make_topics(world.admin, settings.topics.watch)
    assert world.check_once(60) == {}
    assert world.queries.matched == ()
    assert f"{settings.topics.watch} is topics.watch and is not read" in caplog.text
    assert "has no deduplication" in caplog.text


def test_without_a_pattern_only_the_watchers_topic_is_looked_up(settings: Settings) -> None:
    admin = pulsar(ACMES)
    asked = asked_of(admin, "tenants", "namespaces", "partitioned_topics", "partitions")
    topics = settings.topics.model_copy(update={"requests_pattern": ""})
    without = settings.model_copy(update={"topics": topics})
    assert matched_topics(admin, without) == ()
    admin.known_namespaces.add("pulsar/ledger-deletion")
    make_topics(admin, topics.watch)
    assert matched_topics(admin, without) == (topics.watch,)
    assert {*asked} == {topics.watch}


def test_a_lane_that_matches_the_pattern_gets_no_query_because_the_lane_reader_reads_it(settings: Settings) -> None:
    lane = "persistent://acme/reaper/__ledger_deletion"
    admin = pulsar(lane, ACMES)
    topics = {"requests_pattern": "persistent://(acme|rival)/reaper/.*"}
    for lanes, expected in ((Lanes.ONE, (lane, ACMES)), (Lanes.NAMESPACE, (ACMES,))):
        changed = settings.topics.model_copy(update={**topics, "lanes": lanes})
        assert matched_topics(admin, settings.model_copy(update={"topics": changed})) == expected


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
            matched_topics(admin, mine)
    else:
        assert matched_topics(admin, mine) == ()


def test_only_namespaces_that_can_match_are_listed(settings: Settings) -> None:
    admin = pulsar(ACMES)
    asked = asked_of(admin, "tenants", "namespaces", "partitioned_topics")
    assert matched_topics(admin, settings) == (ACMES,)
    assert asked == ["tenants", "acme/reaper", "rival/reaper"]


def test_a_fault_of_a_matching_topic_is_logged_once_and_checked_again(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    make_topics(world.admin, ACMES)
    world.admin.set_message_ttl(ACMES, seconds=60)
    for _ in range(3):
        world.check_once(60)
    assert sum("has a message TTL" in each.getMessage() for each in caplog.records) == 1
    world.admin.set_message_ttl(ACMES, seconds=0)
    world.check_once(60)
    assert world.queries.matched == (ACMES,)


def test_a_deleted_topic_is_logged_and_ends_nothing_else(
    make: Callable[..., World], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    world = make(ACMES, RIVALS)
    for topic in (ACMES, RIVALS):
        world.admin.delete_topic(topic, force=True)
    world.streams[ACMES][-1].fail(Exception("Failed to get last messageId"))
    assert world.check_once() == {}  # noticed by its query
    assert world.check_once(60) == {}  # and by looking
    assert not world.queries.matched
    for thread in threading.enumerate():
        if thread.name == "end-query":
            thread.join(10)
    assert len(world.let_go) == 2
    assert {query.topics for query in world.forgotten} == {(ACMES,), (RIVALS,)}
    assert [query.topics[0] for query in world.queries.running] == [FIRST, settings.topics.retry]
    for topic in (ACMES, RIVALS):
        assert f"{topic} is gone, and its unread messages with it" in caplog.text
    make_topics(world.admin, ACMES)
    world.check_once(60)
    assert world.queries.matched == (ACMES,)


def test_brokers_that_are_away_end_nothing(make: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    world = make(ACMES)
    world.admin.faults.away = True
    assert world.check_once(60) == {}
    assert "requests_pattern, trying again later" in caplog.text
    assert world.queries.matched == (ACMES,)


def test_a_client_that_may_create_topics_cannot_create_any_number_of_queries(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make(*(f"persistent://acme/reaper/d{n}" for n in range(5)), most_matched=3)
    assert len(world.queries.matched) == 3
    assert "persistent://acme/reaper/d4 not read: more than 3 topics match" in caplog.text
    world.check_once(60)
    assert len(world.queries.matched) == 3


def test_a_tenant_that_makes_many_topics_does_not_crowd_out_anothers(make: Callable[..., World]) -> None:
    many = [f"persistent://acme/reaper/d{n}" for n in range(5)]
    world = make(*many, RIVALS, most_matched=3)
    assert set(world.queries.matched) == {*many[:2], RIVALS}
    rivals_second = RIVALS.replace("d2", "d3")
    make_topics(world.admin, rivals_second)
    for topic in many[:2]:
        world.admin.delete_topic(topic, force=True)
    world.check_once(60)
    assert set(world.queries.matched) == {many[2], many[3], RIVALS}
    world.admin.delete_topic(many[2], force=True)
    world.admin.delete_topic(many[3], force=True)
    world.check_once(60)
    assert set(world.queries.matched) == {many[4], RIVALS, rivals_second}


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


def test_topics_that_came_and_went_cost_lookups_nothing(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MOST_LEFT_BEHIND + 5):
        _read(settings, f"requests-{number:064}", f"persistent://acme/reaper/d{number}")
    admin = pulsar()
    world = World(settings, admin)
    asked = asked_of(admin, "partitions")
    world.queries.start()
    assert sum("/reaper/" in each for each in asked) == MOST_LEFT_BEHIND, "once a start, and not all of them"
    assert "5 more checkpoints in" in caplog.text
    asked.clear()
    caplog.clear()
    for number in range(3):
        topic = f"persistent://acme/reaper/d{number}x"
        make_topics(admin, topic)
        world.check_once(60)
        admin.delete_topic(topic, force=True)
        world.check_once(60)
    assert len({each for each in asked if "/reaper/" in each}) == 3, "about these alone"
    assert "which " not in "".join(each.getMessage() for each in caplog.records if each.levelname == "ERROR")
    world.check_once(60)
    assert len(world.queries._log) == 0


def test_a_matched_topic_of_another_service_is_not_read_until_it_is_given_up(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    other = Ownership(world.store, "/reaper", "third")
    other.claim([ACMES])
    make_topics(world.admin, ACMES, RIVALS)
    world.subscribed.clear()
    world.check_once(60)
    assert world.queries.matched == (RIVALS,)
    assert world.subscribed == [RIVALS], "no subscription is created on another's topic"
    assert f"{ACMES} is read by service 'third'" in caplog.text
    other.release([ACMES])
    world.check_once(60)
    assert set(world.queries.matched) == {ACMES, RIVALS}


def test_a_matched_topic_is_owned_until_it_is_deleted(make: Callable[..., World]) -> None:
    world = make(ACMES)
    ours = Ownership(world.store, "/reaper", "main")
    assert ours.owned() == [ACMES]
    world.admin.delete_topic(ACMES, force=True)
    world.check_once(60)
    assert ours.owned() == []


def test_topics_with_a_fault_that_come_and_go_leave_no_claim(settings: Settings) -> None:
    memory = pulsar()
    world = World(settings, memory)
    for number in range(30):
        topic = f"persistent://acme/reaper/short-lived-{number}"
        memory.create_partitioned_topic(topic, MOST_PARTITIONS + 1)
        world.queries.look_up()
        memory.delete_topic(topic)
    assert world.queries.ownership is not None
    assert not [topic for topic in world.queries.ownership.owned() if "short-lived" in topic]
