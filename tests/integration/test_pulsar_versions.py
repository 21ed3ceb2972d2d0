"""Each version of Pulsar on a cluster of its own: the scenes of other modules, with its broker and its Java client.

`make test-versions PULSAR=5.0.0-M1` runs a single version (LEDGER_REAPER_TEST_PULSAR; several are separated by spaces).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError

from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import WORKER, consume_and_trim
from streaming.sandbox.parts import part_clients
from streaming.sandbox.parts.distribution import versions
from tests.integration import test_audit, test_ops, test_snapshots, test_watch
from tests.integration.audit_world import OFFLOAD_GONE
from tests.integration.conftest import Deployment, payload, running_cluster
from tests.integration.secured_world import with_tokens
from tests.integration.snapshot_scenes import (
    SEGMENTED,
    SINGLE,
    create_scene,
    findings,
    reads_committed,
    reasons_for,
    recovered,
    restart,
    wait_for,
)
from tests.integration.test_audit import World, offloading, world  # noqa: F401  fixtures
from tests.integration.test_snapshots import Single, service, single  # noqa: F401  fixtures
from tests.integration.test_watch import leaky  # noqa: F401  a fixture
from tests.integration.transactions import Transactions
from udfs.records import LedgerState

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1500)]

VERSIONS = os.environ.get("LEDGER_REAPER_TEST_PULSAR", "").split() or versions()


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the version, with transactions."""
    home = tmp_path_factory.mktemp("pulsar")
    with running_cluster(home, pulsar=request.param, broker_settings=SINGLE) as running:
        yield running


def test_every_broker_reports_the_version(cluster: Cluster) -> None:
    assert topics.admin(cluster, "GET", "brokers/version") == cluster.spec.pulsar


def test_the_audit_finds_nothing_that_was_not_leaked(world: World) -> None:  # noqa: F811
    leaked = {ledger_id for orphans in world.contents.leaked.values() for ledger_id in orphans.every}
    closed = {ledger_id for ledger_id in leaked if world.states[ledger_id] is LedgerState.CLOSED}
    found = {
        row["ledger_id"]: row
        for row in world.findings
        # the list of OFFLOAD_GONE was deleted with all that it named
        if (row["class"], row["ledger_type"]) == ("ORPHAN", "LEDGER") and row["topic"] != OFFLOAD_GONE
    }

    assert found.keys() >= closed | world.contents.copies
    # A broker leaks by itself, too: a schema that it creates twice, the ledger of its health check before a crash. So
    # for the other findings its own lists are the truth.
    for ledger_id in found.keys() - closed - world.contents.copies:
        assert ledger_id in ledger_list.orphans(world.cluster, found[ledger_id]["topic"]).every, found[ledger_id]
    assert [row for row in world.findings if row["class"] == "UNKNOWN"] == []
    assert world.last["complete"] is True


# The scenes of other modules, in this order: the later ones delete what was leaked, and crash brokers.
test_leaks_are_orphans = test_audit.test_the_leaked_ledgers_of_a_topic_are_orphans_and_no_others
test_components = test_audit.test_each_kind_of_ledger_has_its_component
test_copies = test_audit.test_bookkeeper_copies_that_a_list_gave_up_are_orphans_though_the_list_names_them
test_objects_without_a_list = test_audit.test_objects_of_a_topic_without_a_list_are_orphans
test_objects_of_another_attempt = test_audit.test_objects_of_another_attempt_than_the_listed_one_are_orphans
test_missing = test_audit.test_deleted_ledgers_and_objects_that_an_owner_refers_to_are_missing
test_live = test_audit.test_a_live_topic_has_no_finding
test_bookkeeper_s_list = test_audit.test_bookkeeper_s_own_shell_counts_the_same_ledgers
test_pulsar_s_scan = test_audit.test_pulsar_s_own_scan_finds_the_same_objects_in_order_and_out_of_order
test_explain = test_audit.test_explain_returns_the_outcome_that_a_request_would_have
test_requests = test_audit.test_published_orphans_are_deleted_and_nothing_else_changes
test_undo = test_ops.test_an_undo_in_time_makes_a_ledger_readable_again_and_a_late_one_does_not
test_watcher = test_watch.test_the_watcher_requests_what_a_broker_leaks_and_the_service_deletes_it
test_single_snapshots = test_snapshots.test_single_snapshots_hold_the_ids_that_the_client_aborted


def test_snapshots_are_audited_guarded_and_read(
    cluster: Cluster,
    service: Deployment,  # noqa: F811
    single: Single,  # noqa: F811  its broker writes single snapshots
) -> None:
    restart(cluster, SEGMENTED)
    with Transactions(cluster.serving.pulsar, pulsar=cluster.pulsar) as transactions:
        scene = create_scene(cluster, service, transactions, "segmented", 100)
        wait_for(lambda: recovered(service, scene.space, scene.topic) == scene.aborted, "the last aborts")
        *lines, last = findings(service)
        assert last["complete"]
        assert reasons_for(lines, single.gone) == {("ORPHAN", "OWNER_GONE")}
        assert reasons_for(lines, scene.segments) == {("DANGER", "NO_GUARD")}
        assert "guard created" in service.call("snapshots", "guard", "--yes", "--namespace", scene.space)
        assert reasons_for(findings(service), scene.segments) == set()
        assert reads_committed(transactions, scene)


@pytest.mark.parametrize("version", VERSIONS)
def test_several_servers_with_tls_tokens_and_a_digest(version: str, tmp_path: Path) -> None:
    topic = "persistent://public/default/secured"
    counts = {Part.ZOOKEEPER: 3, Part.BOOKIE: 2, Part.BROKER: 2}
    with running_cluster(tmp_path / "pulsar", pulsar=version, counts=counts) as cluster:
        topics.fill(cluster, topic, 5, [WORKER])
        before = set(topics.data_ledgers(cluster, topic))
        with cluster_faults.metadata_fault(cluster):
            consume_and_trim(cluster, topic, WORKER, 3 * topics.ENTRIES_PER_LEDGER)
            leaked = before - set(topics.data_ledgers(cluster, topic))
            for part in cluster.spec.all_of(Part.BROKER):  # which would repeat the deletes later
                cluster.stop(part)
        secured = with_tokens(cluster, tmp_path, "localhost")
        service, stranger = secured.deployment("reaper"), secured.deployment("nobody")

        assert "credentials in [pulsar]" in stranger.call("check", code=2)
        service.call("check")
        *found, last = service.console.json("audit", "--recheck-seconds", "1")
        assert last["complete"] is True
        # brokers that stop leak by themselves, too: for those their own lists are the truth
        stats = json.loads(secured.admin("GET", f"{topics.resource(topic)}/internalStats"))
        listed = {each["ledgerId"] for each in stats["ledgers"]}
        named = listed | {each["cursorLedger"] for each in stats["cursors"].values()}
        orphans = {row["ledger_id"] for row in found if row["topic"] == topic}
        assert leaked <= orphans
        assert not orphans & named
        assert {row["class"] for row in found} <= {"ORPHAN", "OPEN"}

        service.request(payload(topic, ledger_id) for ledger_id in sorted(leaked))
        service.run("run", "--until-idle")
        assert service.outcomes() == {("DELETED", "UNREFERENCED"): len(leaked)}
        left = ledger_list.every_ledger(cluster).keys()
        assert not leaked & left
        assert listed <= left
        with part_clients.zookeeper(cluster.addresses.zookeeper) as other, pytest.raises(NoAuthError):
            other.get_children(service.settings.zookeeper.own_root)
