"""Commands that inspect load no topic, on a real cluster: promise 9.

Many topics are unloaded, each with an orphan: the test creates their metadata as a broker leaves them at an unload.
A few topics are real, and their retention was reduced after the unload: a broker that loads such a topic trims it. At
the end the test loads a real topic, to show the change. LEDGER_REAPER_UNLOADED is the number of synthetic topics.
"""

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.cli.main import app
from streaming.clients import broker_for
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deploy, Deployment, create_tenant, killed_at_the_end, stop, wait_until
from tests.invariants import Inspection, Untouched, read_only
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.paths import cursor_path, managed_ledger_name, managed_ledger_path
from udfs.records import BrokerView, Presence
from udfs.snapshots.keys import SnapshotKind

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

UNLOADED = int(os.environ.get("LEDGER_REAPER_UNLOADED", "30"))
LISTED = 3
REAL = 3
SYSTEM = (SnapshotKind.INDEX, SnapshotKind.SEGMENT)


@dataclass(frozen=True)
class World:
    cluster: Cluster
    namespaces: tuple[str, str]  # of the synthetic topics, and of the real topics
    topics: list[str]
    real: list[str]
    orphans: frozenset[int]

    def untouched(self) -> Untouched:
        """Read all state that a load of one of the topics would change."""
        synthetic, _real = self.namespaces
        with part_clients.zookeeper(self.cluster.addresses.zookeeper) as client:
            waiting = [*(managed_ledger_path(managed_ledger_name(topic)) for topic in self.real)]
            waiting.append(f"/managed-ledgers/{synthetic}")
            versions: dict[str, tuple[int, int]] = {}
            while waiting:
                path = waiting.pop()
                children = client.get_children(path)
                versions[path] = (client.exists(path).version, len(children))
                waiting += [f"{path}/{child}" for child in children]
            owned = f"/namespace/{synthetic}"
            bundles = frozenset(client.get_children(owned) if client.exists(owned) else ())
        metadata = ledger_list.every_ledger(self.cluster)
        owners = {
            ledger_id: found.custom_metadata.get("pulsar/managed-ledger", b"") for ledger_id, found in metadata.items()
        }
        names = {managed_ledger_name(topic).encode() for topic in (*self.topics, *self.real)}
        return Untouched(versions, frozenset(ledger_id for ledger_id, name in owners.items() if name in names), bundles)


@pytest.fixture
def world(cluster: Cluster) -> World:
    # a separate tenant: the audits must not meet unreadable metadata of other tests
    tenant = f"unloaded-{uuid.uuid4().hex[:6]}"
    create_tenant(cluster, tenant)
    namespace = f"{tenant}/idle"
    first_id = int(time.time() * 1000) % 500_000_000 + 1_000_000_000
    real, orphans = _real_topics(cluster, f"{namespace}-real", first_id)
    first_id += REAL
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    names = [f"persistent://{namespace}/t {number}" for number in range(UNLOADED)]
    znodes: list[tuple[str, bytes]] = []
    for topic in names:
        ids = range(first_id, first_id + LISTED + 1)
        first_id += LISTED + 1
        orphan, listed = ids[0], ids[1:]
        orphans.add(orphan)
        ledger_list.make_synthetic(cluster, topic, count=len(ids), first_id=orphan)
        infos = tuple(
            LedgerInfo(ledger_id=ledger_id, entries=topics.ENTRIES_PER_LEDGER, size_bytes=640, timestamp_ms=1)
            for ledger_id in listed
        )
        name = managed_ledger_name(topic)
        cursor = ManagedCursorInfo(
            cursors_ledger_id=-1, mark_delete_ledger_id=listed[-1], mark_delete_entry_id=topics.ENTRIES_PER_LEDGER - 1
        )
        znodes.append((managed_ledger_path(name), serialize_managed_ledger(ManagedLedgerInfo(infos))))
        znodes.append((cursor_path(name, "s"), serialize_cursor(cursor)))
    for number in (0, 1):  # the topics first, then their cursors
        part_clients.create_znodes(cluster.addresses.zookeeper, znodes[number::2])
    return World(cluster, (namespace, f"{namespace}-real"), names, real, frozenset(orphans))


