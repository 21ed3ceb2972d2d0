"""A sweep of objects in memory: its promises under failures, interference and crashes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from streaming.adapters.memory.faults import CrashError
from streaming.adapters.memory.objects import MemoryObjects
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.dry_run import DryRunObjects
from streaming.sweep.jobs import Job, Swept
from streaming.sweep.tiered_storage.buckets import OffloadBuckets, offload_policy
from streaming.sweep.tiered_storage.offload_jobs import OffloadRules
from streaming.sweep.tiered_storage.offloads import OffloadSweeper
from tests.builders import (
    DAY_MS,
    HOUR_MS,
    LAYOUT_PATH,
    MINUTE_MS,
    OTHER_TOPIC,
    ROOT,
    SEGMENT,
    TOPIC,
    UUID,
    data_custom,
    data_request,
    layout_znode,
    list_znode,
    metadata,
    offloaded,
    put,
)
from tests.world import EPOCH, POLICY, Bench, path_of
from udfs.formats.managed_ledger import LedgerInfo, OffloadState
from udfs.formats.offload_index import index_name, object_name, serialize_offload_index
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.offload_drivers import Bucket
from udfs.paths import Layout, managed_ledger_path, namespace_of, topic_of
from udfs.records import (
    BrokerView,
    Counts,
    LedgerComponent,
    LedgerType,
    OffloadContext,
    Outcome,
    PendingDelete,
    Presence,
    Reason,
)
from udfs.verdicts.judge import Policy

OURS = Bucket(endpoint="http://s3:9000", name="ours", region="us-east-1", cluster_names_are_unique=True)
SECOND = Bucket(endpoint="http://s3:9000", name="second", region="us-east-1", cluster_names_are_unique=True)
SIGNED = {"PulsarClusterName": "ours", "ManagedLedgerName": TOPIC}
LIST = managed_ledger_path(TOPIC)
OLD = "aaaaaaaa-0000-0000-0000-000000000000"


def request(
    ledger_id: int = 5, uuid: str = OLD, topic: str = TOPIC, bucket: Bucket | None = OURS, driver: str = "S3"
) -> PendingDelete:
    named = {"bucket": bucket.name, "serviceEndpoint": bucket.endpoint} if bucket else {}
    context = OffloadContext(uuid=uuid, driver_name=driver, driver_properties=named)
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        ledger_id=ledger_id,
        offload_context=context,
    )


@dataclass
class FakeConfiguration:
    policies: dict[str, dict[str, str]] = field(default_factory=dict)
    refuses: bool = False
    asked: list[str] = field(default_factory=list)
    away: set[str] = field(default_factory=set)  # namespaces for which brokers answer 5xx, and "cluster"
    hanging: set[str] = field(default_factory=set)  # namespaces for which they do not answer before the end
    ended: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)

    def cluster_name(self) -> str:
        if "cluster" in self.away:
            raise UnavailableError("v2/brokers/configuration/runtime answered 502")
        return "ours"

    def offload_policies(self, namespace: str) -> dict[str, str]:
        self.asked.append(namespace)
        if self.refuses:
            raise RefusedError("403")
        if namespace in self.away:
            raise UnavailableError(f"{namespace}/offloadPolicies answered 503")
        if namespace in self.hanging and not self.ended.wait(10):
            self.given_up.set()
        return self.policies.get(namespace, {})


@dataclass
class ObjectsJournal:
    """A journal whose writes count as effects of the bucket."""

    bucket: MemoryObjects
    entries: list[ObjectEntry] = field(default_factory=list)
    on_write: Callable[[], object] = lambda: None  # runs at each write

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        self.on_write()
        self.bucket.faults.effect(lambda: self.entries.extend(entries))


class World:
    """One cluster, its buckets, and one instance of the service.

    exclusive: whether its bucket is the cluster's alone. None: it is not, and all clusters there have different names.
    """

    def __init__(self, *, versioned: bool = False, exclusive: bool | None = None) -> None:
        self.bench = Bench()
        self.objects = MemoryObjects(versioned=versioned, clock=self.bench.clock)
        self.second = MemoryObjects(clock=self.bench.clock)
        self.allowed: tuple[Bucket, ...] = (
            replace(OURS, exclusive=bool(exclusive), cluster_names_are_unique=exclusive is None),
            SECOND,
        )
        self.configuration = FakeConfiguration()
        self.patience_seconds = 60.0
        self.journal = ObjectsJournal(self.objects)
        self.opened: list[str] = []
        self.wrap: Callable[[ObjectStore], ObjectStore] | None = None
        # ledger 5 is listed with the UUID of its second attempt; 9 is being written
        self.bench.owner(
            LIST,
            list_znode(
                LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=OffloadState(uuid=UUID, complete=True)), 9
            ),
        )
        self.bench.broker.topics[TOPIC] = BrokerView(presence=Presence.PRESENT, ledgers=(5, 9))

    def offload(
        self,
        ledger_id: int = 5,
        uuid: str = OLD,
        topic: str = TOPIC,
        store: MemoryObjects | None = None,
        signed: dict[str, str] | None = None,
    ) -> str:
        """Store a pair as a broker does; returns its name."""
        name, bucket = object_name(uuid, ledger_id), store or self.objects
        about = {"PulsarClusterName": "ours", "ManagedLedgerName": topic} if signed is None else signed
        bucket.put(name, b"d" * 1_000, about)
        bucket.put(index_name(uuid, ledger_id), serialize_offload_index(metadata(data_custom(topic)), 1_000), about)
        return name

    def sweeper(self, patience: Policy = POLICY) -> OffloadSweeper:
        policy = offload_policy(self.configuration, patience, offload_grace_ms=HOUR_MS)
        loader = self.bench.loader()
        places = OffloadBuckets(
            loader=loader,
            configuration=self.configuration,
            allowed=self.allowed,
            open_store=self.open,
            patience_seconds=self.patience_seconds,
        )
        rules = OffloadRules((EPOCH, self.bench.epoch_version), policy, Layout.HIERARCHICAL, ROOT)
        return OffloadSweeper(places, loader, self.journal, self.bench.clock, rules)

    def open(self, bucket: Bucket) -> ObjectStore:
        self.opened.append(bucket.name)
        store = {"ours": self.objects, "second": self.second}[bucket.name]
        return self.wrap(store) if self.wrap else store

    def sweep(self, *requests: PendingDelete, since_ms: int | None = None) -> list[Swept]:
        return self.sweeper().sweep([Job(result, since_ms) for result in requests], {})

    def results(self, *requests: PendingDelete, since_ms: int | None = None) -> list[tuple[Outcome, Reason]]:
        return [(result.verdict.outcome, result.verdict.reason) for result in self.sweep(*requests, since_ms=since_ms)]


@pytest.fixture
def world() -> World:
    made = World()
    made.offload()
    made.offload(uuid=UUID)
    made.bench.age()
    return made


GARBAGE = (object_name(OLD, 5), index_name(OLD, 5))
IN_USE = [object_name(UUID, 5), index_name(UUID, 5)]
DELETED = (Outcome.DELETED, Reason.UNREFERENCED)


def test_objects_of_an_old_upload_are_deleted_and_current_objects_stay(world: World) -> None:
    (swept,) = world.sweep(request())
    (kept,) = world.sweep(request(uuid=UUID))

    assert (swept.verdict.outcome, swept.verdict.reason) == DELETED
    assert swept.length_bytes > 1_000
    assert kept.verdict.reason is Reason.IN_USE
    assert world.objects.stored() == IN_USE


def test_the_journal_is_written_before_the_first_object_is_deleted(world: World) -> None:
    written: list[int] = []
    world.objects.faults.before(
        lambda operation, _keys: written.append(len(world.journal.entries)) if operation == "delete" else None
    )

    world.sweep(request())

    assert written == [1, 1]
    (entry,) = world.journal.entries
    assert (entry.ledger_id, entry.uuid, entry.bucket.name) == (5, OLD, "ours")
    assert entry.objects == tuple((key, "") for key in GARBAGE)
    assert entry.index == serialize_offload_index(metadata(data_custom()), 1_000)
    assert entry.reference.checks == ((LIST, world.bench.tree.read(LIST).version),)


def test_nothing_is_deleted_if_the_journal_cannot_be_written(world: World) -> None:
    world.objects.faults.fail_at(1)

    with pytest.raises(UnavailableError):
        world.sweep(request())

    assert set(GARBAGE) < set(world.objects.stored())


def test_the_data_object_is_deleted_and_checked_before_its_index_is_deleted(world: World) -> None:
    steps: list[tuple[str, str]] = []
    world.objects.faults.before(lambda operation, keys: steps.extend((operation, key) for key in keys))

    world.sweep(request())

    data, index = GARBAGE
    expected = [("delete", data), ("existing", data), ("delete", index), ("existing", index)]
    assert [step for step in steps if step in expected] == expected


@pytest.mark.parametrize("applied", [False, True], ids=["before it took place", "after it took place"])
@pytest.mark.parametrize("crash_at", [1, 2, 3])
def test_a_sweep_of_objects_that_is_interrupted_at_any_effect_ends_the_same_when_repeated(
    crash_at: int, applied: bool
) -> None:
    world = World()
    world.offload()
    world.offload(uuid=UUID)
    world.bench.age()
    world.objects.faults.fail_at(crash_at, applied=applied, crash=True)

    with pytest.raises(CrashError):
        world.sweep(request())
    (again,) = world.results(request())

    assert again == ((Outcome.ALREADY_GONE, Reason.NOT_FOUND) if applied and crash_at == 3 else DELETED)
    assert world.objects.stored() == IN_USE
    assert world.journal.entries


def test_a_half_deleted_pair_is_still_proven_by_its_index(world: World) -> None:
    world.objects.delete([GARBAGE[0]])

    assert world.results(request()) == [DELETED]
    assert world.objects.stored() == IN_USE


def test_a_data_object_without_an_index_is_proven_by_its_own_metadata(world: World) -> None:
    world.objects.delete([GARBAGE[1]])

    assert world.results(request()) == [DELETED]
    assert world.objects.stored() == IN_USE


def test_an_owner_that_refers_to_the_object_again_before_the_delete_keeps_it(world: World) -> None:
    """No broker does that; an operator who restores an old list would."""
    back = LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=OffloadState(uuid=OLD, complete=True))
    world.journal.on_write = lambda: world.bench.owner(LIST, list_znode(back, 9))

    assert world.results(request()) == [(Outcome.RETRY, Reason.IN_USE)]
    assert set(GARBAGE) < set(world.objects.stored())


@pytest.mark.parametrize("key", GARBAGE, ids=["data", "index"])
@pytest.mark.parametrize("compares", [True, False], ids=["S3", "a store that ignores ETags"])
def test_an_object_that_is_stored_again_after_its_verdict_is_kept(world: World, key: str, compares: bool) -> None:
    world.objects.compares = compares
    world.journal.on_write = lambda: world.objects.put(key, b"another", SIGNED)

    results = world.results(request())

    assert results == ([(Outcome.RETRY, Reason.LEDGER_CHANGED)] if compares else [DELETED])
    assert (key in world.objects.stored()) is compares


def test_a_store_that_compares_etags_deletes_judged_objects_and_accepts_missing_objects(world: World) -> None:
    world.objects.compares = True
    world.journal.on_write = lambda: world.objects.delete([GARBAGE[0]])

    assert world.results(request()) == [DELETED]
    assert world.objects.stored() == IN_USE


def test_the_owner_is_read_after_the_objects(world: World) -> None:
    """In the opposite order, its list could miss the UUID of objects that were stored after the read."""
    current = LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=OffloadState(uuid=OLD, complete=True))
    world.objects.faults.before(
        lambda operation, _: world.bench.owner(LIST, list_znode(current, 9)) if operation == "read_many" else None
    )

    assert world.results(request()) == [(Outcome.RETRY, Reason.IN_USE)]
    assert world.journal.entries == []


def test_an_owner_that_merely_changes_is_read_again_and_the_delete_continues(world: World) -> None:
    offloaded_again = LedgerInfo(
        ledger_id=5, entries=10, timestamp_ms=1, offload=OffloadState(uuid=UUID, complete=True)
    )
    world.journal.on_write = lambda: world.bench.owner(LIST, list_znode(offloaded_again, 9, 12))

    assert world.results(request()) == [DELETED]


def test_an_owner_that_comes_back_before_the_delete_keeps_it(world: World) -> None:
    world.bench.tree.remove(LIST)
    world.bench.broker.topics.clear()
    seen_ms = world.bench.clock.now_ms() - HOUR_MS
    back = LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=OffloadState(uuid=OLD, complete=True))
    world.journal.on_write = lambda: world.bench.owner(LIST, list_znode(back, 9))

    assert world.results(request(), since_ms=seen_ms) == [(Outcome.RETRY, Reason.IN_USE)]
    assert set(GARBAGE) < set(world.objects.stored())


@pytest.mark.parametrize("is_back", [True, False])
def test_a_pruned_segment_that_comes_back_before_the_delete_keeps_its_objects(world: World, is_back: bool) -> None:
    name = world.offload(topic=SEGMENT, uuid=UUID, ledger_id=7)
    world.bench.owner(LAYOUT_PATH, layout_znode(1, 2))
    world.bench.age()
    since_ms = world.bench.clock.now_ms() - HOUR_MS
    back = LedgerInfo(ledger_id=7, entries=10, timestamp_ms=1, offload=OffloadState(uuid=UUID, complete=True))
    if is_back:  # its layout has not changed yet
        world.journal.on_write = lambda: world.bench.owner(managed_ledger_path(SEGMENT), list_znode(back, 9))

    (result,) = world.results(request(7, UUID, topic=SEGMENT), since_ms=since_ms)
    assert result == ((Outcome.RETRY, Reason.IN_USE) if is_back else (Outcome.DELETED, Reason.OWNER_GONE))
    assert (name in world.objects.stored()) is is_back


def test_objects_of_a_gone_owner_are_deleted_at_the_second_check(world: World) -> None:
    world.bench.tree.remove(LIST)
    world.bench.broker.topics.clear()

    (first,) = world.sweep(request(), request(uuid=UUID))[:1]
    assert (first.verdict.outcome, first.verdict.reason) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
    assert first.absent_since_ms == world.bench.clock.now_ms()
    world.bench.age(10 * MINUTE_MS)
    gone = (Outcome.DELETED, Reason.OWNER_GONE)

    assert world.results(request(), request(uuid=UUID), since_ms=first.absent_since_ms) == [gone, gone]
    assert world.objects.stored() == []


@pytest.mark.parametrize("content", [b'{"phase":"COMPLETED","targetUrl":"oxia://oxia1:6648/default"}', b""])
def test_a_migration_that_starts_after_the_owner_was_read_stops_the_delete(world: World, content: bytes) -> None:
    sweeper = world.sweeper()
    world.journal.on_write = lambda: put(world.bench.tree, MIGRATION_PATH, content)

    with pytest.raises(UnavailableError, match="a migration to another metadata store has started"):
        sweeper.sweep([Job(request())], {})

    assert set(GARBAGE) < set(world.objects.stored())


def test_a_zombie_deletes_nothing(world: World) -> None:
    sweeper = world.sweeper()
    world.bench.tree.write(EPOCH, b"the next instance")

    with pytest.raises(FencedError):
        sweeper.sweep([Job(request())], {})

    assert set(GARBAGE) < set(world.objects.stored())


def test_a_zookeeper_that_does_not_answer_affects_every_request(world: World) -> None:
    world.bench.store.faults.away = True

    with pytest.raises(UnavailableError):
        world.sweep(request())


def test_a_store_that_reports_deletes_but_did_nothing_is_detected_and_keeps_the_proof(world: World) -> None:
    world.objects.lies = True

    assert world.results(request()) == [(Outcome.RETRY, Reason.STILL_THERE)]
    world.objects.lies = False
    assert world.results(request()) == [DELETED]


@pytest.mark.parametrize("denied", GARBAGE, ids=["data", "index"])
def test_a_key_that_may_not_be_read_or_deleted_is_kept_and_the_others_are_deleted(world: World, denied: str) -> None:
    other = "bbbbbbbb-0000-0000-0000-000000000000"
    world.offload(uuid=other)
    world.bench.age()
    world.objects.faults.before(
        lambda operation, _: world.objects.denied.add(denied) if operation == "delete" else None
    )

    assert world.results(request(), request(uuid=other)) == [(Outcome.RETRY, Reason.STORE_REFUSED), DELETED]
    assert GARBAGE[1] in world.objects.stored()


def test_unreadable_objects_are_kept(world: World) -> None:
    world.objects.denied.add(GARBAGE[1])

    assert world.results(request()) == [(Outcome.RETRY, Reason.LEDGER_UNREADABLE)]


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        pytest.param(lambda store: setattr(store.faults, "away", True), Reason.STORE_UNAVAILABLE, id="away"),
        pytest.param(lambda store: setattr(store, "gone", True), Reason.STORE_REFUSED, id="bucket gone"),
    ],
)
def test_a_store_that_fails_delays_its_own_requests_only(
    world: World, breaks: Callable[[MemoryObjects], None], reason: Reason
) -> None:
    world.offload(store=world.second)
    world.bench.age()
    breaks(world.objects)

    assert world.results(request(), request(bucket=SECOND)) == [(Outcome.RETRY, reason), DELETED]
    assert world.second.stored() == []


def test_a_store_that_fails_in_the_middle_is_resumed_later(world: World) -> None:
    names = [f"{number:08x}-0000-0000-0000-000000000000" for number in range(10)]
    for result in names:
        world.offload(uuid=result)
    world.bench.age()
    world.objects.faults.fail_at(6)

    first = world.results(*(request(uuid=result) for result in names))
    second = world.results(*(request(uuid=result) for result in names))

    assert set(first) == {(Outcome.RETRY, Reason.STORE_UNAVAILABLE)}
    assert set(second) == {DELETED}
    assert [key for key in world.objects.stored() if key[:8] in {result[:8] for result in names}] == []


def test_a_foreign_clusters_objects_in_a_shared_bucket_are_never_touched(world: World) -> None:
    """The topic name and ledger id are the same, but our list does not name the UUID."""
    foreign = "cccccccc-0000-0000-0000-000000000000"
    name = world.offload(uuid=foreign, signed=SIGNED | {"PulsarClusterName": "theirs"})
    world.bench.age()

    assert world.results(request(uuid=foreign)) == [(Outcome.DEAD_LETTER, Reason.OTHER_CLUSTER)]
    assert name in world.objects.stored()


def test_no_object_is_deleted_if_cluster_names_may_repeat() -> None:
    """Another cluster of our name (a clone, a stand-alone) offloads there, and its lists can't be read here."""
    world = World(exclusive=False)
    theirs = "cccccccc-0000-0000-0000-000000000000"
    only_there = "t9/ns9/persistent/only-there"
    of_both = world.offload(6, theirs)
    of_theirs = world.offload(8, theirs, topic=only_there)
    world.bench.broker.topics[only_there] = BrokerView(presence=Presence.GONE)
    world.bench.age()
    since_ms = world.bench.clock.now_ms()
    world.bench.age()

    results = world.results(request(6, theirs), request(8, theirs, topic=only_there), since_ms=since_ms)

    assert results == [(Outcome.DEAD_LETTER, Reason.PROOF_MISSING)] * 2
    assert {of_both, of_theirs} <= set(world.objects.stored())


