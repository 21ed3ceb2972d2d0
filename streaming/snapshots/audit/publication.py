"""Requests tombstones for the orphans of a snapshot audit from the service, which checks each orphan twice more."""

import logging
from collections.abc import Iterator

from streaming.audit import audit_columns as a
from streaming.audit.tables import Rows
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.snapshots.audit import snapshot_columns as s
from streaming.topics.requests import PublishReport, publish_lines
from udfs import columns as c
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, LedgerType, PendingDelete, SnapshotContext
from udfs.requests.request_format import encode
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import SnapshotClass

log = logging.getLogger("ledger-reaper")


def orphans_of(found: Rows) -> Rows:
    """Choose the findings that may be requested: messages that both passes found to be orphans."""
    return found.where(f"{a.CLASS} = '{SnapshotClass.ORPHAN.value}' AND {s.KEY} <> ''")


def request_of(topic: str, kind: str, key: str, position: tuple[int, int]) -> PendingDelete:
    """Return the request for the tombstone of one message."""
    return PendingDelete(
        managed_ledger=managed_ledger_name(topic),
        component=LedgerComponent.TRANSACTION_SNAPSHOT,
        ledger_type=LedgerType.COMPACTED_MESSAGE,
        ledger_id=position[0],
        snapshot_context=SnapshotContext(kind, key, position[1]),
    )


def publish(settings: Settings, found: Rows) -> PublishReport:
    """Send a request for each orphan. Raises UnavailableError, ConfigError."""
    # segments first: the service processes a topic's requests in order, and an index waits for its segments
    order = f"{s.KIND} = '{SnapshotKind.INDEX.value}', {c.TOPIC_NAME}, {s.KIND}, {s.KEY}"
    ordered = orphans_of(found).select(f"FROM rows ORDER BY {order}")

    def lines() -> Iterator[bytes]:
        for row in ordered.each():
            position = (row[s.LEDGER], row[s.ENTRY])
            yield encode(request_of(row[c.TOPIC_NAME], row[s.KIND], row[s.KEY], position))

    with admin_for(settings) as admin:
        # Unlike other publications this one keeps no plan: a repeated request does no harm, since the service answers
        # ALREADY_GONE if the key has a tombstone by then
        report = publish_lines(settings, admin, lines())
    if report.invalid:
        log.warning("%d orphans were not requested: %s", len(report.invalid), report.invalid[0][1])
    return report
