"""A name that vanishes from an owner's znode becomes a request; a znode that can't be read requests nothing."""

from dataclasses import replace

import pytest

from tests.builders import (
    CURSOR,
    SCHEMA,
    SEGMENT,
    TOPIC,
    UUID,
    bucket_request,
    compacted_request,
    cursor_request,
    data_request,
    list_znode,
    schema_request,
)
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
from udfs.phase_one.vanished_names import ZnodeKind, is_nameable, kind_of, names_in, vanished
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete
from udfs.requests.request_format import decode, encode

OFFLOAD = OffloadState(uuid=UUID, complete=True, driver_name="aws-s3", driver_properties={"bucket": "b"})
TOPIC_PATH = managed_ledger_path(TOPIC)


def listed(*ledgers: LedgerInfo | int) -> bytes:
    infos = [LedgerInfo(ledger_id=ledger, entries=10) if isinstance(ledger, int) else ledger for ledger in ledgers]
    return serialize_managed_ledger(ManagedLedgerInfo(tuple(infos)))


def upload(ledger_id: int, uuid: str = UUID) -> PendingDelete:
    context = OffloadContext(uuid=uuid, driver_name="aws-s3", driver_properties={"bucket": "b"})
    return PendingDelete(
        managed_ledger=TOPIC,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        ledger_id=ledger_id,
        offload_context=context,
    )


def gone(path: str, before: bytes, after: bytes | None) -> list[PendingDelete]:
    return vanished(names_in(path, before), names_in(path, after) if after is not None else {})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(listed(5, 6, 7), listed(6, 7), [data_request(5)], id="a list that shrank"),
        pytest.param(listed(5), listed(5, 6), [], id="a list that grew"),
        pytest.param(listed(5, 6), None, [data_request(5), data_request(6)], id="a topic that went"),
        pytest.param(listed(5), listed(), [data_request(5)], id="an empty list"),
        pytest.param(
            listed(5), listed(LedgerInfo(ledger_id=5, entries=10, offload=OFFLOAD)), [], id="an upload was made"
        ),
        pytest.param(
            listed(LedgerInfo(ledger_id=5, entries=10, offload=OFFLOAD)),
            listed(LedgerInfo(ledger_id=5, entries=10, offload=replace(OFFLOAD, bookkeeper_deleted=True))),
            [data_request(5)],
            id="BookKeeper's copy is needed no more, though it is listed",
        ),
        pytest.param(
            listed(LedgerInfo(ledger_id=5, entries=10, offload=OFFLOAD)),
            listed(
                LedgerInfo(
                    ledger_id=5, entries=10, offload=replace(OFFLOAD, uuid=UUID[::-1].replace("-", "")[:8] + UUID[8:])
                )
            ),
            [upload(5)],
            id="an upload was replaced",
        ),
        pytest.param(
            listed(LedgerInfo(ledger_id=5, entries=10, offload=replace(OFFLOAD, bookkeeper_deleted=True)), 6),
            listed(6),
            [upload(5)],
            id="an offloaded ledger was dropped",
        ),
    ],
)
def test_a_ledger_that_vanishes_from_a_list_is_requested(
    before: bytes, after: bytes | None, expected: list[PendingDelete]
) -> None:
    requests = gone(TOPIC_PATH, before, after)
    assert requests == expected
    assert [decode(encode(request)) for request in requests] == [
        replace(request, offload_context=replace(request.offload_context)) if request.offload_context else request
        for request in expected
    ]


def cursor(ledger_id: int = 5, **rest: dict[str, int] | dict[str, str]) -> bytes:
    return serialize_cursor(ManagedCursorInfo(cursors_ledger_id=ledger_id, **rest))  # type: ignore[arg-type]


def test_a_ledger_that_vanishes_from_a_segment_is_requested() -> None:
    path = managed_ledger_path(SEGMENT)
    assert gone(path, list_znode(5, 8), list_znode(8, 9)) == [data_request(5, SEGMENT)]
    path = cursor_path(SEGMENT, CURSOR)
    assert gone(path, cursor(5), None) == [cursor_request(5, SEGMENT)]


@pytest.mark.parametrize(
    ("path", "is_named"),
    [
        (managed_ledger_path(SEGMENT), True),
        (cursor_path(SEGMENT, CURSOR), True),
        ("/managed-ledgers/t/ns/segment/x/all", False),
    ],
)
def test_a_request_can_name_a_segment(path: str, is_named: bool) -> None:
    assert is_nameable(path) is is_named


def test_a_ledger_that_vanishes_from_a_cursor_is_requested() -> None:
    path = cursor_path(TOPIC, CURSOR)
    bucket = {"cursor_properties": {"#pulsar.internal.delayed.bucket_1_9": "8", "client's own": "9"}}
    assert gone(path, cursor(5), cursor(6)) == [cursor_request(5)]
    assert gone(path, cursor(5), cursor(-1)) == [cursor_request(5)]
    assert gone(path, cursor(5), None) == [cursor_request(5)]
    assert gone(path, cursor(5, **bucket), cursor(5)) == [bucket_request(8)]


def test_the_compacted_ledger_is_known_by_the_cursor_of_compaction_alone() -> None:
    named: dict[str, dict[str, int]] = {"properties": {"CompactedTopicLedger": 8}}
    assert gone(cursor_path(TOPIC, "__compaction"), cursor(5, **named), cursor(5)) == [compacted_request(8)]
    assert gone(cursor_path(TOPIC, CURSOR), cursor(5, **named), cursor(5)) == []


def test_all_versions_of_a_schema_that_is_gone_are_requested() -> None:
    locator = serialize_schema_locator([(5, 0), (6, 0)])
    assert gone(schema_path(SCHEMA), locator, None) == [schema_request(5), schema_request(6)]


@pytest.mark.parametrize("path", [TOPIC_PATH, cursor_path(TOPIC, CURSOR), schema_path(SCHEMA)])
def test_a_znode_that_can_not_be_parsed_is_an_error_and_nothing_has_vanished(path: str) -> None:
    with pytest.raises(FormatError):
        names_in(path, b"\xff\xff")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/managed-ledgers/t/ns/persistent/x", ZnodeKind.TOPIC),
        ("/managed-ledgers/t/ns/persistent/x/s", ZnodeKind.CURSOR),
        ("/managed-ledgers/t/c/ns/persistent/x", ZnodeKind.TOPIC),
        ("/managed-ledgers/t/c/ns/persistent/x/s", ZnodeKind.CURSOR),
        ("/managed-ledgers/t/persistent/persistent/x", ZnodeKind.TOPIC),
        ("/managed-ledgers/t/c/persistent/persistent/x", None),  # a topic of V1, or a cursor
        ("/managed-ledgers/t/ns/segment/x/0000-ffff-0", ZnodeKind.TOPIC),
        ("/managed-ledgers/t/ns/segment/x/0000-ffff-0/s", ZnodeKind.CURSOR),
        ("/managed-ledgers/t/ns/segment/x", None),
        ("/managed-ledgers/t/c/segment/persistent/x", ZnodeKind.TOPIC),
        ("/managed-ledgers/t/ns/segment/persistent/0000-ffff-0/s", ZnodeKind.CURSOR),
        ("/managed-ledgers/t/ns/persistent", None),
        ("/managed-ledgers/t/ns", None),
        ("/schemas/t/ns/x", ZnodeKind.SCHEMA),
        ("/schemas/t/ns", None),
        ("/ledgers/00/0000/L0001", None),
    ],
)
def test_a_path_has_a_kind_or_none(path: str, kind: ZnodeKind | None) -> None:
    assert kind_of(path) is kind
