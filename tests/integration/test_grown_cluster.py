"""A cluster of three ZooKeepers, two brokers and three bookies, with one service through all that happens to it.

Each scene asks for leaked ledgers, for ledgers in use and for ledgers that never were while something is killed, frozen
or moved. All of them together must end as if nothing had happened; the last test looks at that.
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
from streaming.adapters.pulsar.broker import AdminBroker
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
from streaming.sandbox import cluster_faults, ledger_list, part_clients, topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.sandbox.home import Further, Instance, Part, addresses
from streaming.sandbox.reckoning import reckon
from streaming.sweep.jobs import Job, SweepRules
from streaming.sweep.ledgers import Sweeper
from tests.integration.conftest import Deployment, deployment, kill, leak, new_topic, payload, stop
from tests.world import MemoryJournal
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import LedgerComponent, LedgerType, Outcome, PendingDelete

pytestmark = [pytest.mark.cluster, pytest.mark.long]

LOT = 3_000  # with 500 in a chunk, what happens at the first receipt happens in the middle of the work
SLACK_SECONDS = 60.0  # that requests may wait longer than the outage, on a machine that does much else
LIMITS = "share_applies_above_ledgers = 1_000_000"  # what leaks here is most of what there is
NEVER_WAS = itertools.count(10**14)


@dataclass(frozen=True)
class Owner:
    """A topic as it was before anything happened. listed: its ledgers but for the one that is being written."""

    topic: str
    listed: tuple[int, ...]
    messages: list[bytes]


@dataclass
class World:
    """The cluster, the service that runs on it all the time, and what it was asked for."""

    cluster: Cluster
    service: Deployment
    log: Path
    owners: list[Owner] = field(default_factory=list)
    asked: dict[int, str] = field(default_factory=dict)  # ledger -> what it is: leaked, in use, never was
    ended: list[int] = field(default_factory=list)  # exit codes of services that ended by themselves
    running: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> subprocess.Popen[bytes]:
        """Start the service unless it runs, as systemd would."""
        if self.running is not None and (code := self.running.poll()) is not None:
            self.ended.append(code)
            assert code == UnavailableError.exit_code, self.log.read_text()[-6000:]
            self.running = None
        if self.running is None:
            self.running = self.service.start("run", log=self.log)
        return self.running

    def owner(self, filled: int = 3) -> Owner:
        """A new topic with so many full ledgers, whose messages nobody has read."""
        topic = new_topic("grown")
        topics.fill(self.cluster, topic, filled, ["s"])
        messages = topics.read_all(self.cluster, topic)
        made = Owner(topic, tuple(topics.data_ledgers(self.cluster, topic)[:-1]), messages)
        self.owners.append(made)
        return made

    def lot(self, owner: Owner, leaked: int = LOT) -> list[int]:
        """Ask for what the topic leaked, for two ledgers that it uses, and for one that never was."""
        lost = leak(self.cluster, owner.topic, leaked)
        asked = (
            dict.fromkeys(lost, "leaked") | dict.fromkeys(owner.listed[:2], "in use") | {next(NEVER_WAS): "never was"}
        )
        self.ask(owner.topic, asked)
        return list(asked)

    def ask(self, topic: str, asked: dict[int, str]) -> None:
        """Publish requests; again where it is not known whether they were stored, so that some may come twice."""
        self.asked |= asked
        deadline = time.monotonic() + 120
        while True:
            try:
                return self.service.request(payload(topic, each) for each in asked)
            except ReaperError:
                assert time.monotonic() < deadline
                time.sleep(1)

    def done(self) -> set[int]:
        """Ledgers that have a final receipt."""
        return {row["ledger_id"] for some in self.service.final().values() for row in some}

    def wait(self, holds: Callable[[], object], seconds: float) -> float:
        """Wait, with the service running, and return how long it took."""
        began = time.monotonic()
        while not holds():
            self.keep_running()
            waited = time.monotonic() - began
            assert waited < seconds, f"{self.what_waits()}\n{self.log.read_text()[-6000:]}"
            time.sleep(0.3)
        return time.monotonic() - began

    def wait_for(self, asked: Sequence[int], seconds: float = SLACK_SECONDS) -> float:
        """Wait until each has a final receipt."""
        waited = self.wait(lambda: set(asked) <= self.done(), seconds)
        tell(f"{len(asked)} requests were worked off {waited:.1f} s after the last fault")
        return waited

    def wait_for_some(self, asked: Sequence[int]) -> None:
        """Wait until the first of them has one."""
        self.wait(lambda: self.done() & set(asked), 120)

    def what_waits(self) -> str:
        waiting = self.asked.keys() - self.done()
        told = Counter(
            (row["outcome"], row["reason"]) for row in self.service.receipts() if row["ledger_id"] in waiting
        )
        return f"{len(waiting)} of {len(self.asked)} wait, last told {told.most_common(5)}"

    def zookeepers(self) -> dict[Instance, str | None]:
        """What each is: leader or follower; None: it does not serve."""
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
        """The broker that serves a topic now."""
        name = topic.removeprefix("persistent://")
        url = self.cluster.serving.admin
        reply = part_clients.http_any("GET", url, f"lookup/v2/topic/persistent/{name}")
        assert reply.ok, reply
        said = json.loads(reply.text)["brokerUrl"]
        spec = self.cluster.spec
        found = [part for part in spec.all_of(Part.BROKER) if addresses(spec, [part]).pulsar == said]
        assert found, said
        return found[0]

    def publish(self, owner: Owner, entries: int) -> None:
        """Publish to a topic whose broker may be on the move; what was stored before a failure stays."""
        deadline = time.monotonic() + 120
        while True:
            try:
                topics.publish(self.cluster, owner.topic, entries)
            except Exception:  # of pulsar's client, which has no class for it
                assert time.monotonic() < deadline
                time.sleep(1)
            else:
                return


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, here = tmp_path_factory.mktemp("grown"), tmp_path_factory.mktemp("service")
    cluster = up(home, counts={Part.ZOOKEEPER: 3, Part.BROKER: 2, Part.BOOKIE: 3})
    try:
        made = World(cluster, deployment(cluster, here, chunk_rows=500, limits=LIMITS), here / "run.log")
        try:
            made.wait_for(made.lot(made.owner(), leaked=10), seconds=180)
            yield made
        finally:
            if made.running is not None:
                kill(made.running)
    finally:
        down(home)


def test_the_command_line_names_every_part(world: World) -> None:
    told = facts(world.cluster)

    assert told["running"]
    assert [str(part) for part in world.cluster.spec.parts] == list(told["parts"])
    assert told["zookeeper"].count(",") == told["bookie_http"].count(",") == 2
    assert sum(f"-{number}" in part for part in told["parts"] for number in (2, 3)) == 5


def test_the_leader_of_zookeeper_dies_in_the_middle_of_a_chunk(world: World) -> None:
    world.followers()  # all three serve
    asked = world.lot(world.owner())
    world.wait_for_some(asked)
    (leader,) = [part for part, mode in world.zookeepers().items() if mode == "leader"]
    left = set(asked) - world.done()

    cluster_faults.kill(world.cluster, leader)
    try:
        world.wait_for(asked)
        assert left, "all was worked off before the leader died"
    finally:
        cluster_faults.restart(world.cluster, leader)
    world.followers()


def test_a_follower_that_lags_is_not_believed(world: World) -> None:
    """What is read over a server that was frozen is what had been written elsewhere before."""
    owner = world.owner()
    path = managed_ledger_path(managed_ledger_name(owner.topic))
    absent = f"/managed-ledgers/public/default/persistent/{new_topic('absent').rpartition('/')[2]}"
    follower = world.followers()[0]
    spec = world.cluster.spec
    others = addresses(spec, [part for part in spec.all_of(Part.ZOOKEEPER) if part != follower]).zookeeper
    store = ZooKeeperStore(ZooKeeperClientSettings(hosts=addresses(spec, [follower]).zookeeper))
    with ThreadPoolExecutor(1) as pool, part_clients.zookeeper(others) as writer:
        topics.unload(world.cluster, owner.topic)
        for turn in range(5):
            absent_now = f"{absent}-{turn}"
            assert store.read_many([absent_now]) == [None]
            with cluster_faults.paused(world.cluster, follower):
                for _ in range(2_000):  # what it has to take in before it is up to date
                    writer.set_async("/managed-ledgers", b"")
                writer.create(absent_now, b"")
                told = writer.set(path, writer.get(path)[0])
                looked = pool.submit(store.read_many, [path, absent_now])
                time.sleep(0.5)
            listed, made = looked.result(60)
            assert isinstance(listed, Znode)
            assert listed.version >= told.version
            assert isinstance(made, Znode)
            writer.delete(absent_now)
    store.close()


def test_followers_that_freeze_keep_nothing_waiting_longer_than_they_are_frozen(world: World) -> None:
    owner = world.owner()
    asked = []
    for follower in world.followers():
        lot = world.lot(owner)
        asked += lot
        world.wait_for_some(lot)
        with cluster_faults.paused(world.cluster, follower):
            world.publish(owner, 2 * topics.ENTRIES_PER_LEDGER)
            time.sleep(8)  # longer than the service's session, shorter than the ensemble takes to let it go
    _rewrite_messages(world, owner)
    world.wait_for(asked)


def test_bundles_that_move_while_their_owners_are_judged(world: World) -> None:
    owners = [world.owner() for _ in range(4)]
    seen: defaultdict[str, set[Instance]] = defaultdict(set)
    asked = []
    with _moving_bundles(world, "public/default", "pulsar/system"):
        for owner in owners * 2:
            asked += world.lot(owner, leaked=LOT // 2)
            world.publish(owner, topics.ENTRIES_PER_LEDGER)
            for each in owners:
                with suppress(AssertionError):
                    seen[each.topic].add(world.owner_broker(each.topic))
        world.wait_for(asked, seconds=180)
    for owner in owners:
        _rewrite_messages(world, owner)
    assert any(len(brokers) == 2 for brokers in seen.values()), "no bundle moved"


def test_a_broker_that_wakes_up_with_a_topic_that_it_has_lost_is_not_believed(world: World) -> None:
    """The very sweep of the executors, which asks a broker that was frozen until another one served its topic."""
    owner = world.owner()
    topics.publish_keyed(world.cluster, owner.topic, 20, keys=4)
    topics.compact(world.cluster, owner.topic)
    topics.wait_for(lambda: _compacted(world, owner.topic) >= 0, "the first compacted ledger")
    loser = world.owner_broker(owner.topic)
    before = topics.internal_stats(world.cluster, owner.topic)
    asked = world.lot(owner)
    world.wait_for_some(asked)

    cluster_faults.pause(world.cluster, loser)
    try:
        time.sleep(12)  # its session is 10 s
        topics.wait_for(lambda: _serves(world, owner.topic), "the other broker", seconds=60)
        topics.publish_keyed(world.cluster, owner.topic, 20, keys=4)
        topics.compact(world.cluster, owner.topic)
        known = {each["ledgerId"] for each in (*before["ledgers"], before["compactedLedger"])}
        topics.wait_for(lambda: _compacted(world, owner.topic) not in (-1, *known), "the second compacted ledger")
        new = set(topics.data_ledgers(world.cluster, owner.topic)) - known
        compacted = _compacted(world, owner.topic)
        assert new
        time.sleep(1.5)  # min_age and the quarantine of the tests' configuration
        with _asking(world, loser, owner.topic, sorted(new), compacted) as said:
            time.sleep(1)  # the questions lie before the door
            cluster_faults.resume(world.cluster, loser)
            time.sleep(15)
    finally:
        cluster_faults.resume(world.cluster, loser)
    tell(f"the broker that lost the topic said {said.views}; the sweeps said {said.verdicts}")
    assert said.verdicts
    assert not [each for each in said.verdicts if each[1] in (Outcome.DELETED, Outcome.ALREADY_GONE)]
    assert {*new, compacted} <= ledger_list.every_ledger(world.cluster).keys()
    _rewrite_messages(world, owner)
    world.wait_for(asked, seconds=120)


def test_everything_is_restarted_one_after_the_other(world: World) -> None:
    owner = world.owner()
    asked = []
    for part in world.cluster.spec.parts:
        asked += world.lot(owner, leaked=LOT // 3)
        world.cluster.stop(part)
        asked += world.lot(owner, leaked=10) if part.kind is not Part.S3 else []
        world.cluster.start(part)
        world.keep_running()
    world.wait_for(asked, seconds=120)


def test_a_bookie_dies_for_good_and_its_ledgers_metadata_are_rewritten(world: World) -> None:
    """Ledgers that really leaked, in the bookies too, while autorecovery moves their copies elsewhere."""
    lost_bookie = Further(Part.BOOKIE, 3)
    name = "bookie-2"
    kept, gone = world.owner(filled=12), world.owner(filled=40)
    world.owners.remove(gone)
    # a broker that is about to begin the next ledger leaves it open behind an unload
    topics.wait_for(
        lambda: len(topics.data_ledgers(world.cluster, gone.topic)) == 41, "the ledger behind the full ones"
    )
    topics.unload(world.cluster, gone.topic)
    orphans = ledger_list.owned(world.cluster, gone.topic).data
    part_clients.delete_znode(world.cluster.addresses.zookeeper, managed_ledger_path(managed_ledger_name(gone.topic)))
    on_it = _on(world, name, kept.listed)
    assert on_it
    assert _on(world, name, orphans)

    cluster_faults.kill(world.cluster, lost_bookie)
    shutil.rmtree(world.cluster.home.data(lost_bookie))
    asked = []
    rewritten = 0
    for some in _fives(orphans):
        rewritten = len(on_it) - len(_on(world, name, on_it))
        world.ask(gone.topic, dict.fromkeys(some, "leaked"))
        asked += [*some, *world.lot(kept, leaked=50)]
        time.sleep(2)
    topics.wait_for(lambda: not _on(world, name, on_it), "autorecovery", seconds=300)
    tell(f"{rewritten} of {len(on_it)} ledgers were rewritten before the last was asked for")
    world.wait_for(asked, seconds=120)


def test_at_the_end_all_is_as_if_nothing_had_happened(world: World) -> None:
    waited = world.wait_for(list(world.asked))
    stop(world.keep_running())
    world.service.run("run", "--until-idle")  # a copy may not have been published yet when its receipt was written
    final = world.service.final()
    assert all(len(some) == 1 for some in final.values())
    told = Counter((world.asked[row["ledger_id"]], row["outcome"]) for some in final.values() for row in some)
    tell(f"services that ended: {world.ended}; waited {waited:.1f} s; {told}")
    assert told.keys() <= {
        ("leaked", "DELETED"),
        ("leaked", "ALREADY_GONE"),
        ("in use", "DEAD_LETTER"),
        ("never was", "ALREADY_GONE"),
    }
    left = ledger_list.every_ledger(world.cluster).keys()
    assert not {each for each, what in world.asked.items() if what == "leaked"} & left
    for owner in world.owners:
        assert set(owner.listed) <= left
        assert topics.read_all(world.cluster, owner.topic) == owner.messages
    found = reckon(world.service.settings)
    assert (found.open, found.wrong) == (0, [])
    assert found.requests == len(final)


def tell(text: str) -> None:
    """Write a figure to the test's output: pytest shows it with -s, and where a test fails."""
    sys.stdout.write(f"{text}\n")


