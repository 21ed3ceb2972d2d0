"""Each byte of a cluster in memory has the cause that the test gave it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import RefusedError, UnavailableError
from tests.builders import (
    OTHER_TOPIC,
    SCHEMA,
    TOPIC,
    bucket_custom,
    compacted_custom,
    cursor_custom,
    data_custom,
    locator_znode,
    offloaded,
    put,
    schema_custom,
)
from tests.unit.space.cluster import (
    ENTRY_BYTES,
    OLD_MS,
    Cluster,
    bytes_by,
    info,
    path_of,
    share_of,
    stored_once,
)
from udfs.formats.managed_ledger import AcknowledgedRange, ManagedCursorInfo, serialize_cursor
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.owners.references import DELAYED_BUCKET_PREFIX
from udfs.paths import cursor_path, managed_ledger_path, topic_of
from udfs.phase_one.trim_forecast import Retention
from udfs.records import LedgerState
from udfs.space.causes import Cause

V1_TOPIC = "public/standalone/ns/persistent/old"
V1_SCHEMA = "public/ns/old"
EVENTS = "public/default/persistent/__change_events"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_backlog_belongs_to_its_subscription(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3, 4)
    cluster.cursor("billing", (2, 3))
    cluster.cursor("audit", (3, 9))
    report = cluster.measure()
    assert bytes_by(report) == {
        Cause.TRIMMABLE: 1_000,
        Cause.PARTLY_READ: 400,
        Cause.BACKLOG: 1_600,
        Cause.OPEN_IDLE: 1_000,
    }
    backlog = share_of(report, Cause.BACKLOG)
    assert (backlog.subscription, backlog.ledgers, backlog.is_exact) == ("billing", 2, False)
    assert backlog.stored == 2 * (1_600 + 16 * ENTRY_BYTES)
    billing, audit = sorted(report.subscriptions, key=lambda each: -each.backlog)
    assert (billing.name, billing.backlog, billing.frees) == ("billing", 2_600, 2_000)
    assert (audit.name, audit.backlog, audit.frees) == ("audit", 1_000, 0)
    assert billing.last_active_ms == OLD_MS
    assert report.is_complete
    assert (report.cluster, report.ledgers, report.topics) == ("standalone", 4, 1)


def test_whole_ledgers_of_a_backlog_are_exact(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("billing", (1, 9))
    report = cluster.measure()
    assert bytes_by(report) == {Cause.TRIMMABLE: 1_000, Cause.BACKLOG: 1_000, Cause.OPEN_IDLE: 1_000}
    assert share_of(report, Cause.BACKLOG).is_exact


def test_acknowledged_entries_behind_a_gap_have_a_cause_of_their_own(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor(
        "billing", (1, -1), acknowledged=[AcknowledgedRange((1, 1), (1, 4)), AcknowledgedRange((2, -1), (2, 9))]
    )
    report = cluster.measure()
    assert bytes_by(report) == {Cause.ACKNOWLEDGED_BEHIND_GAP: 1_300, Cause.BACKLOG: 700, Cause.OPEN_IDLE: 1_000}
    (billing,) = report.subscriptions
    assert (billing.backlog, billing.acknowledged) == (3_000, 1_300)


def test_a_brokers_own_cursor_is_named_only_where_no_subscription_holds(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3, 4)
    cluster.cursor("pulsar.dedup", (1, 9))
    cluster.cursor("billing", (2, 9))
    report = cluster.measure()
    assert bytes_by(report) == {
        Cause.TRIMMABLE: 1_000,
        Cause.BROKER_CURSOR: 1_000,
        Cause.BACKLOG: 1_000,
        Cause.OPEN_IDLE: 1_000,
    }
    assert share_of(report, Cause.BROKER_CURSOR).subscription == "pulsar.dedup"
    assert {each.name for each in report.subscriptions if each.is_of_broker} == {"pulsar.dedup"}


@pytest.mark.parametrize("name", ["__compaction", "pulsar.repl.west"])
def test_replication_and_compaction_are_brokers_cursors(cluster: Cluster, name: str) -> None:
    cluster.topic(1, 2)
    cluster.cursor(name, (1, 3))
    assert bytes_by(cluster.measure()) == {Cause.BROKER_CURSOR: 1_000, Cause.OPEN_IDLE: 1_000}


def test_without_cursors_only_retention_holds(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.policies.namespaces["public/default"] = Retention(-1, -1)
    report = cluster.measure()
    assert bytes_by(report) == {Cause.RETENTION: 2_000, Cause.OPEN_IDLE: 1_000}
    policy = report.policies[topic_of(TOPIC)]
    assert (policy.retention_minutes, policy.level, policy.is_loaded) == (-1, "namespace", False)


def test_a_loaded_topics_positions_and_open_ledger_are_its_brokers(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.ledger(3, state=LedgerState.OPEN)
    cluster.ledger(9, state=LedgerState.OPEN, custom=cursor_custom())
    cluster.topic(info(1), info(2), info(3))
    cluster.cursor("billing", (1, -1), ledger=9)
    stats = cluster.load({"billing": (2, 9)}, ledgers=(1, 2, 3), size=700)
    cluster.broker.stats[TOPIC] = replace(stats, reading=frozenset({"billing"}))
    report = cluster.measure()
    assert bytes_by(report) == {Cause.TRIMMABLE: 2_000, Cause.OPEN_ACTIVE: 700, Cause.CURSORS: 0}
    assert share_of(report, Cause.OPEN_ACTIVE).is_exact
    assert not share_of(report, Cause.CURSORS).is_exact
    assert report.subscriptions[0].is_connected
    assert report.is_complete


def test_a_brokers_acknowledged_ranges_count(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, -1))
    stats = cluster.load({"billing": (1, 1)}, ledgers=(1, 2), size=1_000)
    cluster.broker.stats[TOPIC] = replace(stats, acknowledged={"billing": "[(1:3..1:5],(1:6..1:9]]"})
    assert bytes_by(cluster.measure()) == {
        Cause.PARTLY_READ: 200,
        Cause.ACKNOWLEDGED_BEHIND_GAP: 500,
        Cause.BACKLOG: 300,
        Cause.OPEN_ACTIVE: 1_000,
    }


def test_a_stale_cursor_is_never_believed(cluster: Cluster) -> None:
    """Its znode has the position of the moment when its ledger was created."""
    cluster.topic(1, 2, 3, 4)
    cluster.cursor("billing", (1, 9), ledger=90)
    cluster.cursor("audit", (3, -1))
    report = cluster.measure()
    assert bytes_by(report) == {
        Cause.TRIMMABLE: 1_000,
        Cause.HELD_OR_RETAINED: 1_000,
        Cause.BACKLOG: 1_000,
        Cause.OPEN_IDLE: 1_000,
    }
    (unknown,) = report.unknown
    assert (unknown.what, unknown.at_least, unknown.at_most) == (topic_of(TOPIC), 0, 1_000)
    assert {each.name: each.is_exact for each in report.subscriptions} == {"billing": False, "audit": True}
    assert all(each.frees is None for each in report.subscriptions)


def test_a_migration_to_another_metadata_store_makes_the_report_doubtful(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    put(cluster.tree, MIGRATION_PATH, b'{"phase":"COMPLETED","targetUrl":"oxia://oxia1:6648/default"}')
    report = cluster.measure()
    (unknown,) = report.unknown
    assert unknown.what == "whether ZooKeeper's content is current"
    assert "has phase COMPLETED" in unknown.detail
    assert sum(bytes_by(report).values()) == 3_000


def test_a_broker_that_does_not_know_the_newest_ledger_is_not_believed(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("billing", (1, -1), ledger=90)
    cluster.load({"billing": (2, 9)}, ledgers=(1, 2))
    report = cluster.measure()
    assert bytes_by(report) == {Cause.HELD_OR_RETAINED: 3_000}
    assert "newest ledger" in report.unknown[0].detail


def test_without_brokers_answers_nothing_is_guessed_and_the_rest_is_reported(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("billing", (1, 9), ledger=90)
    cluster.ledger(50, custom=data_custom(OTHER_TOPIC))
    cluster.broker.faults.away = True
    cluster.policies.faults.away = True
    report = cluster.measure()
    assert bytes_by(report) == {Cause.HELD_OR_RETAINED: 3_000}
    assert bytes_by(report, OTHER_TOPIC) == {Cause.UNREFERENCED: 1_000}
    assert {each.what for each in report.unknown} == {topic_of(TOPIC)}
    assert not report.policies


def test_brokers_are_not_asked_if_the_configuration_forbids_it(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    asked: list[str] = []
    for faults in (cluster.broker.faults, cluster.policies.faults):
        faults.before(lambda operation, _paths: asked.append(operation))
    report = cluster.measure(asks=False)
    assert bytes_by(report) == {Cause.HELD_OR_RETAINED: 2_000}
    assert not asked
    assert not report.is_complete


@pytest.mark.parametrize("error", [UnavailableError("no answer"), RefusedError("no permission")])
def test_an_unreadable_policy_is_never_guessed(cluster: Cluster, error: UnavailableError | RefusedError) -> None:
    cluster.topic(1, 2, 3)
    cluster.policies.namespaces["public/default"] = error
    report = cluster.measure()
    assert bytes_by(report) == {Cause.HELD_OR_RETAINED: 2_000, Cause.OPEN_IDLE: 1_000}
    (unknown,) = report.unknown
    assert (unknown.detail, unknown.at_least, unknown.at_most) == (str(error), 0, 2_000)


def test_v1_names_are_read(cluster: Cluster) -> None:
    cluster.topic(1, 2, name=V1_TOPIC)
    report = cluster.measure(namespace="public/standalone/ns")
    assert bytes_by(report, V1_TOPIC) == {Cause.TRIMMABLE: 1_000, Cause.OPEN_IDLE: 1_000}
    assert {share.namespace for share in report.shares} == {"public/standalone/ns"}


def test_a_ledger_that_its_list_still_names_is_missing(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3, missing=[2])
    report = cluster.measure()
    missing = share_of(report, Cause.MISSING)
    assert (missing.one_copy, missing.stored, missing.ledgers) == (1_000, 0, 1)
    assert stored_once(report) == 2_000


def test_a_ledger_that_left_its_list_since_is_not_missing(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3, missing=[1])
    path = managed_ledger_path(TOPIC)
    reads: list[str] = []

    def trim(operation: str, paths: object) -> None:
        if operation == "read_many" and path in list(paths):  # type: ignore[call-overload]
            reads.append(path)
            if len(reads) == 2:
                cluster.topic(info(2), info(3))

    cluster.store.faults.before(trim)
    assert bytes_by(cluster.measure()) == {Cause.TRIMMABLE: 1_000, Cause.OPEN_IDLE: 1_000}


def test_a_ledger_that_is_newer_than_the_listing_is_neither_missing_nor_counted(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3, missing=[3])
    cluster.store.faults.before(
        lambda operation, paths: cluster.ledger(3) if managed_ledger_path(TOPIC) in paths else None
    )
    report = cluster.measure()
    assert bytes_by(report) == {Cause.TRIMMABLE: 2_000}
    assert report.is_complete


def test_a_ledger_that_vanishes_while_ledgers_are_read_is_no_fault(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.ledger(7)

    def vanish(operation: str, paths: object) -> None:
        if operation == "read_many" and path_of(7) in list(paths) and path_of(7) in cluster.tree.paths():  # type: ignore[call-overload]
            cluster.tree.remove(path_of(7))

    cluster.store.faults.before(vanish)
    report = cluster.measure()
    assert report.ledgers == 2
    assert report.is_complete


def test_an_offloaded_ledger_is_kept_whatever_cursors_do_and_its_copy_counts_beside(cluster: Cluster) -> None:
    for ledger_id in (1, 2, 3):
        cluster.ledger(ledger_id)
    kept = replace(offloaded(1, bookkeeper_deleted=False), size_bytes=1_000)
    cluster.topic(kept, info(2), info(3))
    cluster.cursor("billing", (1, -1))
    report = cluster.measure()
    assert bytes_by(report) == {
        Cause.OFFLOADED_AND_KEPT: 1_000,
        Cause.TIERED: 1_000,
        Cause.BACKLOG: 1_000,
        Cause.OPEN_IDLE: 1_000,
    }
    assert share_of(report, Cause.TIERED).stored == 0
    assert report.subscriptions[0].backlog == 3_000


def test_a_ledger_in_tiered_storage_only_is_not_stored_and_not_missing(cluster: Cluster) -> None:
    cluster.ledger(2)
    cluster.topic(replace(offloaded(1), size_bytes=1_000), info(2))
    assert bytes_by(cluster.measure()) == {Cause.TIERED: 1_000, Cause.OPEN_IDLE: 1_000}


def test_what_bookkeeper_still_has_of_a_ledger_that_was_given_up_is_unreferenced(cluster: Cluster) -> None:
    for ledger_id in (1, 2):
        cluster.ledger(ledger_id)
    cluster.topic(replace(offloaded(1), size_bytes=1_000), info(2))
    assert bytes_by(cluster.measure()) == {Cause.TIERED: 1_000, Cause.OPEN_IDLE: 1_000, Cause.UNREFERENCED: 1_000}


def test_schemas_cursors_buckets_and_compacted_ledgers_have_causes(cluster: Cluster) -> None:
    cluster.topic(1)
    cluster.ledger(10, 11, custom=schema_custom())
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(10))
    cluster.ledger(11, 12, custom=cursor_custom())
    cluster.ledger(12, 13, custom=bucket_custom())
    cluster.cursor("billing", (1, -1), ledger=11, cursor_properties={"#pulsar.internal.delayed.bucket_0_9": "12"})
    cluster.ledger(13, 14, custom=compacted_custom())
    cluster.cursor("__compaction", (1, -1), properties={"CompactedTopicLedger": 13})
    cluster.load({"billing": (1, -1)}, ledgers=(1,))
    cluster.broker.stats.clear()
    report = cluster.measure()
    assert bytes_by(report) == {
        Cause.SCHEMAS: 11,
        Cause.CURSORS: 12,
        Cause.DELAYED_BUCKETS: 13,
        Cause.COMPACTED: 14,
        Cause.OPEN_IDLE: 1_000,
    }
    assert stored_once(report) == sum(cluster.length.values())


def test_a_loaded_topics_compacted_ledger_is_its_brokers(cluster: Cluster) -> None:
    cluster.topic(1)
    cluster.ledger(13, custom=compacted_custom())
    cluster.ledger(14, custom=compacted_custom())
    cluster.cursor("__compaction", (1, -1), ledger=90)
    stats = cluster.load({"__compaction": (1, -1)}, ledgers=(1,), size=1_000)
    cluster.broker.stats[TOPIC] = replace(stats, compacted=(14, 10), compacted_by_cursor=14)
    assert bytes_by(cluster.measure()) == {Cause.OPEN_ACTIVE: 1_000, Cause.COMPACTED: 1_000, Cause.UNREFERENCED: 1_000}


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_compacted_ledger_is_not_called_unreferenced_if_the_one_in_use_is_unknown(
    cluster: Cluster, is_loaded: bool
) -> None:
    cluster.topic(1)
    cluster.ledger(13, custom=compacted_custom())
    cluster.cursor("__compaction", (1, -1), ledger=90)
    if is_loaded:  # and its broker has not opened the cursor yet
        cluster.load({}, ledgers=(1,), size=1_000)
    assert bytes_by(cluster.measure())[Cause.UNKNOWN] == 1_000


def test_system_topics_and_transactions_keep_their_bytes_together(cluster: Cluster) -> None:
    pending = "public/default/persistent/orders-billing__transaction_pending_ack"
    cluster.topic(1, 2, name=pending)
    cluster.cursor("s", (1, -1), name=pending, ledger=9)
    cluster.ledger(9, 5, custom=cursor_custom(pending))
    cluster.topic(11, name=EVENTS)
    cluster.topic(12, name="pulsar/system/persistent/transaction_coordinator_assign-partition-0")
    report = cluster.measure()
    by_cause = {share.cause: 0 for share in report.shares}
    for share in report.shares:
        by_cause[share.cause] += share.one_copy
    assert by_cause == {Cause.TRANSACTIONS: 3_005, Cause.SYSTEM_TOPICS: 1_000}
    assert not report.subscriptions


def test_ledgers_without_owner(cluster: Cluster) -> None:
    cluster.ledger(1, 1, custom={})
    cluster.ledger(2, 2)
    cluster.ledger(3, state=LedgerState.OPEN)
    cluster.ledger(4, 4)
    put(cluster.tree, path_of(4), cluster.tree.read(path_of(4)).data)
    cluster.ledger(5, 5, custom={"application": b"pulsar", "component": b"new"})
    report = cluster.measure()
    found = {(share.cause, share.topic): share.one_copy for share in report.shares}
    assert found == {
        (Cause.FOREIGN, ""): 1,
        (Cause.UNREFERENCED, topic_of(TOPIC)): 2,
        (Cause.UNREFERENCED_OPEN, topic_of(TOPIC)): 0,
        (Cause.TOO_YOUNG, topic_of(TOPIC)): 4,
        (Cause.UNKNOWN, ""): 5,
    }


@pytest.mark.parametrize("damage", ["unreadable", "garbled"])
@pytest.mark.parametrize(
    ("path", "custom"),
    [
        pytest.param(managed_ledger_path(TOPIC), data_custom(), id="the list"),
        pytest.param(f"{managed_ledger_path(TOPIC)}/billing", cursor_custom(), id="a cursor"),
        pytest.param(f"{managed_ledger_path(TOPIC)}/billing", bucket_custom(), id="a cursor with buckets"),
        pytest.param(f"/schemas/{SCHEMA}", schema_custom(), id="a schema"),
    ],
)
def test_nothing_is_unreferenced_whose_owner_could_not_be_read(
    cluster: Cluster, path: str, custom: dict[str, bytes], damage: str
) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, -1))
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(70))
    cluster.ledger(60, 33, custom=custom)
    if damage == "unreadable":
        cluster.store.unreadable.add(path)
    else:
        put(cluster.tree, path, b"\xff\xff")
    report = cluster.measure()
    assert Cause.UNREFERENCED not in {share.cause for share in report.shares}
    assert bytes_by(report)[Cause.UNKNOWN] >= 33
    assert path in {unknown.what for unknown in report.unknown}
    assert stored_once(report) == sum(cluster.length.values())


def test_a_cursor_that_cannot_be_read_may_hold_everything(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (2, -1))
    cluster.store.unreadable.add(f"{managed_ledger_path(TOPIC)}/billing")
    assert bytes_by(cluster.measure()) == {Cause.HELD_OR_RETAINED: 1_000, Cause.OPEN_IDLE: 1_000}


def test_cursors_that_cannot_be_listed_may_hold_everything(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    original = cluster.store.children_many

    def children_many(paths: object) -> object:
        from streaming.ports import Unreadable

        names = original(paths)  # type: ignore[arg-type]
        return [
            Unreadable("too large") if path == managed_ledger_path(TOPIC) else each
            for path, each in zip(paths, names, strict=True)  # type: ignore[call-overload]
        ]

    cluster.store.children_many = children_many  # type: ignore[assignment]
    report = cluster.measure()
    assert bytes_by(report) == {Cause.HELD_OR_RETAINED: 1_000, Cause.OPEN_IDLE: 1_000}
    assert not report.is_complete


def test_a_ledger_whose_metadata_cannot_be_read_is_unknown_and_not_missing(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.store.unreadable.add(path_of(2))
    report = cluster.measure()
    assert bytes_by(report) == {Cause.TRIMMABLE: 1_000, Cause.OPEN_IDLE: 1_000}
    assert [unknown.what for unknown in report.unknown] == [path_of(2)]


def test_a_filter_leaves_other_tenants_out(cluster: Cluster) -> None:
    cluster.topic(1)
    cluster.topic(2, name="other/ns/persistent/x")
    cluster.ledger(3, custom={})
    cluster.ledger(4, custom=data_custom("other/ns/persistent/gone"))
    report = cluster.measure(tenant="other")
    assert {(share.topic, share.cause) for share in report.shares} == {
        ("persistent://other/ns/x", Cause.OPEN_IDLE),
        ("persistent://other/ns/gone", Cause.UNREFERENCED),
    }
    assert {share.tenant for share in cluster.measure(namespace="public/default").shares} == {"public"}


def test_a_topics_report_needs_only_what_refers_to_its_ledgers(cluster: Cluster) -> None:
    for name in ("a", "a-partition-1", "a-partition-x", "ab"):
        cluster.topic(info(1), name=f"public/default/persistent/{name}")
        put(cluster.tree, f"/schemas/public/default/{name}", locator_znode(2))
    cluster.topic(info(1), name="public/other/persistent/a")
    cluster.topic(info(1), name="other/ns/persistent/a")
    cluster.ledger(5, custom=data_custom("public/default/persistent/a"))
    cluster.ledger(6, custom=data_custom("public/default/persistent/ab"))
    folder = "/managed-ledgers/public/default/persistent"
    cluster.store.unreadable |= {
        f"{folder}/a-partition-x",
        f"{folder}/ab",
        "/schemas/public/default/ab",
        "/managed-ledgers/public/other/persistent",
        "/managed-ledgers/other",
    }

    report = cluster.measure(topic="persistent://public/default/a")

    assert not report.unknown
    assert report.topics == 2
    assert {(share.topic, share.cause) for share in report.shares} == {
        ("persistent://public/default/a", Cause.MISSING),
        ("persistent://public/default/a", Cause.UNREFERENCED),
        ("persistent://public/default/a-partition-1", Cause.MISSING),
    }


@pytest.mark.parametrize(
    "path",
    [
        "/managed-ledgers",
        "/managed-ledgers/public",
        "/managed-ledgers/public/default/persistent",
        f"/managed-ledgers/{TOPIC}",
        "/schemas/public/default",
        f"/schemas/{SCHEMA}",
    ],
)
def test_what_may_hide_a_topics_ledgers_makes_its_report_incomplete(cluster: Cluster, path: str) -> None:
    cluster.topic(1)
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(2))
    cluster.store.unreadable.add(path)
    assert [each.what for each in cluster.measure(topic=topic_of(TOPIC)).unknown] == [path]


def test_a_v1_topics_report_has_its_schema(cluster: Cluster) -> None:
    cluster.topic(1, name=V1_TOPIC)
    put(cluster.tree, f"/schemas/{V1_SCHEMA}", b"garbled")
    (unknown,) = cluster.measure(topic=topic_of(V1_TOPIC)).unknown
    assert unknown.what == f"/schemas/{V1_SCHEMA}"


def test_every_ledger_is_read_before_any_list(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    order: list[str] = []
    cluster.store.faults.before(
        lambda operation, paths: order.append(paths[0].split("/")[1]) if operation == "read_many" and paths else None
    )
    cluster.measure()
    assert order.index("managed-ledgers") > max(at for at, tree in enumerate(order) if tree == "ledgers")


OWNERS = (TOPIC, OTHER_TOPIC, EVENTS, V1_TOPIC)
CUSTOM: tuple[dict[str, bytes], ...] = (
    data_custom(),
    cursor_custom(),
    schema_custom(),
    compacted_custom(),
    bucket_custom(),
    {},
    data_custom("x"),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_byte_has_exactly_one_cause_whatever_can_be_read(data: st.DataObject) -> None:
    cluster, draw = Cluster(), data.draw
    ids = iter(range(1, 100))
    for name in draw(st.sets(st.sampled_from(OWNERS))):
        listed = [next(ids) for _ in range(draw(st.integers(0, 4)))]
        missing = draw(st.sets(st.sampled_from(listed))) if listed else set()
        cluster.topic(*listed, name=name, missing=sorted(missing))
        for cursor in sorted(draw(st.sets(st.sampled_from(["s", "pulsar.dedup", "__compaction"])))):
            position = (draw(st.sampled_from([-1, *listed])), draw(st.integers(-1, 9)))
            cluster.cursor(cursor, position, name=name, ledger=draw(st.sampled_from([-1, *range(1, 30)])))
        if draw(st.booleans()) and listed:
            positions = {"s": (draw(st.sampled_from(listed)), draw(st.integers(-1, 9)))}
            cluster.load(positions, name=name, ledgers=listed, size=draw(st.integers(0, 5_000)))
    for _ in range(draw(st.integers(0, 5))):
        state = draw(st.sampled_from(LedgerState))
        cluster.ledger(next(ids), draw(st.integers(0, 9_999)), custom=draw(st.sampled_from(CUSTOM)), state=state)
    if draw(st.booleans()):
        put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(*draw(st.lists(st.integers(1, 20), min_size=1))))
    paths = [path for path in cluster.tree.paths() if path.startswith(("/managed", "/schemas", "/ledgers/00/0000/"))]
    cluster.store.unreadable |= draw(st.sets(st.sampled_from(paths), max_size=2)) if paths else set()
    unreadable = {ledger_id for ledger_id in cluster.length if path_of(ledger_id) in cluster.store.unreadable}
    cluster.broker.faults.away = draw(st.booleans())
    report = cluster.measure()
    readable = cluster.length.keys() - unreadable
    assert report.ledgers == len(readable)
    assert stored_once(report) == sum(cluster.length[ledger_id] for ledger_id in readable)
    assert sum(share.stored for share in report.shares) == sum(bookie.live for bookie in report.bookies)
    if cluster.store.unreadable:
        assert not report.is_complete


def test_a_ledger_that_goes_before_its_owner_is_read_is_no_orphan(cluster: Cluster) -> None:
    cluster.topic(1)
    cluster.ledger(2)
    cluster.ledger(3)

    def trim(operation: str, paths: Sequence[str]) -> None:
        if operation == "read_many" and any(path.startswith("/managed-ledgers/") for path in paths):
            cluster.tree._nodes.pop(path_of(2), None)

    cluster.store.faults.before(trim)
    report = cluster.measure()
    assert sum(each.one_copy for each in report.shares if each.cause is Cause.UNREFERENCED) == 1_000


def test_a_cursor_can_not_claim_another_topics_ledger_as_a_delayed_bucket(cluster: Cluster) -> None:
    cluster.topic(1, name=TOPIC)
    cluster.topic(2, name=OTHER_TOPIC)
    cursor = ManagedCursorInfo(
        cursors_ledger_id=-1,
        mark_delete_ledger_id=1,
        mark_delete_entry_id=-1,
        cursor_properties={f"{DELAYED_BUCKET_PREFIX}.x": "2"},
    )
    put(cluster.tree, cursor_path(TOPIC, "s"), serialize_cursor(cursor))
    shares = cluster.measure().shares
    assert {share.cause for share in shares} == {Cause.OPEN_IDLE}
    assert sum(share.one_copy for share in shares) == 2_000
