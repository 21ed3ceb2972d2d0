"""Continuous leak detection that reads only what changed: what an owner names no more becomes a request.

1. ZooKeeper's watches are a hint: what they name is read within a second. Comparing all there is, once a minute, is the
   truth: an event that was missed costs that minute, and never a ledger.
2. What a znode names is committed before anything that rests on it. A name that vanishes is committed together with its
   request, and the request is published later, from what was committed (outbox.py).
3. A znode that can't be read or parsed names what it named at the last look.
4. A first start takes what there is as it is. A later one compares it with what was known.
"""

import logging
import struct
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from threading import Event

from streaming.clock import Clock
from streaming.errors import StopRequestedError
from streaming.phase_one.watcher import made
from streaming.phase_one.watcher.ahead import Ahead
from streaming.phase_one.watcher.look import Node, ZnodeLook
from streaming.phase_one.watcher.made import MadeLedgers
from streaming.phase_one.watcher.metrics import WatchMetrics
from streaming.phase_one.watcher.outbox import LedgerName, Outbox
from streaming.ports import ChangedPaths, ChangeHints, Unreadable, Znode
from streaming.state.watched import Watched
from streaming.state.watcher_note import WatcherNote
from udfs.formats.errors import FormatError
from udfs.phase_one.kept_names import packed, still_named, unpacked
from udfs.phase_one.watched import Names, names_in, vanished
from udfs.records import PendingDelete
from udfs.wire import decode, encode

log = logging.getLogger("ledger-reaper")

