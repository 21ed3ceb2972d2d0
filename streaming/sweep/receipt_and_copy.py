"""Writes the receipt of a message, and the copy of it that goes to RETRY or to the dead letters (DLQ)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from streaming.clock import Clock
from streaming.config.sections import TwoPhaseSettings
from streaming.schemas import REQUESTS
from streaming.sweep.jobs import Swept
from streaming.sweep.messages import Message
from udfs import columns as c
from udfs.owners.sightings import OWNER_ABSENT_SINCE, signed, subject_of
from udfs.paths import base_topic, topic_of
from udfs.records import Outcome, PendingDelete, Verdict
from udfs.requests.disposition import Delays, dispose, next_look
from udfs.requests.retry import attempt_of, dead_letter_properties, retry_properties


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
