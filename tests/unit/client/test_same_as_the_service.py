"""The client has its own copies of names, requests, marks and lanes, because it does not import the service.

Each copy gives the same result as the service's, and refuses what the service refuses.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_reaper_client import LedgerDeletionService, mark_format, names, requests, settings
from ledger_reaper_client.errors import InvalidRequestError
from ledger_reaper_client.receipts import Outcome, Receipt, parse_receipt, receipt_topic
from streaming.config.load import load
from streaming.topics.requests import owner_key
from streaming.topics.setup import MOST_PARTITIONS
from tests.builders import CURSOR, TOPIC, UUID
from udfs import columns as c
from udfs import paths, records
from udfs.phase_one import marks
from udfs.phase_one.pip_186_metrics import SENT
from udfs.phase_one.pip_186_requests import request_for
from udfs.requests.lane_receipts import lane_receipt
from udfs.requests.lane_receipts import receipt_topic as service_receipt_topic
from udfs.requests.lanes import Lanes
from udfs.requests.request_format import MAX_REQUEST_BYTES, decode, encode

PROPERTIES = {"bucket": "b", "serviceEndpoint": "http://s3", "x": "ü"}
CONTEXT = {"uuid": UUID, "timestamp_ms": -5, "driver_name": "aws-s3", "driver_properties": PROPERTIES}
HIGH = "f" + UUID[1:19] + "f" + UUID[20:]

PARTS = st.sampled_from(
    [
        *("a", "public", "default", "pulsar", "__ledger_deletion", "persistent", "segment", "0000-ffff-0"),
        *("x-partition-0", "-partition-1", "p-partition-01", "x-partition-9999999999", "x-partition-٣", "0001-0000-1"),
        *("ü b", "%41", "%C3%BC+b", "a+b", "%", "~", "*", "a,b", "a:b=c", "n\nl", " ", "", ".", ".."),
        *("x" * 4096, "x" * 5000, "\ud800"),
    ]
)
TEXTS = st.text(max_size=6) | PARTS


@st.composite
def topic_names(draw: st.DrawFn) -> str:
    scheme = draw(st.sampled_from(["persistent://", "segment://", "topic://", "", "non-persistent://"]))
    return scheme + "/".join(draw(st.lists(TEXTS, min_size=1, max_size=6)))


def result(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result, or that the arguments are refused."""
    try:
        return function(*arguments)
    except ValueError:  # InvalidRequestError is one
        return "refused"


EXAMPLES = [
    TOPIC,
    f"{TOPIC}-partition-3",
    "persistent://public/default/a b/ü",
    "persistent://t/n/a b~*ü-partition-0",
    "persistent://t/cluster/n/x-partition-2",
    "t/cluster/n/persistent/x%2Fy",
    "segment://t/n/orders/0000-7fff-0",
    "t/n/segment/orders/8000-ffff-12",
    "t/x/segment/persistent/0000-ffff-0",
    "t/x/segment/persistent/other",
    "persistent://t/n/-partition-0",
    "persistent://t/n/..",
]


def check_name(topic: str) -> None:
    assert result(lambda: names.parse_topic(topic).managed_ledger) == result(paths.managed_ledger_name, topic)
    assert result(lambda: names.parse_topic(topic).full) == result(paths.topic_of, topic)
    assert result(lambda: names.parse_topic(topic).schema_id) == result(paths.schema_id_of, topic)


@pytest.mark.parametrize("topic", EXAMPLES)
def test_names_of_topics(topic: str) -> None:
    check_name(topic)


@given(topic_names())
def test_names_of_any_topics(topic: str) -> None:
    check_name(topic)


@given(TEXTS)
def test_names_of_cursors(cursor: str) -> None:
    assert result(names.encode_cursor, cursor) == result(paths.encode_cursor, cursor)


@given(topic_names())
def test_lanes(topic: str) -> None:
    for lanes, own in ((Lanes.TENANT, names.tenant_lane), (Lanes.NAMESPACE, names.namespace_lane)):
        lane = result(lanes.of, topic)
        is_operators = lane != "refused" and paths.tenant_of(topic) in ("pulsar", "sla-monitor")
        assert result(own, topic) == ("refused" if lane is None or is_operators else lane)
        if lane not in (None, "refused") and not is_operators:
            assert names.is_lane(lane)
    if "pulsar" not in topic:
        assert names.is_lane(topic) == Lanes.NAMESPACE.has(topic)


