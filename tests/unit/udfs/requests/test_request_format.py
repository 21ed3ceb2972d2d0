"""Requests on the wire: what is one, what is refused and by which name, and that nothing ends the query."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import segment_request
from udfs.paths import encode_cursor, managed_ledger_name, schema_id_of, topic_of
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete, Reason, Rejection, SnapshotContext
from udfs.requests.request_format import MAX_PAYLOAD_BYTES, MAX_REQUEST_BYTES, _object_of, _RefusedError, decode, encode
from udfs.snapshots.keys import SnapshotKind

UUID = "fedcba98-7654-3210-0123-456789abcdef"
DATA = {
    "topicName": "tenant/ns/persistent/topic-partition-0",
    "ledgerComponent": "MANAGED_LEDGER",
    "ledgerType": "LEDGER",
    "ledgerId": 278117,
}
CURSOR = DATA | {"ledgerComponent": "MANAGED_CURSOR", "cursorName": "my+sub"}
SCHEMA = DATA | {"ledgerComponent": "SCHEMA_STORAGE", "schemaId": "tenant/ns/topic"}
NESTED = {
    "uidMsb": -81985529216486896,
    "uidLsb": 81985529216486895,
    "complete": True,
    "bookkeeperDeleted": True,
    "timestamp": 1_700_000_000_000,
    "driverMetadata": {"name": "aws-s3", "properties": [{"key": "bucket", "value": "b1"}]},
}
FLAT = {
    "msb": -81985529216486896,
    "lsb": 81985529216486895,
    "driverName": "aws-s3",
    "metadata": {"bucket": "b1"},
}
OFFLOAD = DATA | {"ledgerType": "OFFLOAD_LEDGER", "offloadContext": NESTED}
REQUEST = PendingDelete(
    managed_ledger=str(DATA["topicName"]),
    component=LedgerComponent.MANAGED_LEDGER,
    ledger_type=LedgerType.LEDGER,
    ledger_id=278117,
)
SEGMENT = {
    "kind": "__transaction_buffer_snapshot_segments",
    "key": "multiple-3-persistent://tenant/ns/topic-partition-0",
    "entryId": 7,
}
WHOLE_SEGMENT: dict[str, Any] = {
    "topicName": "segment://tenant/ns/b/0000-ffff-0",
    "ledgerComponent": "SEGMENT",
    "ledgerType": "SEGMENT",
    "ledgerId": 7,
}
SNAPSHOT = DATA | {
    "ledgerComponent": "TRANSACTION_SNAPSHOT",
    "ledgerType": "COMPACTED_MESSAGE",
    "snapshotContext": SEGMENT,
}
OF_SNAPSHOT = replace(
    REQUEST,
    component=LedgerComponent.TRANSACTION_SNAPSHOT,
    ledger_type=LedgerType.COMPACTED_MESSAGE,
    snapshot_context=SnapshotContext(str(SEGMENT["kind"]), str(SEGMENT["key"]), 7),
)
CONTEXT = OffloadContext(
    uuid=UUID,
    complete=True,
    bookkeeper_deleted=True,
    timestamp_ms=1_700_000_000_000,
    driver_name="aws-s3",
    driver_properties={"bucket": "b1"},
)


def payload(fields: object) -> bytes:
    return json.dumps(fields).encode()


def refused(data: bytes | None) -> Rejection:
    answer = decode(data)
    assert isinstance(answer, Rejection)
    assert answer.detail.isprintable()
    assert answer.detail.isascii()
    assert 0 < len(answer.detail) <= 300
    return answer


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        pytest.param(DATA, REQUEST, id="data ledger"),
        pytest.param(
            DATA | {"topicName": "persistent://tenant/ns/topic-partition-0"}, REQUEST, id="topic as users write it"
        ),
        pytest.param(
            DATA | {"topicName": "tenant/ns/segment/a+b/0000-7fff-12"},
            replace(REQUEST, managed_ledger="tenant/ns/segment/a+b/0000-7fff-12"),
            id="managed ledger of a segment",
        ),
        pytest.param(
            DATA | {"topicName": "segment://tenant/ns/a b/0000-7fff-12"},
            replace(REQUEST, managed_ledger="tenant/ns/segment/a+b/0000-7fff-12"),
            id="segment as users write it",
        ),
        pytest.param(
            SCHEMA | {"topicName": "segment://tenant/ns/topic/0000-7fff-12"},
            replace(
                REQUEST,
                managed_ledger="tenant/ns/segment/topic/0000-7fff-12",
                component=LedgerComponent.SCHEMA_STORAGE,
                schema_id="tenant/ns/topic",
            ),
            id="schema of a segment's topic",
        ),
        pytest.param(
            DATA | {"cursorName": None, "schemaId": None, "offloadContext": None}, REQUEST, id="Java writes null fields"
        ),
        pytest.param(
            DATA | {"checkLedgerStillInUse": False, "properties": {"a": [1]}},
            REQUEST,
            id="fields of the draft and others",
        ),
        pytest.param(
            DATA | {"cursorName": "x", "schemaId": 7, "offloadContext": NESTED}, REQUEST, id="fields not needed"
        ),
        pytest.param(SNAPSHOT, OF_SNAPSHOT, id="message of a snapshot topic"),
        pytest.param(DATA | {"ledgerId": 0}, replace(REQUEST, ledger_id=0), id="smallest id"),
        pytest.param(DATA | {"ledgerId": 2**63 - 1}, replace(REQUEST, ledger_id=2**63 - 1), id="largest id"),
        pytest.param(
            CURSOR,
            replace(REQUEST, component=LedgerComponent.MANAGED_CURSOR, cursor_name="my+sub"),
            id="encoded cursor",
        ),
        pytest.param(
            CURSOR | {"cursorName": "my sub"},
            replace(REQUEST, component=LedgerComponent.MANAGED_CURSOR, cursor_name="my+sub"),
            id="cursor by its subscription",
        ),
        pytest.param(
            SCHEMA, replace(REQUEST, component=LedgerComponent.SCHEMA_STORAGE, schema_id="tenant/ns/topic"), id="schema"
        ),
        pytest.param(
            DATA | {"ledgerComponent": "COMPACTED_LEDGER"},
            replace(REQUEST, component=LedgerComponent.COMPACTED_LEDGER),
            id="compacted ledger",
        ),
        pytest.param(
            DATA | {"ledgerComponent": "DELAYED_INDEX_BUCKET"},
            replace(REQUEST, component=LedgerComponent.DELAYED_INDEX_BUCKET),
            id="delayed bucket",
        ),
        pytest.param(
            OFFLOAD,
            replace(REQUEST, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=CONTEXT),
            id="offload, nested",
        ),
        pytest.param(
            OFFLOAD | {"offloadContext": FLAT},
            replace(
                REQUEST,
                ledger_type=LedgerType.OFFLOAD_LEDGER,
                offload_context=OffloadContext(uuid=UUID, driver_name="aws-s3", driver_properties={"bucket": "b1"}),
            ),
            id="offload, flat",
        ),
        pytest.param(
            OFFLOAD | {"offloadContext": {"uidMsb": 0, "uidLsb": -1}},
            replace(
                REQUEST,
                ledger_type=LedgerType.OFFLOAD_LEDGER,
                offload_context=OffloadContext(uuid="00000000-0000-0000-ffff-ffffffffffff", complete=False),
            ),
            id="offload, only the UUID",
        ),
    ],
)
def test_requests_are_read(fields: dict[str, Any], request_: PendingDelete) -> None:
    assert decode(payload(fields)) == request_


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(None, Reason.EMPTY_PAYLOAD, id="null payload"),
        pytest.param(b"", Reason.EMPTY_PAYLOAD, id="no bytes"),
        pytest.param(b" \n", Reason.NOT_JSON, id="white space"),
        pytest.param(b"\xff\xfe\x00", Reason.NOT_JSON, id="not UTF-8"),
        pytest.param(payload(DATA)[:-1], Reason.NOT_JSON, id="cut short"),
        pytest.param(payload(DATA) + b"x", Reason.NOT_JSON, id="something after it"),
        pytest.param(payload(DATA) * 2, Reason.NOT_JSON, id="two requests"),
        pytest.param(b"\xef\xbb\xbf" + payload(DATA), Reason.NOT_JSON, id="byte order mark"),
        pytest.param(json.dumps(DATA).encode("utf-16"), Reason.NOT_JSON, id="UTF-16"),
        pytest.param(b'{"ledgerId": NaN}', Reason.NOT_JSON, id="NaN"),
        pytest.param(b'{"ledgerId": -Infinity}', Reason.NOT_JSON, id="infinity"),
        pytest.param(b'{"ledgerId": ' + b"9" * 5000 + b"}", Reason.NOT_JSON, id="a number of 5000 digits"),
        pytest.param(b"[" * 60_000, Reason.NOT_JSON, id="deep nesting, open"),
        pytest.param(b"[" * 30_000 + b"]" * 30_000, Reason.NOT_JSON, id="deep nesting, closed"),
        pytest.param(b'{"a":' * 10_900 + b"1" + b"}" * 10_900, Reason.NOT_JSON, id="deep objects"),
        pytest.param(b'{"ledgerId": 1, "ledgerId": 2}', Reason.NOT_JSON, id="a field twice"),
        pytest.param(b'"' + b"x" * (MAX_REQUEST_BYTES - 1) + b'"', Reason.TOO_LARGE, id="too large"),
        pytest.param(b'"' + b"x" * (MAX_REQUEST_BYTES - 2) + b'"', Reason.WRONG_TYPE, id="just not too large"),
        pytest.param(b"[]", Reason.WRONG_TYPE, id="array"),
        pytest.param(b"null", Reason.WRONG_TYPE, id="null"),
        pytest.param(b"12", Reason.WRONG_TYPE, id="number"),
        pytest.param(b"{}", Reason.MISSING_FIELD, id="empty object"),
    ],
)
def test_a_payload_that_is_no_json_object_is_refused(data: bytes | None, reason: Reason) -> None:
    assert refused(data).reason is reason


@pytest.mark.parametrize("name", ["topicName", "ledgerComponent", "ledgerType", "ledgerId"])
@pytest.mark.parametrize("missing", [True, False], ids=["absent", "null"])
def test_a_missing_field_is_named(name: str, missing: bool) -> None:
    fields = {key: value for key, value in DATA.items() if key != name} if missing else DATA | {name: None}
    answer = refused(payload(fields))
    assert answer.reason is Reason.MISSING_FIELD
    assert name in answer.detail


@pytest.mark.parametrize(
    ("fields", "reason", "named"),
    [
        pytest.param(DATA | {"ledgerId": "5"}, Reason.WRONG_TYPE, "ledgerId", id="id is a string"),
        pytest.param(DATA | {"ledgerId": 5.0}, Reason.WRONG_TYPE, "ledgerId", id="id has a fraction"),
        pytest.param(DATA | {"ledgerId": True}, Reason.WRONG_TYPE, "ledgerId", id="id is true"),
        pytest.param(DATA | {"ledgerId": [5]}, Reason.WRONG_TYPE, "ledgerId", id="id is an array"),
        pytest.param(DATA | {"ledgerId": -1}, Reason.BAD_LEDGER_ID, "-1", id="id is negative"),
        pytest.param(DATA | {"ledgerId": 2**63}, Reason.BAD_LEDGER_ID, "9223372036854775808", id="id beyond 63 bits"),
        pytest.param(DATA | {"ledgerId": 10**4000}, Reason.BAD_LEDGER_ID, "1000", id="id of 4001 digits"),
        pytest.param(DATA | {"topicName": 5}, Reason.WRONG_TYPE, "topicName", id="topic is a number"),
        pytest.param(DATA | {"topicName": "x"}, Reason.BAD_TOPIC_NAME, "topicName", id="no topic"),
        pytest.param(DATA | {"topicName": ""}, Reason.BAD_TOPIC_NAME, "topicName", id="empty topic"),
        pytest.param(
            DATA | {"topicName": "public/default/test-topic"}, Reason.BAD_TOPIC_NAME, "persistent://", id="draft's form"
        ),
        pytest.param(DATA | {"topicName": "t/ns/persistent/../../x"}, Reason.BAD_TOPIC_NAME, "topicName", id="path"),
        pytest.param(
            DATA | {"topicName": "topic://tenant/ns/x"}, Reason.BAD_TOPIC_NAME, "segments", id="scalable topic"
        ),
        pytest.param(
            DATA | {"topicName": "segment://tenant/ns/x"}, Reason.BAD_TOPIC_NAME, "segment", id="segment without hashes"
        ),
        pytest.param(
            DATA | {"topicName": "segment://tenant/c/ns/x/0000-ffff-0"},
            Reason.BAD_TOPIC_NAME,
            "segment",
            id="segment of a V1 namespace",
        ),
        pytest.param(
            DATA | {"topicName": "tenant/ns/segment/x/8000-7fff-0"},
            Reason.BAD_TOPIC_NAME,
            "segment",
            id="segment with hashes in the wrong order",
        ),
        pytest.param(
            DATA | {"topicName": "segment://tenant/ns/x/0000-ffff-9223372036854775808"},
            Reason.BAD_TOPIC_NAME,
            "segment",
            id="segment id of 64 bits",
        ),
        pytest.param(
            DATA | {"topicName": "persistent://t/ns/\ud800"}, Reason.BAD_TOPIC_NAME, "surrogate", id="surrogate"
        ),
        pytest.param(DATA | {"topicName": "x" * 50_000}, Reason.BAD_TOPIC_NAME, "50000", id="long topic"),
        pytest.param(DATA | {"ledgerComponent": "LOGS"}, Reason.UNKNOWN_COMPONENT, "LOGS", id="component"),
        pytest.param(
            DATA | {"ledgerComponent": "managed_ledger"}, Reason.UNKNOWN_COMPONENT, "MANAGED_LEDGER", id="small letters"
        ),
        pytest.param(DATA | {"ledgerComponent": "\x1b[2J"}, Reason.UNKNOWN_COMPONENT, "x1b", id="terminal escape"),
        pytest.param(
            DATA | {"ledgerComponent": "\ud800"}, Reason.UNKNOWN_COMPONENT, "ud800", id="component, surrogate"
        ),
        pytest.param(DATA | {"ledgerComponent": 1}, Reason.WRONG_TYPE, "ledgerComponent", id="component is a number"),
        pytest.param(DATA | {"ledgerType": "Ledger"}, Reason.UNKNOWN_LEDGER_TYPE, "OFFLOAD_LEDGER", id="type"),
        pytest.param(DATA | {"ledgerType": {}}, Reason.WRONG_TYPE, "ledgerType", id="type is an object"),
        pytest.param(DATA | {"cursorName": 1}, Reason.WRONG_TYPE, "cursorName", id="cursor that is not needed"),
        pytest.param(CURSOR | {"cursorName": None}, Reason.MISSING_FIELD, "cursorName", id="no cursor"),
        pytest.param(CURSOR | {"cursorName": ""}, Reason.BAD_TOPIC_NAME, "cursorName", id="empty cursor"),
        pytest.param(CURSOR | {"cursorName": ".."}, Reason.BAD_TOPIC_NAME, "cursorName", id="cursor is .."),
        pytest.param(SCHEMA | {"schemaId": None}, Reason.MISSING_FIELD, "schemaId", id="no schema id"),
        pytest.param(SCHEMA | {"schemaId": 7}, Reason.BAD_TOPIC_NAME, "tenant/ns/topic", id="the PIP's number"),
        pytest.param(SCHEMA | {"schemaId": 7.5}, Reason.WRONG_TYPE, "schemaId", id="schema id with a fraction"),
        pytest.param(SCHEMA | {"schemaId": False}, Reason.WRONG_TYPE, "schemaId", id="schema id is false"),
        pytest.param(
            SCHEMA | {"schemaId": "tenant/ns/other"}, Reason.BAD_TOPIC_NAME, "other", id="other topic's schema"
        ),
        pytest.param(
            SCHEMA | {"schemaId": "other/ns/topic"}, Reason.BAD_TOPIC_NAME, "other", id="other tenant's schema"
        ),
        pytest.param(
            SCHEMA | {"schemaId": "tenant/ns/topic-partition-0"},
            Reason.BAD_TOPIC_NAME,
            "partition-0",
            id="with partition",
        ),
        pytest.param(
            SCHEMA | {"topicName": "persistent://t/ns/-partition-0"}, Reason.BAD_TOPIC_NAME, "name", id="nameless topic"
        ),
        pytest.param(OFFLOAD | {"offloadContext": None}, Reason.MISSING_FIELD, "offloadContext", id="no context"),
        pytest.param(OFFLOAD | {"offloadContext": []}, Reason.WRONG_TYPE, "offloadContext", id="context is an array"),
        pytest.param(DATA | {"offloadContext": "x"}, Reason.WRONG_TYPE, "offloadContext", id="context not needed"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], reason: Reason, named: str) -> None:
    answer = refused(payload(fields))
    assert answer.reason is reason
    assert named in answer.detail


@pytest.mark.parametrize(
    "context",
    [
        pytest.param({}, id="empty"),
        pytest.param({"uidMsb": 1}, id="half of a UUID"),
        pytest.param({"lsb": 1}, id="half of a flat UUID"),
        pytest.param(NESTED | FLAT, id="both forms"),
        pytest.param(NESTED | {"uidMsb": "1"}, id="half is a string"),
        pytest.param(NESTED | {"uidMsb": True}, id="half is true"),
        pytest.param(NESTED | {"uidMsb": 1.0}, id="half has a fraction"),
        pytest.param(NESTED | {"uidMsb": 2**63}, id="half is too large"),
        pytest.param(NESTED | {"uidLsb": -(2**63) - 1}, id="half is too small"),
        pytest.param(NESTED | {"complete": 1}, id="complete is a number"),
        pytest.param(NESTED | {"bookkeeperDeleted": "true"}, id="bookkeeperDeleted is a string"),
        pytest.param(NESTED | {"timestamp": "now"}, id="timestamp is a string"),
        pytest.param(NESTED | {"timestamp": 2**63}, id="timestamp is too large"),
        pytest.param(NESTED | {"driverMetadata": []}, id="driver is an array"),
        pytest.param(NESTED | {"driverMetadata": {"name": 1}}, id="driver's name is a number"),
        pytest.param(NESTED | {"driverMetadata": {"name": "\ud800"}}, id="driver's name is half a character"),
        pytest.param(NESTED | {"driverMetadata": {"properties": {"a": "b"}}}, id="nested properties are a map"),
        pytest.param(NESTED | {"driverMetadata": {"properties": ["a"]}}, id="a property is a string"),
        pytest.param(NESTED | {"driverMetadata": {"properties": [{"key": "a"}]}}, id="a property has no value"),
        pytest.param(
            NESTED | {"driverMetadata": {"properties": [{"key": "a", "value": 1}]}}, id="its value is a number"
        ),
        pytest.param(
            NESTED | {"driverMetadata": {"properties": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}},
            id="a property appears twice",
        ),
        pytest.param(FLAT | {"metadata": []}, id="flat properties are an array"),
        pytest.param(FLAT | {"metadata": {"a": 1}}, id="a flat property is a number"),
        pytest.param(FLAT | {"metadata": {"a": "\udc00"}}, id="a flat property is half a character"),
        pytest.param(FLAT | {"driverName": {}}, id="flat driver is an object"),
    ],
)
def test_a_wrong_offload_context_is_refused(context: dict[str, Any]) -> None:
    assert refused(payload(OFFLOAD | {"offloadContext": context})).reason is Reason.BAD_OFFLOAD_CONTEXT


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        pytest.param(SEGMENT | {"kind": "orders"}, Reason.BAD_SNAPSHOT_CONTEXT, id="another topic"),
        pytest.param(SEGMENT | {"kind": "transaction_buffer_snapshot_parts"}, Reason.BAD_SNAPSHOT_CONTEXT, id="ours"),
        pytest.param(SEGMENT | {"kind": ["a"]}, Reason.WRONG_TYPE, id="kind is a list"),
        pytest.param(
            SEGMENT | {"key": "multiple-3-persistent://tenant/ns/b"},
            Reason.BAD_SNAPSHOT_CONTEXT,
            id="key of another topic",
        ),
        pytest.param(SEGMENT | {"key": "persistent://tenant/ns/b"}, Reason.BAD_SNAPSHOT_CONTEXT, id="no segment's key"),
        pytest.param(SEGMENT | {"key": None}, Reason.MISSING_FIELD, id="no key"),
        pytest.param(SEGMENT | {"entryId": -1}, Reason.BAD_SNAPSHOT_CONTEXT, id="negative entry"),
        pytest.param(SEGMENT | {"entryId": 2**63}, Reason.BAD_SNAPSHOT_CONTEXT, id="entry beyond 63 bits"),
        pytest.param(SEGMENT | {"entryId": True}, Reason.WRONG_TYPE, id="entry is true"),
        pytest.param("x", Reason.WRONG_TYPE, id="a string"),
        pytest.param(None, Reason.MISSING_FIELD, id="none"),
    ],
)
def test_a_wrong_snapshot_context_is_refused(context: Any, reason: Reason) -> None:
    assert refused(payload(SNAPSHOT | {"snapshotContext": context})).reason is reason


@pytest.mark.parametrize(
    "fields",
    [
        SNAPSHOT | {"ledgerType": "LEDGER"},
        SNAPSHOT | {"ledgerType": "SEGMENT"},
        DATA | {"ledgerType": "COMPACTED_MESSAGE"},
        DATA | {"ledgerType": "SEGMENT"},
        WHOLE_SEGMENT | {"ledgerType": "LEDGER"},
        WHOLE_SEGMENT | {"ledgerType": "COMPACTED_MESSAGE"},
    ],
)
def test_snapshots_and_segments_have_ledger_types_of_their_own(fields: dict[str, Any]) -> None:
    assert refused(payload(fields)).reason is Reason.UNKNOWN_LEDGER_TYPE


def test_a_request_for_a_segment_names_a_segment() -> None:
    assert decode(payload(WHOLE_SEGMENT)) == segment_request(7, "tenant/ns/segment/b/0000-ffff-0")
    for name in ("tenant/ns/persistent/b", "persistent://tenant/ns/b", "tenant/cluster/segment/persistent/b"):
        assert refused(payload(WHOLE_SEGMENT | {"topicName": name})).reason is Reason.BAD_TOPIC_NAME


CONTEXTS = st.builds(
    OffloadContext,
    uuid=st.uuids().map(str),
    complete=st.booleans(),
    bookkeeper_deleted=st.booleans(),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    driver_name=st.text(max_size=10),
    driver_properties=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2),
)
LOCAL_NAMES = st.text("abc-+%ü", min_size=1, max_size=10)


@st.composite
def requests(draw: st.DrawFn) -> PendingDelete:
    component = draw(st.sampled_from(LedgerComponent))
    is_message, is_segment = component is LedgerComponent.TRANSACTION_SNAPSHOT, component is LedgerComponent.SEGMENT
    in_ledgers = st.sampled_from((LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER))
    ledger_type = LedgerType.COMPACTED_MESSAGE if is_message else draw(in_ledgers)
    managed_ledger = managed_ledger_name(f"persistent://t/ns/{draw(LOCAL_NAMES)}")
    if is_segment:
        ledger_type = LedgerType.SEGMENT
        managed_ledger = managed_ledger_name(f"segment://t/ns/{draw(LOCAL_NAMES)}/0000-7fff-3")
    cursor = encode_cursor(draw(LOCAL_NAMES)) if component is LedgerComponent.MANAGED_CURSOR else None
    schema = schema_id_of(managed_ledger) if component is LedgerComponent.SCHEMA_STORAGE else None
    context = draw(CONTEXTS) if ledger_type is LedgerType.OFFLOAD_LEDGER else None
    ledger_id = draw(st.integers(0, 2**63 - 1))
    segment = f"multiple-{draw(st.integers(0, 99))}-{topic_of(managed_ledger)}"
    message = SnapshotContext(SnapshotKind.SEGMENT, segment, draw(st.integers(0, 2**63 - 1))) if is_message else None
    return PendingDelete(
        managed_ledger=managed_ledger,
        component=component,
        ledger_type=ledger_type,
        ledger_id=ledger_id,
        cursor_name=cursor,
        schema_id=schema,
        offload_context=context,
        snapshot_context=message,
    )


@settings(max_examples=100, deadline=None)
@given(requests())
def test_a_request_that_is_written_is_read_again(request: PendingDelete) -> None:
    assert decode(encode(request)) == request


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*OFFLOAD, "cursorName", "schemaId", "unknown"])


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=200)
    | JSON.map(payload)
    | st.dictionaries(FIELDS, JSON, max_size=4).map(lambda fields: payload(OFFLOAD | fields))
    | st.dictionaries(st.sampled_from([*NESTED, *FLAT]), JSON, max_size=3).map(
        lambda fields: payload(OFFLOAD | {"offloadContext": NESTED | fields})
    )
)
def test_any_bytes_become_a_request_or_a_named_reason(data: bytes) -> None:
    answer = decode(data)
    if isinstance(answer, PendingDelete):
        assert decode(encode(answer)) == answer
    else:
        assert refused(data) == answer


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        pytest.param(1_024, Reason.MISSING_FIELD, id="as large as a request may be"),
        pytest.param(1_025, Reason.TOO_LARGE, id="a byte more"),
    ],
)
def test_the_caller_limits_the_size_of_a_request(size: int, reason: Reason) -> None:
    answer = decode(b"{}".ljust(size), 1_024)
    assert isinstance(answer, Rejection)
    assert answer.reason is reason


def test_a_payload_that_is_too_large_is_not_parsed() -> None:
    class Unread(bytes):
        def decode(self, *_: Any) -> str:
            raise AssertionError("it was read")

    assert refused(Unread(b"{}".ljust(MAX_REQUEST_BYTES + 1))).reason is Reason.TOO_LARGE


class Name(str):
    """A field's name that counts its comparisons with other names."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_repeated_field_is_found_in_work_that_grows_with_the_number_of_fields() -> None:
    pairs: list[tuple[str, Any]] = [(Name(f"field-{number}"), 0) for number in range(5_000)]
    Name.comparisons = 0
    with pytest.raises(_RefusedError, match=r"'field-4999' appears twice"):
        _object_of([*pairs, (Name("field-4999"), 1)])
    assert Name.comparisons < 3 * len(pairs)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(
            b"{" + b",".join(b'"%d":%d' % (n, n) for n in range(70_000)) + b',"69999":1}', Reason.NOT_JSON, id="fields"
        ),
        pytest.param(b'{"ledgerId":' + b"9" * 1_000_000 + b"}", Reason.NOT_JSON, id="one number"),
        pytest.param(b"[" + b",".join([b"9" * 4_000] * 250) + b"]", Reason.WRONG_TYPE, id="many numbers"),
        pytest.param(b"[" * 1_000_000, Reason.NOT_JSON, id="brackets"),
        pytest.param(b'"' + b"\\ud800" * 170_000 + b'"', Reason.WRONG_TYPE, id="halves of characters"),
        pytest.param(
            payload(OFFLOAD | {"offloadContext": NESTED | {"driverMetadata": {"properties": [{}] * 200_000}}}),
            Reason.BAD_OFFLOAD_CONTEXT,
            id="properties",
        ),
        pytest.param(payload(DATA | {"topicName": "t/" * 500_000}), Reason.BAD_TOPIC_NAME, id="a name of slashes"),
        pytest.param(
            payload(CURSOR | {"cursorName": "%" * 1_000_000}), Reason.BAD_TOPIC_NAME, id="a name of per cents"
        ),
    ],
)
def test_the_largest_configurable_payload_is_refused_with_any_content(data: bytes, reason: Reason) -> None:
    assert len(data) <= MAX_PAYLOAD_BYTES
    answer = decode(data, MAX_PAYLOAD_BYTES)
    assert isinstance(answer, Rejection)
    assert answer.reason is reason
    assert len(answer.detail) <= 300
