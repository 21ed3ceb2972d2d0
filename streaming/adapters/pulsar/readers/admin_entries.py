"""Asks the admin API for the entries that a reader did not get, and decides which of them are given up.

1. The broker decompresses an entry into memory of the size that the sender stated. It does not answer if that fails,
   and its answer is not valid HTTP if a sender's property breaks a header. So requests have short timeouts.
2. A broker that can't read an entry from its bookies, or from tiered storage, answers 500 with their error, which no
   sender causes. Such an entry is given up only if the error is a loss, and the caller has waited for long enough.
3. A missing answer is an outage, and no reason to give the entry up, unless the broker returns another entry at that
   time (control_entries.py), and confirm() has found nothing at the end of the read.
"""

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Lock
from typing import TypeGuard

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers.control_entries import Control, ControlEntries, EntryAdmin
from streaming.adapters.pulsar.readers.span_reader import SpanEntry
from streaming.errors import ReaperError, RefusedError, UnavailableError
from udfs.formats.entry import MAX_UNCOMPRESSED_BYTES
from udfs.formats.internal_stats import Ensembles, Position
from udfs.undelivered import NotShown

FULL_TIMEOUT_SECONDS = 3.0
_MAX_UNANSWERED = 5  # after this many failures, entries that will never be sent to a reader are not requested
_SHORTEST_SECONDS = 0.25  # a healthy broker answers in milliseconds
# (failures so far, timeout)
_TIMEOUTS = ((_MAX_UNANSWERED, FULL_TIMEOUT_SECONDS), (50, 1.0), (float("inf"), _SHORTEST_SECONDS))
_RETRIES_SECONDS = 30.0  # for the second requests of all entries together
# Longer than an entry may be in a broker's cache without being read again from a bookie: a second by default, or six
# since Pulsar 4.1, which extends the time up to five times for entries that other consumers still expect.
_CACHE_SECONDS = 8.0
# Longer than a broker waits for a bookie that hangs (bookkeeperClientTimeoutInSeconds is 30), and for three, one after
# the other; then it answers with an error.
_BOOKIE_SECONDS, _BOOKIES_SECONDS = 35.0, 100.0
_CONFIRMED_AT_ONCE = 32  # ensembles, since each may take that long
# A broker's answer if its bookies or the tiered storage return no entry: with BookKeeper's class of the error, or with
# nothing but its message.
_STORAGE_ERROR = re.compile(
    rb'\\n\\nStacktrace:\\n\\norg\.apache\.bookkeeper\.|^\{"reason":"[^"\\]*\berror code: -\d+(?:\\n)*"'
)
_STORAGE_MESSAGE = re.compile(rb'(?:Message: |^\{"reason":")([^"\\]+)')
# BookKeeper's codes for a lost entry: so many bookies of its ledger answered without it that it was never acknowledged,
# or they have lost it (-13; -7: none knows the ledger); or its ledger was deleted (-25). If fewer answered, the code is
# that of the outage. A damaged entry (-5) is no loss: an undamaged copy may be on a bookie that does not answer.
_LOSS = re.compile(rb"error code: -(?:7|13|25)\b")
# Answers about the request, not about the entry.
_TOO_MANY_REQUESTS = HTTPStatus.TOO_MANY_REQUESTS
_NO_PERMISSION = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# Answers of a proxy, which may be temporary.
_MAY_PASS = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)

# Texts in UnavailableErrors after which the caller gives the entry up if the error lasts for long enough.
# The topics contain no readable entry, or all bookies hang; confirm() then distinguishes the two.
NOTHING_SHOWN = "the broker returns no entry, neither of this topic nor of others"
# The topic is being moved, or a proxy can't forward the answer, or bookies have lost the entry.
WITHHELD = "the broker, or a proxy before it, answered repeated requests for an entry with"