def test_defaults_of_the_configuration() -> None:
    defaults = load(None).topics
    assert defaults.subscription == settings.DEFAULT_SUBSCRIPTION
    assert defaults.retention_minutes == settings.DEFAULT_RETENTION_MINUTES
    fields = settings.Settings.__dataclass_fields__
    assert fields["lane_partitions"].default == defaults.lane_partitions
    assert requests.MAX_REQUEST_BYTES == MAX_REQUEST_BYTES
    assert settings.MOST_PARTITIONS == MOST_PARTITIONS


def service_request(topic: str, ledger_id: int, component: str, rest: dict[str, Any]) -> records.PendingDelete:
    context = records.OffloadContext(**rest["context"]) if "context" in rest else None
    kind = records.LedgerComponent(component)
    return request_for(topic, ledger_id, kind, context=context, cursor_name=rest.get("cursor_name"))


def client_request(topic: str, ledger_id: int, component: str, rest: dict[str, Any]) -> requests.Request:
    context = requests.OffloadContext(**rest["context"]) if "context" in rest else None
    kind = requests.LedgerComponent(component)
    return requests.request_for(topic, ledger_id, kind, context=context, cursor_name=rest.get("cursor_name"))


def check_request(topic: str, ledger_id: int, component: str, rest: dict[str, Any]) -> None:
    theirs = result(service_request, topic, ledger_id, component, rest)
    ours = result(client_request, topic, ledger_id, component, rest)
    if theirs == "refused":
        assert ours == "refused"
        return
    assert ours.payload == encode(theirs)
    assert ours.key.encode() == owner_key(theirs)
    assert ours.topic == paths.topic_of(theirs.managed_ledger)
    assert ours.ledger_type.value == theirs.ledger_type
    assert decode(ours.payload) == theirs


CASES: list[tuple[str, dict[str, Any]]] = [
    ("MANAGED_LEDGER", {}),
    ("MANAGED_CURSOR", {"cursor_name": CURSOR}),
    ("MANAGED_CURSOR", {"cursor_name": "a b/c"}),
    ("MANAGED_CURSOR", {"cursor_name": ".."}),
    ("MANAGED_CURSOR", {}),
    ("SCHEMA_STORAGE", {}),
    ("COMPACTED_LEDGER", {}),
    ("DELAYED_INDEX_BUCKET", {}),
    ("MANAGED_LEDGER", {"context": CONTEXT}),
    ("MANAGED_LEDGER", {"context": {**CONTEXT, "uuid": HIGH, "complete": False, "bookkeeper_deleted": True}}),
    ("MANAGED_LEDGER", {"context": {**CONTEXT, "uuid": UUID.upper()}}),
    ("MANAGED_LEDGER", {"context": {**CONTEXT, "driver_name": "\ud800"}}),
    ("MANAGED_LEDGER", {"context": {**CONTEXT, "driver_properties": {"x": "y" * 70_000}}}),
    ("MANAGED_LEDGER", {"context": {**CONTEXT, "timestamp_ms": 1 << 63}}),
]


@pytest.mark.parametrize("topic", EXAMPLES)
@pytest.mark.parametrize(("component", "rest"), CASES)
def test_requests(topic: str, component: str, rest: dict[str, Any]) -> None:
    check_request(topic, 7, component, rest)


@given(topic_names(), st.integers(-2, 1 << 64), st.sampled_from(CASES))
def test_any_requests(topic: str, ledger_id: int, case: tuple[str, dict[str, Any]]) -> None:
    check_request(topic, ledger_id, *case)


def test_a_cursor_name_for_another_component_is_refused_although_the_service_ignores_it() -> None:
    with pytest.raises(InvalidRequestError, match="no other component takes one"):
        requests.request_for(TOPIC, 1, requests.LedgerComponent.MANAGED_LEDGER, cursor_name=CURSOR)


def test_the_bytes_of_a_request_stay_as_they_are() -> None:
    """Both sides could change together; the bytes that other senders copied from the docs must still be valid."""
    sent = client_request(TOPIC, 7, "MANAGED_LEDGER", {"context": CONTEXT})
    assert sent.payload == (
        b'{"topicName":"public/default/persistent/orders","ledgerComponent":"MANAGED_LEDGER",'
        b'"ledgerType":"OFFLOAD_LEDGER","ledgerId":7,"offloadContext":{"uidMsb":81985529216486895,'
        b'"uidLsb":81985529216486895,"complete":true,"bookkeeperDeleted":false,"timestamp":-5,"driverMetadata":'
        b'{"name":"aws-s3","properties":[{"key":"bucket","value":"b"},{"key":"serviceEndpoint","value":"http://s3"},'
        b'{"key":"x","value":"\\u00fc"}]}}}'
    )


