"""A task that looks up the topics with snapshots in ZooKeeper, and asks brokers about those that it lacks.

Of topics that ZooKeeper has, it asks for the transaction buffer.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.clients import Clients, admin_settings, clients_for
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import Unreadable, Znode
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.snapshot_namespaces import listed
from udfs import columns as c
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import Presence

_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class SnapshotOwnersTask:
    """A task: turns topics (their full names, first column) into snapshot_columns.OWNER."""

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check every topic of every batch. Raises UnavailableError if ZooKeeper does not answer."""
        clients = clients_for(self.settings)
        with closing(SnapshotAdmin(admin_settings(self.settings))) as admin:
            for batch in batches:
                topics: list[str] = batch.column(0).to_pylist()
                for start in range(0, len(topics), _AT_ONCE):
                    rows = owner_rows(clients, admin, topics[start : start + _AT_ONCE])
                    yield pa.RecordBatch.from_pylist(rows, schema=s.OWNER)


def owner_rows(clients: Clients, admin: SnapshotAdmin, topics: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of snapshot_columns.OWNER. Raises UnavailableError."""
    nodes = dict(zip(topics, clients.store.read_many([managed_ledger_path(each) for each in topics]), strict=True))
    absent = [topic for topic, node in nodes.items() if node is None]
    views = dict(zip(absent, clients.broker.views([managed_ledger_name(each) for each in absent]), strict=True))
    rows = []
    for topic, node in nodes.items():
        row = _row(topic, node)
        if topic in views:
            row |= {s.AT_BROKER: str(views[topic].presence), c.DETAIL: views[topic].detail}
        elif row[s.PRESENCE] == Presence.PRESENT:
            row |= _buffer(admin, topic)
        rows.append(row)
    return rows


def _row(topic: str, node: Znode | Unreadable | None) -> dict[str, Any]:
    presence, ledgers, detail = listed(node)
    return {
        c.TOPIC_NAME: topic,
        s.PRESENCE: str(presence),
        s.AT_BROKER: str(Presence.UNREADABLE),
        s.LEDGERS: ledgers,
        c.DETAIL: detail,
    }


def _buffer(admin: SnapshotAdmin, topic: str) -> dict[str, Any]:
    """Return the broker's transaction buffer; {} if the topic is not loaded, or the broker does not report it."""
    try:
        buffer = admin.buffer(topic)
    except ReaperError:
        return {}
    if buffer is None:
        return {}
    return {s.STATE: buffer.state, s.SNAPSHOT_TYPE: buffer.snapshot_type, s.ABORTED: buffer.aborted}
