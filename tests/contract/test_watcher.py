"""The watcher on a real ZooKeeper whose connections break, while simulated brokers drop ledgers and die."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from uuid import uuid4

from kazoo.client import KazooClient

from streaming.adapters.memory.store import MemoryBroker
from streaming.adapters.zookeeper.changes import ZooKeeperChanges
from streaming.adapters.zookeeper.store import ZooKeeperStore
from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings
from streaming.audit.walk.suspects import LedgerReader
from streaming.clock import SystemClock
from streaming.errors import UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.phase_one.watcher.request_outbox import Knows, RequestOutbox, Send
from streaming.phase_one.watcher.scan import ZnodeScan
from streaming.phase_one.watcher.unlisted import UnlistedLedgers
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.phase_one.watcher.watcher import Parts, StillNames, Watcher
from streaming.prometheus.registry import Registry
from streaming.state.watched import Watched
from streaming.sweep.pace import Pace
from tests.builders import ROOT, list_znode
from tests.contract.cutting_proxy import CuttingProxy, cutting_proxy
from tests.contract.zookeeper_server import ZooKeeperServer
from udfs.formats.internal_stats import Position
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, Layout, ledger_path
from udfs.phase_one.kept_names import unpacked
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

SECONDS = 8.0
TOPICS = 8
IMPATIENT = ZooKeeperClientSettings(hosts="", session_timeout_seconds=2.0, operation_timeout_seconds=3.0)


@dataclass
class Brokers:
    """Rolls and trims topics' ledgers like brokers: first the list, then the ledgers; often they die in between."""

    hosts: str
    topics: list[str]
    chance: random.Random
    lists: dict[str, list[int]] = field(default_factory=dict)
    leaked: set[int] = field(default_factory=set)
    next_id: int = 1

    def begin(self) -> None:
        self.client = KazooClient(self.hosts)
        self.client.start()
        for topic in self.topics:
            self.client.ensure_path(topic)
            self.lists[topic] = []
            for _ in range(3):
                self.roll(topic)

    def roll(self, topic: str) -> None:
        ledger_id, self.next_id = self.next_id, self.next_id + 1
        self.client.create(ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id), b"x", makepath=True)
        self.lists[topic].append(ledger_id)
        self.client.set(topic, list_znode(*self.lists[topic]))

    def trim(self, topic: str) -> None:
        dropped, self.lists[topic] = self.lists[topic][:2], self.lists[topic][2:]
        self.client.set(topic, list_znode(*self.lists[topic]))
        if self.chance.random() < 0.5:
            self.leaked.update(dropped)  # the broker died
            return
        for ledger_id in dropped:
            self.client.delete(ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id))

    def work(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            topic = self.chance.choice(self.topics)
            self.roll(topic)
            if len(self.lists[topic]) > 4:
                self.trim(topic)
            time.sleep(0.03)

    def end(self) -> None:
        self.client.stop()
        self.client.close()


@dataclass
class Topic:
    """A request topic in memory, whose requests can be read."""

    topic: str = "persistent://pulsar/ledger-deletion/w"
    stored: list[tuple[str, Send]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)  # to any watcher

    def ends(self) -> dict[str, Position]:
        return {f"{self.topic}-partition-0": (1, len(self.stored) - 1)}

    def send(self, _partition: str, sender: str, sends: Sequence[Send], after: Position | None, _knows: Knows) -> int:
        seen = [each.number for of, each in self.stored[after[1] + 1 :] if of == sender] if after is not None else []
        left = [each for each in sends if each.number > max(seen, default=-1)]
        self.stored += [(sender, each) for each in left]
        return len(left)


def watch_until(stop: Event, proxy: CuttingProxy, state: Path, topic: Topic, chance: random.Random) -> None:
    """Run watchers in succession, each abandoned as if killed, until the last becomes idle."""
    is_done = False
    while not is_done:
        settings = replace(IMPATIENT, hosts=proxy.hosts)
        store, hints = ZooKeeperStore(settings), ZooKeeperChanges(settings, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))
        with suppress(UnavailableError):
            watcher = watcher_on(store, hints, state, topic)
            is_last, end_s = stop.is_set(), time.monotonic() + chance.uniform(0.5, 2.5)
            while not is_done and (is_last or time.monotonic() < end_s):
                watcher.turn()
                topic.known |= known_to(watcher)
                is_done = is_last and watcher.scans > 1 and not watcher.note().waiting
                time.sleep(0.05)
        hints.close()
        store.close()


def watcher_on(store: ZooKeeperStore, hints: ZooKeeperChanges, state: Path, topic: Topic) -> Watcher:
    clock, pace, watched = SystemClock(), Pace(0), Watched(str(state))
    named = StillNames(watched)
    loader = InUseLoader(store, MemoryBroker(), clock)
    reader = LedgerReader(store, Layout.HIERARCHICAL, ROOT, pace)
    parts = Parts(
        watched=watched,
        scan=ZnodeScan(store, pace, lambda: False),
        hints=hints,
        unlisted=UnlistedLedgers(store, reader, loader, named, 3_600_000),
        outbox=RequestOutbox(watched, topic, named, 500),
        metrics=WatchMetrics(Registry()),
        clock=clock,
    )
    return Watcher(parts, 1.0, Event())


def test_every_leaked_ledger_is_requested_once_despite_broken_connections(
    own_zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    chance, topic, stop = random.Random(3), Topic(), Event()
    names = [f"{MANAGED_LEDGERS_ROOT}/public/default/persistent/{uuid4().hex}" for _ in range(TOPICS)]
    brokers = Brokers(own_zookeeper_server.hosts, names, chance)
    brokers.begin()
    with cutting_proxy(own_zookeeper_server.port) as proxy:
        cuts = random.Random(4)
        state = tmp_path / "state"
        began = start_watcher(proxy, state, topic)
        assert began == set(names)
        proxy.cut_answer = lambda _frame: not stop.is_set() and cuts.random() < 0.03
        thread = threading.Thread(target=watch_until, args=(stop, proxy, state, topic, random.Random(5)))
        thread.start()
        brokers.work(SECONDS)
        while proxy.cuts < 4:  # a busy machine sends fewer frames
            brokers.work(1)
        stop.set()
        thread.join(60)
    brokers.end()
    requested = Counter(request.ledger_id for request in map(request_in, topic.stored))
    recorded = brokers.leaked & topic.known
    assert len(recorded) > 20
    assert recorded - requested.keys() == set()
    # the others were created and dropped while no watcher was connected
    assert len(brokers.leaked - recorded) < len(recorded)
    assert [ledger_id for ledger_id, count in requested.items() if count > 1] == []
    assert requested.keys() & {ledger_id for listed in brokers.lists.values() for ledger_id in listed} == set()


def start_watcher(proxy: CuttingProxy, state: Path, topic: Topic) -> set[str]:
    """Let a watcher record the present state, and return that state."""
    settings = ZooKeeperClientSettings(hosts=proxy.hosts)
    store, hints = ZooKeeperStore(settings), ZooKeeperChanges(settings, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))
    watcher = watcher_on(store, hints, state, topic)
    watcher.turn()
    hints.close()
    store.close()
    return set(watcher._parts.watched.nodes)


def known_to(watcher: Watcher) -> set[int]:
    nodes = watcher._parts.watched.nodes
    return {ledger_id for path, kept in nodes.items() for _component, ledger_id, _uuid in unpacked(path, kept)}


def request_in(stored: tuple[str, Send]) -> PendingDelete:
    request = decode(stored[1].payload)
    assert isinstance(request, PendingDelete)
    return request
