"""PIP-129's API over REST: deletable ledgers are marked in their topic's metadata, and stay marked until they are gone.

1. A mark is durable when mark_deletable_ledgers() returns: the call reads it back from the metadata store.
2. remove_all_deletable_ledgers() never deletes. It sends requests, and the service judges each of them: it keeps a
   ledger that the topic still lists, whatever is marked.
3. A mark is removed only after the service's final receipt says that its ledger is gone. So a call that is interrupted
   at any point leaves marks, and the next call continues: this is PIP-129's check and retry.
4. To shorten a key, the remaining marks are first written under a new key, and only then is the old key removed.
5. Marks share the topic's znode with its list, so we refuse marks that could make the znode too large.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from ledger_reaper_client.admin import Admin, path_of
from ledger_reaper_client.client import WAIT_SECONDS, LedgerDeletionService
from ledger_reaper_client.errors import InvalidRequestError, NoReceiptError, RefusedError, UnavailableError
from ledger_reaper_client.mark_format import MOST_IDS, Marked, MarkedTopic, Upload, properties_of, read_marks
from ledger_reaper_client.names import parse_topic
from ledger_reaper_client.receipts import Receipt, Wait
from ledger_reaper_client.requests import LedgerComponent, OffloadContext, checked_id, request_for
from ledger_reaper_client.sending import Topic

__all__ = ["DeletableLedgers", "Marked", "Removal"]

MOST_ZNODE_BYTES = 512 * 1024  # half of ZooKeeper's default limit, because the topic's list has to grow, too
# REST shows neither the znode's size nor that of an entry; these are more than entries have
_LEDGER_BYTES = 64
_OFFLOADED_BYTES = 1024

Name = Any  # a ledger id, or an Upload


@dataclass(frozen=True)
class Removal:
    """Result for a topic's marks."""

    gone: int = 0  # removed, because the ledger is gone
    listed: int = 0  # the topic's list still names the ledger
    asked: int = 0  # requested, and not gone yet
    dead_letters: int = 0  # of those asked: the service has given up on this request, see docs/reasons.md
    unreadable: tuple[str, ...] = ()  # our keys with a value that can't be read

    @property
    def is_done(self) -> bool:
        """Whether no mark is left."""
        return not (self.listed or self.asked or self.unreadable)


@dataclass(frozen=True)
class _Topic:
    name: str
    listed: frozenset[int]  # ledgers in the topic's list
    offloaded: int  # how many of them are offloaded
    properties: Mapping[str, str]

    @property
    def marked(self) -> MarkedTopic:
        return read_marks(self.properties)


