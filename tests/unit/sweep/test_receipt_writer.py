"""A receipt contains the result of a message and its copy; copies for an owner always go to the same partition."""

from dataclasses import replace
from typing import Any

import pytest

from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.schemas import RECEIPT, REQUESTS, RETRY
from streaming.sweep.jobs import Swept
from streaming.sweep.messages import CopyTopic, Message, ReceiptWriter, Run
from tests.builders import MINUTE_MS, NOW_MS, TOPIC, data_request
from udfs import columns as c
from udfs.owners.references import key_of
from udfs.owners.sightings import OWNER_ABSENT_SINCE, absent_since_ms, subject_of
from udfs.paths import topic_of
from udfs.records import Outcome, PendingDelete, Reason, Rejection, Verdict
from udfs.requests.request_format import decode, encode
from udfs.requests.retry import DELAY_TIME, ORIGIN_MESSAGE_ID, REAL_TOPIC, REASON, RECONSUMETIMES, Delays

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
SECRET = b"secret of the cluster"
REQUEST = data_request(5)
WRITER = ReceiptWriter(
    run=Run(epoch=4, query=REQUESTS, batch_id=2, chunk=9),
    two_phase=load(None).two_phase.model_copy(update={"max_retry_delete_count": 3, "send_delay_seconds": 60}),
    delays=Delays(base_ms=10 * MINUTE_MS),
    retry=CopyTopic(f"{SYSTEM}-RETRY", 4),
    dead_letter=CopyTopic(f"{SYSTEM}-DLQ", 0),
    secret=SECRET,
    clock=ManualClock(NOW_MS),
)
DELETED = Swept(
    verdict=Verdict(Outcome.DELETED, Reason.UNREFERENCED), refreshed=True, length_bytes=1_000, sources="certificate"
)
COPIED = (c.TARGET, c.TARGET_PARTITION, c.DELAY_MS, c.MESSAGE_KEY, c.PAYLOAD, c.MESSAGE_PROPERTIES)


def message(
    request: PendingDelete | Rejection = REQUEST, *, payload: bytes = encode(REQUEST), age_ms: int = 0, **fields: str
) -> Message:
    row = {
        c.SOURCE: f"{SYSTEM}-partition-2",
        c.POSITION_LEDGER: 70,
        c.POSITION_ENTRY: 3,
        c.POSITION_BATCH: -1,
        c.PUBLISH_MS: NOW_MS - age_ms,
        c.MESSAGE_KEY: b"key",
        c.PAYLOAD: payload,
        c.REFERENCE_KEY: key_of(REQUEST),
        c.TENANT: "public",
    }
    decoded = decode(payload)
    return Message(
        row=row,
        request=request,
        properties=fields,
        origin_id="70:3:2",
        decoded=None if isinstance(decoded, Rejection) else decoded,
    )


def kept(reason: Reason, detail: str = "", *, absent_since_ms: int | None = None) -> Swept:
    return Swept(verdict=Verdict(Outcome.RETRY, reason, detail), absent_since_ms=absent_since_ms)


def copied(receipt: dict[str, Any]) -> dict[str, str]:
    return dict(receipt[c.MESSAGE_PROPERTIES])


def test_a_receipt_names_the_run_the_message_and_the_result() -> None:
    receipt = WRITER.receipt(message(), DELETED)
    assert set(receipt) <= set(RECEIPT.names)
    assert (receipt[c.EPOCH], receipt[c.QUERY], receipt[c.BATCH_ID], receipt[c.CHUNK]) == (4, REQUESTS, 2, 9)
    assert (receipt[c.OUTCOME], receipt[c.REASON], receipt[c.BYTES]) == ("DELETED", "UNREFERENCED", 1_000)
    assert (receipt[c.LEDGER_ID], receipt[c.TOPIC_NAME]) == (5, topic_of(TOPIC))
    assert (receipt[c.REFRESHED], receipt[c.SOURCES], receipt[c.AT_MS]) == (True, "certificate", NOW_MS)


def test_a_receipt_names_the_lane_of_the_request() -> None:
    lane = "persistent://public/ledger-deletion/__ledger_deletion"
    assert WRITER.receipt(replace(message(), lane=lane), DELETED)[c.LANE] == lane
    assert WRITER.receipt(message(), DELETED)[c.LANE] is None


def test_a_finished_request_has_no_copy() -> None:
    assert not set(COPIED) & set(WRITER.receipt(message(), DELETED))


