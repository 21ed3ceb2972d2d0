"""One service during many faults of a cluster of three ZooKeeper servers, two brokers and three bookies.

Each scene requests leaked ledgers, ledgers in use and ledgers that never existed while a part is killed, frozen or
moved. The last test checks that all scenes together ended as without any fault.
"""

import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streaming.adapters.memory.store import Faults
from streaming.adapters.pulsar.admin_api.broker import AdminBroker
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.cli.sandbox import facts
from streaming.clients import clients_for
from streaming.clock import SystemClock
from streaming.config.policies import policy_of
from streaming.coordination import identity
from streaming.coordination.epoch import Epoch
from streaming.errors import ReaperError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import Znode
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.sandbox.home import Further, Instance, Part, addresses
from streaming.sandbox.parts import part_clients
from streaming.sandbox.reckoning import reckon
from streaming.sweep.jobs import Job, SweepRules
from streaming.sweep.ledgers import Sweeper
from tests.integration.conftest import Deployment, deployment, kill, leak, new_topic, payload, stop
from tests.world import MemoryJournal
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import LedgerComponent, LedgerType, Outcome, PendingDelete

pytestmark = [pytest.mark.cluster, pytest.mark.long]

BATCH = 3_000  # with chunks of 500, a fault at the first receipt hits the middle of the work
SLACK_SECONDS = 60.0  # requests may wait this much longer than the outage, on a busy machine
LIMITS = "share_applies_above_ledgers = 1_000_000"  # most ledgers of this cluster are leaks
NEVER_EXISTED = itertools.count(10**14)


@dataclass(frozen=True)
class Owner:
    """A topic as it was before the faults."""

    topic: str
    listed: tuple[int, ...]  # its ledgers without the current one
    messages: list[bytes]


