"""The admin API's calls for transaction buffers and their snapshot topics (Pulsar 4.0.8), and for moving a guard."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from streaming.adapters.pulsar.http import Answer, PulsarAdminSettings, PulsarHttp, subscription_path, topic_path
from streaming.errors import RefusedError, UnavailableError
from udfs.formats.internal_stats import Position
from udfs.snapshots.sealed_segments import SEGMENT_BYTES
from udfs.snapshots.topic_findings import BufferFacts

_FLAG = "transactionBufferSegmentedSnapshotEnabled"
_MESSAGE_BYTES = "maxMessageSize"
_SEGMENT_BYTES = "transactionBufferSnapshotSegmentSize"
_SNAPSHOT_MS, _DEFAULT_SNAPSHOT_MS = "transactionBufferSnapshotMinTimeInMillis", 5_000


class SnapshotAdmin:
    """A client of these calls. Thread-safe. Every method raises UnavailableError, and RefusedError for a refusal."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)

    def schemas(self, topic: str) -> dict[int, str]:
        """Return version -> definition of all schema versions of a topic."""
        path = topic_path(topic).replace("v2/persistent/", "v2/schemas/", 1)
        answer = self._http.get(f"{path}/schemas")
        if answer.status == HTTPStatus.NOT_FOUND:
            return {}
        listed = _body(answer, f"read the schemas of {topic}").get("getSchemaResponses") or ()
        return {int(schema["version"]): str(schema.get("data", "")) for schema in listed}

    def buffer(self, topic: str, *, with_segments: bool = False) -> BufferFacts | None:
        """Return the state of a topic's transaction buffer; None if the topic is not loaded. This does not load it.

        Args:
            with_segments: include each segment that the broker has sealed in memory, written or not.
        """
        path = topic_path(topic).replace("v2/persistent/", "v3/transactions/transactionBufferStats/", 1)
        answer = self._http.get(path, segmentStats=str(with_segments).lower(), lowWaterMarks="false")
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        body = _body(answer, f"read the transaction buffer's stats of {topic}")
        try:
            segments = body.get("segmentsStats") or {}
            return BufferFacts(
                state=str(body["state"]),
                snapshot_type=str(body.get("snapshotType") or ""),
                aborted=int(body["totalAbortedTransactions"]),
                sealed=frozenset(
                    _position(segment["persistentPosition"]) for segment in segments.get("segmentStats") or ()
                ),
                written=int(segments.get("segmentsSize") or 0),
                max_read=_position(body.get("maxReadPosition") or "-1:-1"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"{topic}: stats in an unknown format: {error!r}") from error

    def broker_settings(self) -> tuple[bool | None, int]:
        """Return whether the broker writes segments, and its maxMessageSize; (None, 0) if a broker does not say.

        The settings are those of the broker that answers; all brokers should have the same.
        """
        answer = self._http.get("v2/brokers/configuration/runtime")
        if not answer.ok or not isinstance(answer.body, dict):
            return None, 0
        size = str(answer.body.get(_MESSAGE_BYTES, "0"))
        return _flag(answer.body.get(_FLAG)), int(size) if size.isdecimal() else 0

    def snapshot_seconds(self) -> float:
        """Return after how many seconds the broker writes a changed snapshot; the default if we can't read that."""
        return self._setting(_SNAPSHOT_MS, _DEFAULT_SNAPSHOT_MS) / 1_000

    def segment_bytes(self) -> int:
        """Return the broker's transactionBufferSnapshotSegmentSize; the default if we can't read that."""
        return self._setting(_SEGMENT_BYTES, SEGMENT_BYTES)

    def _setting(self, name: str, default: int) -> int:
        answer = self._http.get("v2/brokers/configuration/runtime")
        body = answer.body if answer.ok and isinstance(answer.body, dict) else {}
        text = str(body.get(name, ""))
        return int(text) if text.isdecimal() else default

    def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        """Move a subscription without consumers to a position of a partition, or to the next position that exists.

        Messages from there on are then not trimmed.
        """
        path = f"{subscription_path(topic, subscription)}/resetcursor"
        body = {"ledgerId": position[0], "entryId": position[1], "partitionIndex": -1}
        answer = self._http.ask("POST", path, body=body)
        if not answer.ok:
            raise RefusedError(f"Pulsar did not move {subscription} on {topic}: {answer.status} {answer.reason}")

    def ask_for_compaction(self, topic: str) -> None:
        """Request a compaction of the topic, unless one is running."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/compaction")
        if not answer.ok and answer.status != HTTPStatus.CONFLICT:
            raise RefusedError(f"Pulsar did not compact {topic}: {answer.status} {answer.reason}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _position(text: object) -> Position:
    """Parse a broker's ledger:entry. Raises ValueError."""
    ledger, entry = str(text).split(":")
    return int(ledger), int(entry)


def _flag(text: object) -> bool | None:
    return {"true": True, "false": False}.get(str(text).lower())


def _body(answer: Answer, what: str) -> Mapping[str, Any]:
    if not answer.ok:
        raise RefusedError(f"Pulsar did not {what}: {answer.status} {answer.reason}")
    if not isinstance(answer.body, dict):
        raise UnavailableError(f"can't {what}: the answer is not a JSON object. Is pulsar.admin_url that of a broker?")
    return answer.body