def _real_topics(cluster: Cluster, namespace: str, first_id: int) -> tuple[list[str], set[int]]:
    """Unload topics that were consumed to the end, then reduce their retention; return them and an orphan of each."""
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    topics.admin(cluster, "POST", f"namespaces/{namespace}/retention", forever)
    names = [f"persistent://{namespace}/real-{number}" for number in range(REAL)]
    # system topics of a namespace with transactions; their content does not matter here
    names += [system_topic(namespace, kind) for kind in SYSTEM]
    for number, topic in enumerate(names):
        entries = topics.fill(cluster, topic, LISTED, ["s"])
        topics.consume(cluster, topic, "s", entries)
        if number < REAL:
            ledger_list.make_synthetic(cluster, topic, count=1, first_id=first_id + number)
        topics.unload(cluster, topic)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    topics.admin(cluster, "POST", f"namespaces/{namespace}/retention", nothing)
    return names, set(range(first_id, first_id + REAL))  # the system topics have no orphans


def test_no_inspecting_command_loads_a_topic_and_a_sweep_deletes_only_the_orphans(
    world: World, deploy: Deploy, tmp_path: Path
) -> None:
    tenant = world.namespaces[0].partition("/")[0]
    service = deploy(extra="\n[watch]\npoll_seconds = 1\nmark_ahead = true\nunlisted_after_seconds = 1\n")
    topics.wait_for(partial(_are_unloaded, world, service), "the topics to stay unloaded")
    before = world.untouched()

    orphan = max(world.orphans)
    for ledger_id in (orphan, orphan + 1):
        explained = json.loads(service.call("explain", "--ledger", str(ledger_id), "--json"))
        assert explained["owner"]["presence"] == Presence.PRESENT
        assert explained["owner"]["refers_to_it"] is (ledger_id not in world.orphans)
    service.console.run("space", "--tenant", tenant, code=(0, 4))  # 4: what other tests left unreadable
    service.call("check", code=0)
    urls = ("--admin-url", world.cluster.addresses.admin, "--service-url", world.cluster.addresses.pulsar)
    assert CliRunner().invoke(app, ["init", "--out", str(tmp_path / "first.toml"), *urls]).exit_code == 0
    service.call("status", code=3)  # the service has not run yet, so it has no state
    _watch(service, tmp_path / "watch.log")
    read_only(Inspection(before, world.untouched()))

    # an audit without --publish, or with --verify-only, does a part of this
    output = service.console.run("audit", "--recheck-seconds", "1", "--tenant", tenant, "--publish", "--yes")
    assert "snapshots of 1 namespace were left out" in output
    read_only(Inspection(before, world.untouched()))  # it requests the deletes, and deletes nothing

    service.console.run("run", "--until-idle", seconds=500)
    read_only(Inspection(before, world.untouched(), world.orphans))
    deleted = {row["ledger_id"] for rows in service.final().values() for row in rows if row["outcome"] == "DELETED"}
    assert deleted >= world.orphans
    views = _views(world, service)
    assert {(view.presence, view.is_loaded) for view in views} == {(Presence.PRESENT, False)}

    topics.internal_stats(world.cluster, world.real[0])
    topics.wait_for(partial(_was_trimmed, before, world), f"trim of {world.real[0]}")


def _views(world: World, service: Deployment) -> Sequence[BrokerView]:
    names = [managed_ledger_name(topic) for topic in (*world.topics, *world.real)]
    return broker_for(service.settings).views(names)


def _are_unloaded(world: World, service: Deployment) -> bool:
    """Whether no topic is loaded; unload those that are.

    A broker that compacts a system topic while the topic is unloaded loads it again: its own client reconnects.
    """
    loaded = [
        topic
        for topic, view in zip((*world.topics, *world.real), _views(world, service), strict=True)
        if view.is_loaded
    ]
    for topic in loaded:
        topics.unload(world.cluster, topic)
        time.sleep(3.5)  # longer than the list of loaded topics is used again
    return not loaded


def _was_trimmed(before: Untouched, world: World) -> bool:
    now = world.untouched()
    is_written = any(now.versions[path] != version for path, version in before.versions.items())
    return is_written and bool(before.ledgers - now.ledgers - world.orphans) and bool(now.ledgers - before.ledgers)


def _watch(service: Deployment, log: Path) -> None:
    """Let a watcher scan all topics several times."""
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until(lambda: _scans(log.read_text()) >= 4, running, log)
        stop(running)


def _scans(log: str) -> int:
    """Return the number of complete scans in the metrics at the address in a watcher's log."""
    address = re.search(r"metrics: (http://\S+)", log)
    metrics = ""
    with contextlib.suppress(HTTPError):  # it starts
        metrics = urlopen(address[1]).read().decode() if address else ""
    counted = re.search(r"_scans_total\{.*\} (\d+)", metrics)
    return int(counted[1]) if counted else 0
