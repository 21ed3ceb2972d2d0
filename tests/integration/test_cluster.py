"""The embedded cluster itself: it serves, and its faults are those of production."""

import json
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streaming.adapters.pulsar.admin_api.admin import AdminBroker, PulsarAdminSettings
from streaming.errors import ReaperError
from streaming.sandbox import cluster_faults, disk_usage, ledger_list, offloaded_ledgers, orphans, shell, topics
from streaming.sandbox.cluster import Cluster, State, down, up
from streaming.sandbox.home import HOST, LEDGERS_ROOT, Part
from streaming.sandbox.parts import part_clients
from udfs.paths import managed_ledger_name
from udfs.records import LedgerState

pytestmark = pytest.mark.cluster

# Ids come from a counter that starts at 0: no ledger of the cluster gets such a high id.
SYNTHETIC_FROM = 1_000_000_000


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a topic for one test, which is deleted at the end."""
    name = f"persistent://public/default/{request.node.originalname}-{secrets.token_hex(3)}"
    yield name
    topics.delete_topic(cluster, name)


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "streaming", "cluster", *arguments], capture_output=True, text=True, check=False
    )


def pids(cluster: Cluster) -> dict[Part, int]:
    return {part: process.pid for part in Part if (process := cluster.process(part)) is not None}


def test_status_names_all_addresses_and_parts(cluster: Cluster) -> None:
    completed = command("status", "--home", str(cluster.home.root), "--json")

    assert completed.returncode == 0, completed.stderr
    status = json.loads(completed.stdout)
    assert {"pulsar", "admin", "zookeeper", "s3", "bucket", "config", "home"} <= status.keys()
    assert status["running"] is True
    assert set(status["parts"].values()) == {"running"}
    assert Path(status["config"]).is_file()


def test_status_of_a_cluster_that_is_down_exits_with_3(tmp_path: Path) -> None:
    assert command("status", "--home", str(tmp_path / "nothing"), "--json").returncode == 3


def test_up_leaves_a_running_cluster_as_it_is(cluster: Cluster) -> None:
    before = pids(cluster)

    up(cluster.home.root)

    assert pids(cluster) == before
    assert set(before) == set(Part)


def test_nothing_listens_beyond_this_machine(cluster: Cluster) -> None:
    listening = [
        connection.laddr.ip
        for pid in pids(cluster).values()
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert len(listening) >= len(cluster.spec.ports)
    assert set(listening) <= {HOST, f"::ffff:{HOST}"}


def test_published_messages_are_read_back(cluster: Cluster, topic: str) -> None:
    sent = topics.fill(cluster, topic, 5, ["reader"])

    assert topics.read_all(cluster, topic) == list(topics.payloads(sent, 64))
    assert len(topics.data_ledgers(cluster, topic)) >= 5
    assert ledger_list.orphans(cluster, topic).every == ()


@pytest.mark.long  # the world of test_audit.py leaks data, cursors' ledgers and schemas with the same faults
def test_a_crash_under_the_metadata_fault_leaves_closed_orphans_of_every_kind(cluster: Cluster, topic: str) -> None:
    leaked = orphans.orphan_everything(cluster, [topic], ledgers=5, schema_versions=3)[topic]

    assert len(leaked.data) >= 5
    assert len(leaked.cursors) == 1
    assert len(leaked.schemas) == 3
    metadata = ledger_list.every_ledger(cluster)
    assert {metadata[ledger_id].state for ledger_id in leaked.every} == {LedgerState.CLOSED}
    assert set(leaked.every) <= shell.list_ledgers(cluster) & ledger_list.listed_by_bookie(cluster)
    assert len(topics.read_all(cluster, topic)) == orphans.KEPT_LEDGERS * topics.ENTRIES_PER_LEDGER


def test_a_subscription_deleted_under_the_fault_leaves_an_open_orphan(cluster: Cluster, topic: str) -> None:
    topics.fill(cluster, topic, 2, ["keeper", "leaver"])
    topics.consume(cluster, topic, "leaver", 5)
    cursor = topics.cursor_ledgers(cluster, topic)["leaver"]

    with cluster_faults.metadata_fault(cluster):
        topics.delete_subscription(cluster, topic, "leaver")
        leaked = ledger_list.orphans(cluster, topic)
        state = ledger_list.every_ledger(cluster)[cursor].state

    assert leaked.cursors == (cursor,)
    assert state is LedgerState.OPEN


def test_a_compaction_under_the_fault_leaves_the_old_compacted_ledger(cluster: Cluster, topic: str) -> None:
    topics.fill(cluster, topic, 1, ["reader"])
    topics.publish_keyed(cluster, topic, 40, keys=4)
    topics.compact(cluster, topic)
    old = ledger_list.owned(cluster, topic).compacted
    assert len(old) == 1
    assert ledger_list.orphans(cluster, topic).every == ()

    with cluster_faults.metadata_fault(cluster):
        topics.publish_keyed(cluster, topic, 40, keys=4)
        topics.compact(cluster, topic)
        leaked = ledger_list.orphans(cluster, topic)

    assert leaked.every == leaked.compacted == old
    broker = AdminBroker(PulsarAdminSettings(admin_url=cluster.addresses.admin), lambda: [cluster.addresses.admin])
    (view,) = broker.views([managed_ledger_name(topic)])
    broker.close()
    new = set(ledger_list.owned(cluster, topic).compacted) - set(old)
    assert {view.compacted_ledger} == {view.compacted_by_cursor} == new


def test_delayed_messages_create_bucket_ledgers_that_only_cursor_properties_name(cluster: Cluster, topic: str) -> None:
    topics.fill_buckets(cluster, topic, "later", 120)

    owned = ledger_list.owned(cluster, topic)

    assert owned.buckets
    assert set(owned.buckets) == set(ledger_list.bucket_ledgers(cluster, topic, ["later"]))
    assert ledger_list.orphans(cluster, topic).every == ()


def test_after_the_fault_the_broker_deletes_again(cluster: Cluster, topic: str) -> None:
    topics.fill(cluster, topic, 5, ["reader"])
    with cluster_faults.metadata_fault(cluster):
        pass

    assert topics.delete_topic(cluster, topic)

    topics.wait_for(lambda: ledger_list.owned(cluster, topic).every == (), "deletion")


def test_parents_that_appear_during_the_fault_are_denied_too(cluster: Cluster) -> None:
    first = SYNTHETIC_FROM + 50_000
    with cluster_faults.metadata_fault(cluster):
        ids = ledger_list.make_synthetic(cluster, "persistent://public/default/new-parent", count=1, first_id=first)
        path = ledger_list.path_of(ids[0])
        topics.wait_for(lambda: not part_clients.may_delete(cluster.addresses.zookeeper, path), "fault on new parent")

    assert part_clients.may_delete(cluster.addresses.zookeeper, path)
    part_clients.delete_znode(cluster.addresses.zookeeper, f"{LEDGERS_ROOT}/10")


def test_synthetic_ledgers_look_like_real_ledgers(cluster: Cluster) -> None:
    name = "persistent://public/default/made-up"

    ids = ledger_list.make_synthetic(cluster, name, count=1_000, first_id=SYNTHETIC_FROM)

    try:
        assert ledger_list.owned(cluster, name).data == tuple(ids)
        assert "state=CLOSED" in shell.ledger_metadata(cluster, ids[0])
        assert set(ids) <= ledger_list.listed_by_bookie(cluster)
    finally:
        ledger_list.remove_synthetic(cluster, ids)
    assert not set(ids) & ledger_list.listed_by_bookie(cluster)
    assert ledger_list.owned(cluster, name).every == ()


def test_offloaded_ledgers_are_in_the_bucket_and_survive_a_restart_of_s3(cluster: Cluster, topic: str) -> None:
    sent = topics.fill(cluster, topic, 3, ["reader"])

    topics.offload(cluster, topic)
    offloaded_keys = {key for attempt in offloaded_ledgers.attempts(cluster, topic) for key in attempt.keys}
    all_keys = topics.objects(cluster)
    cluster.stop(Part.S3)
    cluster.start(Part.S3)

    assert len([key for key in offloaded_keys if key.endswith("-index")]) * 2 == len(offloaded_keys) > 0
    assert offloaded_keys <= set(all_keys)
    assert topics.objects(cluster) == all_keys
    assert len(topics.read_all(cluster, topic)) == sent


def test_the_bookies_disk_shrinks_after_ledgers_are_gone(cluster: Cluster, topic: str) -> None:
    topics.fill(cluster, topic, 50, ["reader"], entry_bytes=10_000)
    written = 50 * topics.ENTRIES_PER_LEDGER * 10_000
    topics.wait_for(lambda: disk_usage.entry_log_bytes(cluster) >= written, "flush of the entry logs")
    before = disk_usage.entry_log_bytes(cluster)

    topics.delete_topic(cluster, topic)
    disk_usage.collect_garbage(cluster)

    topics.wait_for(lambda: disk_usage.entry_log_bytes(cluster) < before - written / 2, "collection", seconds=60)


def test_the_shell_reads_entries_from_the_bookie(cluster: Cluster, topic: str) -> None:
    topics.fill(cluster, topic, 2, ["reader"])

    full = topics.data_ledgers(cluster, topic)[0]

    assert shell.can_read(cluster, full, 0)
    assert shell.can_read(cluster, full, 9)
    assert not shell.can_read(cluster, full, 10)


def test_the_shell_fails_loudly_on_a_ledger_that_does_not_exist(cluster: Cluster) -> None:
    with pytest.raises(ReaperError, match="ledgermetadata"):
        shell.ledger_metadata(cluster, SYNTHETIC_FROM - 1)


@pytest.mark.parametrize("part", [Part.S3, Part.ZOOKEEPER, pytest.param(Part.BOOKIE, marks=pytest.mark.long)])
def test_a_killed_part_is_down_and_restarts_on_its_port(cluster: Cluster, part: Part, topic: str) -> None:
    before = cluster.addresses

    cluster_faults.kill(cluster, part)
    assert cluster.state(part) is State.DOWN
    cluster_faults.restart(cluster, part)

    assert cluster.state(part) is State.RUNNING
    assert cluster.addresses == before
    assert topics.fill(cluster, topic, 2, ["reader"]) == len(topics.read_all(cluster, topic))


def test_a_frozen_part_is_stuck_until_it_is_resumed(cluster: Cluster) -> None:
    with cluster_faults.paused(cluster, Part.S3):
        assert cluster.state(Part.S3) is State.STUCK

    cluster.wait_ready(Part.S3)


@pytest.mark.long
def test_a_second_cluster_runs_beside_the_first_and_keeps_its_state(cluster: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "second"
    others = pids(cluster)
    with pytest.raises(ReaperError, match=r"broker ended before it served; read .*broker\.log"):
        up(home, broker_settings={"webServicePort": "no port"})
    assert not [process for process in psutil.process_iter() if str(home) in " ".join(_command_line(process))]

    second = up(home)
    try:
        assert not set(second.spec.ports.values()) & set(cluster.spec.ports.values())
        topic = "persistent://public/default/kept"
        sent = topics.fill(second, topic, 3, ["reader"])
        topics.offload(second, topic)
        down(home)
        assert pids(second) == {}
        assert pids(cluster) == others
        with socket.create_server((HOST, second.spec.ports["broker"])):
            again = up(home)
        assert again.addresses.pulsar in again.home.config.read_text()
        assert again.addresses.pulsar in topics.admin(again, "GET", "clusters/sandbox")
        assert len(topics.read_all(again, topic)) == sent
    finally:
        down(home)


@pytest.mark.long
def test_up_restarts_running_bookies_for_another_time_between_collections(tmp_path: Path) -> None:
    home = tmp_path / "restarted"
    made = up(home)
    try:
        before = pids(made)
        restarted = command("up", "--home", str(home), "--gc-wait", "15m")
        now = pids(made)
        assert restarted.returncode == 0, restarted.stderr
        assert {part for part in Part if now[part] != before[part]} == {Part.BOOKIE}
        assert restarted.stderr.splitlines() == ["Stopping bookie, because its settings change", "Starting bookie"]
        settings = part_clients.http_any("GET", made.serving.bookie_http, "api/v1/config/server_config")
        assert json.loads(settings.text)["gcWaitTime"] == "900000"
        assert topics.fill(made, "persistent://public/default/t", 1, ["s"]) == topics.ENTRIES_PER_LEDGER

        again = command("up", "--home", str(home), "--gc-wait", "15m")
        assert "was running already" in again.stderr
        refused = command("up", "--home", str(home), "--gc-wait", "20m", "--bookies", "3")
        assert (refused.returncode, "create another (--home)" in refused.stderr) == (2, True), refused.stderr
        assert pids(made) == now
    finally:
        down(home)


@pytest.mark.long
def test_an_interrupted_up_leaves_no_process(cluster: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "ended"
    starting = subprocess.Popen([sys.executable, "-m", "streaming", "cluster", "up", "--home", str(home)])
    topics.wait_for((home / "run" / "bookie.json").exists, "start of the bookie", seconds=60)

    starting.send_signal(signal.SIGTERM)

    assert starting.wait(timeout=60) != 0
    assert not [process for process in psutil.process_iter() if str(home) in " ".join(_command_line(process))]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
