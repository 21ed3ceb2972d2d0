"""Continuous leak detection that reads only what changed: what an owner names no more becomes a request.

1. ZooKeeper's watches are a hint: what they name is read within a second. Comparing all there is, once a minute, is the
   truth: an event that was missed costs that minute, and never a ledger.
2. What a znode names is committed before anything that rests on it. A name that vanishes is committed together with its
   request, and the request is published later, from what was committed (outbox.py).
3. A znode that can't be read or parsed names what it named at the last look.
4. Where so many requests of a tenant wait that there is no room for more, names that vanish count as named still, and
   a later look finds them again. So nobody's memory grows without bound, and others do not wait for one tenant.
5. A first start takes what there is as it is. A later one compares it with what was known.
"""

import logging
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from threading import Event

from streaming.clock import Clock
from streaming.errors import StopRequestedError
from streaming.phase_one.watcher import made
from streaming.phase_one.watcher.ahead import Ahead
from streaming.phase_one.watcher.look import MOST_UNCLEAR, Node, ZnodeLook
from streaming.phase_one.watcher.made import MadeLedgers
from streaming.phase_one.watcher.metrics import WatchMetrics
from streaming.phase_one.watcher.outbox import LedgerName, Outbox
from streaming.ports import ChangedPaths, ChangeHints, Unreadable, Znode
from streaming.state.watched import Watched, cost_of, tenant_of
from streaming.state.watcher_note import WatcherNote
from udfs.formats.errors import FormatError
from udfs.paths import MANAGED_LEDGERS_ROOT
from udfs.phase_one.kept_names import BY_CLIENTS, packed, still_named, unpacked
from udfs.phase_one.watched import Names, is_nameable, name_of, names_in, vanished
from udfs.records import PendingDelete
from udfs.wire import decode, encode

log = logging.getLogger("ledger-reaper")

_STAMP = struct.Struct("<iqq")
_LEAST_BETWEEN_LOOKS_S = 5.0  # however often the watches are lost; and as long as the last look took
_PAUSE_PER_LOOK = 3  # a whole look takes a quarter of the time at most
_SAVED_AT_ONCE = 20_000
_BYTES_AT_ONCE = 32 << 20
_PUBLISH_EVERY_MS = 5_000
_MOST_NAMED, _LONGEST_SHOWN = 3, 200


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


