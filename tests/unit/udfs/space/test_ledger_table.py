"""Where the entries of ledgers are, compared with a count entry by entry."""

import re
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import NOW_MS, bucket_custom, compacted_custom, cursor_custom, data_custom, metadata, schema_custom
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import PlacedLedger, parse_placed, serialize_message
from udfs.proto.bookkeeper_pb2 import LedgerMetadataFormat
from udfs.records import LedgerState
from udfs.space.ledger_table import RECORD_BYTES, Kind, LedgerTable, TableBuilder

BOOKIES = ("a", "b", "c", "d")


def placed(
    length: int,
    entries: int,
    quorum: int,
    *segments: tuple[int, tuple[str, ...]],
    state: LedgerState = LedgerState.CLOSED,
) -> PlacedLedger:
    found = replace(metadata(state=state), length_bytes=length, last_entry_id=entries - 1)
    return PlacedLedger(found, quorum, 4, segments, quorum)


def table_of(*ledgers: PlacedLedger) -> LedgerTable:
    builder = TableBuilder()
    for ledger_id, each in reversed([*enumerate(ledgers)]):
        builder.add(ledger_id, each, NOW_MS)
    return builder.build()


@st.composite
def ledgers(draw: st.DrawFn) -> PlacedLedger:
    size = draw(st.integers(1, 4))
    quorum = draw(st.integers(1, size))
    entries = draw(st.integers(0, 30))
    length = draw(st.integers(0, 10**12)) if entries else 0
    starts = sorted({0, *draw(st.lists(st.integers(0, 30), max_size=2))})
    ensembles = [tuple(draw(st.permutations(BOOKIES))[:size]) for _ in starts]
    return placed(length, entries, quorum, *zip(starts, ensembles, strict=True))


@settings(max_examples=300, deadline=None)
@given(st.lists(ledgers(), max_size=6))
def test_bookies_hold_the_copies_of_each_entry(all_ledgers: list[PlacedLedger]) -> None:
    ledger_count: Counter[str] = Counter()
    live: Counter[str] = Counter()
    for ledger in all_ledgers:
        entries = ledger.metadata.last_entry_id + 1
        copies: Counter[str] = Counter()
        for entry in range(entries):
            ensemble = [bookies for first, bookies in ledger.segments if first <= entry][-1]
            copies.update(ensemble[(entry + copy) % len(ensemble)] for copy in range(ledger.write_quorum))
        ledger_count.update(copies.keys())
        for bookie, count in copies.items():
            live[bookie] += count * (RECORD_BYTES + 4) + ledger.metadata.length_bytes * count // entries
    table = table_of(*all_ledgers)
    found = table.on_bookies()
    assert {bookie: count for bookie, (count, _live) in found.items()} == ledger_count
    for bookie, (_count, bytes_there) in found.items():
        assert abs(bytes_there - live[bookie]) <= len(all_ledgers) + live[bookie] * 1e-12, "an average entry, rounded"
    assert sum(bytes_there for _count, bytes_there in found.values()) == table.stored.sum()


def test_overhead_is_counted_by_entry_and_copy() -> None:
    table = table_of(placed(1_000, 10, 2, (0, ("a", "b"))), placed(1_000, 10, 1, (0, ("a", "b"))))
    assert table.stored.tolist() == [2 * (1_000 + 10 * 40), 1_000 + 10 * 40]
    assert table.on_bookies() == {"a": (2, 1_400 + 700), "b": (2, 1_400 + 700)}


def test_an_empty_or_open_ledger_is_on_no_bookie_until_its_broker_reports_a_length() -> None:
    table = table_of(placed(0, 0, 2, (0, ("a", "b"))), placed(0, 0, 2, (0, ("a", "b")), state=LedgerState.OPEN))
    assert table.on_bookies() == {}
    for ledger_id in (0, 1, 9):
        table.set_open(ledger_id, length=100, entries=2)
    assert table.on_bookies() == {"a": (1, 180), "b": (1, 180)}
    assert table.length.tolist() == [0, 100]