def test_an_index_that_names_no_cluster_does_not_replace_its_data_object() -> None:
    world = World(exclusive=True)
    name = world.offload(signed={})
    world.objects.put(name, b"data", SIGNED | {"PulsarClusterName": "theirs"})
    world.bench.age()

    assert world.results(request()) == [(Outcome.DEAD_LETTER, Reason.OTHER_CLUSTER)]


def test_another_topics_objects_are_never_touched(world: World) -> None:
    theirs = world.offload(7, topic=OTHER_TOPIC)
    world.bench.age()

    assert world.results(request(7)) == [(Outcome.DEAD_LETTER, Reason.OTHER_OWNER)]
    assert theirs in world.objects.stored()


def test_parts_of_a_crashed_upload_are_aborted_in_an_exclusive_bucket() -> None:
    world = World(exclusive=True)
    world.objects.begin_upload(GARBAGE[0])

    assert world.results(request()) == [(Outcome.RETRY, Reason.OFFLOAD_IN_PROGRESS)]
    world.bench.age(HOUR_MS)

    assert world.results(request()) == [DELETED]
    assert world.objects.unfinished_uploads([GARBAGE[0]]) == []
    assert world.results(request()) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND)]


class TestUploadsOfOthers:
    """A client that learns an unfinished upload's UUID can claim it. Here OTHER_TOPIC is uploading ledger 7."""

    @pytest.fixture
    def world(self) -> World:
        world = World(exclusive=True)
        theirs = LedgerInfo(ledger_id=7, entries=10, timestamp_ms=1, offload=OffloadState(uuid=OLD, complete=False))
        world.bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(theirs, 12))
        world.bench.broker.topics[OTHER_TOPIC] = BrokerView(presence=Presence.PRESENT, ledgers=(7, 12))
        world.bench.ledger(data_request(7, OTHER_TOPIC))
        world.objects.begin_upload(object_name(OLD, 7))
        world.bench.age()
        return world

    def left(self, world: World) -> int:
        return len(world.objects.unfinished_uploads([object_name(OLD, 7)]))

    def test_are_refused_by_the_ledgers_metadata_in_bookkeeper(self, world: World) -> None:
        assert world.results(request(7)) == [(Outcome.DEAD_LETTER, Reason.OTHER_OWNER)]
        assert self.left(world) == 1

    def test_are_kept_while_their_owner_lists_them(self, world: World) -> None:
        assert world.results(request(7, topic=OTHER_TOPIC)) == [(Outcome.RETRY, Reason.IN_USE)]
        assert self.left(world) == 1

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_are_aborted_for_their_owner_once_it_has_released_them_whichever_other_owner_asks(
        self, world: World, order: tuple[int, int]
    ) -> None:
        world.bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(7, 12))
        cases = [(request(7), (Outcome.DEAD_LETTER, Reason.OTHER_OWNER)), (request(7, topic=OTHER_TOPIC), DELETED)]
        assert world.results(*(cases[number][0] for number in order)) == [cases[number][1] for number in order]
        assert self.left(world) == 0

    def test_are_kept_if_bookkeeper_no_longer_has_the_ledger(self, world: World) -> None:
        world.bench.tree.remove(path_of(7))
        assert world.results(request(7)) == [(Outcome.RETRY, Reason.PROOF_MISSING)]
        assert self.left(world) == 1

    def test_are_kept_if_the_ledger_cannot_be_read(self, world: World) -> None:
        world.bench.owner(
            LIST, list_znode(LedgerInfo(ledger_id=7, entries=10, timestamp_ms=1, offload=OffloadState(uuid=UUID)), 9)
        )
        world.bench.store.unreadable.add(path_of(7))
        assert world.results(request(7)) == [(Outcome.RETRY, Reason.PROOF_MISSING)]
        world.bench.store.unreadable.clear()
        world.bench.ledger(data_request(7), data=b"junk")
        assert world.results(request(7)) == [(Outcome.RETRY, Reason.PROOF_MISSING)]
        assert self.left(world) == 1

    def test_are_not_affected_by_a_request_for_an_own_ledger_with_their_uuid(self, world: World) -> None:
        """The key of the parts contains the ledger's id, and only parts under the request's own name are read."""
        world.bench.ledger(data_request(5))
        world.bench.age()
        assert world.results(request(5)) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND)]
        assert self.left(world) == 1


