"""The audit on the real cluster: it finds the leaks of every window, and nothing else.

The module creates and audits one world; the tests read the findings, publish them and let the service process them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds
import pytest
from kazoo.security import ACL, Id, Permissions

from streaming.adapters.bookkeeper.bookie_http import read_disk
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from tests.integration import audit_world
from tests.integration.audit_world import (
    COMPACTED,
    COPIED,
    DELAYED,
    FOREIGN_ID,
    HALF_CREATED,
    LEAKY,
    LIVE,
    LOST,
    LOST_OBJECT,
    NAMESPACE,
    OFFLOAD_GONE,
    OFFLOADED,
    UNWRITTEN,
    VANISHED,
    Contents,
)
from tests.integration.conftest import Deployment, deployment, killed_at_the_end, stop, wait_until
from tests.integration.console import Console
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import LedgerState

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NO_READ = [ACL(Permissions.ALL & ~Permissions.READ, Id("world", "anyone"))]
ALL_RIGHTS = [ACL(Permissions.ALL, Id("world", "anyone"))]
RECHECK = ("--recheck-seconds", "1")


@dataclass
class World:
    """The audited topics, and the findings."""

    service: Deployment
    console: Console
    cluster: Cluster
    contents: Contents
    states: dict[int, LedgerState]  # of every ledger before the audit, as ZooKeeper has them
    findings: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)  # every ledger after the audit, as the bookie lists them

    def ids(self, finding_class: str, topic: str) -> set[int]:
        """Return the ledgers (not objects) of that class."""
        return {
            row["ledger_id"]
            for row in self.findings
            if (row["class"], row["topic"], row["ledger_type"]) == (finding_class, topic, "LEDGER")
        }

    def attempts(self, finding_class: str, topic: str) -> set[str]:
        """Return the UUIDs of the offload attempts of that class."""
        return {row["uuid"] for row in self.findings if (row["class"], row["topic"]) == (finding_class, topic)}


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    service = deployment(cluster, tmp_path_factory.mktemp("audit"), extra="\n[audit]\nevery_seconds = 20\n")
    contents = audit_world.create(cluster)
    states = {ledger_id: found.state for ledger_id, found in ledger_list.every_ledger(cluster).items()}
    created = World(service, service.console, cluster, contents, states)
    *created.findings, created.last = created.console.json("audit", *RECHECK, code=4)
    created.after = ledger_list.listed_by_bookie(cluster)
    yield created
    audit_world.remove_foreign(cluster)


@pytest.fixture
def offloading(world: World) -> World:
    """The world of a version that can offload."""
    if not audit_world.offloads(world.cluster):
        pytest.skip("the sandbox has no offloader of this version")
    return world


@pytest.mark.parametrize(
    ("topic", "kinds"),
    [
        pytest.param(LEAKY, {"data", "cursors", "schemas"}, id="W1, W6, W7: dropped from lists before a crash"),
        pytest.param(UNWRITTEN, {"data"}, id="W2: a list that could not be written"),
        pytest.param(HALF_CREATED, {"data"}, id="W4, W5: created for a list that could not be written"),
        pytest.param(COMPACTED, {"compacted"}, id="W8: an old compacted ledger"),
        pytest.param(DELAYED, {"buckets"}, id="W8, W10: buckets of a cursor that an operator deleted"),
        pytest.param(VANISHED, {"data"}, id="W10: a topic that an operator deleted"),
    ],
)
def test_the_leaked_ledgers_of_a_topic_are_orphans_and_no_others(world: World, topic: str, kinds: set[str]) -> None:
    leaked = world.contents.leaked[topic]
    closed = {ledger_id for ledger_id in leaked.every if world.states[ledger_id] is LedgerState.CLOSED}
    kinds_found = {kind for kind in ("data", "cursors", "schemas", "compacted", "buckets") if getattr(leaked, kind)}

    assert kinds <= kinds_found
    assert closed
    assert world.ids("ORPHAN", topic) == closed
    assert world.ids("OPEN", topic) == set(leaked.every) - closed


def test_each_kind_of_ledger_has_its_component(world: World) -> None:
    components = {row["ledger_id"]: row["component"] for row in world.findings}
    kinds = {
        "cursors": "MANAGED_CURSOR",
        "schemas": "SCHEMA_STORAGE",
        "compacted": "COMPACTED_LEDGER",
        "buckets": "DELAYED_INDEX_BUCKET",
    }
    for leaked in world.contents.leaked.values():
        for kind, component in kinds.items():
            assert {components[i] for i in getattr(leaked, kind)} <= {component}


def test_bookkeeper_copies_that_a_list_gave_up_are_orphans_though_the_list_names_them(offloading: World) -> None:
    assert offloading.contents.copies
    # besides the copies: the empty ledger that a broker drops when it recovers a topic, and could not delete
    assert offloading.ids("ORPHAN", COPIED) == offloading.contents.copies | set(offloading.contents.leaked[COPIED].data)


def test_objects_of_a_topic_without_a_list_are_orphans(offloading: World) -> None:
    assert offloading.contents.gone_attempts
    assert offloading.attempts("ORPHAN", OFFLOAD_GONE) >= offloading.contents.gone_attempts


def test_objects_of_another_attempt_than_the_listed_one_are_orphans(offloading: World) -> None:
    assert offloading.attempts("ORPHAN", OFFLOADED) == {offloading.contents.bad_attempt}


def test_deleted_ledgers_and_objects_that_an_owner_refers_to_are_missing(world: World) -> None:
    assert world.ids("MISSING", LOST) == {world.contents.lost}
    assert world.attempts("MISSING", LOST_OBJECT) == {world.contents.lost_attempt} - {""}


def test_a_live_topic_has_no_finding(world: World) -> None:
    assert [row for row in world.findings if row["topic"] == LIVE] == []
    assert {row["class"] for row in world.findings if row["topic"] in (LOST, LOST_OBJECT)} == {"MISSING"}


def test_the_last_line_contains_completeness_and_totals(world: World) -> None:
    assert world.last["complete"] is True
    assert (
        world.last["totals"]["ORPHAN"]["count"]
        >= sum(len(orphans.every) for orphans in world.contents.leaked.values()) - 2
    )
    fields = ("class", "ledger_id", "ledger_type", "component", "topic", "uuid", "bytes", "age_seconds", "reason")
    assert tuple(world.findings[0]) == fields


def test_bookkeeper_s_own_shell_counts_the_same_ledgers(world: World) -> None:
    before, after = set(world.states), world.after
    listed = {row["ledger_id"] for row in world.findings if (row["class"], row["ledger_type"]) == ("ORPHAN", "LEDGER")}

    assert len(before & after) <= world.last["totals"]["ledgers"] <= len(before | after)
    assert listed <= after
    assert FOREIGN_ID in {row["ledger_id"] for row in world.findings if row["class"] == "FOREIGN"}


def test_pulsar_s_own_scan_finds_the_same_objects_in_order_and_out_of_order(offloading: World) -> None:
    # Pulsar scans the whole bucket for any namespace, and its output is not valid JSON
    text = topics.admin(offloading.cluster, "GET", f"namespaces/{NAMESPACE}/scanOffloadedLedgers")
    scanned = re.findall(r'"uuid":"([0-9a-f-]+)".*?"status":"([A-Z-]+)"', text)
    wrong = {attempt for attempt, status in scanned if status != "OK"}

    ours = {row["uuid"] for row in offloading.findings if row["class"] == "ORPHAN" and row["uuid"]}
    assert ours == wrong


def test_report_and_findings_are_written_for_people_and_machines(world: World) -> None:
    out = world.service.config.parent / "state" / "audit"
    rows = ds.dataset(out / "findings").to_table().to_pylist()

    assert {row["ledger_id"] for row in rows} >= set(world.contents.leaked[LEAKY].every)
    report = (out / "report.html").read_text()
    assert VANISHED in report
    for chapter in ("Space: where the bytes are", "Transaction-buffer snapshots"):
        assert chapter in report
    assert json.loads((out / "summary.json").read_text())["certificate"]["zxid_start"].startswith("0x")
    assert not list(out.glob(".work-*"))


@pytest.mark.parametrize(
    ("ledger", "outcome", "reason"),
    [
        ("leaked", "DELETED", "UNREFERENCED"),
        ("vanished", "RETRY", "OWNER_ABSENT_ONCE"),
        ("live", "RETRY", "IN_USE"),
        # a list still names the ledger, but only the ledger's lost metadata would name that list
        ("lost", "ALREADY_GONE", "NOT_FOUND"),
        ("foreign", "DEAD_LETTER", "NOT_PULSARS"),
    ],
)
def test_explain_returns_the_outcome_that_a_request_would_have(
    world: World, ledger: str, outcome: str, reason: str
) -> None:
    ids = {
        "leaked": world.contents.leaked[LEAKY].data[0],
        "vanished": min(world.contents.leaked[VANISHED].data),
        "live": topics.data_ledgers(world.cluster, LIVE)[0],
        "lost": world.contents.lost,
        "foreign": FOREIGN_ID,
    }
    (explained,) = world.console.json("explain", str(ids[ledger]))

    assert (explained["request"]["outcome"], explained["request"]["reason"]) == (outcome, reason)
    assert explained["exists"] is (ledger != "lost")
    expected = {"leaked": ["ORPHAN"], "vanished": ["ORPHAN"], "live": [], "lost": ["MISSING"], "foreign": ["FOREIGN"]}
    assert [row["class"] for row in explained["last_audit"]] == expected[ledger]


@pytest.mark.long
def test_findings_that_depend_on_unreadable_metadata_are_unknown_and_the_rest_is_published(world: World) -> None:
    path = managed_ledger_path(managed_ledger_name(LEAKY))
    leaked = set(world.contents.leaked[LEAKY].data)
    with part_clients.zookeeper(world.cluster.addresses.zookeeper) as zookeeper:
        zookeeper.set_acls(path, NO_READ)
        try:
            *findings, last = world.console.json(
                "audit", *RECHECK, "--publish", "--yes", "--namespace", NAMESPACE, code=4
            )
        finally:
            zookeeper.set_acls(path, ALL_RIGHTS)

    assert last["complete"] is False
    assert {row["class"] for row in findings if row["ledger_id"] in leaked} == {"UNKNOWN"}
    assert VANISHED in {row["topic"] for row in findings if row["class"] == "ORPHAN"}


AUDITED = re.compile(r"audit \d{8}T\d{9}Z: complete, \d+ ledgers, ")  # [audit] every_seconds


def test_published_orphans_are_deleted_and_nothing_else_changes(world: World) -> None:
    world.console.run("audit", *RECHECK, "--publish", "--yes", "--namespace", NAMESPACE, code=4)  # LOST is missing
    published = world.console.json("backlog")
    world.console.run(
        "audit", "--last", "--publish", "--yes", "--namespace", NAMESPACE, code=4
    )  # publishing again doubles nothing
    assert world.console.json("backlog") == published
    bookie_url = world.cluster.addresses.bookie_http
    before = read_disk(bookie_url, 5).reclaimed_bytes
    output = world.console.run("run", "--until-idle")
    topics.fill(world.cluster, LIVE, 1, [], entry_bytes=60_000)  # a bookie does not compact the log that it writes to
    topics.wait_for(
        lambda: read_disk(bookie_url, 5).reclaimed_bytes > before + (1 << 20), "space to return", seconds=60
    )

    if not AUDITED.search(output):  # the run may end before the next audit is due
        log = world.service.config.parent / "audited-beside.log"
        with killed_at_the_end(world.service.start("run", log=log)) as running:
            wait_until(lambda: AUDITED.search(log.read_text()) is not None, running, log)
            stop(running)
    contents, existing = world.contents, ledger_list.every_ledger(world.cluster).keys()
    assert {outcome for outcome, _reason in world.service.outcomes()} <= {"DELETED", "ALREADY_GONE"}
    leaked = {ledger_id for orphans in contents.leaked.values() for ledger_id in orphans.every}
    assert {i for i in leaked if world.states[i] is LedgerState.CLOSED} & existing == set()
    assert contents.copies & existing == set()
    assert not {*contents.gone_attempts, contents.bad_attempt} & {key[:36] for key in topics.objects(world.cluster)}
    kept = {
        topic: topics.read_all(world.cluster, topic)[: len(messages)] for topic, messages in contents.messages.items()
    }
    assert kept == contents.messages
    *findings, last = world.console.json("audit", *RECHECK, "--verify-only", "--namespace", NAMESPACE, code=4)
    assert {row["class"] for row in findings} == {"MISSING"}
    assert {row["ledger_id"] for row in findings if not row["uuid"]} >= {contents.lost}
    report = (world.service.config.parent / "state" / "audit" / "report.html").read_text()
    for line in (
        "audits requested the deletion of",
        "the service deleted in BookKeeper (one copy of each ledger)",
        "bookies freed on their disks since each was",
    ):
        assert re.search(rf'{re.escape(line)}[^<]*</td><td class="n"[^>]*>[\d.]+ MiB', report), line
    assert last["complete"] is True
