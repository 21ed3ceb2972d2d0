"""A namespace's guard is told where it stands, and what nobody can tell counts as not guarded."""

from typing import Any, cast

import pytest

from streaming import ports
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.check.preflight import Line, Status
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit.facts import segments_topics
from streaming.snapshots.guard.check_line import line_of
from tests.builders import list_znode
from tests.unit.snapshots.fakes import Admin, Broker, Node, Store, Topics
from udfs import columns as c
from udfs.formats.internal_stats import InternalStats, Position
from udfs.paths import managed_ledger_path
from udfs.records import Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"
SEGMENTS = system_topic(SPACE, SnapshotKind.SEGMENT)
PATH = managed_ledger_path(SEGMENTS)
NODE = Znode(data=list_znode(70), version=0, ctime_ms=0, mtime_ms=0)
GUARDED = InternalStats(ledgers=((70, 5),), cursors={GUARD: (70, 1)}, pending_adds=0)
TREE = {"/managed-ledgers": ["t"], "/managed-ledgers/t": ["ns"], "/managed-ledgers/t/ns": ["persistent"]}


LOADED, UNLOADED = Broker(Presence.PRESENT), Broker(Presence.PRESENT, frozenset())


def _rows(node: Node, admin: Admin, broker: Broker = LOADED) -> list[dict[str, Any]]:
    store = cast(MetadataStore, Store({PATH: node}))
    return segments_topics(store, cast(ports.Broker, broker), cast(PulsarAdmin, admin), [SPACE])


def test_a_guard_is_told_with_its_place() -> None:
    (row,) = _rows(NODE, Admin(GUARDED))
    assert (row[s.GUARD_LEDGER], row[s.GUARD_ENTRY], row[s.KEEPS_ALL], row[s.SEGMENT_LEDGERS]) == (70, 1, False, [70])


def test_a_namespace_without_segments_has_no_row() -> None:
    assert _rows(None, Admin()) == []


def test_retention_without_limit_keeps_all_and_a_limited_one_does_not() -> None:
    assert _rows(NODE, Admin(retentions=(-1, -1)))[0][s.KEEPS_ALL]
    assert not _rows(NODE, Admin(retentions=(-1, 10)))[0][s.KEEPS_ALL]


def test_what_nobody_can_tell_counts_as_not_guarded() -> None:
    (row,) = _rows(NODE, Admin(GUARDED, is_up=False))
    assert (row.get(s.GUARD_LEDGER), row[s.KEEPS_ALL]) == (None, False)
    assert row[c.DETAIL]
    unloaded = Admin(GUARDED)
    for broker in (UNLOADED, Broker(Presence.UNREADABLE)):
        (row,) = _rows(NODE, unloaded, broker)
        assert (row.get(s.GUARD_LEDGER), row[s.KEEPS_ALL], bool(row[c.DETAIL])) == (None, False, True)
    assert unloaded.asked == []  # asking would load it
    (torn,) = _rows(Unreadable("no right"), Admin(GUARDED))
    assert torn[s.SEGMENT_LEDGERS] == []


def _line(admin: Admin, tree: Store, *indexes: ReadValue, fails: bool = False, broker: Broker = LOADED) -> Line:
    kind = SnapshotKind.INDEX
    topics = Topics({kind: indexes}, kind if fails else None, {SEGMENTS, system_topic(SPACE, kind)}, admin)
    return line_of(cast(MetadataStore, tree), cast(ports.Broker, broker), cast(SnapshotTopics, topics))


def _index(place: Position) -> ReadValue:
    value = Index(TOPIC, entries_of([(0, place, (1, 1))]), (1, 1), ids_of([]))
    return ReadValue(
        kind=SnapshotKind.INDEX, key=TOPIC, topic=TOPIC, position=(1, 1), publish_ms=0, size_bytes=9, value=value
    )


@pytest.mark.parametrize(
    ("admin", "place", "status", "says"),
    [
        pytest.param(Admin(GUARDED), (70, 2), Status.OK, "1 namespaces with segments, all guarded", id="before it"),
        pytest.param(Admin(GUARDED), (60, 0), Status.OK, "all guarded", id="its ledger is gone: nothing keeps it"),
        pytest.param(
            Admin(GUARDED),
            (70, 1),
            Status.NOTE,
            "1 have a guard that is after segments which indexes name: t/ns",
            id="behind it",
        ),
        pytest.param(Admin(retentions=(-1, -1)), (70, 1), Status.OK, "all guarded", id="retention"),
        pytest.param(Admin(), (70, 1), Status.NOTE, "1 of 1 namespaces with segments have no guard: t/ns", id="none"),
        pytest.param(Admin(is_up=False), (70, 1), Status.NOTE, "no broker answers", id="no answer"),
    ],
)
def test_check_says_which_namespaces_are_not_guarded(admin: Admin, place: Position, status: Status, says: str) -> None:
    line = _line(admin, Store({PATH: NODE}, TREE), _index(place))
    assert line.status is status
    assert says in line.says
    assert bool(line.do) == (status is not Status.OK)


def test_check_does_not_call_guarded_what_it_can_not_compare() -> None:
    line = _line(Admin(GUARDED), Store({PATH: NODE}, TREE), fails=True)
    assert (line.status, line.says) == (Status.NOTE, "t/ns: it broke off")


def test_check_is_content_without_segments() -> None:
    assert _line(Admin(), Store({}, TREE)).says == "no segments"


def test_check_reads_nothing_of_a_namespace_that_no_broker_has_loaded() -> None:
    admin = Admin(GUARDED)
    line = _line(admin, Store({PATH: NODE}, TREE), fails=True, broker=UNLOADED)
    left_out = "1 namespaces with snapshots were left out, since brokers do not have them loaded"
    assert (line.status, line.says, admin.asked) == (Status.OK, left_out, [])
    line = _line(admin, Store({PATH: NODE}, TREE), fails=True, broker=Broker(Presence.UNREADABLE))
    assert (line.status, admin.asked) == (Status.NOTE, [])
    assert "said so" in line.says