def test_bookkeeper_is_only_read_for_ledgers_that_have_nothing_but_parts(world: World) -> None:
    paths: list[str] = []
    world.bench.store.faults.before(lambda _operation, asked: paths.extend(asked))
    world.results(request(), request(uuid=UUID))
    assert [path for path in paths if path.startswith(ROOT)] == []


def test_parts_that_exist_after_their_abort_are_reported() -> None:
    world = World(exclusive=True)
    world.objects.begin_upload(GARBAGE[0])
    world.bench.age()
    world.objects.lies = True

    assert world.results(request()) == [(Outcome.RETRY, Reason.STILL_THERE)]


def test_deletes_in_a_bucket_with_versions_explain_that_versions_are_kept() -> None:
    world = World(versioned=True)
    world.offload()
    world.bench.age()

    (swept,) = world.sweep(request())

    assert (swept.verdict.outcome, swept.verdict.reason) == DELETED
    assert "lifecycle" in swept.verdict.detail
    (entry,) = world.journal.entries
    assert all(version for _key, version in entry.objects)
    assert world.objects.undelete(GARBAGE) == set(GARBAGE)


def test_the_same_request_twice_in_a_batch_counts_once(world: World) -> None:
    assert world.results(request(), request()) == [DELETED, (Outcome.ALREADY_GONE, Reason.DUPLICATE)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_different_requests_for_the_same_objects_are_judged_separately(
    world: World, order: tuple[int, int]
) -> None:
    cases = [(request(topic=OTHER_TOPIC), (Outcome.DEAD_LETTER, Reason.OTHER_OWNER)), (request(), DELETED)]
    swept = world.sweep(*(cases[number][0] for number in order))
    assert [(result.verdict.outcome, result.verdict.reason) for result in swept] == [
        cases[number][1] for number in order
    ]
    sources = dict(zip(order, (result.sources for result in swept), strict=True))
    assert sources[0].startswith("zookeeper=- ")
    assert sources[1].startswith("zookeeper=2@")
    assert world.objects.stored() == IN_USE


def test_one_of_several_true_requests_is_processed_and_the_others_are_checked_again(world: World) -> None:
    """A sighting makes two requests differ. Their order does not matter: the next check finds the objects gone."""
    jobs = [Job(request()), Job(request(), world.bench.clock.now_ms())]
    swept = world.sweeper().sweep(jobs, {})
    assert [(result.verdict.outcome, result.verdict.reason) for result in swept] == [
        DELETED,
        (Outcome.RETRY, Reason.DUPLICATE),
    ]
    assert len(world.journal.entries) == 1
    assert world.results(request()) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND)]


