"""Compares the ledgers and objects that exist with those that topics refer to.

Ledgers are compared by their id alone, in one outer join on longs; objects by the UUID and ledger id in their names.
"""

from collections.abc import Sequence

from streaming.audit import audit_columns as a
from streaming.audit.tables import Rows
from udfs import columns as c
from udfs.paths import SEGMENT_DOMAIN
from udfs.records import LedgerType, Reason

# The condition that a managed ledger is a segment's. Its name has five parts, as a V1 topic's name has; udfs.paths
# distinguishes them in the same way.
IS_SEGMENT = (
    f"regexp_full_match({a.MANAGED_LEDGER}, '[^/]+/[^/]+/{SEGMENT_DOMAIN}/[^/]+/[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9]+')"
)


def ids_of(listed: Rows) -> Rows:
    """Return the ids that were listed, without the rows about paths that could not be listed."""
    return listed.select(f"SELECT {c.LEDGER_ID} FROM rows WHERE {c.LEDGER_ID} IS NOT NULL")


def bookkeeper_references(references: Rows) -> Rows:
    """Select the references that keep a BookKeeper ledger alive."""
    return references.where(a.IN_BOOKKEEPER)


def pairs_of(objects: Rows) -> Rows:
    """Return a row for each offload attempt: which of its two objects exist, their bytes, and their last change."""
    return objects.select(
        f"""
        SELECT {a.STORE}, {c.UUID}, {c.LEDGER_ID}, sum({c.BYTES})::BIGINT AS {c.BYTES},
            max({a.LAST_CHANGE_MS}) AS {a.LAST_CHANGE_MS},
            bool_or(NOT {a.IS_INDEX}) AS {a.HAS_DATA}, bool_or({a.IS_INDEX}) AS {a.HAS_INDEX}
        FROM rows WHERE {c.UUID} IS NOT NULL GROUP BY ALL
        """
    )


def offload_references(references: Rows, only_store: str) -> Rows:
    """Select the references to tiered storage.

    Args:
        references: rows of audit_columns.REFERENCE.
        only_store: the bucket of references that name none; "" if there is no such bucket.
    """
    return references.select(
        f"""
        SELECT * REPLACE (CASE WHEN {a.STORE} = '' THEN $only_store ELSE {a.STORE} END AS {a.STORE})
        FROM rows WHERE {c.UUID} IS NOT NULL
        """,
        only_store=only_store,
    )


def unreferenced_pairs(pairs: Rows, references: Rows) -> Rows:
    """Return the offload attempts that no reference names."""
    # the bucket that a reference names does not matter, because no UUID is ever assigned twice
    named = offload_references(references, "")
    return pairs.select(f"FROM rows ANTI JOIN named USING ({c.UUID}, {c.LEDGER_ID})", named=named)


def unlisted_objects(references: Rows, pairs: Rows, stores: Sequence[str], only_store: str) -> Rows:
    """Return references to complete offloads with a missing object, as suspects (audit_columns.SUSPECT).

    Only references to `stores` count, which are the buckets that could be listed.
    """
    complete = offload_references(references, only_store).where(
        f"{a.IS_COMPLETE} AND list_contains($stores::VARCHAR[], {a.STORE})", stores=[*stores]
    )
    whole = pairs.where(f"{a.HAS_DATA} AND {a.HAS_INDEX}")
    missing = complete.select(f"FROM rows ANTI JOIN whole USING ({c.UUID}, {c.LEDGER_ID})", whole=whole)
    return _as_missing(missing, LedgerType.OFFLOAD_LEDGER)


def one_sided(listed: Rows, references: Rows) -> Rows:
    """Return the ledger ids that only one of the two sides has; IS_REFERENCE: only `references` has the id."""
    return ids_of(listed).select(
        f"""
        SELECT coalesce(rows.{c.LEDGER_ID}, named.{c.LEDGER_ID}) AS {c.LEDGER_ID},
            rows.{c.LEDGER_ID} IS NULL AS {a.IS_REFERENCE}
        FROM rows FULL JOIN named ON rows.{c.LEDGER_ID} = named.{c.LEDGER_ID}
        WHERE rows.{c.LEDGER_ID} IS NULL OR named.{c.LEDGER_ID} IS NULL
        """,
        named=bookkeeper_references(references),
    )


def unreferenced(compared: Rows) -> Rows:
    """Select from one_sided's rows the ids that were listed and that no reference names."""
    return compared.select(f"SELECT {c.LEDGER_ID} FROM rows WHERE NOT {a.IS_REFERENCE}")


def unlisted(references: Rows, compared: Rows) -> Rows:
    """Return the references whose ledger was not listed, as suspects (audit_columns.SUSPECT)."""
    missing = bookkeeper_references(references).select(
        f"FROM rows SEMI JOIN compared USING ({c.LEDGER_ID})", compared=compared.where(a.IS_REFERENCE)
    )
    return _as_missing(missing, LedgerType.LEDGER)


def segments(references: Rows) -> Rows:
    """Return the managed ledgers of all segments that name a ledger, each once."""
    return references.select(
        f"""
        SELECT DISTINCT {a.MANAGED_LEDGER} FROM rows
        WHERE {c.LEDGER_ID} IS NOT NULL AND {a.IN_BOOKKEEPER} AND {IS_SEGMENT}
        """
    )


def of_unnamed_segments(references: Rows, managed_ledgers: Sequence[str]) -> Rows:
    """Return the references of these segments, as suspects (audit_columns.SUSPECT) with the reason SEGMENT_UNNAMED."""
    theirs = bookkeeper_references(references).where(
        f"list_contains($names::VARCHAR[], {a.MANAGED_LEDGER})", names=[*managed_ledgers]
    )
    return _as_missing(theirs, LedgerType.LEDGER).select(
        f"SELECT * REPLACE ($reason::VARCHAR AS {c.REASON}) FROM rows", reason=str(Reason.SEGMENT_UNNAMED)
    )


def problems(rows: Rows) -> Rows:
    """Return the paths that could not be read, with the reasons."""
    return rows.select(f"SELECT DISTINCT {a.PATH}, {c.DETAIL} FROM rows WHERE {a.PATH} IS NOT NULL ORDER BY ALL")


def askable(suspects: Rows) -> Rows:
    """Select the suspects that have an owner to read; the others have their class already."""
    return suspects.where(f"{a.CLASS} IS NULL")


def candidates(checked: Rows) -> Rows:
    """Select the suspects that were orphans, or missing, in the first check."""
    return checked.where(a.CANDIDATE)


def by_owner(suspects: Rows) -> Rows:
    """Sort the suspects by owner."""
    # so that a task reads the owner once
    return suspects.select(f"FROM rows ORDER BY {c.REFERENCE_KEY}, {c.LEDGER_ID}, {c.UUID}")


def _as_missing(references: Rows, ledger_type: LedgerType) -> Rows:
    there = {c.LEDGER_ID, c.COMPONENT, a.MANAGED_LEDGER, c.UUID, a.STORE, c.REFERENCE_KEY, c.BYTES, c.DETAIL}
    values = {c.LEDGER_TYPE: "$ledger_type", a.IS_REFERENCE: "true"}
    kinds = {"int64": "BIGINT", "bool": "BOOLEAN"}
    columns = ", ".join(
        f"{field.name if field.name in there else values.get(field.name, 'NULL')}"
        f"::{kinds.get(str(field.type), 'VARCHAR')} AS {field.name}"
        for field in a.SUSPECT
    )
    return references.select(f"SELECT {columns} FROM rows", ledger_type=str(ledger_type))
