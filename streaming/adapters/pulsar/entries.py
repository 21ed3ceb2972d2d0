"""Entries of a partition by another way than the connector: as the broker sends them, and where it sends none, shown.

1. A reader gets no markers, no messages of transactions that are not committed, and nothing whose metadata the broker
   can't parse. Behind the first message of an open transaction it gets nothing at all. Such entries are asked for by
   their position, at the admin API.
2. The admin API decompresses what it shows, with the size that the sender wrote, in the broker's memory, and gives no
   answer at all where that fails, nor one that is HTTP where a sender's text breaks its headers. So it is asked with
   short patience, and of entries that the broker passes over (nobody will ever be sent them) only until a few have got
   no answer. Of those that it may still send, behind an open transaction, it is asked for a few at once.
3. No answer while the partition's broker shows no other entry either is an outage, and no reason to give an entry up
   (controls.py). Nor is an answer that says nothing of the entry itself: that we ask too often, or that our role may
   not ask.
4. Between the broker and us there may be a proxy, which answers 502, 503 or 504 where it can't pass on an answer with
   such headers, and also while a topic is being moved. So such an entry is asked for once more, after another one was
   shown; and behind a 503 only time tells, for brokers themselves say it of a topic that is being moved.
"""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Lock
from typing import Protocol, TypeGuard

from streaming.adapters.pulsar.controls import Controls, EntryAdmin
from streaming.adapters.pulsar.frames import FrameReader, Silence, opened
from streaming.adapters.pulsar.http import Body
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError, UnavailableError
from udfs.entry_ranges import EntrySpan
from udfs.formats.entry import MAX_UNCOMPRESSED_BYTES
from udfs.formats.entry_answer import entry_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.undelivered import NotShown, UndeliveredMessage, found_in, found_in_bytes, not_shown

# A position that the reader has not come to yet: the broker is slow, or sends nothing more.
_PATIENCE_SECONDS = 3.0
_LOOK_AGAIN_SECONDS = 10.0
_ASK_SECONDS = 3.0
_TRIES = 2
_MOST_UNANSWERED = 5
# How long it is asked, by how many others it has told nothing of: a healthy broker answers in some milliseconds.
_PATIENCE = ((_MOST_UNANSWERED, _ASK_SECONDS), (50, 1.0), (float("inf"), 0.25))
_SECOND_LOOKS_SECONDS = 30.0  # for all entries of one reading together
_AT_ONCE = 4
# Answers that say nothing of the entry: too many requests, and no right to ask. And those that may pass.
_BUSY = HTTPStatus.TOO_MANY_REQUESTS
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_MAY_PASS = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
# What stands in an UnavailableError where only time tells: a broker without its bookies, or topics in which there was
# never anything that can be read; and a topic that is being moved, or an answer that a proxy can't pass on.
NOTHING_SHOWN = "the broker shows no entry, neither of this topic nor of others"
WITHHELD = "asked for an entry again and again, the broker or a proxy before it answered"
# As many entries that are not wanted are read along, rather than to begin anew behind them.
_READ_ALONG = 1000