def _rewrite_messages(world: World, owner: Owner) -> None:
    """Take note of what was published to a topic meanwhile; what was there before must still be there."""
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
    """Unload one bundle after the other, each to the broker that does not have it."""
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
class Said:
    """What a broker said of a topic's compacted ledger, and what sweeps that asked it made of requests, how often."""

    views: Counter[tuple[str, int]] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, Outcome, str]] = field(default_factory=Counter)


@contextmanager
def _asking(world: World, broker: Instance, topic: str, data: Sequence[int], compacted: int) -> Iterator[Said]:
    """Ask one broker again and again about a topic, and let sweeps ask it that have seen the ledgers unreferenced."""
    settings = world.service.settings
    store = clients_for(settings).store
    epoch = Epoch.bump(store, settings.zookeeper.own_root, f"sweep-{topic.rpartition('-')[2]}")
    layout = identity.read_layout(store, settings.zookeeper.ledgers_root)
    rules = SweepRules(layout, settings.zookeeper.ledgers_root, (epoch.path, epoch.version), policy_of(settings))
    admin = addresses(world.cluster.spec, [broker]).admin
    witness = AdminBroker(PulsarAdminSettings(admin_url=admin), lambda: [admin])
    name, clock, said, ended = managed_ledger_name(topic), SystemClock(), Said(), threading.Event()
    of = {LedgerComponent.COMPACTED_LEDGER: [compacted], LedgerComponent.MANAGED_LEDGER: data}

    def look() -> None:
        while not ended.is_set():
            (view,) = witness.views([name])
            said.views[str(view.presence), view.compacted_ledger] += 1

    def sweep() -> None:
        sweeper = Sweeper(store, InUseLoader(store, witness, clock), MemoryJournal(Faults()), clock, rules)
        while not ended.is_set():
            requests = [
                PendingDelete(managed_ledger=name, component=kind, ledger_type=LedgerType.LEDGER, ledger_id=each)
                for kind, some in of.items()
                for each in some
            ]
            with suppress(ReaperError):
                swept = sweeper.sweep([Job(each, clock.now_ms() - 60_000) for each in requests], {})
                for request, each in zip(requests, swept, strict=True):
                    said.verdicts[str(request.component), each.verdict.outcome, str(each.verdict.reason)] += 1

    with ThreadPoolExecutor(5) as pool:
        working = [pool.submit(each) for each in (look, sweep, sweep, sweep, sweep)]
        try:
            yield said
        finally:
            ended.set()
            for each in working:
                each.result(120)
            witness.close()


def _on(world: World, bookie: str, ids: Sequence[int]) -> list[int]:
    """Which of the ledgers have a copy on the bookie, as their metadata say."""
    raw = part_clients.read_znodes(world.cluster.addresses.zookeeper, [ledger_list.path_of(each) for each in ids])
    return [each for each in ids if bookie.encode() in raw.get(ledger_list.path_of(each), b"")]


def _fives(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), 5):
        yield ids[start : start + 5]
