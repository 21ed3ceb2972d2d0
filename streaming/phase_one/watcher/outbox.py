"""Publishes the watcher's requests, each exactly once: they are durable before, and numbered.

1. A request waits for two_phase.send_delay_seconds, in which most brokers delete the ledger themselves. If a list names
   the ledger when its time has come, whichever list, nothing is asked for.
2. Requests go out in the order of their numbers. A note says up to which number all is done, and where the partitions
   ended then. What an interrupted run sent behind that is looked up in the topic, before more is sent.
"""

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Protocol
from zlib import crc32

from streaming.errors import SafetyError
from streaming.state.watched import KeptRequest, Watched
from streaming.topics.requests import owner_key
from udfs.formats.internal_stats import Position
from udfs.records import PendingDelete
from udfs.wire import decode

NOTE = "published"
_MOST_AT_ONCE = 5_000

LedgerName = tuple[int, str]  # ledger id, UUID of the upload; "": in BookKeeper


@dataclass(frozen=True, slots=True)
class Send:
    """One request on its way to a partition."""

    number: int
    key: bytes
    payload: bytes


class Publication(Protocol):
    """The request topic, as the outbox needs it."""

    def ends(self) -> dict[str, Position]:
        """Partition -> position of its newest message. Raises UnavailableError, RefusedError."""
        ...

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None) -> int:
        """Send requests in order; returns how many. after: leave out those that are stored behind it; None: none is.

        Raises UnavailableError: some may be stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lot:
    """What became of the requests that were due: how many were sent, and how many a list names again."""

    sent: int = 0
    dropped: int = 0


class Outbox:
    """Of one watcher. named: which of these (ledger id, UUID) a list names now. Not thread-safe."""

    def __init__(
        self,
        watched: Watched,
        publication: Publication,
        named: Callable[[Set[LedgerName]], Set[LedgerName]],
        delay_ms: int,
        *,
        now_ms: int,
    ) -> None:
        """Find out how far the last run came. Raises UnavailableError, RefusedError, SafetyError."""
        self._watched = watched
        self._publication = publication
        self._named = named
        self._delay_ms = delay_ms
        if NOTE not in watched.notes:
            # before the first request: what an earlier watcher, whose state is lost, has sent has other names
            self._write(f"watch-{secrets.token_hex(8)}", -1, publication.ends(), now_ms)
        note = self._note()
        self._sender = str(note["sender"])
        self._after = {name: (int(at[0]), int(at[1])) for name, at in note["after"].items()}
        watched.forget_through(int(note["number"]))
        self._knows_all = not watched.requests

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._watched.requests)

    def publish_due(self, now_ms: int) -> Lot:
        """Publish what has waited long enough. Raises UnavailableError: the next call goes on where this one ended."""
        aged = takewhile(lambda each: each.at_ms + self._delay_ms <= now_ms, self._watched.requests.values())
        due = list(islice(aged, _MOST_AT_ONCE))
        if not due:
            return Lot()
        requests = {each.number: _understood(each) for each in due}
        wanted = {_name_of(request) for request in requests.values()}
        named = self._named(wanted)
        by_partition = self._by_partition(due, requests, named)
        knows_all, self._knows_all = self._knows_all, False  # until all of this is answered
        sent = sum(
            self._publication.send(partition, self._sender, sends, None if knows_all else self._after[partition])
            for partition, sends in by_partition.items()
        )
        self._after = self._publication.ends()
        self._write(self._sender, due[-1].number, self._after, now_ms)
        self._watched.forget_through(due[-1].number)
        self._knows_all = True
        return Lot(sent, sum(_name_of(request) in named for request in requests.values()))

    def _by_partition(
        self, due: Sequence[KeptRequest], requests: Mapping[int, PendingDelete], named: Set[LedgerName]
    ) -> dict[str, list[Send]]:
        partitions = sorted(self._after)
        found: dict[str, list[Send]] = defaultdict(list)
        for each in due:
            request = requests[each.number]
            if _name_of(request) not in named:
                key = owner_key(request)
                found[partitions[crc32(key) % len(partitions)]].append(Send(each.number, key, each.payload))
        return found

    def _write(self, sender: str, number: int, after: Mapping[str, Position], now_ms: int) -> None:
        note = {"sender": sender, "number": number, "after": dict(after)}
        self._watched.save({}, notes={NOTE: json.dumps(note).encode()}, at_ms=now_ms)

    def _note(self) -> dict[str, Any]:
        return dict(json.loads(self._watched.notes[NOTE]))


def _understood(kept: KeptRequest) -> PendingDelete:
    request = decode(kept.payload)
    if not isinstance(request, PendingDelete):
        raise SafetyError(f"request {kept.number} of the watcher's state is damaged: {request}; restore state.dir")
    return request


def _name_of(request: PendingDelete) -> LedgerName:
    return request.ledger_id, request.offload_context.uuid if request.offload_context else ""
