"""Publishes the watcher's durable, numbered requests, each exactly once.

1. A request waits for two_phase.send_delay_seconds. If any list names the ledger after the delay, the request is
   dropped.
2. Requests are sent in the order of their numbers. A note contains the number up to which all requests are done, and
   the ends of the partitions at that time.
3. The numbers belong to a sender, whose name is in the note. For another topic, or a state older than its sender's last
   request (restored from a backup), the outbox takes a new sender.
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
from udfs.phase_one.vanished_names import name_of
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

log = logging.getLogger("ledger-reaper")

NOTE = "published"
_MOST_AT_ONCE = 5_000

LedgerName = tuple[int, str]  # ledger id, UUID of the upload; "": in BookKeeper


@dataclass(frozen=True, slots=True)
class Send:
    """A request for a partition."""

    number: int
    key: bytes
    payload: bytes


class OlderStateError(ReaperError):
    """The topic has a request of our sender that is not in the state, or is different there."""


Knows = Callable[[int, bytes], bool]
"""Whether a request with this number and payload waits in the state."""


class Publication(Protocol):
    """The request topic."""

    topic: str

    def ends(self) -> dict[str, Position]:
        """Return partition -> position of its newest message. Raises UnavailableError, RefusedError."""
        ...

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None, knows: Knows) -> int:
        """Send requests in order, and return how many.

        Raises UnavailableError, after which some may be stored, and OlderStateError if a request after `after` is not
        in the state; then no request was sent.

        Args:
            partition: of the topic.
            sender: the requests' sender.
            sends: the requests.
            after: leave out the requests that are already stored after this position; None: none is stored.
            knows: whether a stored request is in the state.
        """
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """Result for the requests that were due."""

    sent: int = 0
    dropped: int = 0  # because a list names the ledger again
    why: str = ""  # the topic's error; then some requests may be stored, and all are tried again


class RequestOutbox:
    """The outbox of a watcher. Not thread-safe."""

    def __init__(
        self,
        watched: Watched,
        publication: Publication,
        named: Callable[[Set[LedgerName]], Set[LedgerName]],
        delay_ms: int,
    ) -> None:
        """Restore the outbox.

        Args:
            watched: the watcher's state.
            publication: the request topic.
            named: returns which of these (ledger id, UUID) a list names now.
            delay_ms: how long a request waits.
        """
        self._watched = watched
        self._publication = publication
        self._named = named
        self._delay_ms = delay_ms
        self._knows_all = self._is_older = False
        if NOTE in watched.notes:
            watched.forget_through(self._note().number)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._watched.requests)

    def publish_due(self, now_ms: int) -> Published:
        """Publish the requests that have waited long enough; after an error of the topic, a later call resumes.

        Raises what saving the state raises; then create a new outbox.
        """
        # during the delay most brokers delete the ledger themselves
        aged = takewhile(lambda kept: kept.at_ms + self._delay_ms <= now_ms, self._watched.requests.values())
        due = list(islice(aged, _MOST_AT_ONCE))
        if not due:
            return Published()
        if not self._can_resume():
            try:
                ends = self._publication.ends()
            except (UnavailableError, RefusedError, ConfigError) as error:
                return Published(why=str(error))
            self._take_new_sender(ends, now_ms)
        return self._publish(due, self._note(), now_ms)

    def _can_resume(self) -> bool:
        """Whether there is a note about this topic, and all requests of its sender are in the state."""
        if NOTE not in self._watched.notes or self._is_older:
            return False
        return {*map(base_topic, self._note().after)} == {self._publication.topic}

    def _take_new_sender(self, ends: Mapping[str, Position], now_ms: int) -> None:
        """Take another name; requests sent under an earlier name do not count."""
        # a duplicate request is harmless, but a request that counts as sent and is not would be lost
        number = self._note().number if NOTE in self._watched.notes else -1
        self._write(_Note(f"watch-{secrets.token_hex(8)}", number, ends), now_ms)
        self._knows_all, self._is_older = True, False

    def _publish(self, due: Sequence[KeptRequest], note: "_Note", now_ms: int) -> Published:
        requests = {kept.number: _decoded(kept) for kept in due}
        named = self._named({_name_of(request) for request in requests.values()})
        by_partition = _by_partition(due, requests, named, sorted(note.after))
        knows_all, self._knows_all = self._knows_all, False  # until the broker has acknowledged all of them
        try:
            sent = sum(
                self._publication.send(
                    partition,
                    note.sender,
                    sends,
                    # first the publication reads what an interrupted run sent after the note
                    None if knows_all else note.after[partition],
                    self._knows,
                )
                for partition, sends in by_partition.items()
            )
            ends = self._publication.ends()
        except OlderStateError as error:
            log.warning("the watcher's state is older than its requests (from a backup?): %s; it sends again", error)
            self._is_older = True
            return Published()
        except (UnavailableError, RefusedError, ConfigError) as error:
            return Published(why=str(error))
        self._write(_Note(note.sender, due[-1].number, ends), now_ms)
        self._watched.forget_through(due[-1].number)
        self._knows_all = True
        return Published(sent, sum(_name_of(request) in named for request in requests.values()))

    def _knows(self, number: int, payload: bytes) -> bool:
        kept = self._watched.requests.get(number)
        return kept is not None and kept.payload == payload

    def _write(self, note: "_Note", now_ms: int) -> None:
        self._watched.save({}, notes={NOTE: json.dumps(asdict(note)).encode()}, at_ms=now_ms)

    def _note(self) -> "_Note":
        fields = json.loads(self._watched.notes[NOTE])
        after = {name: (int(at[0]), int(at[1])) for name, at in fields["after"].items()}
        return _Note(str(fields["sender"]), int(fields["number"]), after)


@dataclass(frozen=True, slots=True)
class _Note:
    """The progress of publishing."""

    sender: str
    number: int  # requests up to this number are done
    after: Mapping[str, Position]  # the ends of the partitions at that time


def _by_partition(
    due: Sequence[KeptRequest], requests: Mapping[int, PendingDelete], named: Set[LedgerName], partitions: Sequence[str]
) -> dict[str, list[Send]]:
    sends: dict[str, list[Send]] = defaultdict(list)
    for kept in due:
        request = requests[kept.number]
        if _name_of(request) not in named:
            key = owner_key(request)
            sends[partitions[crc32(key) % len(partitions)]].append(Send(kept.number, key, kept.payload))
    return sends


def _decoded(kept: KeptRequest) -> PendingDelete:
    request = decode(kept.payload)
    if not isinstance(request, PendingDelete):
        raise SafetyError(f"request {kept.number} of the watcher's state is damaged: {request}; restore state.dir")
    return request


def _name_of(request: PendingDelete) -> LedgerName:
    _component, ledger_id, uuid = name_of(request)
    return ledger_id, uuid
