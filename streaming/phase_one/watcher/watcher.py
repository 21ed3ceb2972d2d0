"""Continuous leak detection that reads only changes: a name that vanishes from an owner's znode becomes a request.

1. ZooKeeper's watches are hints: a changed znode is read within a second. The complete scan, once a minute, is the
   authority: a missed event delays a request by that minute, and never loses a ledger.
2. The names in a znode are committed before anything depends on them. A vanished name is committed together with its
   request, and the request is published later, from the committed state (request_outbox.py).
3. The first start accepts the names that exist. Later starts compare them with the known names.
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
from streaming.phase_one.watcher import unlisted
from streaming.phase_one.watcher.marks.signs import SignCollector
from streaming.phase_one.watcher.request_outbox import LedgerName, RequestOutbox
from streaming.phase_one.watcher.scan import MOST_UNCLEAR, Node, ZnodeScan
from streaming.phase_one.watcher.unlisted import UnlistedLedgers
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.ports import ChangedPaths, ChangeHints, Unreadable, Znode
from streaming.prometheus import table
from streaming.state.notes.watcher_note import WatcherNote
from streaming.state.watched import Watched, cost_of, tenant_of
from udfs.formats.errors import FormatError
from udfs.paths import MANAGED_LEDGERS_ROOT
from udfs.phase_one.kept_names import BY_CLIENTS, packed, still_named, unpacked
from udfs.phase_one.vanished_names import Names, is_nameable, name_of, names_in, vanished
from udfs.records import PendingDelete
from udfs.requests.request_format import decode, encode

log = logging.getLogger("ledger-reaper")

_STAMP = struct.Struct("<iqq")
_LEAST_BETWEEN_SCANS_S = 5.0  # even if the watches are lost often; and at least the duration of the last scan
_PAUSE_PER_SCAN = 3  # so scans take at most a quarter of the time
_SAVED_AT_ONCE = 20_000
_BYTES_AT_ONCE = 32 << 20
_PUBLISH_EVERY_MS = 5_000
_MOST_NAMED, _LONGEST_SHOWN = 3, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a watcher."""

    watched: Watched
    scan: ZnodeScan
    hints: ChangeHints
    unlisted: UnlistedLedgers
    outbox: RequestOutbox
    metrics: WatchMetrics
    clock: Clock
    signs: SignCollector | None = None  # for the marking, if it is enabled


