"""The receipts that the service publishes for a lane's requests, and waiting for them.

1. A receipt topic belongs to one lane, `<lane>-RECEIPT`. All waits for receipts of a lane share one reader.
2. The reader starts after the newest receipt at a position that it knows, so a reconnection skips nothing. It starts
   before a request is sent, so the request's receipt comes after that position.
3. A receipt may arrive before the send has returned the request's message id. Receipts are kept while such a send is
   under way.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ledger_reaper_client.admin import Admin, Position, path_of
from ledger_reaper_client.errors import NoReceiptError, ReceiptsOffError, RefusedError, UnavailableError, no_access
from ledger_reaper_client.names import RECEIPT_SUFFIX

_POLL_MS = 500
_MOST_KEPT = 100_000  # receipts that arrived during sends, some 500 bytes each
_VERSION = 1


class Outcome(str, Enum):
    """The result of processing a request once. All but RETRY are final."""

    DELETED = "DELETED"
    ALREADY_GONE = "ALREADY_GONE"  # also for a ledger of another owner
    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"  # the service keeps the ledger: see the reason


@dataclass(frozen=True)
class Receipt:
    """The service's answer to a request."""

    message_id: str  # the request's, as returned by the send
    topic: str  # persistent://tenant/ns/name; "" if the message was no request
    ledger_id: int
    component: str
    ledger_type: str
    outcome: Outcome
    reason: str  # docs/reasons.md of Ledger Reaper explains each
    tries: int  # how often the request was delayed so far
    at_ms: int  # since 1970, by the service's clock

    @property
    def is_final(self) -> bool:
        """Whether it is the request's last receipt."""
        return self.outcome is not Outcome.RETRY

    @property
    def is_gone(self) -> bool:
        """Whether the topic that the request named has no such ledger or upload.

        It may exist as another topic's or component's: the service does not tell senders which ledgers others have.
        """
        return self.outcome in (Outcome.DELETED, Outcome.ALREADY_GONE)


def receipt_topic(lane: str) -> str:
    """Return the topic of a request topic's receipts."""
    return f"{lane}{RECEIPT_SUFFIX}"


