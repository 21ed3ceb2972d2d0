"""The guard: a durable subscription on a namespace's segments topic that keeps named segments from being trimmed.

A broker reads a segment at the position that the index names, and it compacts system topics automatically. The cursor
of compaction is the segments topic's only durable cursor, so without retention the broker trims ledgers that indexes
name; once a named segment is gone, its topic does not load again (seen on Pulsar 4.0.8, docs/snapshots.md). The guard
is moved forward to the first segment that may be needed (udfs/snapshots/guard_rules.py); segments before it can be
trimmed.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.audit.audit_options import FindingFilters
from streaming.clients import clients_for, metadata_stores_of
from streaming.config.settings import Settings
from streaming.coordination.live_store import require_live_store
from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.snapshots.snapshot_namespaces import namespaces_with_snapshots, snapshot_topics
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.snapshots.guard_rules import Bound, Holds, index_bound, is_perhaps_needed, lowest_of, segment_bound
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue

# The most segments, before all positions that indexes name, that an index may still come to name; if there are more,
# the guard does not move forward.
MOST_CANDIDATES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardState:
    """The state of one namespace's guard; the fields of --json."""

    namespace: str
    is_new: bool = False
    position: Position = BEFORE_ALL  # the guard keeps everything after it
    moved_from: Position | None = None
    held_by: str = ""  # description of the message that the guard stops at
    lost: int = 0  # named segments in ledgers that are gone already, so that no guard helps
    error: str = ""  # why the guard was not updated

    def as_json(self) -> dict[str, Any]:
        """Return the fields for --json."""
        return asdict(self)

    def describe(self) -> str:
        """Return one line for the terminal."""
        if self.error:
            return f"{self.namespace}: GUARD NOT UPDATED: {self.error}"
        made = "guard created" if self.is_new else "guarded"
        moved = "" if self.moved_from is None else f", moved from {_text(self.moved_from)}"
        lost = ""
        if self.lost:
            lost = f"; {self.lost} segments that indexes name were trimmed before (`snapshots audit` names the topics)"
        return f"{self.namespace}: {made} after {_text(self.position)}{moved}; held by {self.held_by}{lost}"