@dataclass
class World:
    """The cluster, the service that always runs on it, and the requests."""

    cluster: Cluster
    service: Deployment
    log: Path
    owners: list[Owner] = field(default_factory=list)
    requested: dict[int, str] = field(default_factory=dict)  # by ledger: leaked, in use or never existed
    exit_codes: list[int] = field(default_factory=list)  # of services that ended by themselves
    running: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> subprocess.Popen[bytes]:
        """Start the service if it does not run, as systemd would."""
        if self.running is not None and (code := self.running.poll()) is not None:
            self.exit_codes.append(code)
            assert code == UnavailableError.exit_code, self.log.read_text()[-6000:]
            self.running = None
        if self.running is None:
            self.running = self.service.start("run", log=self.log)
        return self.running

    def owner(self, filled: int = 3) -> Owner:
        """Create a topic with `filled` full ledgers and unread messages."""
        topic = new_topic("grown")
        topics.fill(self.cluster, topic, filled, ["s"])
        messages = topics.read_all(self.cluster, topic)
        owner = Owner(topic, tuple(topics.data_ledgers(self.cluster, topic)[:-1]), messages)
        self.owners.append(owner)
        return owner

    def request_batch(self, owner: Owner, leaked: int = BATCH) -> list[int]:
        """Leak ledgers; request them, two ledgers in use, and a ledger that never existed."""
        lost = leak(self.cluster, owner.topic, leaked)
        in_use = dict.fromkeys(owner.listed[:2], "in use")
        kinds = dict.fromkeys(lost, "leaked") | in_use | {next(NEVER_EXISTED): "never existed"}
        self.request(owner.topic, kinds)
        return list(kinds)

    def request(self, topic: str, kinds: dict[int, str]) -> None:
        """Publish requests; an uncertain publication is repeated, so that some requests may be stored twice."""
        self.requested |= kinds
        deadline = time.monotonic() + 120
        while True:
            try:
                return self.service.request(payload(topic, ledger_id) for ledger_id in kinds)
            except ReaperError:
                assert time.monotonic() < deadline
                time.sleep(1)

    def done(self) -> set[int]:
        """Return the ledgers with a final receipt."""
        return {row["ledger_id"] for rows in self.service.final().values() for row in rows}

    def wait(self, holds: Callable[[], object], seconds: float) -> float:
        """Keep the service running until the condition holds; return the time that this took (s)."""
        start = time.monotonic()
        while not holds():
            self.keep_running()
            waited = time.monotonic() - start
            assert waited < seconds, f"{self.waiting_requests()}\n{self.log.read_text()[-6000:]}"
            time.sleep(0.3)
        return time.monotonic() - start

    def wait_for(self, ledger_ids: Sequence[int], seconds: float = SLACK_SECONDS) -> float:
        """Wait until each ledger has a final receipt."""
        waited = self.wait(lambda: set(ledger_ids) <= self.done(), seconds)
        report(f"{len(ledger_ids)} requests were processed {waited:.1f} s after the last fault")
        return waited

    def wait_for_some(self, ledger_ids: Sequence[int]) -> None:
        """Wait until one of the ledgers has a final receipt."""
        self.wait(lambda: self.done() & set(ledger_ids), 120)

    def waiting_requests(self) -> str:
        waiting = self.requested.keys() - self.done()
        reasons = Counter(
            (row["outcome"], row["reason"]) for row in self.service.receipts() if row["ledger_id"] in waiting
        )
        return f"{len(waiting)} of {len(self.requested)} wait, with receipts {reasons.most_common(5)}"

    def zookeepers(self) -> dict[Instance, str | None]:
        """Return each server's mode: leader, follower, or None if it does not serve."""
        spec = self.cluster.spec
        return {
            part: part_clients.zookeeper_mode(addresses(spec, [part]).zookeeper) for part in spec.all_of(Part.ZOOKEEPER)
        }

    def followers(self) -> list[Instance]:
        topics.wait_for(
            lambda: sorted(map(str, self.zookeepers().values())) == ["follower", "follower", "leader"], "ensemble"
        )
        return [part for part, mode in self.zookeepers().items() if mode == "follower"]

    def owner_broker(self, topic: str) -> Instance:
        """Return the broker that serves a topic."""
        name = topic.removeprefix("persistent://")
        url = self.cluster.serving.admin
        reply = part_clients.http_any("GET", url, f"lookup/v2/topic/persistent/{name}")
        assert reply.ok, reply
        broker_url = json.loads(reply.text)["brokerUrl"]
        spec = self.cluster.spec
        brokers = [part for part in spec.all_of(Part.BROKER) if addresses(spec, [part]).pulsar == broker_url]
        assert brokers, broker_url
        return brokers[0]

    def publish(self, owner: Owner, entries: int) -> None:
        """Publish to a topic that may be moving to another broker; messages stored before a failure stay."""
        deadline = time.monotonic() + 120
        while True:
            try:
                topics.publish(self.cluster, owner.topic, entries)
            except Exception:  # Pulsar's client raises no specific class
                assert time.monotonic() < deadline
                time.sleep(1)
            else:
                return


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, here = tmp_path_factory.mktemp("grown"), tmp_path_factory.mktemp("service")
    cluster = up(home, counts={Part.ZOOKEEPER: 3, Part.BROKER: 2, Part.BOOKIE: 3})
    try:
        created = World(cluster, deployment(cluster, here, chunk_rows=500, limits=LIMITS), here / "run.log")
        try:
            created.wait_for(created.request_batch(created.owner(), leaked=10), seconds=180)
            yield created
        finally:
            if created.running is not None:
                kill(created.running)
    finally:
        down(home)


def test_the_command_line_lists_every_part(world: World) -> None:
    status = facts(world.cluster)

    assert status["running"]
    assert [str(part) for part in world.cluster.spec.parts] == list(status["parts"])
    assert status["zookeeper"].count(",") == status["bookie_http"].count(",") == 2
    assert sum(f"-{number}" in part for part in status["parts"] for number in (2, 3)) == 5


def test_the_leader_of_zookeeper_dies_during_a_chunk(world: World) -> None:
    world.followers()  # all three serve
    requested = world.request_batch(world.owner())
    world.wait_for_some(requested)
    (leader,) = [part for part, mode in world.zookeepers().items() if mode == "leader"]
    left = set(requested) - world.done()

    cluster_faults.kill(world.cluster, leader)
    try:
        world.wait_for(requested)
        assert left, "all requests were processed before the leader died"
    finally:
        cluster_faults.restart(world.cluster, leader)
    world.followers()


