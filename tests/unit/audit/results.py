"""A small result of an audit, for the tests that print and store it."""

from pathlib import Path

import pyarrow.fs as pafs

from streaming.audit.certificate import Certificate
from streaming.audit.output import Output
from streaming.audit.report.html import ReportContext
from streaming.audit.report.summary import AGES, Amount, FindingSample, Summary, TopicRow
from streaming.audit.result import AuditResult, InUse
from streaming.audit.space import Space

CERTIFICATE = Certificate(zxid_start=0x1A, zxid_end=0x2B, listed={"ledgers": 4, "owners": 2}, unreadable=())
RESULT = AuditResult(
    audit_id="20261121T010203004Z",
    instance_id="instance",
    cluster="cluster <east> (ZooKeeper zk:2181)",
    started_ms=1_700_000_000_000,
    ended_ms=1_700_000_009_000,
    certificate=CERTIFICATE,
    totals={"ledgers": 4, "objects": 0, "in_use": 2, "ORPHAN": {"count": 1, "bytes": 2048}},
    in_use=(
        InUse(namespace="public/default", component="MANAGED_LEDGER", ledger_type="LEDGER", count=2, size_bytes=4096),
    ),
)
SUMMARY = Summary(
    by_class=(Amount("ORPHAN", "UNREFERENCED", 1, 2048), Amount("OPEN", "NOT_CLOSED", 1, 0)),
    by_topic=(
        TopicRow(
            tenant="public",
            namespace="public/default",
            topic="persistent://public/default/a<b>",
            components="MANAGED_LEDGER",
            orphans=1,
            size_bytes=2048,
            oldest_seconds=90,
        ),
    ),
    by_namespace=(Amount("public/default", "MANAGED_LEDGER", 1, 2048),),
    by_age=tuple(Amount(label, "", 1 if n == 0 else 0, 2048 if n == 0 else 0) for n, (label, _) in enumerate(AGES)),
    missing=(),
    unknown=(),
)
ALONE = ReportContext(
    (), Space(requested=0, deleted_ledgers=0, deleted_objects=0, since_ms=0, deleted_since=0, reclaimed=0, entry_logs=0)
)
LOST = FindingSample(
    finding_class="MISSING",
    ledger_id=7,
    where="in BookKeeper",
    component="MANAGED_LEDGER",
    topic="persistent://public/default/t",
    size_bytes=10,
    reason="NOT_FOUND",
    detail="referenced",
)


def output_at(folder: Path) -> Output:
    """Return an empty folder to write reports to."""
    return Output(str(folder), pafs.LocalFileSystem(), str(folder))