def test_a_ledger_is_claimed_once() -> None:
    table = table_of(placed(5, 1, 2, (0, ("a", "b"))))
    first, absent = table.claim([0, 7])
    assert first is not None
    assert (first.length, first.entries, first.stored, first.is_closed, first.is_first) == (5, 1, 90, True, True)
    assert absent is None
    (again,) = table.claim([0])
    assert again is not None
    assert not again.is_first
    assert table_of().claim([0]) == [None]
    assert table.claim([]) == []


@pytest.mark.parametrize(
    ("custom", "kind", "owner"),
    [
        (data_custom(), Kind.DATA, "public/default/persistent/orders"),
        (cursor_custom(), Kind.CURSOR, "public/default/persistent/orders"),
        (schema_custom(), Kind.SCHEMA, "public/default/persistent/orders"),
        (compacted_custom(), Kind.COMPACTED, "public/default/persistent/orders"),
        (bucket_custom(), Kind.BUCKET, "public/default/persistent/orders"),
        ({}, Kind.FOREIGN, None),
        ({"application": b"pulsar"}, Kind.UNCLEAR, None),
        (data_custom("no topic"), Kind.UNCLEAR, None),
    ],
)
def test_metadata_name_kind_and_owner(custom: dict[str, bytes], kind: Kind, owner: str | None) -> None:
    builder = TableBuilder()
    for ledger_id in (1, 2):
        builder.add(ledger_id, PlacedLedger(metadata(custom), 2, 4, ((0, ("a", "b")),), 2), NOW_MS)
    table = builder.build()
    assert table.kind.tolist() == [kind, kind]
    assert [table.owners[code] if code >= 0 else None for code in table.owner.tolist()] == [owner, owner]


OTHER = data_custom("public/default/persistent/other")
CUSTOM: tuple[dict[str, bytes], ...] = (data_custom(), OTHER, cursor_custom(), {})
NUMBERS = st.sampled_from((-(2**31), -1, 0, 1, 2, 3, 1_001, 2**31 - 1))
LONG_NUMBERS = st.sampled_from((-(2**63), -1, 0, 9, 2**46, 2**46 + 1, 2**63 - 1))


@st.composite
def znodes(draw: st.DrawFn) -> bytes:
    """Ledgers of few topics and ensembles, half of them with an odd number, without a field, or damaged."""
    message = LedgerMetadataFormat(quorumSize=2, ensembleSize=2, ackQuorumSize=2, length=100, lastEntryId=9, ctime=7)
    message.state = draw(st.sampled_from((LedgerMetadataFormat.CLOSED, LedgerMetadataFormat.OPEN)))
    message.digestType = draw(st.sampled_from((LedgerMetadataFormat.CRC32C, LedgerMetadataFormat.HMAC)))
    for first in range(draw(st.sampled_from((1, 1, 1, 2)))):
        message.segment.add(firstEntryId=first, ensembleMember=draw(st.sampled_from((["a", "b"], ["b", "c", "d"]))))
    for key, value in draw(st.sampled_from(CUSTOM)).items():
        message.customMetadata.add(key=key, value=value)
    names = draw(st.sampled_from((*[field.name for field in message.DESCRIPTOR.fields], *[""] * 12)))
    change = draw(st.integers(0, 3))
    if names and not change:
        message.ClearField(names)
    elif names.endswith("Size"):
        setattr(message, names, draw(NUMBERS))
    elif names in ("length", "lastEntryId", "ctime"):
        setattr(message, names, draw(LONG_NUMBERS))
    body = bytearray(message.SerializePartialToString())
    if names == "password":
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return serialize_message(bytes(body))


@settings(max_examples=500, deadline=None)
@given(st.lists(znodes(), max_size=12))
def test_znodes_are_read_as_parse_placed_reads_them(datas: list[bytes]) -> None:
    found, expected = TableBuilder(), TableBuilder()
    for ledger_id, data in enumerate(datas * 2):
        try:
            expected.add(ledger_id, parse_placed(data), 5)
        except FormatError as error:
            with pytest.raises(FormatError, match=re.escape(str(error))):
                found.add_znode(ledger_id, data, 5)
        else:
            found.add_znode(ledger_id, data, 5)
    for of_found, of_expected in zip(columns_of(found.build()), columns_of(expected.build()), strict=True):
        assert of_found == of_expected


def columns_of(table: LedgerTable) -> list[object]:
    values = [getattr(table, each.name) for each in fields(table)]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
