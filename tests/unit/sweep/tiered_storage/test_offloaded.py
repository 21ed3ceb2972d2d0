"""The BookKeeper copy of an offloaded ledger is deleted only if tiered storage has both objects of its upload."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from streaming.adapters.memory.objects import MemoryObjects
from streaming.ports import ObjectStore
from streaming.sweep.jobs import Job
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.tiered_storage.buckets import OffloadBuckets
from streaming.sweep.tiered_storage.offloaded import OffloadedCopies
from tests.builders import TOPIC, UUID, data_request, list_znode
from tests.world import Bench, path_of
from udfs.formats.managed_ledger import LedgerInfo, OffloadState
from udfs.formats.offload_index import index_name, object_name
from udfs.offload_drivers import Bucket
from udfs.paths import managed_ledger_path
from udfs.records import BrokerView, Outcome, Presence, Reason

NAMED, OTHER = (
    Bucket(endpoint="http://s3:9000", name="named", region="us-east-1"),
    Bucket(endpoint="http://s3:9000", name="other", region="us-east-1"),
)
LIST = managed_ledger_path(TOPIC)
DELETED = (Outcome.DELETED, Reason.UNREFERENCED)
UNCONFIRMED = (Outcome.RETRY, Reason.OFFLOAD_UNCONFIRMED)
SECOND_UUID = "bbbbbbbb-0000-0000-0000-000000000000"


class Silent:
    """Brokers that name no bucket."""

    def cluster_name(self) -> str:
        return ""

    def offload_policies(self, namespace: str) -> dict[str, str]:
        del namespace
        return {}


def state(
    uuid: str | None = UUID, bucket: str = "named", driver: str = "S3", segments: tuple[str, ...] = ()
) -> OffloadState:
    named = {"bucket": bucket, "serviceEndpoint": "http://s3:9000"}
    return OffloadState(
        uuid=uuid,
        complete=True,
        bookkeeper_deleted=True,
        timestamp_ms=1,
        driver_name=driver,
        driver_properties=named,
        segment_uuids=segments,
    )


@dataclass
class World:
    """A topic whose ledgers 5, 6 and 7 were offloaded and are leaked in BookKeeper; ledger 9 is being written."""

    bench: Bench = field(default_factory=Bench)
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    opened: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for ledger_id in (5, 6, 7):
            self.bench.ledger(data_request(ledger_id))
            self.upload(ledger_id)
        self.lists(*(LedgerInfo(ledger_id=result, entries=10, timestamp_ms=1, offload=state()) for result in (5, 6, 7)))
        self.bench.broker.topics[TOPIC] = BrokerView(presence=Presence.PRESENT, ledgers=(5, 6, 7, 9))
        self.objects.faults.before(
            lambda operation, keys: self.asked.append(len(keys)) if operation == "head_many" else None
        )
        self.bench.age()

    def upload(self, ledger_id: int, uuid: str = UUID) -> None:
        for name in (object_name, index_name):
            self.objects.put(name(uuid, ledger_id), b"stored")

    def lists(self, *ledgers: LedgerInfo) -> None:
        self.bench.owner(LIST, list_znode(*ledgers, 9))

    def open(self, bucket: Bucket) -> ObjectStore:
        self.opened.append(bucket.name)
        return self.objects

    def results(self, *ledger_ids: int) -> list[tuple[Outcome, Reason]]:
        bench, loader = self.bench, self.bench.loader()
        places = OffloadBuckets(
            loader=loader, configuration=Silent(), allowed=(NAMED,), open_store=self.open, patience_seconds=60.0
        )
        confirm = OffloadedCopies(loader, places)
        sweeper = Sweeper(bench.store, loader, bench.journal, bench.clock, bench.rules(), confirm=confirm)
        swept = sweeper.sweep([Job(data_request(result)) for result in ledger_ids], {})
        return [(result.verdict.outcome, result.verdict.reason) for result in swept]


@pytest.fixture
def world() -> World:
    return World()


def test_the_copy_in_bookkeeper_is_deleted_if_both_objects_exist(world: World) -> None:
    assert world.results(5, 6, 7) == [DELETED] * 3
    assert world.bench.left() == set()
    assert world.asked == [6], "one question for all of them"


@pytest.mark.parametrize("lost", [object_name, index_name])
def test_the_copy_in_bookkeeper_is_kept_if_one_object_is_lost(world: World, lost: Callable[[str, int], str]) -> None:
    """A lifecycle rule deleted it, or another cluster with our name."""
    world.objects.delete([lost(UUID, 6)])

    assert world.results(5, 6, 7) == [DELETED, UNCONFIRMED, DELETED]
    assert world.bench.left() == {path_of(6)}


def test_a_ledger_is_kept_without_using_up_a_try_while_the_store_does_not_answer(world: World) -> None:
    world.objects.faults.away = True

    assert world.results(5) == [(Outcome.RETRY, Reason.STORE_UNAVAILABLE)]
    assert world.bench.left() == {path_of(5), path_of(6), path_of(7)}


def test_a_ledger_is_kept_if_its_objects_may_not_be_read(world: World) -> None:
    world.objects.denied = {index_name(UUID, 5)}
    assert world.results(5) == [UNCONFIRMED]

    world.objects.gone = True
    assert world.results(6) == [UNCONFIRMED]


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param(state(bucket="other"), id="a bucket that is not configured"),
        pytest.param(state(driver="filesystem"), id="a driver that does not speak S3"),
        pytest.param(state(uuid=None, segments=(UUID,)), id="a streaming offload, whose objects have other names"),
        pytest.param(state(segments=(SECOND_UUID,)), id="segments beside an upload"),
        pytest.param(state(uuid=None), id="no upload at all"),
    ],
)
def test_a_ledger_is_kept_if_its_objects_are_not_known(world: World, unknown: OffloadState) -> None:
    world.lists(
        LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=unknown),
        LedgerInfo(ledger_id=6, entries=10, timestamp_ms=1, offload=state()),
    )

    assert world.results(5, 6) == [UNCONFIRMED, DELETED]
    assert set(world.opened) <= {"named"}


def test_a_ledger_that_is_listed_twice_needs_the_objects_of_both_uploads(world: World) -> None:
    twice = [LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1, offload=state(uuid)) for uuid in (UUID, SECOND_UUID)]
    world.lists(*twice)
    assert world.results(5) == [UNCONFIRMED]

    world.upload(5, SECOND_UUID)
    assert world.results(5) == [DELETED]


def test_a_ledger_that_no_list_names_needs_no_objects(world: World) -> None:
    world.lists()
    world.bench.broker.topics[TOPIC] = BrokerView(presence=Presence.PRESENT, ledgers=(9,))
    world.objects.gone = True

    assert world.results(5) == [DELETED]
    assert world.opened == []


def test_a_list_that_changes_after_the_check_is_judged_again(world: World) -> None:
    """A broker takes the ledger back from tiered storage: it needs the copy in BookKeeper again."""
    back = LedgerInfo(ledger_id=5, entries=10, timestamp_ms=1)
    world.objects.faults.before(lambda operation, _: world.lists(back) if operation == "head_many" else None)

    assert world.results(5) == [(Outcome.RETRY, Reason.IN_USE)]
    assert path_of(5) in world.bench.left()


def test_a_ledger_is_kept_if_tiered_storage_is_not_checked(world: World) -> None:
    bench = world.bench
    sweeper = Sweeper(bench.store, bench.loader(), bench.journal, bench.clock, bench.rules())
    (swept,) = sweeper.sweep([Job(data_request(5))], {})
    assert (swept.verdict.outcome, swept.verdict.reason) == UNCONFIRMED
