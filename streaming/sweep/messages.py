"""Messages before and after a sweep: the requests in them, and the receipts and copies that are written for them.

1. Before a chunk is swept, count_requests() finds the owners that the sweep may read: those of requests whose senders
   may send them.
2. A task reads its rows with a RowDecoder: the request in each message, and the properties without those that only
   this service writes, if a sender wrote them.
3. After the sweep, a ReceiptWriter writes each message's receipt, and the copy of it that goes to RETRY or to the dead
   letters (DLQ).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.clock import Clock
from streaming.config.sections import TwoPhaseSettings
from streaming.schemas import REQUESTS
from streaming.sweep.jobs import Swept
from udfs import columns as c
from udfs.formats.message_id import message_id_text
from udfs.owners.sightings import OWNER_ABSENT_SINCE, signed, subject_of
from udfs.paths import base_topic, topic_of
from udfs.records import LedgerComponent, Outcome, PendingDelete, Rejection, Verdict
from udfs.requests.admission import Admission, admit, first_topic
from udfs.requests.request_format import MAX_REQUEST_BYTES, decode
from udfs.requests.retry import (
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    Delays,
    as_original,
    attempt_of,
    dead_letter_properties,
    dispose,
    next_look,
    retry_properties,
)
from udfs.undelivered import rejection_of

_Request = PendingDelete | Rejection
Decode = Callable[[bytes | None, int], _Request]
"""udfs.requests.request_format.decode."""

_KEPT_ANSWERS = 1024  # about topics and owners; their names come from senders
_position = itemgetter(*c.POSITION)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests there are for which owner."""

    total: int  # all messages, admitted or not
    by_owner: Counter[tuple[str, str]]  # admitted requests by (tenant, reference key)


@dataclass(frozen=True, slots=True)
class AdmittedOwners:
    """Spark's task: record batches of schemas.MESSAGE become counts of admitted requests by owner, schemas.OWNER.

    A row without an owner counts all messages.
    """

    query: str  # schemas.REQUESTS or RETRY
    admission: Admission
    most_bytes: int  # a message whose payload is larger is no request

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the requests in record batches."""
        # the sweep's own reader, so that both admit the same messages
        reader = RowDecoder(self.query, self.admission, self.most_bytes)
        total = 0
        requests: Counter[tuple[str, str]] = Counter()
        for batch in batches:
            total += batch.num_rows
            named = [row for row in batch.to_pylist() if row[c.REFERENCE_KEY] is not None]
            for row, request in reader.requests(named):
                # A refused request must not cause a read: otherwise a client that may publish to any one topic could
                # make this service read the znodes of all topics, and make brokers load them.
                if isinstance(request, PendingDelete):
                    requests[row[c.TENANT], row[c.REFERENCE_KEY]] += 1
        counts = [{c.TENANT: tenant, c.REFERENCE_KEY: owner, c.ASKED: n} for (tenant, owner), n in requests.items()]
        yield pa.RecordBatch.from_pylist([{c.ASKED: total}, *counts], schema=schemas.OWNER)


def count_requests(rows: DataFrame, task: AdmittedOwners) -> RequestCounts:
    """Count the messages in rows of schemas.MESSAGE, and the admitted requests of each owner, in one job."""
    total = 0
    by_owner: Counter[tuple[str, str]] = Counter()
    # in a request topic no property counts
    columns = [*c.POSITION, c.PAYLOAD, c.NO_REQUEST, c.REFERENCE_KEY, c.TENANT]
    if task.query != REQUESTS:
        columns.append(c.MESSAGE_PROPERTIES)
    for row in rows.select(columns).mapInArrow(task, from_arrow_schema(schemas.OWNER)).collect():
        if row[c.REFERENCE_KEY] is None:
            total += row[c.ASKED]
        else:
            by_owner[row[c.TENANT], row[c.REFERENCE_KEY]] += row[c.ASKED]
    return RequestCounts(total, by_owner)


@dataclass(frozen=True, slots=True)
class _Origin:
    topic: str  # to which a message was first published
    is_lane: bool
    partition: int  # of the topic that it was read from; -1: the topic has no partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A row of schemas.MESSAGE and its request."""

    row: Mapping[str, Any]
    request: PendingDelete | Rejection
    properties: Mapping[str, str]  # without those that only this service writes, if a sender wrote them
    origin_id: str  # the message id of the original request
    decoded: PendingDelete | None = None  # the request in the payload, even if its sender may not send it
    lane: str | None = None  # the lane to which it was first published; None: another topic


