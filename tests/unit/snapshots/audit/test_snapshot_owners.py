"""A topic's owner row says what ZooKeeper has, and what a broker says where ZooKeeper has nothing."""

from typing import Any, cast

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.clients import Clients
from streaming.ports import Unreadable, Znode
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit.snapshot_owners import owner_rows
from tests.builders import list_znode
from tests.unit.snapshots.fakes import Admin, Broker, Node, Store
from udfs import columns as c
from udfs.paths import managed_ledger_path
from udfs.records import Presence
from udfs.snapshots.topic_findings import BufferFacts

TOPIC = "persistent://t/ns/orders"
READY = {TOPIC: BufferFacts(state="Ready", snapshot_type="Segment", aborted=7)}


def _row(node: Node, presence: Presence = Presence.GONE, *, is_up: bool = True) -> dict[str, Any]:
    clients = Clients(cast(Any, Store({managed_ledger_path(TOPIC): node})), cast(Any, Broker(presence)))
    (row,) = owner_rows(clients, cast(SnapshotAdmin, Admin(buffers=READY, is_up=is_up)), [TOPIC])
    return row


def test_a_topic_that_zookeeper_has_comes_with_its_ledgers_and_its_buffer() -> None:
    row = _row(Znode(data=list_znode(3, 5), version=0, ctime_ms=0, mtime_ms=0))
    assert (row[s.PRESENCE], row[s.LEDGERS], row[s.ABORTED]) == (Presence.PRESENT, [3, 5], 7)
    assert s.STATE not in _row(Znode(data=list_znode(3), version=0, ctime_ms=0, mtime_ms=0), is_up=False)


def test_a_topic_that_zookeeper_lacks_is_asked_for_at_a_broker() -> None:
    for presence in Presence:
        row = _row(None, presence)
        assert (row[s.PRESENCE], row[s.AT_BROKER], row[c.DETAIL]) == (Presence.GONE, presence, "said so")


def test_what_can_not_be_read_is_neither_there_nor_gone() -> None:
    for node in (Unreadable("no right"), Znode(data=b"\xff", version=0, ctime_ms=0, mtime_ms=0)):
        row = _row(node)
        assert (row[s.PRESENCE], row[s.AT_BROKER]) == (Presence.UNREADABLE, Presence.UNREADABLE)
        assert row[c.DETAIL]