def test_reads_from_a_follower_that_lags_are_up_to_date(world: World) -> None:
    """A read through a server that was frozen returns what was written to the other servers before."""
    owner = world.owner()
    path = managed_ledger_path(managed_ledger_name(owner.topic))
    absent = f"/managed-ledgers/public/default/persistent/{new_topic('absent').rpartition('/')[2]}"
    follower = world.followers()[0]
    spec = world.cluster.spec
    others = addresses(spec, [part for part in spec.all_of(Part.ZOOKEEPER) if part != follower]).zookeeper
    store = ZooKeeperStore(ZooKeeperClientSettings(hosts=addresses(spec, [follower]).zookeeper))
    with ThreadPoolExecutor(1) as pool, part_clients.zookeeper(others) as writer:
        topics.unload(world.cluster, owner.topic)
        for attempt in range(5):
            absent_now = f"{absent}-{attempt}"
            assert store.read_many([absent_now]) == [None]
            with cluster_faults.paused(world.cluster, follower):
                for _ in range(2_000):  # writes that the follower has to catch up with
                    writer.set_async("/managed-ledgers", b"")
                writer.create(absent_now, b"")
                stat = writer.set(path, writer.get(path)[0])
                read = pool.submit(store.read_many, [path, absent_now])
                time.sleep(0.5)
            listed, created = read.result(60)
            assert isinstance(listed, Znode)
            assert listed.version >= stat.version
            assert isinstance(created, Znode)
            writer.delete(absent_now)
    store.close()


def test_followers_that_freeze_delay_requests_only_while_they_are_frozen(world: World) -> None:
    owner = world.owner()
    requested = []
    for follower in world.followers():
        batch = world.request_batch(owner)
        requested += batch
        world.wait_for_some(batch)
        with cluster_faults.paused(world.cluster, follower):
            world.publish(owner, 2 * topics.ENTRIES_PER_LEDGER)
            time.sleep(8)  # longer than the service's session, shorter than the ensemble takes to drop the follower
    _update_messages(world, owner)
    world.wait_for(requested)


