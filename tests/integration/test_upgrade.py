"""A cluster is upgraded, and goes back, while the service runs: nothing in use is deleted, and no request is lost.

Ledgers leak on each version. Some are requested at once, others only on the last version. One request waits from the
first version to the last, because its ledger is in use. Brokers, bookie and ZooKeeper change together.
"""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster, up
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import WORKER, consume_and_trim, orphan_by_crash
from streaming.sandbox.parts import launch, part_clients
from streaming.sandbox.parts.distribution import pulsar_home
from streaming.sandbox.reckoning import reckon
from tests.integration.conftest import (
    Deployment,
    deployment,
    kill,
    new_topic,
    payload,
    running_cluster,
    stop,
)
from udfs.records import LedgerMetadata, LedgerState

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

VERSIONS = ("4.0.8", "4.2.4", "5.0.1", "4.2.4")
FULL = 6  # ledgers of each topic
CONSUMED = 3 * topics.ENTRIES_PER_LEDGER - 1
SECONDS = 600  # a wait ends as soon as its condition holds


class Supervised:
    """A service that is started again when it ends, as systemd does."""

    def __init__(self, service: Deployment, log: Path) -> None:
        self.service = service
        self.log = log
        self.starts = 0
        self.running = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        return self.service.start("run", log=self.log)

    def wait_until_gone(self, cluster: Cluster, ledger_ids: set[int]) -> None:
        def are_gone() -> bool:
            if self.running.poll() is not None:
                self.running = self.start()
            return not ledger_ids & ledger_list.every_ledger(cluster).keys()

        topics.wait_for(are_gone, f"deletion of {sorted(ledger_ids)}", seconds=SECONDS)


def leak_in_two_topics(cluster: Cluster) -> list[tuple[str, set[int]]]:
    """Let the cluster's broker leak ledgers of new topics; return each topic and its CLOSED orphans."""
    names = [new_topic("upgraded") for _ in range(2)]
    for topic in names:
        topics.fill(cluster, topic, FULL, [WORKER])
    with cluster_faults.crash_with_metadata_fault(cluster):
        for topic in names:
            consume_and_trim(cluster, topic, WORKER, CONSUMED)
    every = ledger_list.every_ledger(cluster)
    return [
        (topic, {number for number in ledger_list.orphans(cluster, topic).every if _is_closed(every[number])})
        for topic in names
    ]


def _is_closed(metadata: LedgerMetadata) -> bool:
    return metadata.state is LedgerState.CLOSED


def test_requests_and_leaks_outlive_upgrades_and_a_way_back(tmp_path: Path) -> None:
    (here := tmp_path / "service").mkdir()
    late: dict[str, set[int]] = {}
    requested = 0
    with running_cluster(tmp_path / "cluster", pulsar=VERSIONS[0]) as cluster:
        service = deployment(cluster, here)
        text = service.config.read_text().replace("max_retry_delete_count = 2", "max_retry_delete_count = 1000")
        service.config.write_text(text.replace("\nreconsume_later_seconds = 2", "\nreconsume_later_seconds = 10"))
        waiting = new_topic("waiting")
        topics.fill(cluster, waiting, FULL, [WORKER])
        in_use = topics.data_ledgers(cluster, waiting)[0]
        service.request([payload(waiting, in_use)])
        supervised = Supervised(service, tmp_path / "run.log")
        try:
            for version in VERSIONS:
                up(cluster.home.root, pulsar=version)
                assert topics.admin(cluster, "GET", "brokers/version") == version
                (topic, ledger_ids), later = leak_in_two_topics(cluster)
                assert min(len(ledger_ids), len(later[1])) >= CONSUMED // topics.ENTRIES_PER_LEDGER
                service.request(payload(topic, ledger_id) for ledger_id in sorted(ledger_ids))
                requested += len(ledger_ids)
                supervised.wait_until_gone(cluster, ledger_ids)
                assert in_use in ledger_list.every_ledger(cluster)
                late.update([later])
            for topic, ledger_ids in late.items():
                assert ledger_ids <= ledger_list.every_ledger(cluster).keys(), "deleted without a request"
                service.request(payload(topic, ledger_id) for ledger_id in sorted(ledger_ids))
                requested += len(ledger_ids)
            orphan_by_crash(cluster, waiting, WORKER, CONSUMED)
            supervised.wait_until_gone(cluster, {in_use, *(number for ids in late.values() for number in ids)})
            stop(supervised.running)
        finally:
            if supervised.running.poll() is None:
                kill(supervised.running)
        print(f"the service was started {supervised.starts} times")  # noqa: T201  shown with -s
        account = reckon(service.settings)
        assert (account.wrong, account.open, account.dead_letters) == ([], 0, 0)
        assert account.outcomes["DELETED"] + account.outcomes["ALREADY_GONE"] == requested + 1
        for topic in (waiting, *late):
            assert set(topics.data_ledgers(cluster, topic)) <= ledger_list.every_ledger(cluster).keys()
            assert len(topics.read_all(cluster, topic)) >= (FULL - 3) * topics.ENTRIES_PER_LEDGER


def test_brokers_of_two_versions_serve_during_a_rolling_upgrade(tmp_path: Path) -> None:
    (here := tmp_path / "service").mkdir()
    with running_cluster(tmp_path / "cluster", pulsar="4.2.4", counts={Part.BROKER: 2}) as cluster:
        service = deployment(cluster, here)
        leaked = dict(leak_in_two_topics(cluster))
        for part, version in zip(cluster.spec.all_of(Part.BROKER), ("4.2.4", "5.0.1"), strict=True):
            cluster.stop(part)
            # brokers of 5.0.1 reach topics of a 4.2 broker only at a listener of this name
            listener = f"internal:pulsar://{cluster.spec.listen}:{cluster.spec.port(part, 'broker')}"
            spec = replace(cluster.spec, broker_settings={"advertisedListeners": listener})
            launch.start(cluster.home, part, spec, pulsar_home(version))
            cluster.wait_ready(part)
        brokers = cluster.addresses.admin.removeprefix("http://").split(",")
        reported = {part_clients.http("GET", f"http://{broker}/admin/v2/brokers/version").text for broker in brokers}
        assert reported == {"4.2.4", "5.0.1"}
        for topic in leaked:
            topics.publish(cluster, topic, topics.ENTRIES_PER_LEDGER)

        service.console.run("audit", "--recheck-seconds", "1", "--publish", "--yes")
        service.console.run("run", "--until-idle")

        left = ledger_list.every_ledger(cluster).keys()
        for topic, ledger_ids in leaked.items():
            assert not ledger_ids & left
            assert set(topics.data_ledgers(cluster, topic)) <= left
            assert len(topics.read_all(cluster, topic)) > (FULL - 3) * topics.ENTRIES_PER_LEDGER
        account = reckon(service.settings)
        assert (account.wrong, account.open, account.dead_letters) == ([], 0, 0)
        *found, last = service.console.json("audit", "--recheck-seconds", "1")
        assert last["complete"] is True
        assert {row["class"] for row in found} <= {"OPEN"}