class DeletableLedgers:
    """The marks of any number of topics. For a partitioned topic, name the partition.

    Every method raises UnavailableError if a server does not answer, and RefusedError if there is no such topic.
    """

    def __init__(self, service: LedgerDeletionService) -> None:
        """Use a client's settings, and for the removal its producer and receipts; the caller starts and closes it."""
        self._sending = service.sending
        self._admin: Admin = service.sending.admin

    def mark_deletable_ledgers(
        self, topic: str, ledger_ids: Iterable[int], uploads: Mapping[int, OffloadContext] | None = None
    ) -> None:
        """Mark ledgers in BookKeeper, and uploads to tiered storage; return after the marks are durable.

        Earlier marks stay. Raises InvalidRequestError for an invalid ledger id or context, and RefusedError if the
        topic's znode could become too large.

        Args:
            topic: its name.
            ledger_ids: ledgers in BookKeeper.
            uploads: ledger id -> its upload, as the topic's list describes it.
        """
        new = Marked(
            frozenset(map(checked_id, ledger_ids)),
            {(checked_id(ledger_id), context.uuid): context for ledger_id, context in (uploads or {}).items()},
        )
        for (ledger_id, _uuid), context in new.uploads.items():  # raises for a context that no request could have
            request_for(topic, ledger_id, LedgerComponent.MANAGED_LEDGER, context=context)
        target = self._topic(topic)
        marked = target.marked.all
        self._write(target, new.without(marked.ledgers, marked.uploads))

    def marks_of(self, topic: str) -> Marked:
        """Return all marks of a topic."""
        return self._topic(topic).marked.all

    def get_all_deletable_ledgers(self, topic: str) -> set[int]:
        """Return the ledgers that are marked as deletable in BookKeeper."""
        return set(self.marks_of(topic).ledgers)

    def get_all_deletable_offloaded_ledgers(self, topic: str) -> set[int]:
        """Return the ledgers with an upload that is marked as deletable in tiered storage."""
        return {ledger_id for ledger_id, _uuid in self.marks_of(topic).uploads}

    def remove_all_deletable_ledgers(self, topic: str, *, timeout_seconds: float = WAIT_SECONDS) -> Removal:
        """Request the deletion of what is marked and no longer listed, and remove the marks of what is gone.

        Waits until every request has its final receipt, or the time is over; call it again for the remaining marks.
        Raises ReceiptsOffError if the service publishes no receipts.
        """
        target = self._topic(topic)
        marked = target.marked
        unlisted = [upload for upload in marked.all.uploads if upload[0] in target.listed]
        asked = marked.all.without(target.listed, unlisted)
        receipts = self._ask(target.name, asked, timeout_seconds)
        gone = {name for name, receipt in receipts.items() if receipt.is_gone}
        self._remove(target, marked, gone)
        return Removal(
            gone=len(gone),
            listed=len(marked.all) - len(asked),
            asked=len(asked) - len(gone),
            dead_letters=len(receipts) - len(gone),
            unreadable=marked.unreadable,
        )

    def _ask(self, topic: str, marks: Marked, timeout_seconds: float) -> dict[Name, Receipt]:
        """Send a request for each mark, and return the final receipts that came in time, by mark."""
        deadline = time.monotonic() + timeout_seconds
        data = LedgerComponent.MANAGED_LEDGER
        requests: dict[Name, Any] = {ledger_id: request_for(topic, ledger_id, data) for ledger_id in marks.ledgers}
        for upload, context in marks.uploads.items():
            requests[upload] = request_for(topic, upload[0], data, context=context)
        pending: list[tuple[Name, Topic, Future[str], Wait]] = []
        receipts: dict[Name, Receipt] = {}
        try:
            for name, request in requests.items():
                pending.append((name, *self._sending.start_delete(request)))
            for _name, _topic, answer, wait in pending:
                wait.sent(answer.result())
            for topic_of_requests in {each[1] for each in pending}:
                topic_of_requests.check_stored()
            for name, _topic, _answer, wait in pending:
                try:
                    receipts[name] = wait.final.result(max(0.0, deadline - time.monotonic()))
                except (FutureTimeoutError, NoReceiptError):
                    continue  # the mark stays, and the next call asks again
        finally:
            for _name, _topic, _answer, wait in pending:
                wait.drop()
        return receipts

    def _remove(self, target: _Topic, marked: MarkedTopic, gone: set[Name]) -> None:
        for key, marks in marked.by_key.items():
            uploads: list[Upload] = [name for name in gone if isinstance(name, tuple)]
            rest = marks.without((name for name in gone if isinstance(name, int)), uploads)
            if rest == marks and rest:
                continue
            self._write(target, rest, is_checked=False)
            # Allowed here: what the key marks is gone, or was just written, and read back, under another key.
            answer = self._admin.call("DELETE", f"{path_of(target.name)}/properties", {"key": key})
            if answer.status != 404:  # the topic was deleted, and its marks with it
                self._admin.done(answer, f"remove a property of {target.name}")

    def _write(self, target: _Topic, marks: Marked, *, is_checked: bool = True) -> None:
        """Write marks under new keys, and read them back. Without marks, write nothing."""
        # never rewritten: a key has no version, so a rewrite could undo a concurrent write
        properties = properties_of(marks, secrets.token_hex(8))
        if not properties:
            return
        if is_checked:
            _refuse_unfit(target, properties)
        answer = self._admin.call("PUT", f"{path_of(target.name)}/properties", body=properties)
        self._admin.done(answer, f"write properties of {target.name}")
        if not properties.items() <= self._topic(target.name).properties.items():
            raise UnavailableError(f"the metadata store does not have the marks of {target.name}: mark them again")

    def _topic(self, topic: str) -> _Topic:
        name = parse_topic(topic)
        if name.is_v1 or name.descriptor:
            raise InvalidRequestError(
                f"{topic} can't be marked: Pulsar has no call that writes properties of topics with V1 names or of "
                "segments; send requests for its ledgers instead"
            )
        answer = self._admin.call("GET", f"{path_of(name.full)}/internal-info")
        self._admin.done(answer, f"return the list of {name.full}", "for a partitioned topic, name the partition")
        try:
            ledgers = answer.body["ledgers"]
            properties = {str(key): str(value) for key, value in (answer.body.get("properties") or {}).items()}
            listed = frozenset(int(each["ledgerId"]) for each in ledgers)
            return _Topic(name.full, listed, sum(each.get("isOffloaded") is True for each in ledgers), properties)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RefusedError(
                f"{name.full} has no list of ledgers (for a partitioned topic, name the partition): {error!r}"
            ) from error


def _refuse_unfit(target: _Topic, properties: Mapping[str, str]) -> None:
    both = {**target.properties, **properties}
    size = sum(len(key.encode()) + len(value.encode()) + 8 for key, value in both.items())
    size += len(target.listed) * _LEDGER_BYTES + target.offloaded * _OFFLOADED_BYTES
    # a broker whose write ZooKeeper refuses retries it for ever, and serves no other topic while it does
    if size > MOST_ZNODE_BYTES:
        raise RefusedError(
            f"with these marks the znode of {target.name} could have {size // 1024} KiB, and we write at most "
            f"{MOST_ZNODE_BYTES // 1024} KiB: call remove_all_deletable_ledgers, or mark fewer ledgers"
        )
    if set(read_marks(both).unreadable).difference(target.marked.unreadable):
        raise RefusedError(
            f"a topic can have at most {MOST_IDS} marked ledgers: call remove_all_deletable_ledgers, or mark fewer"
        )