def test_the_metrics_of_a_sender_are_pip_186s() -> None:
    service = LedgerDeletionService(settings.Settings("pulsar://b:6650", "http://b:8080", lanes="tenant"))
    assert service.metrics() == {f"ledger_deletion_{name}_total": 0 for name in SENT}


def test_the_receipts_that_the_service_publishes_are_read() -> None:
    row = {
        c.ORIGIN_MESSAGE_ID: "1:2:0",
        c.TOPIC_NAME: TOPIC,
        c.LEDGER_ID: 7,
        c.COMPONENT: "MANAGED_LEDGER",
        c.LEDGER_TYPE: "LEDGER",
        c.OUTCOME: "DELETED",
        c.REASON: "UNREFERENCED",
        c.ATTEMPT: 2,
        c.AT_MS: 9,
    }
    key, payload = lane_receipt(row)
    assert parse_receipt(payload) == Receipt(
        key, TOPIC, 7, "MANAGED_LEDGER", "LEDGER", Outcome.DELETED, "UNREFERENCED", tries=2, at_ms=9
    )
    of_no_request = {**row, **dict.fromkeys((c.TOPIC_NAME, c.LEDGER_ID, c.COMPONENT, c.LEDGER_TYPE))}
    assert parse_receipt(lane_receipt({**of_no_request, c.OUTCOME: "DEAD_LETTER"})[1]) is not None
    lane = names.tenant_lane("persistent://acme/app/orders")
    assert receipt_topic(lane) == service_receipt_topic(lane)


def test_components_types_and_outcomes_are_the_services() -> None:
    assert {each.value for each in requests.LedgerComponent} < {str(each) for each in records.LedgerComponent}
    assert {each.value for each in requests.LedgerType} < {str(each) for each in records.LedgerType}
    assert {each.value for each in Outcome} == {str(each) for each in records.Outcome}


MARKED = st.builds(
    lambda ledgers, ids: (ledgers, {(number, f"{number:08x}{UUID[8:]}") for number in ids}),
    st.frozensets(st.integers(0, 300) | st.integers(0, paths.MAX_LEDGER_ID)),
    st.sets(st.integers(0, 60)),
)


@given(MARKED, st.integers(64, 300))
def test_marks_are_written_and_read_alike(drawn: tuple[frozenset[int], set[tuple[int, str]]], most: int) -> None:
    ledgers, names_of = drawn
    theirs = marks.Marks(ledgers, {each: _theirs(each[1]) for each in names_of})
    ours = mark_format.Marked(ledgers, {each: _ours(each[1]) for each in names_of})
    written = mark_format.properties_of(ours, "m", most)
    assert written == marks.properties_of(theirs, "m", most)
    assert mark_format.read_marks(written).all == ours


VALUES = [
    '{"v":1,"ledgers":"5-9,12"}',
    '{"v":1,"ledgers":"9-5"}',
    '{"v":1,"ledgers":"0-499998"}',
    '{"v":1,"ledgers":"1000000-1500000"}',
    '{"v":1,"ledgers":7}',
    '{"v":2,"ledgers":"5"}',
    '{"v":1,"driver":"S3","properties":{"a":"b"},"uploads":[[7,"' + UUID + '"]]}',
    '{"v":1,"driver":"S3","properties":{"a":1},"uploads":[]}',
    '{"v":1,"driver":"S3","properties":{},"uploads":[[-1,"' + UUID + '"]]}',
    '{"v":1,"driver":"S3","properties":{},"uploads":[[7,"x"]]}',
    "[" * 5000,
    "null",
    "",
]


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(VALUES)))
def test_marks_of_others_are_read_alike(values: dict[str, str]) -> None:
    properties = {f"{marks.PREFIX}{key}": value for key, value in values.items()} | {"owner": "a team"}
    theirs, ours = marks.read_marks(properties), mark_format.read_marks(properties)
    assert ours.unreadable == theirs.unreadable
    assert ours.by_key.keys() == theirs.by_key.keys()
    assert ours.all.ledgers == theirs.all.ledgers
    assert {name: asdict(each) for name, each in ours.all.uploads.items()} == {
        name: asdict(each) for name, each in theirs.all.uploads.items()
    }


def test_the_marks_limit_is_the_services() -> None:
    assert mark_format.MOST_IDS == marks.MOST_IDS
    assert mark_format.PREFIX == marks.PREFIX


def _theirs(uuid: str) -> records.OffloadContext:
    return records.OffloadContext(uuid=uuid, driver_name="aws-s3", driver_properties={"bucket": "b"})


def _ours(uuid: str) -> requests.OffloadContext:
    return requests.OffloadContext(uuid=uuid, driver_name="aws-s3", driver_properties={"bucket": "b"})