_STAMP = struct.Struct("<iqq")
_LEAST_BETWEEN_LOOKS_S = 5.0  # however often the watches are lost; and as long as the last look took
_PAUSE_PER_LOOK = 3  # a whole look takes a quarter of the time at most
_SAVED_AT_ONCE = 20_000
_PUBLISH_EVERY_MS = 5_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What a watcher is made of. ahead: who hears what is seen, to mark it; None: nobody."""

    watched: Watched
    look: ZnodeLook
    hints: ChangeHints
    made: MadeLedgers
    outbox: Outbox
    metrics: WatchMetrics
    clock: Clock
    ahead: Ahead | None = None


def still_names(watched: Watched) -> Callable[[Set[LedgerName]], set[LedgerName]]:
    """Return what says which of these (ledger id, UUID) any list names, as far as is known."""

    def named(wanted: Set[LedgerName]) -> set[LedgerName]:
        found: set[LedgerName] = set()
        if wanted:
            for kept in watched.nodes.values():
                found |= still_named(kept, wanted)
        return found

    return named


class Watcher:
    """One watcher. Call turn() about once a second. After an error, make a new one, which opens the state anew."""

    def __init__(
        self, parts: Parts, poll_seconds: float, stop: Event, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._parts = parts
        self._poll_seconds = poll_seconds
        self._stop = stop
        self._monotonic = monotonic
        self._stamps: dict[str, bytes] = {}
        self._unparsable: set[str] = set()
        self._asked: set[int] = set()  # ledgers that have a request since the last whole look
        self._next_look_s = self._earliest_s = float("-inf")
        self._published_ms = 0
        self._why_not_sent = ""
        self.looks = 0  # whole ones, so far

    def turn(self) -> None:
        """See what has changed, and publish what is due. Raises UnavailableError, FencedError, SafetyError."""
        changes = self._parts.hints.take()
        self._parts.metrics.heard(len(changes.paths))
        if self._is_time(changes):
            self._look_at_all()
        elif changes.paths:
            self._see(self._parts.look.at(changes.paths), self._parts.clock.now_ms())
        self._publish()
        if self._parts.watched.fold_if_due(at_ms=self._parts.clock.now_ms()):
            self._parts.metrics.folds.inc()
        self._parts.metrics.show(len(self._parts.watched.nodes), self._parts.outbox.waiting, len(self._unreadable()))
        self._parts.metrics.is_watching.set(int(changes.is_watching))

    def look_soon(self) -> None:
        """Have the next turn look at all there is."""
        self._next_look_s = self._earliest_s = float("-inf")

    def note(self) -> WatcherNote:
        """Return what `check` shows of a watcher."""
        parts = self._parts
        return WatcherNote(
            parts.clock.now_ms(), len(parts.watched.nodes), parts.outbox.waiting, len(self._unreadable())
        )

    def _unreadable(self) -> set[str]:
        return self._unparsable.union(self._parts.look.unlisted)

    def _is_time(self, changes: ChangedPaths) -> bool:
        now_s = self._monotonic()
        if changes.has_gap:
            self._next_look_s = min(self._next_look_s, now_s)
        return now_s >= max(self._next_look_s, self._earliest_s)

    def _look_at_all(self) -> None:
        began_s, parts = self._monotonic(), self._parts
        found: dict[str, Node] = {}
        reads = 0
        for some in parts.look.everything(parts.watched.nodes.keys()):
            reads += len(some)
            found |= {path: node for path, node in some.items() if self._may_have_changed(path, node)}
            if len(found) >= _SAVED_AT_ONCE:
                self._see(found, parts.clock.now_ms())
                found = {}
        self._see(found, parts.clock.now_ms())
        now_ms = parts.clock.now_ms()
        note, requests = parts.made.look(parts.watched.notes.get(made.NOTE), now_ms, self._asked)
        if requests or note != parts.watched.notes.get(made.NOTE):
            asked = [(f"unlisted ledger {each.ledger_id}", encode(each)) for each in requests]
            parts.watched.save({}, asked, notes={made.NOTE: note}, at_ms=now_ms)
        self._asked.clear()
        parts.metrics.unlisted.inc(len(requests))
        ended_s = self._monotonic()
        took_s = ended_s - began_s
        self._next_look_s = ended_s + max(self._poll_seconds, took_s * _PAUSE_PER_LOOK)
        self._earliest_s = ended_s + max(took_s, min(_LEAST_BETWEEN_LOOKS_S, self._poll_seconds))
        self.looks += 1
        parts.metrics.looked(reads, took_s)
        if parts.ahead is not None:
            parts.ahead.looked()

    def _may_have_changed(self, path: str, node: Node) -> bool:
        if node is None:
            return path in self._parts.watched.nodes
        return isinstance(node, Unreadable) or path in self._unparsable or self._stamps.get(path) != _stamp(node)

    def _see(self, nodes: Mapping[str, Node], now_ms: int) -> None:
        """Compare znodes with what is known of them, and commit what is new together with the requests."""
        known = self._parts.watched.nodes
        changed: dict[str, bytes | None] = {}
        stamps: dict[str, bytes] = {}
        requests: list[tuple[str, bytes]] = []
        asked: set[int] = set()
        for path, node in nodes.items():
            if self._stop.is_set():
                raise StopRequestedError
            before = known.get(path)
            try:
                kept = _kept(path, node)
                had, has = _names(path, before, kept)
            except (FormatError, ValueError, OverflowError, struct.error):  # one znode ends no watching
                self._unparsable.add(path)
                continue
            self._unparsable.discard(path)
            if kept != before:
                changed[path] = kept
            gone = vanished(had, has or {}) if had is not None else []
            if isinstance(node, Znode):
                stamps[path] = _stamp(node)
            self._tell(path, node, had, has)
            requests += [(path, payload) for each in gone if (payload := _payload(path, each)) is not None]
            asked.update(each.ledger_id for each in gone if each.offload_context is None)
        if changed:
            self._parts.watched.save(changed, requests, at_ms=now_ms)
        self._asked |= asked
        self._stamps |= stamps
        for path in [path for path, kept in changed.items() if kept is None]:
            self._stamps.pop(path, None)
        self._parts.metrics.saw(len(nodes), len(changed), len(requests))

    def _tell(self, path: str, node: Node, had: Names | None, has: Names | None) -> None:
        if self._parts.ahead is not None:
            self._parts.ahead.saw(path, node, had, has)

    def _publish(self) -> None:
        now_ms = self._parts.clock.now_ms()
        if 0 <= now_ms - self._published_ms < _PUBLISH_EVERY_MS:
            return
        self._published_ms = now_ms
        lot = self._parts.outbox.publish_due(now_ms)
        self._parts.metrics.sent(lot.sent, lot.dropped)
        if lot.why and not self._why_not_sent:
            log.warning("the watcher's requests wait in its state, and are sent later: %s", lot.why)
        elif lot.sent and self._why_not_sent:
            log.info("the watcher's requests are sent again")
        if lot.why or lot.sent:
            self._why_not_sent = lot.why


def _kept(path: str, node: Node) -> bytes | None:
    """What to keep of a znode; None where there is none. Raises FormatError, ValueError for what can't be parsed."""
    if isinstance(node, Unreadable):
        raise FormatError(node.detail)
    return packed(names_in(path, node.data)) if node is not None else None


def _names(path: str, before: bytes | None, now: bytes | None) -> tuple[Names | None, Names | None]:
    """What was named and what is, where that differs; None: nothing, or no difference. Raises FormatError."""
    if now == before:
        return None, None
    had = unpacked(path, before) if before is not None else None
    return had, unpacked(path, now) if now is not None else None


def _payload(path: str, request: PendingDelete) -> bytes | None:
    """Return the request's bytes; None where nobody could read them again: it must not stop all that wait behind it."""
    payload = encode(request)
    if isinstance(found := decode(payload), PendingDelete):
        return payload
    log.error("ALARM: ledger %s, which %s names no more, can't be asked for: %s", request.ledger_id, path, found)
    return None


def _stamp(node: Node) -> bytes:
    """What changes with every change of a znode, and where it is made anew."""
    return _STAMP.pack(node.version, node.ctime_ms, node.mtime_ms) if isinstance(node, Znode) else b""