class RowDecoder:
    """Reads the messages of one task; a message that the source delivered twice counts once (rows are sorted)."""

    def __init__(
        self, query: str, admission: Admission, most_bytes: int = MAX_REQUEST_BYTES, decode: Decode = decode
    ) -> None:
        """Create a reader.

        Args:
            query: schemas.REQUESTS or RETRY.
            admission: the rules that requests are admitted by.
            most_bytes: a message whose payload is larger is no request.
            decode: decodes a payload; called once for each.
        """
        self._query = query
        self._admission = admission
        self._most_bytes = most_bytes
        self._decode = decode
        self._last_position: tuple[Any, ...] = ()
        # a task has thousands of messages from few topics for few owners
        self._origin = lru_cache(maxsize=_KEPT_ANSWERS)(self._origin_of)
        self._refusals: dict[tuple[str, LedgerComponent, str], Rejection | None] = {}

    def read(self, rows: Iterable[Mapping[str, Any]]) -> list[Message]:
        """Read rows, in order."""
        return [self._message(row) for row in rows if self._is_new(row)]

    def requests(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], _Request]]:
        """Yield the rows that read() reads, each with the request of its message."""
        for row in rows:
            if self._is_new(row):
                is_ours, written = self._properties(row)
                origin = self._origin(row[c.SOURCE], written.get(REAL_TOPIC, "") if is_ours else "")
                yield row, self._admitted(self._payload(row), origin.topic)

    def _is_new(self, row: Mapping[str, Any]) -> bool:
        position = _position(row)
        is_new: bool = position != self._last_position
        self._last_position = position
        return is_new

    def _message(self, row: Mapping[str, Any]) -> Message:
        is_ours, written = self._properties(row)
        origin = self._origin(row[c.SOURCE], written.get(REAL_TOPIC, "") if is_ours else "")
        payload = self._payload(row)
        own_id = message_id_text(row[c.POSITION_LEDGER], row[c.POSITION_ENTRY], origin.partition, row[c.POSITION_BATCH])
        return Message(
            row=row,
            request=self._admitted(payload, origin.topic),
            properties=written if is_ours else as_original(written),
            origin_id=written.get(ORIGIN_MESSAGE_ID, own_id) if is_ours else own_id,
            decoded=payload if isinstance(payload, PendingDelete) else None,
            lane=origin.topic if origin.is_lane else None,
        )

    def _properties(self, row: Mapping[str, Any]) -> tuple[bool, dict[str, str]]:
        """Return whether the properties that only this service writes count, and all properties."""
        # Every client that may publish to a request topic can write any property, so the properties that only this
        # service writes are ignored there. In the retry topic, the same properties are our own, unless the message is
        # no request: none of our copies is like that, so a sender wrote it, even in the retry topic.
        fault = row.get(c.NO_REQUEST)
        is_ours = self._query != REQUESTS and not fault
        properties = row.get(c.MESSAGE_PROPERTIES) or ()
        return is_ours, {str(name): str(value) for name, value in properties if value is not None}

    def _payload(self, row: Mapping[str, Any]) -> _Request:
        fault = row.get(c.NO_REQUEST)
        return rejection_of(fault) if fault else self._decode(row[c.PAYLOAD], self._most_bytes)

    def _origin_of(self, source: str, original: str) -> _Origin:
        topic = first_topic(source, {REAL_TOPIC: original}, self._admission)
        return _Origin(topic, self._admission.is_lane(topic), _partition(source))

    def _admitted(self, request: _Request, topic: str) -> _Request:
        """Return the request, or why its topic has no right to it."""
        if isinstance(request, Rejection):
            return request
        key = request.managed_ledger, request.component, topic  # all that admit() reads
        if key not in self._refusals:
            if len(self._refusals) >= _KEPT_ANSWERS:
                self._refusals.clear()
            answer = admit(request, topic, self._admission)
            self._refusals[key] = answer if isinstance(answer, Rejection) else None
        return self._refusals[key] or request


def _partition(source: str) -> int:
    _, separator, number = source.rpartition("-partition-")
    return int(number) if separator and number.isdigit() else -1


@dataclass(frozen=True, slots=True)
class CopyTopic:
    """A topic that copies are published to."""

    name: str
    partitions: int  # 0: it is not partitioned

    def partition_of(self, owner: str) -> int:
        """Return the partition for copies of an owner's requests; it never changes, so that they stay in order."""
        return crc32(owner.encode()) % self.partitions if self.partitions else -1


