"""Packed names of a znode are unpacked unchanged."""

import pytest

from tests.builders import CURSOR, SCHEMA, TOPIC, UUID
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    OffloadState,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.formats.schema_locator import serialize_schema_locator
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.phase_one.kept_names import BY_CLIENTS, packed, still_named, unpacked
from udfs.phase_one.vanished_names import names_in

HERE = OffloadState(uuid=UUID, complete=True, driver_name="aws-s3", driver_properties={"bucket": "b", "region": "r"})
THERE = OffloadState(uuid=UUID[::-1][:4] + UUID[4:], complete=True, driver_name="S3", driver_properties={"bucket": "ü"})
UPLOADED = serialize_managed_ledger(
    ManagedLedgerInfo(
        (
            LedgerInfo(ledger_id=5, entries=10, offload=HERE),
            LedgerInfo(ledger_id=6, entries=1, offload=THERE),
            LedgerInfo(ledger_id=2**62),
        )
    )
)
CURSORS = serialize_cursor(
    ManagedCursorInfo(
        cursors_ledger_id=77,
        mark_delete_ledger_id=1,
        mark_delete_entry_id=1,
        properties={"CompactedTopicLedger": 9},
        cursor_properties={"#pulsar.internal.delayed.bucket_1_2": "8"},
    )
)
ZNODES = {
    "a topic with uploads": (managed_ledger_path(TOPIC), UPLOADED),
    "a new topic": (managed_ledger_path(TOPIC), b""),
    "a cursor": (cursor_path(TOPIC, CURSOR), CURSORS),
    "the cursor of compaction": (cursor_path(TOPIC, "__compaction"), CURSORS),
    "a schema": (schema_path(SCHEMA), serialize_schema_locator([(3, 0), (4, 0)])),
}


@pytest.mark.parametrize(("path", "data"), ZNODES.values(), ids=ZNODES)
def test_names_are_unpacked_as_they_were_packed(path: str, data: bytes) -> None:
    names = names_in(path, data)
    kept = packed(names)
    assert unpacked(path, kept) == names
    assert packed(dict(reversed(names.items()))) == kept, "equal names are equal bytes"
    candidates = {(ledger_id, uuid) for _component, ledger_id, uuid in names}
    by_clients = {(ledger_id, "") for component, ledger_id, _ in names if component in BY_CLIENTS}
    assert still_named(kept, candidates | {(10**15, ""), (5, "other")}) == candidates - by_clients
    assert still_named(kept, {(10**15, "")}) == set()


def test_an_upload_alone_keeps_no_ledger_in_bookkeeper() -> None:
    kept = packed(
        {name: request for name, request in names_in(managed_ledger_path(TOPIC), UPLOADED).items() if name[2]}
    )
    assert still_named(kept, {(5, ""), (6, ""), (2**62, ""), (5, UUID)}) == {(5, UUID)}


@pytest.mark.parametrize("cut", [0, 3, 24, 30, -1])
def test_other_bytes_are_refused(cut: int) -> None:
    kept = packed(names_in(managed_ledger_path(TOPIC), UPLOADED))
    with pytest.raises(FormatError, match="can't be read"):
        unpacked(managed_ledger_path(TOPIC), kept[:cut])