@dataclass(slots=True)
class AdminEntries:
    """Entries of a partition from the admin API. Thread-safe."""

    admin: EntryAdmin
    partition: str
    controls: ControlEntries
    _unanswered: int = field(default=0, init=False)
    _retries_left_s: float = field(default_factory=lambda: _RETRIES_SECONDS, init=False)
    _retry_lock: Lock = field(default_factory=Lock, init=False)
    # entries that were given up because no answer came -> when they were requested
    _silent: dict[Position, float] = field(default_factory=dict, init=False)
    _passed_over: set[Position] = field(default_factory=set, init=False)  # those of them that the broker passed over

    def fetch(self, entry: SpanEntry) -> Body | NotShown:
        """Return the broker's answer for an entry that a reader did not get, or why the entry is given up.

        Raises UnavailableError, RefusedError.
        """
        unanswered = self._unanswered
        if entry.is_passed_over and unanswered >= _MAX_UNANSWERED:
            return NotShown(
                f"the broker sends readers only later entries, and did not return {unanswered} entries before"
            )
        timeout_s = next(seconds for most, seconds in _TIMEOUTS if unanswered < most)
        requested_s = time.monotonic()
        answer = self._request(entry.position, timeout_s)
        if not entry.is_passed_over and not _is_shown(answer):
            answer = self._retry(entry.position)
        if not _is_shown(answer):
            answer = self._compare_with_controls(entry.position, answer, timeout_s)
        if _is_shown(answer):
            self.controls.was_shown(entry.position)
            if answer.is_whole:
                return answer
            self._unanswered += 1
            return NotShown(f"it is larger than {MAX_UNCOMPRESSED_BYTES} bytes once decompressed")
        self._unanswered += 1
        if answer is None:
            if entry.is_passed_over:
                self._passed_over.add(entry.position)
            self._silent[entry.position] = requested_s
        result = "gave no readable answer" if answer is None else f"answered {answer.status}"
        return NotShown(f"the broker sends it to no reader, and {result} to a request for its position")

    def confirm(self) -> None:
        """Check, at the end of a read, that no entry was given up because of an outage. Raises UnavailableError.

        A broker does not answer for an entry of a bookie that hangs, and may return a control entry from its cache, or
        of other bookies. So at least _CACHE_SECONDS later, an entry that the same bookies store must be returned. Then
        the entry itself is requested again: while a bookie hangs, the broker turns to another one for later requests,
        but a request for an entry waits for the earlier one. If no entry of these bookies is returned, the entry
        itself must get no answer for longer than the broker waits for bookies.
        """
        if not self._silent:
            return
        ensembles: Mapping[int, Ensembles] = {}
        with suppress(ReaperError):
            ensembles = self.admin.ensembles(self.partition)
        groups: dict[tuple[int, int], list[Position]] = {}  # (ledger, first entry of the same bookies) -> silent ones
        for ledger, entry in sorted(self._silent, key=self._silent.__getitem__):
            first = ensembles[ledger].siblings(entry, entry + 1).start if ledger in ensembles else 0
            groups.setdefault((ledger, first), []).append((ledger, entry))
        with ThreadPoolExecutor(_CONFIRMED_AT_ONCE, thread_name_prefix="confirm") as threads:
            for _ in threads.map(lambda group: self._confirm(group, ensembles.get(group[0][0])), groups.values()):
                pass
        self.admin.internal_stats(self.partition)  # while no broker serves the topic, a proxy answers with an error
        self._retries_left_s = _RETRIES_SECONDS
        timeout_s = max(_SHORTEST_SECONDS, min(FULL_TIMEOUT_SECONDS, _RETRIES_SECONDS / len(self._silent)))
        if any(_is_shown(self._retry(position, timeout_s)) for position in list(self._silent)):
            raise self._returned_late()

    def _confirm(self, silent: Sequence[Position], ensembles: Ensembles | None) -> None:
        """Check entries that the same bookies store, in the order of their requests."""
        time.sleep(max(0.0, self._silent[silent[-1]] + _CACHE_SECONDS - time.monotonic()))
        patience_s = _BOOKIES_SECONDS
        if ensembles is not None and self.controls.returns_sibling_of(silent[-1], ensembles, FULL_TIMEOUT_SECONDS):
            # The broker has read what it passed over. Other entries must not be waiting for a bookie that hangs.
            silent = [position for position in silent if position not in self._passed_over]
            patience_s = _BOOKIE_SECONDS
        if silent and self._is_returned(silent[-1], patience_s):
            raise self._returned_late()

    def _is_returned(self, position: Position, patience_s: float) -> bool:
        """Whether the broker returns an entry within this time. A proxy may end a request sooner."""
        left_s = patience_s
        while left_s > 0:
            requested_s = time.monotonic()
            if _is_shown(self._request(position, max(FULL_TIMEOUT_SECONDS, left_s))):
                return True
            took_s = time.monotonic() - requested_s
            if took_s < FULL_TIMEOUT_SECONDS:  # the broker itself has answered, though not in valid HTTP
                return False
            left_s -= took_s
        return False

    def _returned_late(self) -> UnavailableError:
        return UnavailableError(
            f"{self.partition}: the broker returns an entry for which it gave no answer before; its bookies did not "
            "answer, and the entries are read again"
        )

    def _compare_with_controls(self, position: Position, answer: Body | None, timeout_s: float) -> Body | None:
        """Decide which answer counts for an entry that the broker did not return.

        Raises UnavailableError if the broker returns no control entry either, or if the answer may be temporary.
        """
        control = self.controls.check(position, timeout_s)
        if control is Control.NOT_SHOWN and timeout_s < FULL_TIMEOUT_SECONDS:
            control = self.controls.check(position, FULL_TIMEOUT_SECONDS)
        elif control is Control.SHOWN and not _may_pass(answer):
            return answer
        if control is Control.SHOWN:
            # The broker was slow, or the topic was being moved, when this entry was requested. A proxy answers 502, 503
            # or 504 while a topic is being moved, and also if it can't forward a sender's headers.
            answer = self._request(position, FULL_TIMEOUT_SECONDS)
        else:
            self.admin.internal_stats(self.partition)  # raises an error if no broker answers at all
        if not self.controls.gives_up:
            if control is Control.NOT_SHOWN:
                raise UnavailableError(f"{self.partition}: {NOTHING_SHOWN}; do its bookies answer?")
            # brokers themselves answer 503 for a topic that is being moved, so the caller decides, by how long the
            # error lasts
            if _may_pass(answer) and (
                control is Control.NONE_STORED or answer.status == HTTPStatus.SERVICE_UNAVAILABLE
            ):
                raise UnavailableError(f"{self.partition}: {WITHHELD} {answer.status}")
        return answer

    def _request(self, position: Position, timeout_s: float) -> Body | None:
        """Request an entry once. Raises UnavailableError, RefusedError for answers that do not concern the entry."""
        answer = self.admin.entry(self.partition, position, MAX_UNCOMPRESSED_BYTES, timeout_s)
        if answer is not None and answer.status == _TOO_MANY_REQUESTS:
            raise UnavailableError(f"{self.partition}: the broker answered a request for an entry with {answer.status}")
        if answer is not None and answer.status in _NO_PERMISSION:
            raise RefusedError(
                f"{self.partition}: the broker refuses to return an entry ({answer.status}); give this "
                "service's role permission to read messages of this topic through the admin API"
            )
        if answer is not None and _is_storage_error(answer):
            self._require_loss(answer)
        return answer

    def _require_loss(self, answer: Body) -> None:
        """Raise UnavailableError unless the storage error shows that the entry is lost and the caller gives it up."""
        found = _STORAGE_MESSAGE.search(answer.data)
        message = found[1].decode("utf-8", "replace")[:200] if found else "no message"
        if not _LOSS.search(answer.data):
            raise UnavailableError(f"{self.partition}: the broker can't read an entry from storage: {message}")
        if not self.controls.gives_up:
            raise UnavailableError(f"{self.partition}: {WITHHELD} {answer.status}: {message}")

    def _retry(self, position: Position, timeout_s: float = FULL_TIMEOUT_SECONDS) -> Body | None:
        """Request an entry again, one entry at a time, until _RETRIES_SECONDS are used up."""
        with self._retry_lock:
            if self._retries_left_s <= 0:
                return None
            started_s = time.monotonic()
            try:
                return self._request(position, timeout_s)
            finally:
                self._retries_left_s -= time.monotonic() - started_s


def _is_shown(answer: Body | None) -> TypeGuard[Body]:
    return answer is not None and answer.status == HTTPStatus.OK


def _may_pass(answer: Body | None) -> TypeGuard[Body]:
    return answer is not None and answer.status in _MAY_PASS


def _is_storage_error(answer: Body) -> bool:
    return answer.status == HTTPStatus.INTERNAL_SERVER_ERROR and _STORAGE_ERROR.search(answer.data) is not None
