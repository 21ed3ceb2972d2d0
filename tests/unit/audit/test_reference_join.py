"""Existing ledgers and objects are compared with the references of topics, in small frames."""

from typing import Any

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.tables import Rows, Tables
from tests.builders import SEGMENT, TOPIC, UUID
from tests.unit.audit.frames import ids
from udfs import columns as c

STORE = "http://s3 offloads"
OTHER_UUID = UUID.replace("0", "f", 1)


def _listed(tables: Tables, *ids: int) -> Rows:
    return tables.of([*({c.LEDGER_ID: i} for i in ids), {a.PATH: "/ledgers/01", c.DETAIL: "no right"}], a.LISTED)


def _reference(ledger_id: int, **changes: Any) -> dict[str, Any]:
    row = {
        c.LEDGER_ID: ledger_id,
        a.IN_BOOKKEEPER: True,
        c.REFERENCE_KEY: f"data:{TOPIC}",
        c.COMPONENT: "MANAGED_LEDGER",
        a.MANAGED_LEDGER: TOPIC,
        a.NAMESPACE: "public/default",
        c.BYTES: 100,
    }
    return row | changes


def _offload(ledger_id: int, **changes: Any) -> dict[str, Any]:
    offload = {a.IN_BOOKKEEPER: False, c.UUID: UUID, a.STORE: STORE, a.IS_COMPLETE: True}
    return _reference(ledger_id, **offload) | changes


def _pair(ledger_id: int, uuid: str = UUID, *, index: bool = True, size: int = 10) -> list[dict[str, Any]]:
    data = {a.STORE: STORE, c.UUID: uuid, c.LEDGER_ID: ledger_id, a.IS_INDEX: False, c.BYTES: size, a.LAST_CHANGE_MS: 5}
    return [data, data | {a.IS_INDEX: True, c.BYTES: 1, a.LAST_CHANGE_MS: 7}] if index else [data]


def test_the_ledgers_of_unnamed_segments_are_suspects_with_their_reason(tables: Tables) -> None:
    other, v1 = "public/default/segment/orders/8000-ffff-1", "t/c/segment/persistent/orders"
    references = tables.of(
        [
            _reference(1, **{a.MANAGED_LEDGER: SEGMENT}),
            _reference(2, **{a.MANAGED_LEDGER: SEGMENT, c.COMPONENT: "MANAGED_CURSOR"}),
            _offload(3, **{a.MANAGED_LEDGER: SEGMENT}),
            _reference(4, **{a.MANAGED_LEDGER: other}),
            _reference(5, **{a.MANAGED_LEDGER: v1}),
            _reference(6),
        ],
        a.REFERENCE,
    )
    names = {row[a.MANAGED_LEDGER] for row in reference_join.segments(references).fetched()}
    suspects = reference_join.of_unnamed_segments(references, [SEGMENT]).fetched()

    assert names == {SEGMENT, other}
    assert sorted(row[c.LEDGER_ID] for row in suspects) == [1, 2]
    assert {(row[c.REASON], row[a.IS_REFERENCE], row[a.CLASS], row[c.BYTES]) for row in suspects} == {
        ("SEGMENT_UNNAMED", True, None, 100)
    }


def test_a_ledger_that_no_list_keeps_in_bookkeeper_is_a_suspect(tables: Tables) -> None:
    references = tables.of(
        [
            _reference(1),
            _reference(1),
            _reference(9),
            _offload(3),
            {a.PATH: "/managed-ledgers/x", c.DETAIL: "no right"},
        ],
        a.REFERENCE,
    )

    assert ids(reference_join.unreferenced(reference_join.one_sided(_listed(tables, 1, 2, 3), references))) == [2, 3]


def test_a_reference_without_its_ledger_is_a_suspect_with_its_owner(tables: Tables) -> None:
    references = tables.of([_reference(1), _reference(9), _offload(8)], a.REFERENCE)

    (row,) = reference_join.unlisted(references, reference_join.one_sided(_listed(tables, 1, 2), references)).fetched()

    assert (row[c.LEDGER_ID], row[c.REFERENCE_KEY], row[a.IS_REFERENCE]) == (9, f"data:{TOPIC}", True)
    assert (row[c.LEDGER_TYPE], row[c.BYTES], row[a.CLASS]) == ("LEDGER", 100, None)


def test_objects_of_an_attempt_that_is_not_listed_are_suspects(tables: Tables) -> None:
    pairs = reference_join.pairs_of(tables.of([*_pair(1), *_pair(1, OTHER_UUID), *_pair(2)], a.OBJECT))
    references = tables.of([_offload(1, **{a.STORE: "http://elsewhere b"})], a.REFERENCE)

    rows = reference_join.unreferenced_pairs(pairs, references).fetched()

    assert sorted((row[c.LEDGER_ID], row[c.UUID]) for row in rows) == [(1, OTHER_UUID), (2, UUID)]
    assert {(row[c.BYTES], row[a.LAST_CHANGE_MS]) for row in rows} == {(11, 7)}


def test_a_complete_offload_without_both_objects_may_be_missing(tables: Tables) -> None:
    pairs = reference_join.pairs_of(tables.of([*_pair(1), *_pair(2, index=False)], a.OBJECT))
    missing = [
        _offload(2),  # its index is missing
        _offload(3),  # no objects
        _offload(4, **{a.STORE: ""}),  # names no bucket: it means the only bucket
    ]
    others = [
        _offload(1),  # both objects exist
        _offload(5, **{a.IS_COMPLETE: False}),
        _offload(6, **{a.STORE: "http://elsewhere b"}),  # a bucket that was not listed
        _reference(7),  # not offloaded
    ]

    rows = reference_join.unlisted_objects(tables.of([*missing, *others], a.REFERENCE), pairs, [STORE], STORE)

    assert ids(rows) == [2, 3, 4]