@pytest.mark.parametrize("driver", ["azureblob", "aliyun-oss", "filesystem"])
def test_another_driver_is_refused_by_its_name_before_any_store_is_opened(world: World, driver: str) -> None:
    (swept,) = world.sweep(request(driver=driver))

    assert (swept.verdict.outcome, swept.verdict.reason) == (Outcome.DEAD_LETTER, Reason.DRIVER_NOT_SUPPORTED)
    assert driver in swept.verdict.detail
    assert world.opened == []


@pytest.mark.parametrize(
    "bucket",
    [
        pytest.param(replace(OURS, name="victims"), id="another bucket"),
        pytest.param(replace(OURS, endpoint="http://attacker:9000"), id="another endpoint"),
        pytest.param(replace(OURS, endpoint=""), id="the same name at AWS"),
    ],
)
def test_a_bucket_that_is_not_allowed_is_refused_before_any_store_is_opened(world: World, bucket: Bucket) -> None:
    assert world.results(request(bucket=bucket)) == [(Outcome.DEAD_LETTER, Reason.STORE_NOT_ALLOWED)]
    assert world.opened == []


def test_a_request_without_a_bucket_uses_the_bucket_of_the_owners_list(world: World) -> None:
    where = {"bucket": "second", "serviceEndpoint": SECOND.endpoint}
    current = OffloadState(uuid=UUID, complete=True, driver_name="S3", driver_properties=where)
    world.bench.owner(LIST, list_znode(LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=current), 9))
    world.offload(store=world.second)
    world.bench.age()

    assert world.results(request(bucket=None, driver="")) == [DELETED]
    assert world.second.stored() == []
    assert world.configuration.asked == []


