"""The demo's requests and their expected outcomes: from the audit's findings, repeated, and hostile."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streaming.audit import audit_columns as a
from streaming.audit.output import FINDINGS
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.demo.leaks import CLICKS, INVOICES, Leaks
from streaming.sandbox.demo.screen import Claims
from streaming.sandbox.offloaded_ledgers import Attempt
from udfs import columns as c
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete
from udfs.requests.request_format import encode
from udfs.verdicts.finding_classes import FindingClass

NEVER_EXISTED = 987_654_321
Row = dict[str, Any]
# ledger id, topic and type as in a receipt; all None for bytes that are not a request
Named = tuple[int | None, str | None, str | None]
NOTHING: Named = (None, None, None)


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """A group of requests of the demo."""

    title: str
    named: frozenset[Named]  # the ledgers that they name
    expected: Counter[str]  # final outcomes


def findings(folder: Path) -> list[Row]:
    """Read the audit's findings."""
    rows: list[Row] = pq.read_table(folder / FINDINGS).to_pylist()
    return rows


def claim_findings(rows: list[Row], leaks: Leaks, in_use: set[int], checks: Claims) -> None:
    """Claim that the findings are the leaks, and that none of them is in use."""
    orphans = [row for row in rows if row[a.CLASS] == FindingClass.ORPHAN]
    ids = {row[c.LEDGER_ID] for row in orphans if row[c.LEDGER_TYPE] == LedgerType.LEDGER}
    uploads = {(row[c.UUID], row[c.LEDGER_ID]) for row in orphans if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER}
    garbage = {(upload.uuid, upload.ledger_id) for upload in (*leaks.offloads.leaked, *leaks.offloads.stale)}
    used = {(upload.uuid, upload.ledger_id) for upload in leaks.offloads.in_use}
    checks.claim(
        "the audit found everything that leaked",
        holds=leaks.leaked.keys() <= ids and garbage <= uploads,
        seen=f"{len(leaks.leaked)} ledgers and {len(garbage)} offloaded ones leaked, {len(orphans)} orphans found",
    )
    checks.claim(
        "the audit named no storage in use as an orphan",
        holds=not ids & in_use and not uploads & used,
        seen=f"{len(in_use)} ledgers and {len(used)} offloaded ones are in use",
    )
    if leaks.still_open:
        opened = {row[c.LEDGER_ID] for row in rows if row[a.CLASS] == FindingClass.OPEN}
        checks.claim(
            "ledgers that are still OPEN were found, and their deletion is not requested",
            holds=leaks.still_open <= opened,
            seen=f"{len(leaks.still_open)} ledgers",
        )


def groups_of_audit(rows: Iterable[Row]) -> list[RequestGroup]:
    """Return the orphans whose deletion the audit requests, by kind."""
    kinds: dict[str, set[Named]] = {}
    for row in rows:
        if row[a.CLASS] == FindingClass.ORPHAN:
            where = "in S3" if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER else "in BookKeeper"
            kind = f"{row[c.COMPONENT]} {where}"
            kinds.setdefault(kind, set()).add((row[c.LEDGER_ID], row[c.TOPIC_NAME], row[c.LEDGER_TYPE]))
    return [
        RequestGroup(f"orphans of the audit: {kind}", frozenset(named), Counter(DELETED=len(named)))
        for kind, named in sorted(kinds.items())
    ]


def hostile(cluster: Cluster, leaks: Leaks) -> tuple[list[RequestGroup], list[bytes]]:
    """Return harmful and meaningless requests with their expected outcomes."""
    in_use, of_another_topic = topics.data_ledgers(cluster, INVOICES)[:2]
    kept, gone = leaks.offloads.in_use[0], leaks.offloads.leaked[0]
    elsewhere = {"bucket": "victims-bucket", "serviceEndpoint": cluster.addresses.s3}
    requests = [
        ("a ledger in use", _request(INVOICES, in_use), "DEAD_LETTER"),
        ("another topic's ledger", _request(CLICKS, of_another_topic), "DEAD_LETTER"),
        ("an id that never existed", _request(CLICKS, NEVER_EXISTED), "ALREADY_GONE"),
        ("an offloaded ledger in use", _offloaded(cluster, kept), "DEAD_LETTER"),
        ("a bucket that is not ours", _offloaded(cluster, gone, ledger_id=NEVER_EXISTED, **elsewhere), "DEAD_LETTER"),
    ]
    groups = [
        RequestGroup(f"hostile: {title}", frozenset([_named(request)]), Counter([outcome]))
        for title, request, outcome in requests
    ]
    groups.append(RequestGroup("hostile: bytes that are not JSON", frozenset([NOTHING]), Counter(DEAD_LETTER=1)))
    return groups, [*(encode(request) for _title, request, _outcome in requests), b"\x00\xffdrop table"]


def repeated(groups: list[RequestGroup], rows: list[Row], times: int) -> tuple[list[RequestGroup], list[bytes]]:
    """Request one of the audit's orphans several times more, as a group of its own."""
    row = next(row for row in rows if row[a.CLASS] == FindingClass.ORPHAN and _is_data_of(row, CLICKS))
    request = _request(CLICKS, row[c.LEDGER_ID])
    named = _named(request)
    rest = [
        replace(group, named=group.named - {named}, expected=Counter(DELETED=len(group.named - {named})))
        for group in groups
    ]
    expected = Counter(DELETED=1, ALREADY_GONE=times)
    again = RequestGroup(f"one of them {times} times more", frozenset([named]), expected)
    return [*rest, again], [encode(request)] * times


def _is_data_of(row: Row, topic: str) -> bool:
    of = (row[c.COMPONENT], row[c.LEDGER_TYPE], row[c.TOPIC_NAME])
    return of == (LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, topic)


def _request(topic: str, ledger_id: int) -> PendingDelete:
    return PendingDelete(
        managed_ledger=managed_ledger_name(topic),
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
    )


def _offloaded(cluster: Cluster, attempt: Attempt, *, ledger_id: int = -1, **elsewhere: str) -> PendingDelete:
    location = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3, "region": cluster.region} | elsewhere
    return replace(
        _request(attempt.topic, attempt.ledger_id if ledger_id < 0 else ledger_id),
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        offload_context=OffloadContext(uuid=attempt.uuid, driver_name="S3", driver_properties=location),
    )


def _named(request: PendingDelete) -> Named:
    tenant, namespace, _domain, name = request.managed_ledger.split("/")
    return request.ledger_id, f"persistent://{tenant}/{namespace}/{name}", str(request.ledger_type)