class StillNames:
    """The names in all known znodes."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __call__(self, names: Set[LedgerName]) -> set[LedgerName]:
        """Return which of these (ledger id, UUID) a broker has written into any list or cursor."""
        present: set[LedgerName] = set()
        if names:
            for kept in self._watched.nodes.values():
                present |= still_named(kept, names)
        return present

    def by_own_cursors(self, claims: Mapping[int, str]) -> set[int]:
        """Return which of these (id -> the managed ledger in its metadata) a cursor of that topic names."""
        by_topic: dict[str, set[int]] = defaultdict(set)
        for ledger_id, owner in claims.items():
            by_topic[f"{MANAGED_LEDGERS_ROOT}/{owner}"].add(ledger_id)
        named: set[int] = set()
        for path, kept in self._watched.nodes.items():
            if ids := by_topic.get(path.rpartition("/")[0]):
                by_clients = {
                    ledger_id for component, ledger_id, _uuid in unpacked(path, kept) if component in BY_CLIENTS
                }
                named |= by_clients & ids
        return named


class Watcher:
    """A watcher. Call turn() about once a second. After an error, create a new watcher, which opens the state again."""

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
        self._requested = _requested_before(parts.watched)  # ledgers that have got a request since the last scan
        self._next_scan_s = self._earliest_s = float("-inf")
        self._full_at_scan: dict[str, int] = {}  # tenant -> number of the last scan that found its quota used up
        self._published_ms = 0
        self._why_not_sent = ""
        self.scans = 0  # number of complete scans

    def turn(self) -> None:
        """Compare what has changed, and publish what is due. Raises UnavailableError, FencedError, SafetyError."""
        changes = self._parts.hints.take()
        self._parts.metrics.count(table.WATCH_EVENTS, len(changes.paths))
        if self._is_time(changes):
            self._scan()
        elif changes.paths:
            for nodes in _gathered(self._parts.scan.at(changes.paths)):
                self._compare(nodes, self._parts.clock.now_ms())
        self._publish()
        if self._parts.watched.fold_if_due(at_ms=self._parts.clock.now_ms()):
            self._parts.metrics.count(table.WATCH_REWRITES)
        self._parts.metrics.show(self.note())
        self._parts.metrics.watching(is_watching=changes.is_watching)

    def scan_soon(self) -> None:
        """Let the next turn make a complete scan."""
        self._next_scan_s = self._earliest_s = float("-inf")

    def note(self) -> WatcherNote:
        """Return the note for `check` and `status`."""
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
        return self._unparsable.union(self._parts.scan.unlisted) - self._unwatched

    def _find_unwatched(self) -> None:
        """Log owners that no request could name. Tenants choose names, so these do not count as unreadable."""
        unwatched = set(self._parts.scan.unclear)
        unwatched |= set(islice((path for path in self._unparsable if not is_nameable(path)), MOST_UNCLEAR))
        if new := sorted(unwatched - self._unwatched):
            log.warning(
                "%d names can't be watched, because no request could name them: %s. The audit names what they leak",
                *(len(unwatched), _shown(new)),
            )
        self._unwatched = unwatched

    def _is_time(self, changes: ChangedPaths) -> bool:
        now_s = self._monotonic()
        if changes.has_gap:
            self._next_scan_s = min(self._next_scan_s, now_s)
        return now_s >= max(self._next_scan_s, self._earliest_s)

    def _scan(self) -> None:
        started_s, parts = self._monotonic(), self._parts
        doubtful, self._unparsable = self._unparsable, set()  # a znode that is gone is no longer unparsable
        reads = 0

        def changed() -> Iterator[dict[str, Node]]:
            nonlocal reads
            for nodes in parts.scan.everything(parts.watched.nodes.keys()):
                reads += len(nodes)
                parts.metrics.beat()  # a scan of millions of znodes takes more than ten minutes
                yield {path: node for path, node in nodes.items() if self._may_have_changed(path, node, doubtful)}

        for nodes in _gathered(changed()):
            self._compare(nodes, parts.clock.now_ms())
        now_ms = parts.clock.now_ms()
        note, requests = parts.unlisted.scan(parts.watched.notes.get(unlisted.NOTE), now_ms, self._requested)
        if requests or note != parts.watched.notes.get(unlisted.NOTE):
            added = [(f"unlisted ledger {request.ledger_id}", encode(request)) for request in requests]
            parts.watched.save({}, added, notes={unlisted.NOTE: note}, at_ms=now_ms)
        self._requested.clear()
        parts.metrics.count(table.WATCH_UNLISTED, len(requests))
        parts.metrics.count(table.WATCH_UNLISTED_LEFT, parts.unlisted.left_to_audit)
        ended_s = self._monotonic()
        took_s = ended_s - started_s
        self._next_scan_s = ended_s + max(self._poll_seconds, took_s * _PAUSE_PER_SCAN)
        self._earliest_s = ended_s + max(took_s, min(_LEAST_BETWEEN_SCANS_S, self._poll_seconds))
        self.scans += 1
        self._find_unwatched()
        parts.metrics.scanned(reads, took_s)
        if parts.signs is not None:
            parts.signs.scan_ended()

    def _may_have_changed(self, path: str, node: Node, doubtful: Set[str]) -> bool:
        if node is None:
            return path in self._parts.watched.nodes
        return isinstance(node, Unreadable) or path in doubtful or self._stamps.get(path) != _stamp(node)

    def _compare(self, nodes: Mapping[str, Node], now_ms: int) -> None:
        """Compare znodes with their known names, and commit the changes together with the requests."""
        changes = _Changes(quota_left_of=self._parts.watched.quota_left_of, quota_left=self._parts.watched.quota_left())
        for path, node in nodes.items():
            if self._stop.is_set():
                raise StopRequestedError
            before = self._parts.watched.nodes.get(path)
            try:
                kept = _kept(path, node)
                had, has = _names(path, before, kept)
            except (FormatError, ValueError, OverflowError, struct.error):  # no znode may end the watching
                # its names stay those of the last scan
                self._unparsable.add(path)
                continue
            self._unparsable.discard(path)
            gone = vanished(had, has or {}) if had is not None else []
            # The quota of waiting requests, of the tenant or of all, is used up: these names count as present, and a
            # later scan finds them again. So memory is bounded, and no tenant makes the others wait.
            if left := changes.request(path, gone):
                self._delay(path, len(left))
                kept = packed({**(has or {}), **{name_of(request): request for request in left}})
            elif isinstance(node, Znode):
                changes.stamps[path] = _stamp(node)
            if kept != before:
                changes.nodes[path] = kept
            if self._parts.signs is not None:
                self._parts.signs.observe(path, node, had, has)
        self._commit(changes, now_ms)
        self._parts.metrics.compared(len(nodes), len(changes.nodes), len(changes.requests))

    def _commit(self, changes: "_Changes", now_ms: int) -> None:
        if changes.nodes:
            self._parts.watched.save(changes.nodes, changes.requests, at_ms=now_ms)
        self._requested |= changes.requested
        self._stamps |= changes.stamps
        for path in [path for path, kept in changes.nodes.items() if kept is None]:
            self._stamps.pop(path, None)

    def _delay(self, path: str, count: int) -> None:
        self._parts.metrics.count(table.WATCH_DELAYED, count)
        tenant = tenant_of(path)
        if self._full_at_scan.get(tenant, -1) < self.scans - 1:
            log.warning(
                "the quota of waiting requests, of tenant %s or of all tenants, is used up: %d vanished names, of %s, "
                "wait for the next scan",
                *(tenant, count, path[:200]),
            )
        self._full_at_scan[tenant] = self.scans

    def _publish(self) -> None:
        now_ms = self._parts.clock.now_ms()
        if 0 <= now_ms - self._published_ms < _PUBLISH_EVERY_MS:
            return
        self._published_ms = now_ms
        published = self._parts.outbox.publish_due(now_ms)
        self._parts.metrics.count(table.WATCH_SENT, published.sent)
        self._parts.metrics.count(table.WATCH_DROPPED, published.dropped)
        if published.why and not self._why_not_sent:
            log.warning("the watcher's requests wait in its state, and are sent later: %s", published.why)
        elif published.sent and self._why_not_sent:
            log.info("the watcher's requests are sent again")
        if published.why or published.sent:
            self._why_not_sent = published.why


@dataclass(slots=True, kw_only=True)
class _Changes:
    """The results of a comparison, which are committed together."""

    quota_left_of: Callable[[str], int]  # of a tenant, before these requests
    quota_left: int  # in all
    nodes: dict[str, bytes | None] = field(default_factory=dict)
    stamps: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    requested: set[int] = field(default_factory=set)  # ledgers with a request for a name that a broker wrote
    taken: Counter[str] = field(default_factory=Counter)  # tenant -> bytes

    def request(self, path: str, gone: Sequence[PendingDelete]) -> Sequence[PendingDelete]:
        """Add requests for the names that vanished from a znode, and return those above the quota."""
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
            if _is_by_broker(request):
                self.requested.add(request.ledger_id)
        return []


def _is_by_broker(request: PendingDelete) -> bool:
    return request.offload_context is None and request.component not in BY_CLIENTS


def _requested_before(watched: Watched) -> set[int]:
    """Return the ledgers named by requests from earlier runs."""
    waiting = (decode(kept.payload) for kept in watched.requests.values())
    return {request.ledger_id for request in waiting if isinstance(request, PendingDelete) and _is_by_broker(request)}


def _gathered(batches: Iterable[Mapping[str, Node]]) -> Iterator[dict[str, Node]]:
    """Combine batches into those that are compared and committed at once."""
    gathered: dict[str, Node] = {}
    size_bytes = 0
    for nodes in batches:
        gathered |= nodes
        size_bytes += sum(len(node.data) for node in nodes.values() if isinstance(node, Znode))
        if len(gathered) >= _SAVED_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
            yield gathered
            gathered, size_bytes = {}, 0
    yield gathered


def _kept(path: str, node: Node) -> bytes | None:
    """Return the names in a znode; None if there is no znode. Raises FormatError, ValueError if it can't be parsed."""
    if isinstance(node, Unreadable):
        raise FormatError(node.detail)
    return packed(names_in(path, node.data)) if node is not None else None


def _names(path: str, before: bytes | None, now: bytes | None) -> tuple[Names | None, Names | None]:
    """Return the names before and now if they differ; None: no znode, or no difference. Raises FormatError."""
    if now == before:
        return None, None
    had = unpacked(path, before) if before is not None else None
    return had, unpacked(path, now) if now is not None else None


def _shown(paths: Sequence[str]) -> str:
    """Return a few of the paths, each short enough for a log line."""
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(path[:_LONGEST_SHOWN] for path in paths[:_MOST_NAMED]) + more


def _payload(path: str, request: PendingDelete) -> bytes | None:
    """Return the request's bytes; None if they can't be decoded, because such a request would block all later ones."""
    payload = encode(request)
    if isinstance(decoded := decode(payload), PendingDelete):
        return payload
    log.error("ALARM: ledger %s, which vanished from %s, can't be requested: %s", request.ledger_id, path, decoded)
    return None


def _stamp(node: Node) -> bytes:
    """Return bytes that differ after every change of a znode, and after it was deleted and created again."""
    return _STAMP.pack(node.version, node.ctime_ms, node.mtime_ms) if isinstance(node, Znode) else b""