class LastAdmin(Protocol):
    """What is asked of the admin API, as PulsarAdmin does it."""

    def tells_last(self, partition: str, patience_seconds: float) -> bool:
        """Whether the broker says in time what the partition's last message is. Raises UnavailableError."""
        ...

    def internal_stats(self, partition: str) -> InternalStats:
        """Return what the partition's own broker says of it. Raises UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class Sent:
    """An entry as the reader met it. data None: the broker sends it to nobody, or to nobody yet.

    is_passed_over: the broker has sent what lies behind it, so it will never send it.
    """

    position: Position
    data: bytes | None
    is_passed_over: bool = False


def fallback_entries(
    settings: PulsarSettings,
    admin: EntryAdmin,
    partition: str,
    spans: Sequence[EntrySpan],
    controls: Controls | None = None,
) -> Iterator[tuple[Position, UndeliveredMessage]]:
    """Yield every message of these entries, in their order; a few entries are in memory at a time.

    controls: tells whether the broker shows entries at all; where it shows none, that is an UnavailableError with the
    words NOTHING_SHOWN, and with WITHHELD where an answer may be due to the entry or to a topic that is being moved.
    Raises UnavailableError, RefusedError.
    """
    shown = _Shown(admin, partition, controls or Controls(admin, partition))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="entries") as threads:
        for sent, answer in _answered(shown, threads, read_spans(settings, partition, spans)):
            for each in _found(sent, answer):
                yield sent.position, each


def _answered(
    shown: "_Shown", threads: Executor, entries: Iterator[Sent]
) -> Iterator[tuple[Sent, Body | NotShown | None]]:
    """Yield the entries in their order, with what the admin API says of those that the reader did not get."""
    asked: deque[tuple[Sent, Future[Body | NotShown]]] = deque()

    def taken(left: int) -> Iterator[tuple[Sent, Body | NotShown]]:
        while len(asked) > left:
            sent, answer = asked.popleft()
            yield sent, answer.result()

    for each in entries:
        if each.data is None and not each.is_passed_over:
            asked.append((each, threads.submit(shown.ask, each)))
            yield from taken(_AT_ONCE)
            continue
        yield from taken(0)
        if each.data is not None:
            shown.controls.was_sent(each.position)
        yield each, None if each.data is not None else shown.ask(each)
    yield from taken(0)


def _found(sent: Sent, answer: Body | NotShown | None) -> Iterator[UndeliveredMessage]:
    if isinstance(answer, NotShown):
        yield not_shown(answer)
    elif answer is not None:
        entry, standing = entry_of(answer.headers, answer.data)
        yield from found_in(entry, standing)
    elif sent.data is not None:
        yield from found_in_bytes(sent.data)


def read_spans(settings: PulsarSettings, partition: str, spans: Sequence[EntrySpan]) -> Iterator[Sent]:
    """Read the entries of spans, which ascend, as the broker sends them. Raises UnavailableError, RefusedError.

    What the broker sends nothing of is told as it is, and every few seconds we look whether something has come behind
    it: then the broker passes it over.
    """
    wanted = _Wanted(spans)
    tries = _TRIES
    while wanted.now is not None:
        yield from _sent(settings, partition, wanted, tries)
        until_s = time.monotonic() + _LOOK_AGAIN_SECONDS
        while wanted.now is not None and time.monotonic() < until_s:
            yield Sent(wanted.take(), None)
        tries = 1


def _sent(settings: PulsarSettings, partition: str, wanted: "_Wanted", most_tries: int) -> Iterator[Sent]:
    """Read on until nothing is wanted, or the broker sends nothing more however often a reader is begun anew."""
    tries = 0
    while wanted.now is not None and tries < most_tries:
        ledger = wanted.now[0]
        with opened(settings, partition, (ledger, wanted.now[1] - 1)) as reader:
            is_silent = yield from _read_on(reader, wanted)
        # a sender's wrong numbers can stop a reader; one that begins anew goes on behind them
        tries = 0 if not is_silent or wanted.now is None or wanted.now[0] != ledger else tries + 1
        if wanted.now is not None and reader.last is not None and wanted.now > reader.last:
            break


def _read_on(reader: FrameReader, wanted: "_Wanted") -> Generator[Sent, None, bool]:
    """Read until nothing more is sent, or nothing is wanted, or what is wanted is far away; True: nothing was sent."""
    read_along = 0
    while wanted.now is not None and read_along <= _READ_ALONG and (reader.last is None or wanted.now <= reader.last):
        try:
            at, data = reader.next(_PATIENCE_SECONDS)
        except Silence:
            return True
        while wanted.now is not None and wanted.now < at:
            yield Sent(wanted.take(), None, is_passed_over=True)
        if wanted.now == at:
            yield Sent(wanted.take(), data)
            read_along = 0
        else:
            read_along += 1
    return False


class _Wanted:
    """Positions of spans, one after the other; now: the one that is next, None behind the last."""

    def __init__(self, spans: Sequence[EntrySpan]) -> None:
        self._positions = ((span.ledger, entry) for span in spans for entry in range(span.first, span.last + 1))
        self.now: Position | None = next(self._positions, None)

    def take(self) -> Position:
        taken = self.now
        if taken is None:
            raise IndexError
        self.now = next(self._positions, None)
        return taken


@dataclass(slots=True)
class _Shown:
    """Asks the admin API for entries of a partition. Threads may share it."""

    admin: EntryAdmin
    partition: str
    controls: Controls
    _unanswered: int = field(default=0, init=False)
    _left_s: float = field(default_factory=lambda: _SECOND_LOOKS_SECONDS, init=False)
    _one_by_one: Lock = field(default_factory=Lock, init=False)

    def ask(self, sent: Sent) -> Body | NotShown:
        """Ask for an entry that the reader did not get. Raises UnavailableError, RefusedError."""
        unanswered = self._unanswered
        if sent.is_passed_over and unanswered >= _MOST_UNANSWERED:
            return NotShown(f"the broker passes it over, and told nothing of {unanswered} others before it")
        patience_s = next(seconds for most, seconds in _PATIENCE if unanswered < most)
        answer = self._accepted(sent.position, patience_s)
        if not sent.is_passed_over and not _is_shown(answer):
            answer = self._second_look(sent.position)
        if not _is_shown(answer):
            answer = self._with_a_control(sent.position, answer, patience_s)
        if _is_shown(answer):
            self.controls.was_shown(sent.position)
            if answer.is_whole:
                return answer
            self._unanswered += 1
            return NotShown(f"it is larger than {MAX_UNCOMPRESSED_BYTES} bytes once decompressed")
        self._unanswered += 1
        said = "gave no answer that can be read" if answer is None else f"answered {answer.status}"
        return NotShown(f"the broker sends it to nobody, and {said} when asked for it by its position")

    def _with_a_control(self, position: Position, answer: Body | None, patience_s: float) -> Body | None:
        """Return an answer for an entry that was not shown, once the broker has shown another one as quickly.

        Raises UnavailableError where it shows none, and where the answer may pass.
        """
        are_shown = self.controls.are_shown(position, patience_s)
        if are_shown is False and patience_s < _ASK_SECONDS:
            are_shown = self.controls.are_shown(position, _ASK_SECONDS)
        elif are_shown and not _may_pass(answer):
            return answer
        if are_shown:
            # the broker is slow, or was being moved, and so it may have been with this entry
            answer = self._accepted(position, _ASK_SECONDS)
        else:
            self.admin.internal_stats(self.partition)  # raises an error where no broker answers anything
        if not self.controls.gives_up:
            if are_shown is False:
                raise UnavailableError(f"{self.partition}: {NOTHING_SHOWN}; do its bookies answer?")
            if _may_pass(answer) and (are_shown is None or answer.status == HTTPStatus.SERVICE_UNAVAILABLE):
                raise UnavailableError(f"{self.partition}: {WITHHELD} {answer.status}")
        return answer

    def _accepted(self, position: Position, patience_s: float) -> Body | None:
        """Ask once. Raises UnavailableError, RefusedError where the answer says nothing of the entry itself."""
        answer = self.admin.entry(self.partition, position, MAX_UNCOMPRESSED_BYTES, patience_s)
        if answer is not None and answer.status == _BUSY:
            raise UnavailableError(f"{self.partition}: asked for an entry, the broker answered {answer.status}")
        if answer is not None and answer.status in _REFUSED:
            raise RefusedError(
                f"{self.partition}: the broker refuses to show an entry ({answer.status}); our role needs the right to "
                "read messages of this topic by the admin API"
            )
        return answer

    def _second_look(self, position: Position) -> Body | None:
        """Ask for one entry after the other with full patience, until the time for that is used up."""
        with self._one_by_one:
            if self._left_s <= 0:
                return None
            began_s = time.monotonic()
            try:
                return self._accepted(position, _ASK_SECONDS)
            finally:
                self._left_s -= time.monotonic() - began_s


def _is_shown(answer: Body | None) -> TypeGuard[Body]:
    return answer is not None and answer.status == HTTPStatus.OK


def _may_pass(answer: Body | None) -> TypeGuard[Body]:
    return answer is not None and answer.status in _MAY_PASS


def tells_last(settings: PulsarSettings, admin: LastAdmin, partition: str) -> bool:
    """Whether the broker can say what a partition's last message is; else no reader of Pulsar's own can find its end.

    It is asked both ways: the connector asks the admin API, and behind an open transaction the two answers differ.
    Raises UnavailableError, RefusedError.
    """
    with opened(settings, partition, BEFORE_ALL) as reader:
        if reader.last is None:
            return False
    if admin.tells_last(partition, _ASK_SECONDS):
        return True
    admin.internal_stats(partition)  # raises an error where no broker answers anything
    return False
