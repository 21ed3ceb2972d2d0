"""Publishes the watcher's requests, each exactly once: they are durable before, and numbered.

1. A request waits for two_phase.send_delay_seconds, in which most brokers delete the ledger themselves. If a list names
   the ledger when its time has come, whichever list, nothing is asked for.
2. Requests go out in the order of their numbers. A note says up to which number all is done, and where the partitions
   ended then. What an interrupted run sent behind that is looked up in the topic, before more is sent.
3. The numbers belong to a sender, whose name the note holds. Another topic, or a state that is older than what its
   sender has sent (somebody put a backup back), makes a new sender: a request that comes twice does no harm, and one
   that counts as sent and is not would be lost.
"""

import json
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
from typing import Protocol
from zlib import crc32

from streaming.errors import ConfigError, ReaperError, RefusedError, SafetyError, UnavailableError
from streaming.state.watched import KeptRequest, Watched
from streaming.topics.requests import owner_key
from udfs.formats.internal_stats import Position
from udfs.paths import base_topic
from udfs.phase_one.watched import name_of
from udfs.records import PendingDelete
from udfs.wire import decode

log = logging.getLogger("ledger-reaper")

NOTE = "published"
_MOST_AT_ONCE = 5_000

LedgerName = tuple[int, str]  # ledger id, UUID of the upload; "": in BookKeeper


@dataclass(frozen=True, slots=True)
class Send:
    """One request on its way to a partition."""

    number: int
    key: bytes
    payload: bytes


class OlderStateError(ReaperError):
    """The topic has a request of our sender that does not wait in the state, or another one of its number."""


Knows = Callable[[int, bytes], bool]
"""Whether a request of this number and payload waits in the state."""


class Publication(Protocol):
    """The request topic, as the outbox needs it."""

    topic: str

    def ends(self) -> dict[str, Position]:
        """Partition -> position of its newest message. Raises UnavailableError, RefusedError."""
        ...

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None, knows: Knows) -> int:
        """Send requests in order; returns how many. after: leave out those that are stored behind it; None: none is.

        Raises UnavailableError: some may be stored; OlderStateError: one is stored behind it that the state does not
        know, and none of these was sent.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lot:
    """What became of the requests that were due: how many were sent, and how many a list names again.

    why: what the topic failed of; then some may be stored, and all are tried again.
    """

    sent: int = 0
    dropped: int = 0
    why: str = ""


class Outbox:
    """Of one watcher. named: which of these (ledger id, UUID) a list names now. Not thread-safe."""

    def __init__(
        self,
        watched: Watched,
        publication: Publication,
        named: Callable[[Set[LedgerName]], Set[LedgerName]],
        delay_ms: int,
    ) -> None:
        self._watched = watched
        self._publication = publication
        self._named = named
        self._delay_ms = delay_ms
        self._knows_all = self._is_older = False
        if NOTE in watched.notes:
            watched.forget_through(self._note().number)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._watched.requests)

    def publish_due(self, now_ms: int) -> Lot:
        """Publish what has waited long enough; where the topic does not take it, a later call goes on.

        Raises what saving the state raises; then make a new outbox.
        """
        aged = takewhile(lambda each: each.at_ms + self._delay_ms <= now_ms, self._watched.requests.values())
        due = list(islice(aged, _MOST_AT_ONCE))
        if not due:
            return Lot()
        if not self._goes_on():
            try:
                ends = self._publication.ends()
            except (UnavailableError, RefusedError, ConfigError) as error:
                return Lot(why=str(error))
            self._begin_anew(ends, now_ms)
        return self._publish(due, self._note(), now_ms)

    def _goes_on(self) -> bool:
        """Whether there is a note, it is about this topic, and its sender has sent no more than the state knows."""
        if NOTE not in self._watched.notes or self._is_older:
            return False
        return {*map(base_topic, self._note().after)} == {self._publication.topic}

    def _begin_anew(self, ends: Mapping[str, Position], now_ms: int) -> None:
        """Take another name: what was sent under an earlier one counts for nothing."""
        number = self._note().number if NOTE in self._watched.notes else -1
        self._write(_Note(f"watch-{secrets.token_hex(8)}", number, ends), now_ms)
        self._knows_all, self._is_older = True, False

    def _publish(self, due: Sequence[KeptRequest], note: "_Note", now_ms: int) -> Lot:
        requests = {each.number: _understood(each) for each in due}
        named = self._named({_name_of(request) for request in requests.values()})
        by_partition = _by_partition(due, requests, named, sorted(note.after))
        knows_all, self._knows_all = self._knows_all, False  # until all of this is answered
        try:
            sent = sum(
                self._publication.send(
                    partition,
                    note.sender,
                    sends,
                    None if knows_all else note.after[partition],
                    self._knows,
                )
                for partition, sends in by_partition.items()
            )
            ends = self._publication.ends()
        except OlderStateError as error:
            log.warning("the watcher's state is older than what it has sent (from a backup?): %s; it sends anew", error)
            self._is_older = True
            return Lot()
        except (UnavailableError, RefusedError, ConfigError) as error:
            return Lot(why=str(error))
        self._write(_Note(note.sender, due[-1].number, ends), now_ms)
        self._watched.forget_through(due[-1].number)
        self._knows_all = True
        return Lot(sent, sum(_name_of(request) in named for request in requests.values()))

    def _knows(self, number: int, payload: bytes) -> bool:
        kept = self._watched.requests.get(number)
        return kept is not None and kept.payload == payload

    def _write(self, note: "_Note", now_ms: int) -> None:
        self._watched.save({}, notes={NOTE: json.dumps(asdict(note)).encode()}, at_ms=now_ms)

    def _note(self) -> "_Note":
        known = json.loads(self._watched.notes[NOTE])
        after = {name: (int(at[0]), int(at[1])) for name, at in known["after"].items()}
        return _Note(str(known["sender"]), int(known["number"]), after)


@dataclass(frozen=True, slots=True)
class _Note:
    """How far publishing came. number: all up to it is done. after: where the partitions ended then."""

    sender: str
    number: int
    after: Mapping[str, Position]


def _by_partition(
    due: Sequence[KeptRequest], requests: Mapping[int, PendingDelete], named: Set[LedgerName], partitions: Sequence[str]
) -> dict[str, list[Send]]:
    found: dict[str, list[Send]] = defaultdict(list)
    for each in due:
        request = requests[each.number]
        if _name_of(request) not in named:
            key = owner_key(request)
            found[partitions[crc32(key) % len(partitions)]].append(Send(each.number, key, each.payload))
    return found


def _understood(kept: KeptRequest) -> PendingDelete:
    request = decode(kept.payload)
    if not isinstance(request, PendingDelete):
        raise SafetyError(f"request {kept.number} of the watcher's state is damaged: {request}; restore state.dir")
    return request


def _name_of(request: PendingDelete) -> LedgerName:
    _component, ledger_id, uuid = name_of(request)
    return ledger_id, uuid
