"""The world of the race: a sandbox with thousands of real ledgers; an unmodified broker leaked a tenth of them.

Leaks are made as in tests/integration/audit_world.py: the broker drops ledgers while no client may delete a ledger's
metadata, and is killed; or an operator deletes a topic's or a cursor's znode. The stopped cluster is kept as a copy
from which each contestant's cluster starts.
"""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pulsar

from bench.race_judge import BUCKET, COMPACTED, CURSOR, DATA, KINDS, SCHEMA, references
from streaming.errors import ReaperError
from streaming.sandbox import cluster as clusters
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from udfs.owners import named_owner
from udfs.paths import cursor_path, decode_name, managed_ledger_name, managed_ledger_path, topic_of

NAMESPACE, DEAD = "public/race", "dead/ns"
_ODD = ("odd name+%2F:ü", "日本", "p-partition-x")
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_THREADS = 4
_PER_BUCKET = 50
_TRAFFIC_TOPICS = 5
_BREAKS = b"{"  # no JSON starts with `{{`
_PAUSE_S = 0.1  # between two messages of the traffic


@dataclass(frozen=True)
class Plan:
    """How many topics of each kind a world of `ledgers` ledgers gets."""

    ledgers: int

    def of(self, per: int, least: int = 1) -> int:
        """Return one for each `per` ledgers."""
        return max(least, self.ledgers // per)

    @property
    def filled(self) -> list[str]:
        """Topics with data: plain, partitions, and those of the tenant whose broker fails."""
        plain = [_named(name) for name in _ODD] + [_named(f"topic-{n}") for n in range(self.of(50))]
        parts = [f"{topic}-partition-{n}" for topic in self.partitioned for n in range(4)]
        return [*plain, *parts, *(_named(f"topic-{n}", DEAD) for n in range(self.of(500, 2)))]

    @property
    def leaky(self) -> list[str]:
        """The filled topics that leak data, and a CLOSED cursor ledger each."""
        return self.filled[::3]

    @property
    def unloaded(self) -> list[str]:
        """The filled topics that leak the OPEN ledgers of two cursors each."""
        return [topic for topic in self.filled if topic not in set(self.leaky)][::3]

    @property
    def partitioned(self) -> list[str]:
        return [_named(f"parts-{n}") for n in range(self.of(800))]

    @property
    def typed(self) -> list[str]:
        return [_named(f"typed-{n}") for n in range(self.of(100))]

    @property
    def untyped(self) -> list[str]:
        """Topics that lose their two schemas."""
        return [_named(f"untyped-{n}") for n in range(self.of(250))]

    @property
    def compacted(self) -> list[str]:
        """Topics that leak two compacted ledgers and use one."""
        return [_named(f"compacted-{n}") for n in range(self.of(500))]

    @property
    def delayed(self) -> list[str]:
        return [_named(f"delayed-{n}") for n in range(self.of(1000))]

    @property
    def undelayed(self) -> list[str]:
        """Topics whose cursor, with about five buckets, an operator deletes."""
        return [_named(f"undelayed-{n}") for n in range(self.of(625))]

    @property
    def vanished(self) -> list[str]:
        """Topics of six ledgers whose list an operator deletes."""
        return [_named(f"vanished-{n}", ns) for ns in (NAMESPACE, DEAD) for n in range(self.of(3000))]

    @property
    def leaks_a_topic(self) -> int:
        """Data ledgers that a leaky topic leaks."""
        others = 2 * len(self.unloaded) + len(self.leaky) + 2 * len(self.untyped) + 2 * len(self.compacted)
        others += 6 * len(self.undelayed) + 8 * len(self.vanished)
        return max(1, round((self.ledgers / 10 - others) / len(self.leaky)))

    @property
    def kept_a_topic(self) -> int:
        """Data ledgers in use of a filled topic."""
        others = 2 * len(self.filled) + 2 * len(self.typed) + 10 * len(self.delayed) + 5 * len(self.compacted)
        return max(2, round((self.ledgers * 0.9 - others) / len(self.filled)))


def _named(name: str, namespace: str = NAMESPACE) -> str:
    return f"persistent://{namespace}/{name}"


@dataclass(frozen=True, kw_only=True)
class World:
    """The ledgers of the stopped cluster, by id."""

    leaked: Mapping[int, str]  # with their kind
    used: Mapping[int, str]
    compacted: Mapping[int, str]  # those of `used` that no znode names
    owners: Mapping[int, Mapping[str, str]]  # every ledger's custom metadata, as text
    loaded: Sequence[str]  # the topics that brokers of a running cluster have loaded

    @property
    def summary(self) -> str:
        """The counts by kind."""
        counts = ((name, Counter(ledgers.values())) for name, ledgers in (("used", self.used), ("leaked", self.leaked)))
        return "; ".join(
            f"{count.total()} {name} ({', '.join(f'{count[kind]} {kind}' for kind in KINDS)})" for name, count in counts
        )


def create(home: Path, plan: Plan) -> World:
    """Create the cluster and its leaks, stop it, and keep a copy of its data beside it."""
    cluster = clusters.up(home)
    began_s = time.monotonic()

    def told(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {what}", flush=True)

    _fill(cluster, plan)
    told("topics are filled")
    _lose_znodes(cluster, plan)
    told("znodes are lost")
    each(plan.compacted, lambda topic: _compact(cluster, topic))
    with cluster_faults.crash_with_metadata_fault(cluster):
        _leak(cluster, plan)
        told("ledgers are leaked")
    names = [*plan.filled, *plan.typed, *plan.compacted, *plan.delayed]
    each(plan.filled, lambda topic: _acknowledge(cluster, topic, plan, 1))
    answers = dict(each(names, lambda topic: (topic, topics.internal_stats(cluster, topic))))
    time.sleep(2)  # the broker deletes what it dropped when it loaded the topics
    cluster_faults.kill_brokers(cluster)
    world = _described(cluster, answers)
    told(world.summary)
    clusters.down(home)
    shutil.copytree(home / "data", home / "start", dirs_exist_ok=True)
    (home / "world.json").write_text(json.dumps(asdict(world)))
    return world


def load(home: Path) -> World | None:
    """Return the world that create() left in the folder, if any."""
    if not (home / "world.json").is_file():
        return None
    saved = json.loads((home / "world.json").read_text())
    ids = {name: {int(key): value for key, value in saved[name].items()} for name in saved if name != "loaded"}
    return World(loaded=saved["loaded"], **ids)


def restore(home: Path, world: World) -> Cluster:
    """Start the cluster from the copy, load nine of ten topics, and make the policies of tenant `dead` unreadable."""
    clusters.down(home)
    for folder in ("data", "state", "checkpoints"):
        shutil.rmtree(home / folder, ignore_errors=True)
    shutil.copytree(home / "start", home / "data")
    cluster = clusters.up(home)
    wanted = [topic for number, topic in enumerate(world.loaded) if number % 10]
    each(wanted, lambda topic: topics.internal_stats(cluster, topic))
    _change_policies(cluster, lambda policies: _BREAKS + policies)
    of_dead = next(topic for topic in wanted if f"//{DEAD}/" in topic)
    topics.wait_for(lambda: _status(cluster, of_dead) == HTTPStatus.INTERNAL_SERVER_ERROR, "failure of the broker")
    return cluster


def repair(cluster: Cluster, world: World) -> None:
    """Make the policies of tenant `dead` readable again, and load all topics."""
    _change_policies(cluster, lambda policies: policies.removeprefix(_BREAKS))
    each(world.loaded, lambda topic: topics.internal_stats(cluster, topic))


def _change_policies(cluster: Cluster, change: Callable[[bytes], bytes]) -> None:
    path = f"/admin/policies/{DEAD}"
    with part_clients.zookeeper(cluster.addresses.zookeeper) as client:
        client.set(path, change(client.get(path)[0]))


def _status(cluster: Cluster, topic: str) -> int:
    path = f"admin/v2/{topics.resource(topic)}/internalStats"
    return part_clients.http_any("GET", cluster.addresses.admin, path).status


def each(names: Iterable[str], work: Callable[[str], Any]) -> list[Any]:
    """Do the work for each name in a few threads."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, names))


def _fill(cluster: Cluster, plan: Plan) -> None:
    with suppress(ReaperError):
        topics.admin(cluster, "PUT", "tenants/dead", {"adminRoles": [], "allowedClusters": ["sandbox"]})
    for namespace in (NAMESPACE, DEAD):
        topics.admin(cluster, "PUT", f"namespaces/{namespace}", {})
    for topic in plan.partitioned:
        topics.create_partitioned(cluster, topic, 4)
    for topic in (*plan.typed, *plan.untyped):
        topics.post_schema_versions(cluster, topic, 2)
    leaky = set(plan.leaky)
    ledgers = {topic: plan.kept_a_topic + plan.leaks_a_topic * (topic in leaky) for topic in plan.filled}
    ledgers |= dict.fromkeys(plan.vanished, 6) | dict.fromkeys((*plan.typed, *plan.untyped), 1)
    each(ledgers, lambda topic: _subscribe(cluster, topic, plan))
    _publish(cluster, ledgers)
    each((*plan.filled, *plan.vanished), lambda topic: _acknowledge(cluster, topic, plan, 1))
    each(plan.delayed, lambda topic: topics.fill_buckets(cluster, topic, "worker", 4 * _PER_BUCKET + 10))
    each(plan.undelayed, lambda topic: topics.fill_buckets(cluster, topic, "worker", 5 * _PER_BUCKET + 10))


def _subscriptions(topic: str, plan: Plan) -> tuple[str, ...]:
    return ("worker",) if topic in set(plan.leaky) else ("worker", "other")


def _subscribe(cluster: Cluster, topic: str, plan: Plan) -> None:
    for name in _subscriptions(topic, plan):
        topics.admin(cluster, "PUT", f"{topics.resource(topic)}/subscription/{name}", _EARLIEST)


def _acknowledge(cluster: Cluster, topic: str, plan: Plan, entries: int) -> None:
    """Move the subscriptions by some entries; the first time, their cursors get a ledger each."""
    for name in _subscriptions(topic, plan):
        topics.admin(cluster, "POST", f"{topics.resource(topic)}/subscription/{name}/skip/{entries}")


def _publish(cluster: Cluster, ledgers: Mapping[str, int], at_once: int = 20) -> None:
    """Publish to several topics at once, enough to fill so many ledgers of each."""
    names = list(ledgers)
    with part_clients.pulsar_client(cluster.addresses.pulsar) as client:
        for start in range(0, len(names), at_once):
            producers = [
                (name, client.create_producer(name, batching_enabled=False)) for name in names[start:][:at_once]
            ]
            for name, producer in producers:
                for payload in topics.payloads(ledgers[name] * topics.ENTRIES_PER_LEDGER, 64):
                    producer.send_async(payload, lambda _result, _id: None)
            for _name, producer in producers:
                producer.flush()
                producer.close()


def _lose_znodes(cluster: Cluster, plan: Plan) -> None:
    """Delete lists and a cursor while no broker runs. The next broker recovers, and so closes, the cursors' ledgers."""
    cluster_faults.kill_brokers(cluster)
    lost = [managed_ledger_path(managed_ledger_name(topic)) for topic in plan.vanished]
    lost += [cursor_path(managed_ledger_name(topic), "worker") for topic in plan.undelayed]
    for path in lost:
        part_clients.delete_znode(cluster.addresses.zookeeper, path)
    cluster_faults.restart_brokers(cluster)


def _compact(cluster: Cluster, topic: str) -> None:
    topics.publish_keyed(cluster, topic, 20, keys=4)
    topics.compact(cluster, topic)


def _leak(cluster: Cluster, plan: Plan) -> None:
    """Let the broker drop ledgers that it can't delete."""
    entries = plan.leaks_a_topic * topics.ENTRIES_PER_LEDGER

    def trim(topic: str) -> None:
        before = len(topics.data_ledgers(cluster, topic))
        _acknowledge(cluster, topic, plan, entries)
        topics.trim(cluster, topic)
        topics.wait_for(
            lambda: len(topics.data_ledgers(cluster, topic)) <= before - plan.leaks_a_topic, f"trim of {topic}"
        )

    each(plan.leaky, trim)
    each(plan.untyped, lambda topic: topics.delete_schema(cluster, topic))
    for _ in range(2):
        each(plan.compacted, lambda topic: _compact(cluster, topic))
    each(plan.unloaded, lambda topic: _acknowledge(cluster, topic, plan, 1))
    each(plan.unloaded, lambda topic: topics.unload(cluster, topic))


def _described(cluster: Cluster, answers: Mapping[str, Any]) -> World:
    """Read the cluster without brokers; compare the znodes with the last answers of the broker."""
    used = references(cluster)
    compacted = {stats["compactedLedger"]["ledgerId"]: COMPACTED for stats in answers.values()}
    compacted.pop(-1, None)
    used |= compacted
    ledgers = ledger_list.every_ledger(cluster)
    for topic, stats in answers.items():
        told = {ledger["ledgerId"]: DATA for ledger in stats["ledgers"]}
        told |= {ledger["ledgerId"]: SCHEMA for ledger in stats.get("schemaLedgers") or []}
        told |= {cursor["cursorLedger"]: CURSOR for cursor in stats["cursors"].values() if cursor["cursorLedger"] >= 0}
        if not told.items() <= used.items():
            raise SystemExit(f"znodes of {topic} do not name {told.items() - used.items()}, which the broker named")
    if lost := used.keys() - ledgers.keys():
        raise SystemExit(f"{sorted(lost)[:10]} are referenced and do not exist")
    texts = {ledger_id: _texts(metadata.custom_metadata) for ledger_id, metadata in ledgers.items()}
    leaked = {ledger_id: _kind(custom) for ledger_id, custom in texts.items() if ledger_id not in used}
    return World(leaked=leaked, used=used, compacted=compacted, owners=texts, loaded=list(answers))


def _texts(custom: Mapping[str, bytes]) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in custom.items()}


def _kind(custom: Mapping[str, str]) -> str:
    if named_owner.MANAGED_LEDGER in custom:
        return CURSOR if named_owner.CURSOR in custom else DATA
    return next(
        kind
        for key, kind in (
            (named_owner.SCHEMA_ID, SCHEMA),
            (named_owner.COMPACTED_TOPIC, COMPACTED),
            (named_owner.BUCKET_TOPIC, BUCKET),
        )
        if key in custom
    )


def request_of(ledger_id: int, custom: Mapping[str, str]) -> dict[str, Any] | None:
    """Return PIP-186's request for a ledger; None for compacted ledgers and buckets, for which it has no component."""
    base = {"ledgerType": "LEDGER", "ledgerId": ledger_id}
    if (schema := custom.get(named_owner.SCHEMA_ID)) is not None:
        tenant, namespace, name = schema.split("/")
        topic = f"persistent://{tenant}/{namespace}/{decode_name(name)}"
        return {**base, "topicName": topic, "ledgerComponent": "SCHEMA_STORAGE", "schemaId": schema}
    if named_owner.MANAGED_LEDGER not in custom:
        return None
    topic = topic_of(custom[named_owner.MANAGED_LEDGER])
    if (cursor := custom.get(named_owner.CURSOR)) is not None:
        return {**base, "topicName": topic, "ledgerComponent": "MANAGED_CURSOR", "cursorName": cursor}
    return {**base, "topicName": topic, "ledgerComponent": "MANAGED_LEDGER"}


@dataclass
class Traffic:
    """Rolls ledgers of some topics over, lets two topics trim, and creates typed topics, until it is stopped."""

    cluster: Cluster
    stop: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    failures: int = 0

    def __enter__(self) -> "Traffic":
        work = [lambda n=n: self._until_stopped(lambda: self._use(n)) for n in range(_TRAFFIC_TOPICS)]
        self._threads = [threading.Thread(target=run, daemon=True) for run in (*work, self._create)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(60)

    def _until_stopped(self, work: Callable[[], None]) -> None:
        while not self.stop.is_set():
            try:
                work()
            except (pulsar.PulsarException, ReaperError):  # a contestant may have deleted the topic's ledgers
                self.failures += 1
                self.stop.wait(1)

    def _use(self, number: int) -> None:
        name = _named(f"traffic-{number}")
        with part_clients.pulsar_client(self.cluster.addresses.pulsar) as client:
            consumer = client.subscribe(name, "worker")
            producer = client.create_producer(name, batching_enabled=False)
            while not self.stop.wait(_PAUSE_S):
                producer.send(b"x" * 64)
                self.sent += 1
                if number % 2:  # the other topics keep all their ledgers
                    with suppress(pulsar.Timeout):
                        consumer.acknowledge(consumer.receive(timeout_millis=500))

    def _create(self) -> None:
        number = 0
        while not self.stop.wait(3):
            number += 1
            topic = _named(f"new-{number}")
            try:
                topics.post_schema_versions(self.cluster, topic, 1)
                topics.fill(self.cluster, topic, 1, ["worker"])
            except (pulsar.PulsarException, ReaperError):
                self.failures += 1