@dataclass(frozen=True, slots=True)
class Run:
    """The source of receipts: the run (epoch) of the service, its query, and the batch and chunk being processed."""

    epoch: int
    query: str
    batch_id: int
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptWriter:
    """Writes rows of schemas.RECEIPT."""

    run: Run
    two_phase: TwoPhaseSettings
    delays: Delays
    retry: CopyTopic
    dead_letter: CopyTopic
    secret: bytes  # signs the sightings that the next check has to trust (udfs.owners.sightings)
    clock: Clock

    def receipt(self, message: Message, swept: Swept) -> dict[str, Any]:
        """Return the receipt of one message, with a copy if the request comes back or becomes a dead letter."""
        attempt, most = attempt_of(message.properties), self.two_phase.max_retry_delete_count
        disposed = dispose(swept.verdict, attempt=attempt, max_retry_delete_count=most)
        receipt = {
            c.CHUNK: self.run.chunk,
            c.AT_MS: self.clock.now_ms(),
            c.EPOCH: self.run.epoch,
            c.QUERY: self.run.query,
            c.BATCH_ID: self.run.batch_id,
            **{name: message.row[name] for name in c.POSITION},
            c.ORIGIN_MESSAGE_ID: message.origin_id,
            c.REFERENCE_KEY: message.row[c.REFERENCE_KEY],
            c.TENANT: message.row[c.TENANT],
            c.OUTCOME: str(disposed.outcome),
            c.REASON: str(swept.verdict.reason),
            c.DETAIL: swept.verdict.detail,
            c.ATTEMPT: disposed.attempt,
            c.BYTES: swept.length_bytes,
            c.REFRESHED: swept.refreshed,
            c.SOURCES: swept.sources or None,
            c.LANE: message.lane,
            **_identity(message),
        }
        if disposed.outcome is Outcome.RETRY:
            return receipt | self._retry(message, swept, disposed.attempt)
        if disposed.outcome is Outcome.DEAD_LETTER:
            return receipt | self._dead_letter(message, swept.verdict, disposed.attempt)
        return receipt

    def _retry(self, message: Message, swept: Swept, attempt: int) -> dict[str, Any]:
        row = message.row
        is_fresh = self.run.query == REQUESTS
        send_delay_ms = self.two_phase.send_delay_seconds * 1000
        published_ms = min(row[c.PUBLISH_MS], self.clock.now_ms())  # a sender's clock may be ahead
        fresh_ms = published_ms + send_delay_ms - self.clock.now_ms() if is_fresh else 0
        # the jitter comes from the position, so that a replayed batch writes the same copy
        seed = f"{row[c.POSITION_LEDGER]}:{row[c.POSITION_ENTRY]}"
        wait_ms, tries = next_look(swept.verdict, self.delays, attempt=attempt, seed=seed, fresh_ms=fresh_ms)
        properties = retry_properties(
            message.properties,
            real_topic=base_topic(row[c.SOURCE]),
            origin_id=message.origin_id,
            attempt=tries,
            delay_ms=wait_ms,
        )
        # a sighting that no longer holds must not travel on: only two sightings in a row count (decision 5)
        properties.pop(OWNER_ABSENT_SINCE, None)
        if swept.absent_since_ms is not None and isinstance(message.request, PendingDelete):
            properties[OWNER_ABSENT_SINCE] = signed(self.secret, subject_of(message.request), swept.absent_since_ms)
        return _copy(row, self.retry, properties) | {c.DELAY_MS: wait_ms, c.ATTEMPT: tries}

    def _dead_letter(self, message: Message, verdict: Verdict, attempt: int) -> dict[str, Any]:
        properties = dead_letter_properties(
            message.properties,
            real_topic=base_topic(message.row[c.SOURCE]),
            origin_id=message.origin_id,
            attempt=attempt,
            reason=f"{verdict.reason}: {verdict.detail}" if verdict.detail else str(verdict.reason),
        )
        return _copy(message.row, self.dead_letter, properties)


def _copy(row: Mapping[str, Any], topic: CopyTopic, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of the copy: the topic it is published to, and its contents."""
    return {
        c.TARGET: topic.name,
        c.TARGET_PARTITION: topic.partition_of(row[c.REFERENCE_KEY] or row[c.SOURCE]),
        c.MESSAGE_KEY: row[c.MESSAGE_KEY],
        c.PAYLOAD: row[c.PAYLOAD],
        c.MESSAGE_PROPERTIES: list(properties.items()),
    }


def _identity(message: Message) -> dict[str, Any]:
    """Return the columns that name the ledger; a valid request has them even if its sender may not send it."""
    request = message.decoded
    if request is None:
        return {}
    return {
        c.LEDGER_ID: request.ledger_id,
        c.LEDGER_TYPE: str(request.ledger_type),
        c.COMPONENT: str(request.component),
        c.TOPIC_NAME: topic_of(request.managed_ledger),
        c.UUID: request.part,
    }