def test_bundles_move_while_their_owners_are_judged(world: World) -> None:
    owners = [world.owner() for _ in range(4)]
    seen: defaultdict[str, set[Instance]] = defaultdict(set)
    requested = []
    with _moving_bundles(world, "public/default", "pulsar/system"):
        for owner in owners * 2:
            requested += world.request_batch(owner, leaked=BATCH // 2)
            world.publish(owner, topics.ENTRIES_PER_LEDGER)
            for moving in owners:
                with suppress(AssertionError):
                    seen[moving.topic].add(world.owner_broker(moving.topic))
        world.wait_for(requested, seconds=180)
    for owner in owners:
        _update_messages(world, owner)
    assert any(len(brokers) == 2 for brokers in seen.values()), "no bundle moved"


def test_answers_of_a_broker_that_wakes_up_after_it_lost_its_topic_are_not_used(world: World) -> None:
    """The executors' sweep asks a broker that was frozen until another broker served its topic."""
    owner = world.owner()
    topics.publish_keyed(world.cluster, owner.topic, 20, keys=4)
    topics.compact(world.cluster, owner.topic)
    topics.wait_for(lambda: _compacted(world, owner.topic) >= 0, "the first compacted ledger")
    loser = world.owner_broker(owner.topic)
    before = topics.internal_stats(world.cluster, owner.topic)
    requested = world.request_batch(owner)
    world.wait_for_some(requested)

    cluster_faults.pause(world.cluster, loser)
    try:
        time.sleep(12)  # its session is 10 s
        topics.wait_for(lambda: _serves(world, owner.topic), "the other broker", seconds=60)
        topics.publish_keyed(world.cluster, owner.topic, 20, keys=4)
        topics.compact(world.cluster, owner.topic)
        old = {ledger["ledgerId"] for ledger in (*before["ledgers"], before["compactedLedger"])}
        topics.wait_for(lambda: _compacted(world, owner.topic) not in (-1, *old), "the second compacted ledger")
        new = set(topics.data_ledgers(world.cluster, owner.topic)) - old
        compacted = _compacted(world, owner.topic)
        assert new
        time.sleep(1.5)  # min_age and the quarantine of the tests' configuration
        with _asking(world, loser, owner.topic, sorted(new), compacted) as answers:
            time.sleep(1)  # the requests wait at the frozen broker
            cluster_faults.resume(world.cluster, loser)
            time.sleep(15)
    finally:
        cluster_faults.resume(world.cluster, loser)
    report(f"the broker that lost the topic answered {answers.views}; the sweeps returned {answers.verdicts}")
    assert answers.verdicts
    assert not [verdict for verdict in answers.verdicts if verdict[1] in (Outcome.DELETED, Outcome.ALREADY_GONE)]
    assert {*new, compacted} <= ledger_list.every_ledger(world.cluster).keys()
    _update_messages(world, owner)
    world.wait_for(requested, seconds=120)


def test_all_parts_are_restarted_one_after_the_other(world: World) -> None:
    owner = world.owner()
    requested = []
    for part in world.cluster.spec.parts:
        requested += world.request_batch(owner, leaked=BATCH // 3)
        world.cluster.stop(part)
        requested += world.request_batch(owner, leaked=10) if part.kind is not Part.S3 else []
        world.cluster.start(part)
        world.keep_running()
    world.wait_for(requested, seconds=120)


def test_a_bookie_is_lost_and_the_metadata_of_its_ledgers_are_rewritten(world: World) -> None:
    """Ledgers with entries in the bookies leaked, while autorecovery moves their copies to other bookies."""
    lost_bookie = Further(Part.BOOKIE, 3)
    name = "bookie-2"
    kept, gone = world.owner(filled=12), world.owner(filled=40)
    world.owners.remove(gone)
    # an unload that interrupts the creation of the next ledger leaves that ledger open
    topics.wait_for(
        lambda: len(topics.data_ledgers(world.cluster, gone.topic)) == 41, "the ledger after the full ledgers"
    )
    topics.unload(world.cluster, gone.topic)
    orphans = ledger_list.owned(world.cluster, gone.topic).data
    part_clients.delete_znode(world.cluster.addresses.zookeeper, managed_ledger_path(managed_ledger_name(gone.topic)))
    on_it = _ledgers_on(world, name, kept.listed)
    assert on_it
    assert _ledgers_on(world, name, orphans)

    cluster_faults.kill(world.cluster, lost_bookie)
    shutil.rmtree(world.cluster.home.data(lost_bookie))
    requested = []
    rewritten = 0
    for batch in _batches_of_five(orphans):
        rewritten = len(on_it) - len(_ledgers_on(world, name, on_it))
        world.request(gone.topic, dict.fromkeys(batch, "leaked"))
        requested += [*batch, *world.request_batch(kept, leaked=50)]
        time.sleep(2)
    topics.wait_for(lambda: not _ledgers_on(world, name, on_it), "autorecovery", seconds=300)
    report(f"{rewritten} of {len(on_it)} ledgers were rewritten before the last request")
    world.wait_for(requested, seconds=120)


def test_the_end_state_is_that_of_a_run_without_faults(world: World) -> None:
    waited = world.wait_for(list(world.requested))
    stop(world.keep_running())
    world.service.run("run", "--until-idle")  # a copy may be published after its receipt was written
    final = world.service.final()
    assert all(len(rows) == 1 for rows in final.values())
    outcomes = Counter((world.requested[row["ledger_id"]], row["outcome"]) for rows in final.values() for row in rows)
    report(f"services that ended: {world.exit_codes}; waited {waited:.1f} s; {outcomes}")
    assert outcomes.keys() <= {
        ("leaked", "DELETED"),
        ("leaked", "ALREADY_GONE"),
        ("in use", "DEAD_LETTER"),
        ("never existed", "ALREADY_GONE"),
    }
    left = ledger_list.every_ledger(world.cluster).keys()
    assert not {ledger_id for ledger_id, kind in world.requested.items() if kind == "leaked"} & left
    for owner in world.owners:
        assert set(owner.listed) <= left
        assert topics.read_all(world.cluster, owner.topic) == owner.messages
    reckoning = reckon(world.service.settings)
    assert (reckoning.open, reckoning.wrong) == (0, [])
    assert reckoning.requests == len(final)


def report(text: str) -> None:
    """Write a figure to the test's output, which pytest shows with -s and for failed tests."""
    sys.stdout.write(f"{text}\n")


def _update_messages(world: World, owner: Owner) -> None:
    """Update the owner's messages from the topic; all earlier messages must still be there."""
    now = topics.read_all(world.cluster, owner.topic)
    assert now[: len(owner.messages)] == owner.messages
    owner.messages[:] = now


def _compacted(world: World, topic: str) -> int:
    return int(topics.internal_stats(world.cluster, topic)["compactedLedger"]["ledgerId"])


def _serves(world: World, topic: str) -> bool:
    try:
        topics.internal_stats(world.cluster, topic)
    except ReaperError:
        return False
    return True


@contextmanager
def _moving_bundles(world: World, *namespaces: str) -> Iterator[None]:
    """Unload one bundle after the other, each to the other broker."""
    ended = threading.Event()

    def move() -> None:
        targets = itertools.cycle(
            addresses(world.cluster.spec, [part]).admin.removeprefix("http://")
            for part in world.cluster.spec.all_of(Part.BROKER)
        )
        while not ended.is_set():
            for namespace in namespaces:
                with suppress(ReaperError):
                    bounds = json.loads(topics.admin(world.cluster, "GET", f"namespaces/{namespace}/bundles"))
                    for first, last in itertools.pairwise(bounds["boundaries"]):
                        path = f"namespaces/{namespace}/{first}_{last}/unload?destinationBroker={next(targets)}"
                        with suppress(ReaperError):
                            topics.admin(world.cluster, "PUT", path)
                        ended.wait(0.5)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        yield
    finally:
        ended.set()
        mover.join()


@dataclass
class Answers:
    """How often a broker returned each view of a topic's compacted ledger, and sweeps each verdict."""

    views: Counter[tuple[str, int]] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, Outcome, str]] = field(default_factory=Counter)


