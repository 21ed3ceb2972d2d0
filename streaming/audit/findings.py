"""Turns the results of the checks into findings: one numbered table and its totals."""

from collections.abc import Mapping
from typing import Any

from streaming.audit import audit_columns as a
from streaming.audit.certificate import MAX_NAMESPACES
from streaming.audit.reference_join import IS_SEGMENT
from streaming.audit.result import InUse
from streaming.audit.tables import Rows
from udfs import columns as c
from udfs.paths import SEGMENT_DOMAIN
from udfs.records import LedgerType
from udfs.verdicts.finding_classes import NOT_FINDINGS, UNREAD, FindingClass

_MS_PER_SECOND = 1000
_NAMESPACES = 500
# A local name that can't be decoded is shown as it is. HUGEINT: the time in a ledger's metadata may be any number.
_NAMED = f"""
    SELECT *,
        {IS_SEGMENT} AS is_segment,
        CASE WHEN is_segment THEN regexp_extract({a.MANAGED_LEDGER}, '^[^/]+/[^/]+')
            ELSE {a.MANAGED_LEDGER}.string_split('/persistent/')[1] END AS {a.NAMESPACE},
        {a.MANAGED_LEDGER}.string_split('/')[1] AS {c.TENANT},
        CASE WHEN is_segment THEN regexp_extract({a.MANAGED_LEDGER}, '[^/]+/[^/]+$')
            ELSE {a.MANAGED_LEDGER}.string_split('/persistent/')[2] END AS local_name,
        CASE WHEN is_segment THEN '{SEGMENT_DOMAIN}://' ELSE 'persistent://' END
            || {a.NAMESPACE} || '/' || coalesce(TRY(url_decode(replace(local_name, '+', ' '))), local_name)
            AS {c.TOPIC_NAME},
        floor(({a.SEEN_MS}::HUGEINT - {a.LAST_CHANGE_MS}) / {_MS_PER_SECOND})::BIGINT AS {a.AGE_SECONDS}
    FROM rows
"""


def findings(suspects: Rows, first: Rows, second: Rows) -> Rows:
    """Return every finding with the columns of audit_columns.FINDING, ordered by class and owner, and numbered.

    Args:
        suspects: the suspects; those without an owner have their class already.
        first: the suspects after the first check. For its candidates, only the second check's result counts.
        second: the candidates after the second check.
    """
    final = suspects.where(f"{a.CLASS} IS NOT NULL").and_also(first.where(f"NOT {a.CANDIDATE}"), second)
    found = final.where(f"NOT list_contains($others, {a.CLASS})", others=[str(name) for name in NOT_FINDINGS])
    order = ", ".join((a.CLASS, c.REFERENCE_KEY, c.LEDGER_ID, c.UUID, a.STORE))
    numbered = f"SELECT *, row_number() OVER (ORDER BY {order}) - 1 AS {a.NUMBER} FROM rows"
    return found.select(_NAMED).select(numbered).select(f"SELECT {', '.join(a.FINDING)} FROM rows ORDER BY {a.NUMBER}")


def unjudged_by_namespace(found: Rows) -> list[tuple[str, int, str]]:
    """Return (namespace, count, detail of one of them) for the suspects that brokers could not be asked about."""
    rows = found.select(
        f"""
        SELECT coalesce({a.NAMESPACE}, '') AS {a.NAMESPACE}, count(*) AS n, min({c.DETAIL}) AS {c.DETAIL}
        FROM rows WHERE {is_class(FindingClass.UNKNOWN)} AND list_contains($unread, {c.REASON})
        GROUP BY ALL ORDER BY {a.NAMESPACE} LIMIT {MAX_NAMESPACES + 1}
        """,
        unread=[str(reason) for reason in UNREAD],
    ).fetched()
    return [(row[a.NAMESPACE], row["n"], row[c.DETAIL] or "") for row in rows]


def is_class(finding_class: FindingClass) -> str:
    """Return the condition that selects the rows of that class."""
    return f"{a.CLASS} = '{FindingClass(finding_class).value}'"


def totals(found: Rows, first: Rows, second: Rows, listed: Mapping[str, int]) -> dict[str, Any]:
    """Count what was listed, what is in use, and each class of findings with its bytes."""
    classes = {name: {"count": 0, "bytes": 0} for name in FindingClass if name not in NOT_FINDINGS}
    by_class = f"SELECT {a.CLASS} AS label, count(*) AS n, sum({c.BYTES}) AS total FROM rows GROUP BY ALL"
    for row in found.select(by_class).fetched():
        classes[FindingClass(row["label"])] = {"count": row["n"], "bytes": row["total"] or 0}
    checked = first.where(f"NOT {a.CANDIDATE}").and_also(second)
    used_after_all = checked.where(
        f"{is_class(FindingClass.IN_USE)} AND {c.LEDGER_TYPE} = $ledger AND NOT {a.IS_REFERENCE}",
        ledger=str(LedgerType.LEDGER),
    ).count()
    in_use = listed["ledgers"] - listed["unreferenced"] + used_after_all
    counts = {"ledgers": listed["ledgers"], "objects": listed["objects"], "in_use": in_use}
    return counts | {str(each): amount for each, amount in classes.items()}


def in_use_by_namespace(references: Rows) -> tuple[InUse, ...]:
    """Add up the references of the topics' lists by namespace, component and ledger type.

    Only the _NAMESPACES groups with the most bytes are returned, so a namespace may lose its small groups.
    """
    largest = references.select(
        f"""
        SELECT {a.NAMESPACE}, {c.COMPONENT}, CASE WHEN {a.IN_BOOKKEEPER} THEN $ledger ELSE $offload END AS kind,
            count(*) AS n, sum({c.BYTES}) AS total
        FROM rows WHERE {c.LEDGER_ID} IS NOT NULL
        GROUP BY ALL ORDER BY total DESC, {a.NAMESPACE}, {c.COMPONENT}, kind LIMIT {_NAMESPACES}
        """,
        ledger=str(LedgerType.LEDGER),
        offload=str(LedgerType.OFFLOAD_LEDGER),
    )
    return tuple(
        InUse(
            namespace=row[a.NAMESPACE],
            component=row[c.COMPONENT],
            ledger_type=row["kind"],
            count=row["n"],
            size_bytes=row["total"] or 0,
        )
        for row in largest.fetched()
    )