@dataclass(frozen=True, slots=True)
class Guards:
    """Creates and moves guards."""

    topics: SnapshotTopics

    def keep(self, namespaces: Sequence[str]) -> Iterator[GuardState]:
        """Guard each namespace that has segments, one after the other; a failure does not stop the next."""
        for namespace in namespaces:
            topic = system_topic(namespace, SnapshotKind.SEGMENT)
            try:
                if topic in self.topics.present(namespace):
                    yield self._keep(namespace, topic)
            except ReaperError as error:
                yield GuardState(namespace=namespace, error=str(error))

    def require(self, namespace: str) -> Position:
        """Guard a namespace, and return the position after which everything is kept; (-1, -1) without segments.

        Raises UnavailableError if that fails, so that the caller does nothing without a guard.
        """
        for state in self.keep([namespace]):
            if state.error:
                raise UnavailableError(f"no guard for {namespace}, so nothing was done: {state.error}")
            return state.position
        return BEFORE_ALL

    def hold(self, namespace: str, places: Collection[Position]) -> None:
        """Make the guard keep the segments at these positions, if they still exist.

        This moves the guard back, or not at all. Use it for segments that no index names yet.

        Raises UnavailableError, RefusedError, SafetyError if that fails.
        """
        topic = system_topic(namespace, SnapshotKind.SEGMENT)
        if topic not in self.topics.present(namespace):
            return
        before, is_new = self._made(topic)
        ledgers = dict(before.ledgers)
        first = min((position for position in places if position[0] in ledgers), default=None)
        guarded = GuardState(namespace=namespace, is_new=is_new, position=before.mark_deleted(GUARD))
        if first is not None and guarded.position >= first:
            self._move_back(topic, guarded, first)

    def _made(self, topic: str) -> tuple[InternalStats, bool]:
        """Create the guard if there is none; returns the topic's stats after that, and whether the guard is new."""
        admin = self.topics.admin
        before = admin.internal_stats(topic)
        is_new = not before.has_subscription(GUARD)
        if is_new:
            admin.ensure_subscription(topic, GUARD)
            before = admin.internal_stats(topic)
            if not before.has_subscription(GUARD):
                raise UnavailableError(f"{topic} does not show the subscription {GUARD} that was just created")
        return before, is_new

    def _keep(self, namespace: str, topic: str) -> GuardState:
        before, is_new = self._made(topic)
        holds = self._holds(namespace, before)
        bound = self._bound(namespace, before, holds)
        guarded = GuardState(
            namespace=namespace,
            is_new=is_new,
            position=before.mark_deleted(GUARD),
            held_by=bound.held_by,
            lost=sum(hold.lost for hold in holds.by_topic.values()),
        )
        lowest = lowest_of(holds.by_topic)
        if lowest is not None and guarded.position >= lowest:
            return self._move_back(topic, guarded, lowest)
        return self._move(topic, guarded, before, bound)

    def _holds(self, namespace: str, stats: InternalStats) -> Holds:
        holds = Holds(frozenset(ledger for ledger, _entries in stats.ledgers))
        for read in self.topics.compacted(namespace, SnapshotKind.INDEX):
            holds.take(read)
        return holds

    def _bound(self, namespace: str, stats: InternalStats, holds: Holds) -> Bound:
        bound = index_bound(holds.by_topic, stats.last)
        candidates: list[ReadValue] = []
        for read in self.topics.stored(namespace, SnapshotKind.SEGMENT, stats.mark_deleted(GUARD)):
            if read.position >= bound.position:
                break
            if is_perhaps_needed(read, holds.by_topic):
                candidates.append(read)
            if len(candidates) > MOST_CANDIDATES:
                return Bound(BEFORE_ALL, f"more than {MOST_CANDIDATES} segments that no index names")
        if not candidates:
            return bound
        keys = {read.key for read in candidates}
        latest: dict[str, Position | None] = {}
        for read in self.topics.compacted(namespace, SnapshotKind.SEGMENT):
            if read.key in keys:
                latest[read.key] = None if read.is_null else read.position
        return segment_bound(bound, candidates, latest)

    def _move(self, topic: str, guarded: GuardState, before: InternalStats, bound: Bound) -> GuardState:
        """Move the guard forward so that it keeps the bound itself and everything after it."""
        admin, now = self.topics.admin, guarded.position
        # Only to the start of the bound's ledger: brokers trim whole ledgers, so a later position in that ledger would
        # free no more, and could be wrong
        target = (bound.position[0], 0)
        if target[0] <= now[0] or target[0] not in dict(before.ledgers):
            return guarded
        self.topics.more.reset_cursor(topic, GUARD, target)
        moved = admin.internal_stats(topic).mark_deleted(GUARD)
        if moved >= (bound.position[0], max(bound.position[1], 0)):  # entry -1: the ledger has none yet
            self.topics.more.reset_cursor(topic, GUARD, (max(now[0], 0), max(now[1], 0)))
            raise SafetyError(f"{topic}: the guard went to {moved}, after {bound.held_by}; it was moved back")
        # a repair or an undo may have published an index that names other segments, after we had read the indexes
        lowest = lowest_of(self._holds(guarded.namespace, admin.internal_stats(topic)).by_topic)
        if lowest is not None and moved >= lowest:
            return self._move_back(topic, guarded, lowest)
        return GuardState(
            namespace=guarded.namespace,
            is_new=guarded.is_new,
            position=moved,
            moved_from=now,
            held_by=bound.held_by,
            lost=guarded.lost,
        )

    def _move_back(self, topic: str, guarded: GuardState, lowest: Position) -> GuardState:
        """Move a guard back to a position that it must keep, and has passed."""
        self.topics.more.reset_cursor(topic, GUARD, (lowest[0], 0))
        moved = self.topics.admin.internal_stats(topic).mark_deleted(GUARD)
        held_by = f"a segment at {_text(lowest)}, which an index names"
        if moved >= lowest:
            raise SafetyError(f"{topic}: the guard is at {_text(moved)}, after {held_by}, and does not move back")
        return GuardState(
            namespace=guarded.namespace,
            is_new=guarded.is_new,
            position=moved,
            moved_from=guarded.position,
            held_by=held_by,
            lost=guarded.lost,
        )


def guard_all(settings: Settings, filters: FindingFilters) -> Iterator[GuardState]:
    """Create or move the guard of every namespace that has segments.

    Raises SafetyError if the cluster leaves ZooKeeper, UnavailableError without ZooKeeper.
    """
    clients = clients_for(settings)
    require_live_store(clients.store, partial(metadata_stores_of, settings))
    namespaces, problems = namespaces_with_snapshots(clients.store, filters)
    for path, detail in problems:
        yield GuardState(namespace=path, error=detail)
    with snapshot_topics(settings) as topics:
        yield from Guards(topics).keep(namespaces)


def _text(position: Position) -> str:
    return f"{position[0]}:{position[1]}"