@contextmanager
def _asking(world: World, broker: Instance, topic: str, data: Sequence[int], compacted: int) -> Iterator[Answers]:
    """Ask one broker repeatedly about a topic, and run sweeps with it that have seen the ledgers unreferenced."""
    settings = world.service.settings
    store = clients_for(settings).store
    epoch = Epoch.bump(store, settings.zookeeper.own_root, f"sweep-{topic.rpartition('-')[2]}")
    layout = identity.read_layout(store, settings.zookeeper.ledgers_root)
    rules = SweepRules(layout, settings.zookeeper.ledgers_root, (epoch.path, epoch.version), policy_of(settings))
    admin = addresses(world.cluster.spec, [broker]).admin
    witness = AdminBroker(PulsarAdminSettings(admin_url=admin), lambda: [admin])
    name, clock, answers, ended = managed_ledger_name(topic), SystemClock(), Answers(), threading.Event()
    ledgers_by_kind = {LedgerComponent.COMPACTED_LEDGER: [compacted], LedgerComponent.MANAGED_LEDGER: data}

    def read_views() -> None:
        while not ended.is_set():
            (view,) = witness.views([name])
            answers.views[str(view.presence), view.compacted_ledger] += 1

    def sweep() -> None:
        sweeper = Sweeper(store, InUseLoader(store, witness, clock), MemoryJournal(Faults()), clock, rules)
        while not ended.is_set():
            requests = [
                PendingDelete(managed_ledger=name, component=kind, ledger_type=LedgerType.LEDGER, ledger_id=ledger_id)
                for kind, ids in ledgers_by_kind.items()
                for ledger_id in ids
            ]
            with suppress(ReaperError):
                swept = sweeper.sweep([Job(request, clock.now_ms() - 60_000) for request in requests], {})
                for request, result in zip(requests, swept, strict=True):
                    verdict = result.verdict
                    answers.verdicts[str(request.component), verdict.outcome, str(verdict.reason)] += 1

    with ThreadPoolExecutor(5) as pool:
        tasks = [pool.submit(task) for task in (read_views, sweep, sweep, sweep, sweep)]
        try:
            yield answers
        finally:
            ended.set()
            for task in tasks:
                task.result(120)
            witness.close()


def _ledgers_on(world: World, bookie: str, ids: Sequence[int]) -> list[int]:
    """Return the ledgers with a copy on the bookie according to their metadata."""
    raw = part_clients.read_znodes(
        world.cluster.addresses.zookeeper, [ledger_list.path_of(ledger_id) for ledger_id in ids]
    )
    return [ledger_id for ledger_id in ids if bookie.encode() in raw.get(ledger_list.path_of(ledger_id), b"")]


def _batches_of_five(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), 5):
        yield ids[start : start + 5]
