"""Turns ledgers that no reference names into suspects: their own metadata names their component and owner."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.clients import clients_for
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.sweep.pace import Pace
from udfs import columns as c
from udfs.owners.references import key_of
from udfs.paths import Layout, ledger_path
from udfs.records import LedgerComponent, LedgerFacts, LedgerType, OffloadContext, PendingDelete, Reason
from udfs.verdicts.finding_classes import FindingClass, Unclaimed, claim_of
from udfs.verdicts.ledger_facts import facts_of

_LEDGERS_PER_READ = 5_000
_S3_DRIVER = "aws-s3"  # tiered_storage.allowed can only name buckets with an S3 interface


@dataclass(frozen=True, slots=True)
class LedgerReader:
    """Reads the metadata of many ledgers at a time."""

    store: MetadataStore
    layout: Layout
    root: str
    pace: Pace

    def facts(self, ledger_ids: Sequence[int]) -> list[LedgerFacts | Unreadable | None]:
        """Return the facts of each id, in order; None if there is no such ledger. Raises UnavailableError."""
        self.pace.wait_for(len(ledger_ids))
        paths = [ledger_path(self.layout, self.root, ledger_id) for ledger_id in ledger_ids]
        nodes = self.store.read_many(paths)
        return [_facts(*read) for read in zip(ledger_ids, paths, nodes, strict=True)]


@dataclass(frozen=True, slots=True)
class ClaimTask:
    """A task: turns ledger ids (one column) into suspects (audit_columns.SUSPECT), without ledgers that are gone."""

    settings: Settings
    layout: Layout
    reads_per_second: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read every ledger of every batch. Raises UnavailableError."""
        reader = reader_for(self.settings, self.layout, self.reads_per_second)
        clock: Clock = SystemClock()
        for batch in batches:
            ids = batch.column(0).to_pylist()
            for start in range(0, len(ids), _LEDGERS_PER_READ):
                group = ids[start : start + _LEDGERS_PER_READ]
                now_ms = clock.now_ms()
                rows = [
                    suspect_row(ledger_id, facts, now_ms)
                    for ledger_id, facts in zip(group, reader.facts(group), strict=True)
                    if facts is not None
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=a.SUSPECT)


def reader_for(settings: Settings, layout: Layout, reads_per_second: float) -> LedgerReader:
    """Return a reader on this process's ZooKeeper session."""
    store = clients_for(settings).store
    return LedgerReader(store, layout, settings.zookeeper.ledgers_root, Pace(reads_per_second))


def suspect_row(ledger_id: int, facts: LedgerFacts | Unreadable, now_ms: int) -> dict[str, Any]:
    """Return a row of audit_columns.SUSPECT, with a class if the metadata can't be read or names no owner to check."""
    row: dict[str, Any] = {
        c.LEDGER_ID: ledger_id,
        c.LEDGER_TYPE: str(LedgerType.LEDGER),
        a.IS_REFERENCE: False,
        a.SEEN_MS: now_ms,
    }
    if isinstance(facts, Unreadable):
        return row | _final(FindingClass.UNKNOWN, Reason.LEDGER_UNREADABLE, facts.detail)
    row |= {a.LAST_CHANGE_MS: facts.last_change_ms}
    if facts.metadata is None:
        return row | _final(
            FindingClass.UNKNOWN, Reason.LEDGER_UNREADABLE, f"the metadata in {facts.path} can't be parsed"
        )
    row |= {c.BYTES: facts.metadata.length_bytes}
    claim = claim_of(ledger_id, facts.metadata.custom_metadata)
    if isinstance(claim, Unclaimed):
        return row | _final(claim.finding_class, claim.reason, claim.detail)
    return row | {
        c.COMPONENT: str(claim.component),
        a.MANAGED_LEDGER: claim.managed_ledger,
        a.CURSOR: claim.cursor_name,
        a.SCHEMA_ID: claim.schema_id,
        c.REFERENCE_KEY: key_of(claim),
    }


def request_of(row: Mapping[str, Any]) -> PendingDelete:
    """Return the request that would delete a suspect; it must have an owner."""
    return PendingDelete(
        managed_ledger=row[a.MANAGED_LEDGER],
        component=LedgerComponent(row[c.COMPONENT]),
        ledger_type=LedgerType(row[c.LEDGER_TYPE]),
        ledger_id=row[c.LEDGER_ID],
        cursor_name=row[a.CURSOR],
        schema_id=row[a.SCHEMA_ID],
        offload_context=_context(row) if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER else None,
    )


def _context(row: Mapping[str, Any]) -> OffloadContext:
    """Return an offload context that names the bucket in which the objects were found."""
    endpoint, _, bucket = (row[a.STORE] or "").rpartition(" ")
    properties = {"bucket": bucket} | ({"serviceEndpoint": endpoint} if endpoint else {})
    return OffloadContext(uuid=row[c.UUID], driver_name=_S3_DRIVER, driver_properties=properties if bucket else {})


def _final(found: FindingClass, reason: Reason, detail: str) -> dict[str, Any]:
    return {a.CLASS: str(found), c.REASON: str(reason), c.DETAIL: detail, a.CANDIDATE: False}


def _facts(ledger_id: int, path: str, node: Znode | Unreadable | None) -> LedgerFacts | Unreadable | None:
    if node is None or isinstance(node, Unreadable):
        return node
    return facts_of(ledger_id, path, node.data, node.version, (node.ctime_ms, node.mtime_ms))