def test_a_request_without_a_bucket_uses_the_bucket_of_the_namespaces_policies(world: World) -> None:
    world.configuration.policies["public/default"] = {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": "second",
        "managedLedgerOffloadServiceEndpoint": SECOND.endpoint,
    }
    world.offload(4, store=world.second)
    world.bench.age()

    assert world.results(request(4, bucket=None, driver=""), request(4, uuid=UUID, bucket=None)) == [
        DELETED,
        (Outcome.ALREADY_GONE, Reason.NOT_FOUND),
    ]
    assert world.configuration.asked == ["public/default"]


def test_an_unsupported_driver_in_the_policies_is_named(world: World) -> None:
    world.configuration.policies["public/default"] = {"managedLedgerOffloadDriver": "azureblob"}

    (swept,) = world.sweep(request(4, bucket=None, driver=""))

    assert (swept.verdict.outcome, swept.verdict.reason) == (Outcome.DEAD_LETTER, Reason.DRIVER_NOT_SUPPORTED)


def test_unknown_policies_are_not_empty_policies(world: World) -> None:
    world.configuration.refuses = True

    assert world.results(request(4, bucket=None)) == [(Outcome.RETRY, Reason.OWNER_UNREADABLE)]


def test_a_namespace_with_unknown_policies_does_not_delay_others(world: World) -> None:
    world.configuration.away = {namespace_of(topic_of(OTHER_TOPIC))}
    world.bench.broker.topics[OTHER_TOPIC] = BrokerView(presence=Presence.PRESENT, ledgers=(9,))
    vague = request(77, topic=OTHER_TOPIC, bucket=None, driver="")

    assert world.results(vague, request()) == [(Outcome.RETRY, Reason.BROKER_UNAVAILABLE), DELETED]


