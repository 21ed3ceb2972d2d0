"""A broker's stats of a transaction buffer and its segments, in the format of Pulsar 4.0.8."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.errors import RefusedError, UnavailableError
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from udfs.snapshots.topic_findings import BufferFacts

TOPIC = "persistent://t/ns/x"
STATS = "/admin/v3/transactions/transactionBufferStats/t/ns/x"
SETTINGS = "/admin/v2/brokers/configuration/runtime"
UNLOAD = "/admin/v2/persistent/t/ns/x/unload"
RETENTION = "/admin/v2/persistent/t/ns/x/retention"
SEGMENTED: dict[str, Any] = {
    "state": "Ready",
    "maxReadPosition": "13:9",
    "snapshotType": "Segment",
    "totalAbortedTransactions": 70,
    "segmentsStats": {
        "segmentsSize": 1,
        "currentSegmentCapacity": 33,
        "unsealedAbortTxnIDSize": 4,
        "segmentStats": [
            {"lastTxnID": "(3,2)", "persistentPosition": "12:65"},
            {"lastTxnID": "(4,4)", "persistentPosition": "13:7"},
        ],
    },
}


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as running:
        yield running


@pytest.fixture
def admin(stub: HttpStub) -> Iterator[SnapshotAdmin]:
    opened = SnapshotAdmin(PulsarAdminSettings(admin_url=stub.url))
    yield opened
    opened.close()


def _answer(value: object, status: int = 200) -> CannedAnswer:
    return CannedAnswer(status, json.dumps(value).encode())


def test_segments_are_returned_on_request(stub: HttpStub, admin: SnapshotAdmin) -> None:
    stub.answer_with(f"{STATS}?segmentStats=true&lowWaterMarks=false", _answer(SEGMENTED))
    facts = admin.buffer(TOPIC, with_segments=True)
    assert facts == BufferFacts(
        state="Ready", snapshot_type="Segment", aborted=70, sealed=frozenset({(12, 65), (13, 7)}), written=1
    )


@pytest.mark.parametrize("segments", [None, {"segmentsSize": 0, "segmentStats": None}])
def test_a_buffer_of_single_snapshots_has_no_segments(segments: object, stub: HttpStub, admin: SnapshotAdmin) -> None:
    stub.answer_with(
        f"{STATS}?segmentStats=false&lowWaterMarks=false", _answer(SEGMENTED | {"segmentsStats": segments})
    )
    assert admin.buffer(TOPIC) == BufferFacts(state="Ready", snapshot_type="Segment", aborted=70)


def test_a_topic_that_is_not_loaded_has_no_buffer(stub: HttpStub, admin: SnapshotAdmin) -> None:
    stub.answer_with(STATS, _answer({"reason": "not found"}, 404))
    assert admin.buffer(TOPIC) is None


@pytest.mark.parametrize("position", ["12", "12:x", "1:2:3", None])
def test_a_position_in_an_unknown_format_is_an_error(position: object, stub: HttpStub, admin: SnapshotAdmin) -> None:
    stub.answer_with(
        STATS, _answer(SEGMENTED | {"segmentsStats": {"segmentStats": [{"persistentPosition": position}]}})
    )
    with pytest.raises(UnavailableError, match="an unknown format"):
        admin.buffer(TOPIC, with_segments=True)


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (_answer({"transactionBufferSnapshotMinTimeInMillis": "1500"}), 1.5),
        (_answer({}), 5.0),
        (_answer({"transactionBufferSnapshotMinTimeInMillis": "-1"}), 5.0),
        (_answer({"reason": "no right"}, 401), 5.0),
        (_answer([1]), 5.0),
    ],
)
def test_the_snapshot_interval_has_a_default(
    answer: CannedAnswer, seconds: float, stub: HttpStub, admin: SnapshotAdmin
) -> None:
    stub.answer_with(SETTINGS, answer)
    assert admin.snapshot_seconds() == seconds


@pytest.mark.parametrize(("text", "max_read"), [("13:9", (13, 9)), (None, (-1, -1))])
def test_the_maximum_read_position_is_returned(
    text: str | None, max_read: tuple[int, int], stub: HttpStub, admin: SnapshotAdmin
) -> None:
    stub.answer_with(f"{STATS}?segmentStats=false&lowWaterMarks=false", _answer(SEGMENTED | {"maxReadPosition": text}))
    buffer = admin.buffer(TOPIC)
    assert buffer is not None
    assert buffer.max_read == max_read


def test_only_an_unloaded_topic_need_not_be_unloaded(stub: HttpStub) -> None:
    """Without permission to unload it, its broker would continue with its state in memory."""
    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin:
        stub.answer_with(
            UNLOAD, CannedAnswer(204), _answer({"reason": "Topic not found"}, 404), _answer({"reason": "no"}, 403)
        )
        assert [admin.unload(TOPIC), admin.unload(TOPIC)] == [True, False]
        with pytest.raises(RefusedError, match="403"):
            admin.unload(TOPIC)


def test_the_applied_retention_is_never_requested(stub: HttpStub) -> None:
    """A 4.0.8 broker may wait for itself for 30 s before it answers that."""
    stub.answer_with(RETENTION, _answer({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}), CannedAnswer(204))
    stub.answer_with(
        "/admin/v2/namespaces/t/ns/retention", _answer({"retentionTimeInMinutes": 5, "retentionSizeInMB": 6})
    )
    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin:
        assert [admin.retention(TOPIC), admin.retention(TOPIC)] == [(-1, -1), (5, 6)]
    assert all("?" not in request.path for request in stub.requests)


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (_answer({"transactionBufferSnapshotSegmentSize": "140"}), 140),
        (_answer({}), 262_144),
        (CannedAnswer(403), 262_144),
    ],
)
def test_the_segment_size_is_the_brokers(answer: CannedAnswer, size: int, stub: HttpStub, admin: SnapshotAdmin) -> None:
    stub.answer_with(SETTINGS, answer)
    assert admin.segment_bytes() == size
