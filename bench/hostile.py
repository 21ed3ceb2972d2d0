"""Measures how much a hostile tenant delays the others.

    python -m bench.soak --hostile [--hanging-broker] [--minutes 20]

Honest load runs all the time: alone for a quarter of --minutes, and then for --minutes beside a tenant that publishes
random messages (tests/integration/drawn_messages.py) to its own request topic. With --hanging-broker the tenant's
topics are on a second broker, which does not answer for 20 of every 30 seconds (SIGSTOP), and the tenant also requests
ledgers of 200 topics there. The script prints how long honest requests waited in both phases, and the account of
bench.soak. The exit code is 1 if the service ended, if a request was lost or answered wrongly, if a ledger in use is
gone, or if a message of the tenant has no receipt or several.
"""

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.soak import TOPICS, Load, account, merged, rest
from bench.supervisor import Supervisor, payload
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.sandbox import cluster as clusters
from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.state import receipts
from tests.integration.drawn_messages import REFUSED, Drawer
from tests.integration.odd_messages import Senders, senders
from udfs import columns as c
from udfs.entry_ranges import Range, spans_of
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.records import Outcome

TENANT, PARTITIONS = "hostile", 2
TOPIC = f"persistent://{TENANT}/reaper/requests"
EVERYTHING = (1 << 62, 1 << 62)
_OTHERS = 200
_UNDER_WAY_S = 60.0  # requests sent later may be delayed by the stop at the end instead of by the tenant


@dataclass
class HostileTenant:
    """Publishes random messages to its own topic, a few a second.

    Args:
        others: its topics on a broker that hangs, whose ledgers it requests too.
    """

    cluster: Cluster
    listed: list[int]
    seed: int
    others: Sequence[str] = ()
    sent: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def run(self, stop: threading.Event) -> None:
        chance = random.Random(self.seed)
        drawer = Drawer(chance, transactions=True)
        broker = self.cluster.spec.all_of(Part.BROKER)[-1]  # that of its topics, which raw frames have to be sent to
        url = f"pulsar://127.0.0.1:{self.cluster.spec.port(broker, 'broker')}"
        with senders(url, transactions=True) as send:
            while not stop.wait(chance.uniform(0, 0.5)):
                drawn = drawer.draw(drawer.kind(), payload(TOPICS[0], chance.choice(self.listed)))
                try:
                    drawn.publish(send, f"{TOPIC}-partition-{chance.randrange(PARTITIONS)}")
                except REFUSED:
                    self.refused[drawn.kind] += 1
                    send.raw.reconnect()
                self.sent[drawn.kind] += 1
                if self.others:
                    self._ask_about_others(send, chance)

    def _ask_about_others(self, send: Senders, chance: random.Random) -> None:
        try:
            asked = payload(chance.choice(self.others), chance.choice(self.listed))
            send.by_python(f"{TOPIC}-partition-0", [asked], {})
            self.sent["about a topic of the broker that hangs"] += 1
        except REFUSED:
            self.refused["about a topic of the broker that hangs"] += 1


@dataclass
class HangingBroker:
    """Freezes a broker for 20 of every 30 seconds, less than its session timeout, so that it keeps its topics."""

    cluster: Cluster
    times: int = 0

    def run(self, stop: threading.Event) -> None:
        broker = self.cluster.spec.all_of(Part.BROKER)[1]
        while not stop.wait(10):
            with cluster_faults.paused(self.cluster, broker):
                self.times += 1
                stop.wait(20)


def soak_with_hostile_tenant(home: Path, *, minutes: float, seed: int, hangs: bool = False) -> int:
    """Run both phases and print the results; return 1 if anything is wrong.

    Args:
        hangs: with a broker that hangs.
    """
    broker_settings = {"transactionCoordinatorEnabled": "true"}
    if hangs:
        broker_settings |= {"metadataStoreSessionTimeoutMillis": "30000", "loadBalancerSheddingEnabled": "false"}
    cluster = clusters.up(home, broker_settings=broker_settings, counts={Part.BROKER: 2} if hangs else None)
    settings, listed = _prepare(cluster, home)
    others = _move_the_tenant(cluster) if hangs else ()
    before = {topic: topics.read_all(cluster, topic) for topic in TOPICS}
    service = Supervisor(home / "soak.toml", home / "soak.log")
    honest = Load(cluster, settings, listed, random.Random(seed + 1))
    tenant = HostileTenant(cluster, listed[TOPICS[0]], seed, others)
    stop, hanging = threading.Event(), HangingBroker(cluster)
    runs = (service, honest, tenant, *((hanging,) if hangs else ()))
    threads = [threading.Thread(target=work.run, args=(stop,)) for work in runs]
    print(f"seed {seed}, {minutes / 4:g} quiet minutes and {minutes:g} others, cluster {home}", flush=True)
    for thread in threads[:2]:
        thread.start()
    _wait_for_a_receipt(settings)
    quiet_s = time.time()
    time.sleep(minutes * 15)
    hostile_s = time.time()
    for thread in threads[2:]:
        thread.start()
    time.sleep(minutes * 60)
    ends_s = time.time()
    stop.set()
    for thread in threads:
        thread.join(120)
    service.end(signal.SIGTERM)
    phases = (("quiet", quiet_s, hostile_s), ("beside the tenant", hostile_s, ends_s - _UNDER_WAY_S))
    _say_waits("before the rest: ", phases, settings, honest)
    ended = rest(service)
    # the account covers only the listed topic, so the tenant's receipts seem to belong to no request there
    wrong = [fault for fault in account(cluster, honest, before) if "belong to no request" not in fault]
    wrong += [f"the last run ended with {ended}"] * (ended != 0) + service.unexpected
    wrong += [f"the service ended by itself: {dict(service.ends)}"] * bool(service.ends)
    wrong += _unaccounted(settings)
    _say_waits("", phases, settings, honest)
    print(f"{'sent by the tenant':42} {dict(tenant.sent)}\n{'refused':42} {dict(tenant.refused)}", flush=True)
    print(f"{'times that a broker hung':42} {hanging.times}\n{'WRONG':42} {wrong}", flush=True)
    return 1 if wrong else 0