def test_a_kept_request_goes_to_retry_unchanged_with_its_number_of_tries() -> None:
    receipt = WRITER.receipt(message(age_ms=60_000, a="b", RECONSUMETIMES="2"), kept(Reason.IN_USE))
    assert (receipt[c.TARGET], receipt[c.MESSAGE_KEY], receipt[c.PAYLOAD]) == (
        f"{SYSTEM}-RETRY",
        b"key",
        encode(REQUEST),
    )
    assert (receipt[c.ATTEMPT], receipt[c.DELAY_MS]) == (3, 10 * MINUTE_MS)
    properties = copied(receipt)
    assert (properties["a"], properties[RECONSUMETIMES], properties[DELAY_TIME]) == ("b", "3", "600000")
    assert (properties[REAL_TOPIC], properties[ORIGIN_MESSAGE_ID]) == (SYSTEM, "70:3:2")


def test_copies_of_one_owner_go_to_one_partition_and_owners_are_spread() -> None:
    topic = CopyTopic("t", 4)
    assert topic.partition_of("data:a") == topic.partition_of("data:a")
    assert {topic.partition_of(f"data:{n}") for n in range(50)} == {0, 1, 2, 3}


def test_a_topic_without_partitions_has_no_partition() -> None:
    assert CopyTopic("t", 0).partition_of("data:a") == -1


@pytest.mark.parametrize(
    ("query", "age_ms", "wait_ms", "attempt"),
    [
        pytest.param(REQUESTS, 59_999, 1_000, 0, id="fresh"),
        pytest.param(REQUESTS, 60_000, 10 * MINUTE_MS, 1, id="no longer fresh"),
        pytest.param(RETRY, 0, 10 * MINUTE_MS, 1, id="a retry is not fresh"),
    ],
)
def test_a_fresh_request_whose_owner_still_names_the_ledger_loses_no_try(
    query: str, age_ms: int, wait_ms: int, attempt: int
) -> None:
    writer = replace(WRITER, run=replace(WRITER.run, query=query))
    receipt = writer.receipt(message(age_ms=age_ms), kept(Reason.IN_USE))
    assert (receipt[c.DELAY_MS], receipt[c.ATTEMPT]) == (wait_ms, attempt)


def test_a_first_sighting_of_absence_is_signed_in_the_copy() -> None:
    receipt = WRITER.receipt(message(), kept(Reason.OWNER_ABSENT_ONCE, absent_since_ms=NOW_MS - 5))
    assert absent_since_ms(SECRET, subject_of(REQUEST), copied(receipt)) == NOW_MS - 5


def test_an_earlier_sighting_is_dropped_when_the_owner_exists() -> None:
    receipt = WRITER.receipt(message(OWNER_ABSENT_SINCE="1:signature"), kept(Reason.IN_USE))
    assert OWNER_ABSENT_SINCE not in copied(receipt)


def test_a_request_that_was_tried_too_often_becomes_a_dead_letter_with_its_reason() -> None:
    receipt = WRITER.receipt(message(RECONSUMETIMES="3"), kept(Reason.IN_USE, "the list names it"))
    assert (receipt[c.OUTCOME], receipt[c.TARGET]) == ("DEAD_LETTER", f"{SYSTEM}-DLQ")
    assert (copied(receipt)[REASON], receipt[c.ATTEMPT]) == ("IN_USE: the list names it", 4)


def test_the_receipt_of_a_refused_but_valid_request_names_its_ledger() -> None:
    refused = Rejection(Reason.OTHER_TENANT, "not theirs")
    receipt = WRITER.receipt(
        message(refused), Swept(verdict=Verdict(Outcome.DEAD_LETTER, refused.reason, refused.detail))
    )
    assert (receipt[c.LEDGER_ID], receipt[c.OUTCOME]) == (5, "DEAD_LETTER")


def test_bytes_that_are_no_request_name_no_ledger_and_are_kept_unchanged() -> None:
    refused = Rejection(Reason.NOT_JSON, "no JSON")
    receipt = WRITER.receipt(
        message(refused, payload=b"junk"), Swept(verdict=Verdict(Outcome.DEAD_LETTER, refused.reason))
    )
    assert c.LEDGER_ID not in receipt
    assert (receipt[c.PAYLOAD], copied(receipt)[REASON]) == (b"junk", "NOT_JSON")


def test_a_wait_with_a_known_end_ends_then_however_often_the_request_was_delayed() -> None:
    """Ten tries are not used up by waiting: neither the first nor a later wait counts."""
    waiting = Swept(verdict=Verdict(Outcome.RETRY, Reason.NOT_CLOSED, wait_ms=6 * 60 * MINUTE_MS))
    for attempt in (0, 3):
        put_off = replace(message(), properties={RECONSUMETIMES: str(attempt)})
        receipt = WRITER.receipt(put_off, waiting)
        assert (receipt[c.OUTCOME], receipt[c.ATTEMPT], receipt[c.DELAY_MS]) == ("RETRY", attempt, 360 * MINUTE_MS)
        properties = copied(receipt)
        assert (properties[RECONSUMETIMES], properties[DELAY_TIME]) == (str(attempt), str(360 * MINUTE_MS))