def test_namespaces_whose_policies_hang_share_one_deadline_and_delay_no_shutdown(world: World) -> None:
    spaces = [f"hanging/ns-{number}" for number in range(20)]
    world.configuration.hanging = set(spaces)
    world.patience_seconds = 0.2
    vague = [request(77, topic=f"{space}/persistent/x", bucket=None, driver="") for space in spaces]

    results = world.results(*vague, request())

    assert results == [(Outcome.RETRY, Reason.BROKER_UNAVAILABLE)] * 20 + [DELETED]
    assert not world.configuration.given_up.is_set(), "it has not waited for the threads"
    assert len(world.configuration.asked) <= 8
    world.configuration.ended.set()
    assert world.objects.stored() == IN_USE


def test_a_tenant_whose_policies_hang_does_not_delay_the_policies_of_other_tenants(world: World) -> None:
    spaces = [f"hanging/ns-{number}" for number in range(20)]
    world.configuration.hanging = set(spaces)
    world.bench.broker.topics[OTHER_TOPIC] = BrokerView(presence=Presence.PRESENT, ledgers=(9,))
    world.patience_seconds = 2.0
    vague = [request(77, topic=f"{space}/persistent/x", bucket=None, driver="") for space in spaces]

    world.results(*vague, request(77, topic=OTHER_TOPIC, bucket=None, driver=""))
    world.configuration.ended.set()

    assert namespace_of(topic_of(OTHER_TOPIC)) in world.configuration.asked