def parse_receipt(payload: bytes) -> Receipt | None:
    """Return the receipt in a message; None if the message is no receipt that this version knows. Never raises."""
    try:
        fields = json.loads(payload)
        if fields["version"] != _VERSION:
            return None
        return Receipt(
            message_id=str(fields["messageId"]),
            topic=str(fields["topic"] or ""),
            ledger_id=-1 if fields["ledgerId"] is None else _whole(fields["ledgerId"]),
            component=str(fields["component"] or ""),
            ledger_type=str(fields["type"] or ""),
            outcome=Outcome(fields["outcome"]),
            reason=str(fields["reason"]),
            tries=_whole(fields["tries"] or 0),
            at_ms=_whole(fields["atMs"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _whole(value: Any) -> int:
    # not int(value): JSON's 1e999 is a float for which int() raises an OverflowError
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def require_receipt_topic(admin: Admin, topic: str, retention_minutes: int | None) -> None:
    """Raise ReceiptsOffError if there is no receipt topic, unless retention_minutes allows to create it."""
    partitions = admin.partitions(topic)
    if partitions:
        raise RefusedError(f"{topic} is partitioned, so the service publishes no receipts there: delete it")
    if partitions is not None:
        return
    if retention_minutes is None:
        raise ReceiptsOffError(
            f"there is no topic {topic}: the service publishes receipts only if the operator has set topics.receipts; "
            "if so, use Settings(receipts=True). Without receipts, use send_pending_delete_ledger"
        )
    answer = admin.call("PUT", path_of(topic))
    if answer.status != 409:
        admin.done(answer, f"create {topic}", "have the tenant's administrator create it, without partitions")
    retention = {"retentionTimeInMinutes": retention_minutes, "retentionSizeInMB": -1}
    admin.done(admin.call("POST", f"{path_of(topic)}/retention", body=retention), f"set the retention of {topic}")


class ReceiptReader:
    """Reads the receipts of a lane in a thread of its own, and gives them to those who wait. Thread-safe."""

    def __init__(self, client: Any, admin: Admin, topic: str) -> None:
        """Start to read after the newest receipt. Raises UnavailableError, RefusedError."""
        self._topic = topic
        self._lock = threading.Lock()
        self._waits: dict[str, list[Wait]] = {}
        self._sending = 0
        self._kept: OrderedDict[str, Receipt] = OrderedDict()
        self._is_closed = threading.Event()
        self._reader = _open(client, topic, admin.internal_stats(topic).last)
        self._thread = threading.Thread(target=self._run, name=f"receipts of {topic}", daemon=True)
        self._thread.start()

    def expect(self) -> Wait:
        """Announce a send whose receipt will be awaited; Wait.sent() or Wait.drop() has to follow."""
        with self._lock:
            self._sending += 1
        return Wait(self)

    def close(self) -> None:
        """Stop, and let all waits fail. A second call does nothing."""
        self._is_closed.set()
        self._thread.join()
        with suppress(Exception):  # it may be disconnected already
            self._reader.close()
        with self._lock:
            waits = [wait for waits in self._waits.values() for wait in waits]
            self._waits.clear()
        for wait in waits:
            wait.fail("the client was closed")

    def _run(self) -> None:
        import pulsar

        while not self._is_closed.is_set():
            try:
                message = self._reader.read_next(timeout_millis=_POLL_MS)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException:  # the library connects again by itself
                self._is_closed.wait(_POLL_MS / 1000)
                continue
            receipt = parse_receipt(message.data())
            if receipt is not None:
                self._take(receipt)

    def _take(self, receipt: Receipt) -> None:
        with self._lock:
            if self._sending:
                before = self._kept.get(receipt.message_id)
                if before is None or not before.is_final:
                    self._kept[receipt.message_id] = receipt
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            waits = list(self._waits.get(receipt.message_id, ()))
            if receipt.is_final:
                self._waits.pop(receipt.message_id, None)
        for wait in waits:
            wait.take(receipt)

    def _register(self, wait: Wait, message_id: str) -> Receipt | None:
        with self._lock:
            self._waits.setdefault(message_id, []).append(wait)
            kept = self._kept.get(message_id)
            if kept is not None and kept.is_final:
                del self._waits[message_id]
            self._end_of_send()
        return kept

    def _unregister(self, wait: Wait, message_id: str | None) -> None:
        with self._lock:
            if message_id is None:
                self._end_of_send()
            elif wait in self._waits.get(message_id, ()):
                self._waits[message_id].remove(wait)
                if not self._waits[message_id]:
                    del self._waits[message_id]

    def _end_of_send(self) -> None:
        self._sending -= 1
        if not self._sending:
            self._kept.clear()


class Wait:
    """Waits for the final receipt of one request."""

    def __init__(self, reader: ReceiptReader) -> None:
        self._reader = reader
        self._message_id: str | None = None
        self._newest: Receipt | None = None
        self.final: Future[Receipt] = Future()
        self.final.set_running_or_notify_cancel()

    def sent(self, message_id: str) -> None:
        """Wait for the receipts of this request."""
        self._message_id = message_id
        kept = self._reader._register(self, message_id)
        if kept is not None:
            self.take(kept)

    def drop(self) -> None:
        """Stop waiting. A second call does nothing."""
        reader, message_id = self._reader, self._message_id
        if self._message_id is None:
            self._message_id = ""
        if message_id != "":
            reader._unregister(self, message_id)

    def take(self, receipt: Receipt) -> None:
        """Take a receipt of the request."""
        self._newest = receipt
        if receipt.is_final:
            with suppress(Exception):  # it has its final receipt already
                self.final.set_result(receipt)

    def fail(self, why: str) -> None:
        """End the wait without a receipt."""
        with suppress(Exception):
            self.final.set_exception(self.error(why))

    def error(self, why: str) -> NoReceiptError:
        """Return the error for a wait that ended without a final receipt."""
        newest = self._newest
        state = f"its newest receipt is {newest.outcome.value} {newest.reason}" if newest else "it has no receipt yet"
        return NoReceiptError(
            f"request {self._message_id} has no final receipt: {why}; {state}. The request stays durable, and the "
            "service continues to process it",
            self._message_id or "",
            newest,
        )


def read_all(client: Any, admin: Admin, topic: str, timeout_seconds: float) -> Iterator[Receipt]:
    """Yield the receipts of a receipt topic up to the newest, oldest first. Raises UnavailableError, RefusedError."""
    for message in stored(client, admin, topic, (-1, -1), timeout_seconds):
        receipt = parse_receipt(message.data())
        if receipt is not None:
            yield receipt


def stored(client: Any, admin: Admin, topic: str, after: Position, timeout_seconds: float) -> Iterator[Any]:
    """Yield the messages of a partition, or of a topic without partitions, after a position, up to the newest.

    Raises UnavailableError, RefusedError.
    """
    import pulsar

    last = admin.internal_stats(topic).last
    if last[1] < 0 or last <= after:
        return
    reader = _open(client, topic, after)
    try:
        position, is_of_batch = after, False
        # the newest position may be that of a batch with more messages
        while position < last or (position == last and is_of_batch and reader.has_message_available()):
            message = reader.read_next(timeout_millis=round(timeout_seconds * 1000))
            message_id = message.message_id()
            position, is_of_batch = (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index() >= 0
            yield message
    except pulsar.PulsarException as error:
        raise UnavailableError(f"{topic} can't be read up to its newest message: {error}") from error
    finally:
        with suppress(pulsar.PulsarException):
            reader.close()


def _open(client: Any, topic: str, after: Position) -> Any:
    import pulsar

    try:
        return client.create_reader(topic, pulsar.MessageId(-1, after[0], after[1], -1))
    except pulsar.PulsarException as error:
        raise no_access(error, f"{topic} can't be read", "consume it") from error