def _move_the_tenant(cluster: Cluster) -> list[str]:
    """Move the tenant's topics to the second broker and all others to the first; return 200 topics of the tenant."""
    first, second = (
        f"127.0.0.1:{cluster.spec.port(broker, 'broker_http')}" for broker in cluster.spec.all_of(Part.BROKER)
    )
    names = [f"persistent://{TENANT}/reaper/other-{number}" for number in range(_OTHERS)]
    for name in names:
        topics.admin(cluster, "PUT", topics.resource(name))
    for namespace in ("pulsar/system", "public/default", f"{TENANT}/reaper"):
        owner = second if namespace.startswith(TENANT) else first
        bounds = json.loads(topics.admin(cluster, "GET", f"namespaces/{namespace}/bundles"))["boundaries"]
        for low, high in pairwise(bounds):
            topics.admin(cluster, "PUT", f"namespaces/{namespace}/{low}_{high}/unload?destinationBroker={owner}")
    return names


def _say_waits(when: str, phases: Sequence[tuple[str, float, float]], settings: Settings, honest: Load) -> None:
    for name, since_s, until_s in phases:
        print(f"{when + 'honest requests, ' + name:42} {_waits(settings, honest, since_s, until_s)}", flush=True)


def _prepare(cluster: Cluster, home: Path) -> tuple[Settings, dict[str, list[int]]]:
    clusters = json.loads(topics.admin(cluster, "GET", "clusters"))
    topics.admin(cluster, "PUT", f"tenants/{TENANT}", {"allowedClusters": clusters, "adminRoles": []})
    topics.admin(cluster, "PUT", f"namespaces/{TENANT}/reaper")
    topics.create_partitioned(cluster, TOPIC, PARTITIONS)
    for topic in TOPICS:
        topics.fill(cluster, topic, 3, ["s"])
    config = home / "soak.toml"
    text = merged(cluster.home.config.read_text())
    config.write_text(text.replace("[topics]\n", f'[topics]\nrequests_pattern = "{TOPIC}"\n'))
    return load(config), {topic: topics.data_ledgers(cluster, topic)[:-1] for topic in TOPICS}


def _wait_for_a_receipt(settings: Settings) -> None:
    while next(receipts.rows(settings.state.dir), None) is None:
        time.sleep(1)


def _waits(settings: Settings, honest: Load, since_s: float, until_s: float) -> str:
    """Describe how long requests sent in this time waited until their ledger was deleted."""
    rows = receipts.rows(settings.state.dir, columns=[c.LEDGER_ID, c.OUTCOME, c.AT_MS])
    ends = {row[c.LEDGER_ID]: row[c.AT_MS] / 1000 for row in rows if row[c.OUTCOME] == Outcome.DELETED}
    asked = {ledger_id: sent_s for ledger_id, sent_s in honest.asked.items() if since_s <= sent_s < until_s}
    waits = sorted(ends[ledger_id] - sent_s for ledger_id, sent_s in asked.items() if ledger_id in ends)
    if not waits:
        return "none"
    p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    return f"{len(waits)} of {len(asked)} done, median {p50:.1f} s, p99 {p99:.1f} s, longest {waits[-1]:.1f} s"


def _unaccounted(settings: Settings) -> list[str]:
    """Describe the tenant's messages that have no receipt or several."""
    rows = receipts.rows(settings.state.dir, columns=list(c.POSITION))
    copies = Counter(tuple(row[name] for name in c.POSITION) for row in rows)
    stored = set()
    with admin_for(settings) as admin:
        for partition in (f"{TOPIC}-partition-{number}" for number in range(PARTITIONS)):
            spans = list(spans_of(admin.internal_stats(partition).ledgers, Range(BEFORE_ALL, EVERYTHING)))
            for position, message in fallback_entries(settings.pulsar, admin, partition, spans):
                stored.add((partition, *position, message.batch_index))
    lost = sorted(stored - copies.keys())
    twice = sorted(position for position, count in copies.items() if count > 1)
    faults = [f"{len(lost)} messages of the tenant have no receipt, such as {lost[:3]}"] * bool(lost)
    return faults + [f"{len(twice)} messages have several receipts, such as {twice[:3]}"] * bool(twice)