def test_objects_that_name_a_cluster_are_kept_while_our_clusters_name_is_unknown(world: World) -> None:
    world.configuration.away = {"cluster"}

    assert world.results(request(), request(77)) == [
        (Outcome.RETRY, Reason.STORE_UNAVAILABLE),
        (Outcome.ALREADY_GONE, Reason.NOT_FOUND),
    ]
    assert set(GARBAGE) < set(world.objects.stored())

    world.configuration.away.clear()
    assert world.results(request()) == [DELETED]


def test_the_only_allowed_bucket_is_used_if_no_bucket_is_named(world: World) -> None:
    assert world.results(request(4, bucket=None)) == [(Outcome.DEAD_LETTER, Reason.BAD_OFFLOAD_CONTEXT)]

    world.allowed = (OURS,)

    assert world.results(request(bucket=None, driver="")) == [DELETED]


def test_results_have_the_order_of_requests(world: World) -> None:
    assert world.results(
        request(driver="azureblob"), request(uuid=UUID), request(), request(bucket=replace(OURS, name="victims"))
    ) == [
        (Outcome.DEAD_LETTER, Reason.DRIVER_NOT_SUPPORTED),
        (Outcome.RETRY, Reason.IN_USE),
        DELETED,
        (Outcome.DEAD_LETTER, Reason.STORE_NOT_ALLOWED),
    ]


