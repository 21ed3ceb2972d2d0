"""What the admin API says of transaction buffers and their snapshot topics (Pulsar 4.0.8), and how a guard is moved."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from streaming.adapters.pulsar.http import Answer, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.errors import RefusedError, UnavailableError
from udfs.formats.internal_stats import Position
from udfs.snapshots.audit import BufferFacts
from udfs.snapshots.segments import SEGMENT_BYTES

_FLAG = "transactionBufferSegmentedSnapshotEnabled"
_MESSAGE_BYTES = "maxMessageSize"
_SEGMENT_BYTES = "transactionBufferSnapshotSegmentSize"
_SNAPSHOT_MS, _DEFAULT_SNAPSHOT_MS = "transactionBufferSnapshotMinTimeInMillis", 5_000


class SnapshotAdmin:
    """A client for one thread or several. Every method raises UnavailableError, and RefusedError for a broker's no."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)

    def schemas(self, topic: str) -> dict[int, str]:
        """Return version -> definition of all schema versions of a topic; none where it has none."""
        path = topic_path(topic).replace("v2/persistent/", "v2/schemas/", 1)
        answer = self._http.get(f"{path}/schemas")
        if answer.status == HTTPStatus.NOT_FOUND:
            return {}
        listed = _body(answer, f"read the schemas of {topic}").get("getSchemaResponses") or ()
        return {int(each["version"]): str(each.get("data", "")) for each in listed}

    def buffer(self, topic: str, *, with_segments: bool = False) -> BufferFacts | None:
        """Return what the owner broker says of a topic's transaction buffer; None where it does not have it loaded.

        Asking does not load the topic. with_segments: also each segment that it has sealed in memory, written or not.
        """
        path = topic_path(topic).replace("v2/persistent/", "v3/transactions/transactionBufferStats/", 1)
        answer = self._http.get(path, segmentStats=str(with_segments).lower(), lowWaterMarks="false")
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        body = _body(answer, f"read the transaction buffer's stats of {topic}")
        try:
            segments = body.get("segmentsStats") or {}
            return BufferFacts(
                str(body["state"]),
                str(body.get("snapshotType") or ""),
                int(body["totalAbortedTransactions"]),
                frozenset(_position(each["persistentPosition"]) for each in segments.get("segmentStats") or ()),
                int(segments.get("segmentsSize") or 0),
                _position(body.get("maxReadPosition") or "-1:-1"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"{topic}: stats of a form not known: {error!r}") from error

    def broker_settings(self) -> tuple[bool | None, int]:
        """Return whether the broker writes segments, and how many bytes a message may have; (None, 0): we may not ask.

        It is the broker that answers; the others should be configured as it is.
        """
        answer = self._http.get("v2/brokers/configuration/runtime")
        if not answer.ok or not isinstance(answer.body, dict):
            return None, 0
        size = str(answer.body.get(_MESSAGE_BYTES, "0"))
        return _flag(answer.body.get(_FLAG)), int(size) if size.isdecimal() else 0

    def snapshot_seconds(self) -> float:
        """After how many seconds the broker writes a snapshot that has changed; its default where we may not ask."""
        answer = self._http.get("v2/brokers/configuration/runtime")
        body = answer.body if answer.ok and isinstance(answer.body, dict) else {}
        told = str(body.get(_SNAPSHOT_MS, ""))
        return (int(told) if told.isdecimal() else _DEFAULT_SNAPSHOT_MS) / 1_000

    def segment_bytes(self) -> int:
        """Return the broker's transactionBufferSnapshotSegmentSize; its default where we may not ask."""
        answer = self._http.get("v2/brokers/configuration/runtime")
        body = answer.body if answer.ok and isinstance(answer.body, dict) else {}
        told = str(body.get(_SEGMENT_BYTES, ""))
        return int(told) if told.isdecimal() else SEGMENT_BYTES

    def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        """Let a subscription without consumers begin at a position of one partition: nothing from there on is trimmed.

        The broker moves to the next position that exists.
        """
        path = f"{topic_path(topic)}/subscription/{quote(subscription, safe='')}/resetcursor"
        body = {"ledgerId": position[0], "entryId": position[1], "partitionIndex": -1}
        answer = self._http.ask("POST", path, body=body)
        if not answer.ok:
            raise RefusedError(f"Pulsar would not move {subscription} on {topic}: {answer.status} {answer.reason}")

    def ask_for_compaction(self, topic: str) -> None:
        """Let the broker compact the topic soon; one that does so already is not asked again."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/compaction")
        if not answer.ok and answer.status != HTTPStatus.CONFLICT:
            raise RefusedError(f"Pulsar would not compact {topic}: {answer.status} {answer.reason}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _position(said: object) -> Position:
    """Return a place as a broker writes it, ledger:entry. Raises ValueError."""
    ledger, entry = str(said).split(":")
    return int(ledger), int(entry)


def _flag(said: object) -> bool | None:
    return {"true": True, "false": False}.get(str(said).lower())


def _body(answer: Answer, what: str) -> Mapping[str, Any]:
    if not answer.ok:
        raise RefusedError(f"Pulsar would not {what}: {answer.status} {answer.reason}")
    if not isinstance(answer.body, dict):
        raise UnavailableError(f"can't {what}: the answer is no JSON object. Is pulsar.admin_url that of a broker?")
    return answer.body
