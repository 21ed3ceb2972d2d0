"""The properties that count depend on a message's topic: in a request topic, any client could have written them."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from streaming.schemas import REQUESTS, RETRY
from streaming.sweep import messages
from streaming.sweep.messages import RowDecoder
from tests.builders import cursor_request, data_request
from udfs import columns as c
from udfs.owners.sightings import OWNER_ABSENT_SINCE
from udfs.records import LedgerComponent, PendingDelete, Reason, Rejection
from udfs.requests.admission import Admission
from udfs.requests.lanes import Lanes
from udfs.requests.request_format import decode, encode
from udfs.requests.retry import ORIGIN_MESSAGE_ID, REAL_TOPIC, RECONSUMETIMES

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
ADMISSION = Admission(request_topics=frozenset({SYSTEM}), trusted_tenants=frozenset({"pulsar"}))
REQUEST = data_request(5)
LANE = "persistent://public/ledger-deletion/__ledger_deletion"
RIVALS_LANE = LANE.replace("public", "rival")
OURS = {RECONSUMETIMES: "9", ORIGIN_MESSAGE_ID: "1:2:3", OWNER_ABSENT_SINCE: "1:signature"}


def row(
    entry: int = 3, fields: Mapping[str, Any] | None = None, *, batch: int = -1, source: str = SYSTEM
) -> dict[str, Any]:
    message = {c.PAYLOAD: encode(REQUEST), c.MESSAGE_PROPERTIES: [("a", "b"), *OURS.items()]}
    place = {c.SOURCE: source, c.POSITION_LEDGER: 70, c.POSITION_ENTRY: entry, c.POSITION_BATCH: batch}
    return place | message | dict(fields or {})


@pytest.mark.parametrize(
    ("query", "properties", "origin_id"),
    [
        pytest.param(REQUESTS, {"a": "b"}, "70:3:-1", id="a request topic"),
        pytest.param(RETRY, {"a": "b", **OURS}, "1:2:3", id="the retry topic"),
    ],
)
def test_properties_of_the_service_count_in_the_retry_topic_only(
    query: str, properties: dict[str, str], origin_id: str
) -> None:
    (message,) = RowDecoder(query, ADMISSION).read([row()])
    assert (message.request, message.properties, message.origin_id) == (REQUEST, properties, origin_id)


@pytest.mark.parametrize(
    ("source", "batch", "origin_id"),
    [
        pytest.param(SYSTEM, -1, "70:3:-1", id="a topic without partitions"),
        pytest.param(f"{SYSTEM}-partition-2", -1, "70:3:2", id="a partition"),
        pytest.param(f"{SYSTEM}-partition-2", 7, "70:3:2:7", id="a message of a batch"),
    ],
)
def test_an_original_is_identified_by_its_own_message_id(source: str, batch: int, origin_id: str) -> None:
    (message,) = RowDecoder(REQUESTS, ADMISSION).read([row(source=source, batch=batch)])
    assert message.origin_id == origin_id


def test_a_message_of_a_request_topic_never_has_the_rights_of_a_topic_that_its_properties_name() -> None:
    """Not even if the connector also reads a topic that is not ours."""
    read_along = row(source="persistent://rival/default/y", fields={c.MESSAGE_PROPERTIES: [(REAL_TOPIC, SYSTEM)]})
    (message,) = RowDecoder(REQUESTS, ADMISSION).read([read_along])
    assert isinstance(message.request, Rejection)
    assert message.request.reason is Reason.OTHER_TENANT


def test_a_retry_without_an_origin_is_identified_by_its_own_message_id() -> None:
    (message,) = RowDecoder(RETRY, ADMISSION).read([row(fields={c.MESSAGE_PROPERTIES: None})])
    assert (message.properties, message.origin_id) == ({}, "70:3:-1")


def test_a_message_that_is_delivered_twice_counts_once_even_across_batches() -> None:
    reader = RowDecoder(REQUESTS, ADMISSION)
    first = reader.read([row(3), row(3), row(3, batch=0), row(4)])
    second = reader.read([row(4), row(5)])
    assert [message.row[c.POSITION_ENTRY] for message in [*first, *second]] == [3, 3, 4, 5]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({c.PAYLOAD: b"no JSON"}, Reason.NOT_JSON, id="no request"),
        pytest.param({c.PAYLOAD: None}, Reason.EMPTY_PAYLOAD, id="no payload"),
        pytest.param({c.SOURCE: "persistent://rival/reaper/requests"}, Reason.OTHER_TENANT, id="another tenant's"),
    ],
)
def test_a_message_without_a_valid_request_of_its_sender_is_a_rejection(fields: dict[str, Any], reason: Reason) -> None:
    (message,) = RowDecoder(REQUESTS, ADMISSION).read([row(fields=fields)])
    assert isinstance(message.request, Rejection)
    assert message.request.reason is reason


def test_a_copy_in_the_retry_topic_has_the_rights_of_its_first_topic() -> None:
    copy = row(source=f"{SYSTEM}-RETRY", fields={c.MESSAGE_PROPERTIES: [(REAL_TOPIC, SYSTEM)]})
    (message,) = RowDecoder(RETRY, ADMISSION).read([copy])
    assert message.request == REQUEST


def test_a_payload_is_decoded_once_and_its_request_is_kept_even_if_the_sender_may_not_send_it() -> None:
    decoded = []

    def count(payload: bytes | None, most_bytes: int) -> PendingDelete | Rejection:
        decoded.append((payload, most_bytes))
        return decode(payload, most_bytes)

    rivals = "persistent://rival/reaper/requests"
    rows = [row(1), row(2, source=rivals), row(3, {c.PAYLOAD: b"no JSON"})]
    messages = RowDecoder(REQUESTS, ADMISSION, 4_096, count).read(rows)
    assert [message.decoded for message in messages] == [REQUEST, REQUEST, None]
    assert [isinstance(message.request, Rejection) for message in messages] == [False, True, True]
    assert decoded == [(result[c.PAYLOAD], 4_096) for result in rows]


def test_a_payload_above_the_configured_size_is_no_request() -> None:
    (message,) = RowDecoder(REQUESTS, ADMISSION, len(encode(REQUEST)) - 1).read([row()])
    assert isinstance(message.request, Rejection)
    assert message.request.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("query", [REQUESTS, RETRY])
def test_a_message_that_is_no_request_stays_none_whatever_its_bytes_and_properties_contain(query: str) -> None:
    refusal = "ABORTED_TRANSACTION: the message belongs to a transaction: (1, 2)"
    (message,) = RowDecoder(query, ADMISSION).read([row(fields={c.NO_REQUEST: refusal})])
    assert message.request == Rejection(Reason.ABORTED_TRANSACTION, "the message belongs to a transaction: (1, 2)")
    assert (message.properties, message.origin_id) == ({"a": "b"}, "70:3:-1")


@pytest.mark.parametrize(
    ("query", "source", "fields", "lane"),
    [
        pytest.param(REQUESTS, f"{LANE}-partition-0", {}, LANE, id="a request"),
        pytest.param(REQUESTS, LANE, {c.PAYLOAD: b"no JSON"}, LANE, id="no request"),
        pytest.param(REQUESTS, LANE, {c.NO_REQUEST: "ENCRYPTED: no key"}, LANE, id="an unreadable message"),
        pytest.param(REQUESTS, RIVALS_LANE, {}, RIVALS_LANE, id="a refused request"),
        pytest.param(REQUESTS, LANE, {c.MESSAGE_PROPERTIES: [(REAL_TOPIC, RIVALS_LANE)]}, LANE, id="a forged lane"),
        pytest.param(REQUESTS, SYSTEM, {c.MESSAGE_PROPERTIES: [(REAL_TOPIC, LANE)]}, None, id="forged elsewhere"),
        pytest.param(REQUESTS, f"{LANE}-partition-0", {c.PAYLOAD: b""}, LANE, id="no payload"),
        pytest.param(RETRY, f"{SYSTEM}-RETRY", {c.MESSAGE_PROPERTIES: [(REAL_TOPIC, LANE)]}, LANE, id="a retry"),
        pytest.param(RETRY, f"{SYSTEM}-RETRY", {c.MESSAGE_PROPERTIES: [(REAL_TOPIC, SYSTEM)]}, None, id="of no lane"),
        pytest.param(
            RETRY,
            f"{SYSTEM}-RETRY",
            {c.NO_REQUEST: "ENCRYPTED: no key", c.MESSAGE_PROPERTIES: [(REAL_TOPIC, LANE)]},
            None,
            id="no copy of ours",
        ),
    ],
)
def test_a_message_belongs_to_the_lane_to_which_it_was_first_published(
    query: str, source: str, fields: dict[str, Any], lane: str | None
) -> None:
    admission = replace(ADMISSION, lanes=Lanes.TENANT)
    (message,) = RowDecoder(query, admission).read([row(source=source, fields=fields)])
    assert message.lane == lane


@pytest.mark.parametrize("query", [REQUESTS, RETRY])
@pytest.mark.parametrize("kept_answers", [2, 1000])
def test_no_message_has_the_rights_of_another(query: str, kept_answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_KEPT_ANSWERS", kept_answers)
    rules = replace(ADMISSION, components=frozenset({LedgerComponent.MANAGED_LEDGER}), lanes=Lanes.TENANT)
    asked = [named(5, f"{tenant}/ns/persistent/t") for named in (data_request, cursor_request) for tenant in ("a", "b")]
    sources = [SYSTEM, f"{SYSTEM}-RETRY", "persistent://a/ns/t", "persistent://b/ledger-deletion/__ledger_deletion"]
    rows = [
        row(entry, {c.PAYLOAD: encode(request), c.MESSAGE_PROPERTIES: [(REAL_TOPIC, original)]}, source=source)
        for entry, (request, source, original) in enumerate(product(asked, sources, sources))
    ]
    alone = [RowDecoder(query, rules).read([each])[0] for each in rows]
    together = RowDecoder(query, rules).read(rows)
    assert [(each.request, each.lane) for each in together] == [(each.request, each.lane) for each in alone]
    counted = [request for _row, request in RowDecoder(query, rules).requests(rows)]
    assert counted == [each.request for each in alone]