def test_an_incomplete_offload_keeps_its_uuid_while_the_owner_lists_it(world: World) -> None:
    world.bench.owner(LIST, list_znode(offloaded(5, complete=False, bookkeeper_deleted=False, uuid=OLD), 9))

    assert world.results(request()) == [(Outcome.RETRY, Reason.IN_USE)]
    world.bench.age(100 * DAY_MS)
    assert world.results(request()) == [(Outcome.RETRY, Reason.IN_USE)]


def test_a_dry_run_returns_the_same_and_does_nothing() -> None:
    world = World(exclusive=True)
    crashed = "bbbbbbbb-0000-0000-0000-000000000000"
    world.offload()
    world.offload(uuid=UUID)
    world.objects.begin_upload(object_name(crashed, 5))
    world.bench.age()
    requests = [request(), request(uuid=UUID), request(uuid=crashed), request(4)]
    before, uploads = world.objects.stored(), world.objects.unfinished_uploads([object_name(crashed, 5)])

    world.wrap = DryRunObjects
    planned = world.results(*requests)

    assert world.objects.stored() == before
    assert world.objects.unfinished_uploads([object_name(crashed, 5)]) == uploads
    world.wrap = None
    assert planned == world.results(*requests)
    assert planned == [DELETED, (Outcome.RETRY, Reason.IN_USE), DELETED, (Outcome.ALREADY_GONE, Reason.NOT_FOUND)]


class TestKept:
    def test_kept_objects_that_vanish_while_their_owner_names_them_are_reported(self, world: World) -> None:
        world.journal.on_write = lambda: world.objects.delete(IN_USE)
        lost, gone = world.sweep(request(uuid=UUID), request())
        assert lost.verdict.reason is Reason.KEPT_AND_GONE
        assert gone.verdict.outcome is Outcome.DELETED

    def test_kept_objects_that_their_owner_has_released_since_are_not_reported(self, world: World) -> None:
        def trim() -> None:
            world.bench.owner(LIST, list_znode(9))
            world.objects.delete(IN_USE)

        world.journal.on_write = trim
        kept, _gone = world.sweep(request(uuid=UUID), request())
        assert kept.verdict.reason is not Reason.KEPT_AND_GONE

    def test_an_owner_that_names_far_less_than_before_keeps_its_objects(self, world: World) -> None:
        job = Job(request(), baseline=Counts(500, 2))
        (swept,) = world.sweeper(replace(POLICY, max_shrink=0.8, shrink_applies_above=100)).sweep([job], {})
        assert swept.verdict.reason is Reason.SOURCE_SHRANK
        assert "was=500/2" in swept.sources
        assert world.objects.stored() == sorted([*GARBAGE, *IN_USE])