class StillNames:
    """What any znode names, as far as is known."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __call__(self, wanted: Set[LedgerName]) -> set[LedgerName]:
        """Return which of these (ledger id, UUID) a broker has any list or cursor name."""
        found: set[LedgerName] = set()
        if wanted:
            for kept in self._watched.nodes.values():
                found |= still_named(kept, wanted)
        return found

    def by_own_cursors(self, claims: Mapping[int, str]) -> set[int]:
        """Return which of these ledgers (id -> the managed ledger that it claims) a cursor of that topic names."""
        wanted: dict[str, set[int]] = defaultdict(set)
        for ledger_id, owner in claims.items():
            wanted[f"{MANAGED_LEDGERS_ROOT}/{owner}"].add(ledger_id)
        found: set[int] = set()
        for path, kept in self._watched.nodes.items():
            if ids := wanted.get(path.rpartition("/")[0]):
                found |= {each for component, each, _uuid in unpacked(path, kept) if component in BY_CLIENTS} & ids
        return found


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
        self._unwatched: set[str] = set()
        self._asked = _asked_about(parts.watched)  # ledgers that have a request since the last whole look
        self._next_look_s = self._earliest_s = float("-inf")
        self._full_since_look: dict[str, int] = {}  # tenant -> the last look that had no room for a request of its own
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
            for some in _gathered(self._parts.look.at(changes.paths)):
                self._see(some, self._parts.clock.now_ms())
        self._publish()
        if self._parts.watched.fold_if_due(at_ms=self._parts.clock.now_ms()):
            self._parts.metrics.folds.inc()
        self._parts.metrics.show(self.note())
        self._parts.metrics.is_watching.set(int(changes.is_watching))

    def look_soon(self) -> None:
        """Have the next turn look at all there is."""
        self._next_look_s = self._earliest_s = float("-inf")

    def note(self) -> WatcherNote:
        """Return what `check` shows of a watcher."""
        parts = self._parts
        return WatcherNote(
            at_ms=parts.clock.now_ms(),
            znodes=len(parts.watched.nodes),
            waiting=parts.outbox.waiting,
            unreadable=len(self._unreadable()),
            unwatched=len(self._unwatched),
            unwatched_names=tuple(path[:_LONGEST_SHOWN] for path in sorted(self._unwatched)[:_MOST_NAMED]),
        )

    def _unreadable(self) -> set[str]:
        return self._unparsable.union(self._parts.look.unlisted) - self._unwatched

    def _find_unwatched(self) -> None:
        """Name owners that no request could name. A tenant chooses names, so they do not count as unreadable."""
        found = set(self._parts.look.unclear)
        found |= set(islice((path for path in self._unparsable if not is_nameable(path)), MOST_UNCLEAR))
        if new := sorted(found - self._unwatched):
            log.warning(
                "%d names can't be watched, since no request could name them: %s. The audit names what they leak",
                *(len(found), _shown(new)),
            )
        self._unwatched = found

    def _is_time(self, changes: ChangedPaths) -> bool:
        now_s = self._monotonic()
        if changes.has_gap:
            self._next_look_s = min(self._next_look_s, now_s)
        return now_s >= max(self._next_look_s, self._earliest_s)

    def _look_at_all(self) -> None:
        began_s, parts = self._monotonic(), self._parts
        doubtful, self._unparsable = self._unparsable, set()  # what is not found again is in nobody's way
        reads = 0

        def changed() -> Iterator[dict[str, Node]]:
            nonlocal reads
            for some in parts.look.everything(parts.watched.nodes.keys()):
                reads += len(some)
                yield {path: node for path, node in some.items() if self._may_have_changed(path, node, doubtful)}

        for some in _gathered(changed()):
            self._see(some, parts.clock.now_ms())
        now_ms = parts.clock.now_ms()
        note, requests = parts.made.look(parts.watched.notes.get(made.NOTE), now_ms, self._asked)
        if requests or note != parts.watched.notes.get(made.NOTE):
            asks = [(f"unlisted ledger {each.ledger_id}", encode(each)) for each in requests]
            parts.watched.save({}, asks, notes={made.NOTE: note}, at_ms=now_ms)
        self._asked.clear()
        parts.metrics.unlisted.inc(len(requests))
        parts.metrics.unlisted_left.inc(parts.made.left_to_audit)
        ended_s = self._monotonic()
        took_s = ended_s - began_s
        self._next_look_s = ended_s + max(self._poll_seconds, took_s * _PAUSE_PER_LOOK)
        self._earliest_s = ended_s + max(took_s, min(_LEAST_BETWEEN_LOOKS_S, self._poll_seconds))
        self.looks += 1
        self._find_unwatched()
        parts.metrics.looked(reads, took_s)
        if parts.ahead is not None:
            parts.ahead.looked()

    def _may_have_changed(self, path: str, node: Node, doubtful: Set[str]) -> bool:
        if node is None:
            return path in self._parts.watched.nodes
        return isinstance(node, Unreadable) or path in doubtful or self._stamps.get(path) != _stamp(node)

    def _see(self, nodes: Mapping[str, Node], now_ms: int) -> None:
        """Compare znodes with what is known of them, and commit what is new together with the requests."""
        news = _News(self._parts.watched.quota_left_of, self._parts.watched.quota_left())
        for path, node in nodes.items():
            if self._stop.is_set():
                raise StopRequestedError
            before = self._parts.watched.nodes.get(path)
            try:
                kept = _kept(path, node)
                had, has = _names(path, before, kept)
            except (FormatError, ValueError, OverflowError, struct.error):  # one znode ends no watching
                self._unparsable.add(path)
                continue
            self._unparsable.discard(path)
            gone = vanished(had, has or {}) if had is not None else []
            if left := news.ask(path, gone):
                self._put_off(path, len(left))
                kept = packed({**(has or {}), **{name_of(each): each for each in left}})
            elif isinstance(node, Znode):
                news.stamps[path] = _stamp(node)
            if kept != before:
                news.changed[path] = kept
            self._tell(path, node, had, has)
        self._commit(news, now_ms)
        self._parts.metrics.saw(len(nodes), len(news.changed), len(news.requests))

    def _commit(self, news: "_News", now_ms: int) -> None:
        if news.changed:
            self._parts.watched.save(news.changed, news.requests, at_ms=now_ms)
        self._asked |= news.asked
        self._stamps |= news.stamps
        for path in [path for path, kept in news.changed.items() if kept is None]:
            self._stamps.pop(path, None)

    def _put_off(self, path: str, how_many: int) -> None:
        self._parts.metrics.put_off.inc(how_many)
        tenant = tenant_of(path)
        if self._full_since_look.get(tenant, -1) < self.looks - 1:
            log.warning(
                "so many requests of tenant %s wait that %d more, of %s, are left to the next look",
                *(tenant, how_many, path[:200]),
            )
        self._full_since_look[tenant] = self.looks

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


@dataclass(slots=True)
class _News:
    """What a comparison found, to be committed together. room_of, room: of a tenant and in all, as it was before.

    asked: ledgers that have a request now, made of a name that a broker chose.
    """

    quota_left_of: Callable[[str], int]
    quota_left: int
    changed: dict[str, bytes | None] = field(default_factory=dict)
    stamps: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    taken: Counter[str] = field(default_factory=Counter)  # tenant -> bytes

    def ask(self, path: str, gone: Sequence[PendingDelete]) -> Sequence[PendingDelete]:
        """Make requests of what has vanished from a znode; returns those that there is no room for."""
        tenant = tenant_of(path)
        for at, request in enumerate(gone):
            payload = _payload(path, request)
            if payload is None:
                continue
            cost = cost_of(payload)
            if cost > min(self.quota_left_of(tenant) - self.taken[tenant], self.quota_left):
                return gone[at:]
            self.taken[tenant] += cost
            self.quota_left -= cost
            self.requests.append((path, payload))
            if _was_a_brokers(request):
                self.asked.add(request.ledger_id)
        return []


def _was_a_brokers(request: PendingDelete) -> bool:
    return request.offload_context is None and request.component not in BY_CLIENTS


def _asked_about(watched: Watched) -> set[int]:
    """Return the ledgers that requests of before a start ask about."""
    waiting = (decode(each.payload) for each in watched.requests.values())
    return {each.ledger_id for each in waiting if isinstance(each, PendingDelete) and _was_a_brokers(each)}


def _gathered(parts: Iterable[Mapping[str, Node]]) -> Iterator[dict[str, Node]]:
    """Put parts together, as many as are to be compared and committed at once. Nothing of them is yielded twice."""
    found: dict[str, Node] = {}
    bytes_found = 0
    for some in parts:
        found |= some
        bytes_found += sum(len(node.data) for node in some.values() if isinstance(node, Znode))
        if len(found) >= _SAVED_AT_ONCE or bytes_found >= _BYTES_AT_ONCE:
            yield found
            found, bytes_found = {}, 0
    yield found


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


def _shown(paths: Sequence[str]) -> str:
    """A few of the paths, each short enough for a log line."""
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(path[:_LONGEST_SHOWN] for path in paths[:_MOST_NAMED]) + more


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
