"""Decides whether a message of a broker's snapshot topic may get a tombstone. No other module decides that.

The owner is the topic whose aborted transactions the message lists. Reasons to keep the message come first:
1. we keep it if its owner could not be read;
2. while the owner exists, we keep its index and its single snapshot, whatever they contain;
3. while the owner exists, we keep a segment unless the owner's index can be read, names neither its number nor its
   position, and names a higher number: a broker writes a segment first and names it later, however much later;
4. a key without a value is already gone, and so is a value that another value of the same key has replaced;
5. a value whose schema may be another Pulsar version's is kept, and one that no broker wrote is refused for good: an
   operator must find out who wrote it;
6. a young value is kept for now, and a value of an existing topic for the long quarantine;
7. a segment is kept while nothing protects its topic from trimming: a tombstone needs a compaction, and a compaction
   lets the broker trim the positions from which existing topics read their segments;
8. the index of an owner that is gone goes last;
9. we must see all this twice, far enough apart, because no znode's version protects a message;
10. then, and only then, the message gets its tombstone.
"""

from dataclasses import dataclass

from udfs.formats.internal_stats import Position
from udfs.records import LedgerType, Outcome, PendingDelete, Presence, Reason, Reference, SnapshotContext, Verdict
from udfs.snapshots.keys import SnapshotKind, segment_key_of
from udfs.snapshots.topic_findings import IndexState
from udfs.snapshots.values import Fault
from udfs.verdicts.judge import Policy, is_second_look, unread


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """The latest message of a key."""

    position: Position
    publish_ms: int
    is_null: bool = False
    fault: str = ""  # why it is not known as a broker's value (Fault); "": a broker's value, or a tombstone


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The segments that the owner's index names."""

    standing: IndexState = IndexState.NONE
    numbers: frozenset[int] = frozenset()
    places: frozenset[Position] = frozenset()  # positions of the segments' messages


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCase:
    """One request and all facts about its message."""

    request: PendingDelete
    latest: MessageFacts | None  # None: nothing is stored under its key
    index: IndexFacts
    segments: int  # how many segments of the owner have a value
    is_guarded: bool  # whether something keeps the segments topic from being trimmed
    reference: Reference
    absent_since_ms: int | None = None  # when this service first saw that the message is not needed; None: never


def judge_snapshot(case: SnapshotCase, policy: Policy, *, now_ms: int) -> Verdict:
    """Return DELETED only when every reason to keep the message is ruled out. Raises ValueError for a ledger."""
    context = case.request.snapshot_context
    if case.request.ledger_type is not LedgerType.COMPACTED_MESSAGE or context is None:
        raise ValueError(f"{case.request.component} {case.request.ledger_id} is no message of a snapshot topic")
    return (
        _kept_by_owner(case, context)
        or _not_there(case, context)
        or _kept_by_age(case, policy, now_ms)
        or _kept_by_topic(case, context)
        or _by_second_look(case, policy, now_ms)
    )


def needs_guard(kind: str) -> bool:
    """Whether existing topics read messages of this kind by position, so that its topic must not be trimmed."""
    return kind == SnapshotKind.SEGMENT


def _kept_by_owner(case: SnapshotCase, context: SnapshotContext) -> Verdict | None:
    if case.reference.presence is Presence.UNREADABLE:
        return unread(case.reference)
    if case.reference.presence is Presence.GONE:
        return None
    segment = segment_key_of(context.key)
    if context.kind != SnapshotKind.SEGMENT or segment is None:
        return _later(Reason.IN_USE, "its topic exists, and may read the message whenever it is loaded")
    return _kept_by_index(case, context, segment.sequence)


def _kept_by_index(case: SnapshotCase, context: SnapshotContext, number: int) -> Verdict | None:
    if case.index.standing is not IndexState.READABLE:
        return _later(Reason.IN_USE, "its topic exists and has no index that can be read, so any segment may count")
    position = (case.request.ledger_id, context.entry_id)
    if number in case.index.numbers or position in case.index.places:
        return _later(Reason.IN_USE, f"its topic's index names segment {number}")
    if number > max(case.index.numbers, default=-1):
        return _later(Reason.IN_USE, f"a broker may still write segment {number} into its topic's index")
    return None


def _not_there(case: SnapshotCase, context: SnapshotContext) -> Verdict | None:
    if case.latest is None or case.latest.is_null:
        return Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND)
    if case.latest.position != (case.request.ledger_id, context.entry_id):
        ledger_id, entry_id = case.latest.position
        return Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND, f"its key's value is at {ledger_id}:{entry_id}")
    if case.latest.fault == Fault.UNKNOWN_SCHEMA:
        return _later(
            Reason.LEDGER_UNREADABLE, "its schema is not known here: another Pulsar version may have written it"
        )
    if case.latest.fault:
        return Verdict(Outcome.DEAD_LETTER, Reason.NOT_PULSARS, f"no broker wrote it: {case.latest.fault}")
    return None


def _kept_by_age(case: SnapshotCase, policy: Policy, now_ms: int) -> Verdict | None:
    is_gone = case.reference.presence is Presence.GONE
    age_ms = now_ms - case.latest.publish_ms if case.latest is not None else 0
    if age_ms < (policy.min_age_ms if is_gone else policy.above_newest_quarantine_ms):
        return _later(Reason.TOO_YOUNG, f"published {age_ms} ms ago")
    return None


def _kept_by_topic(case: SnapshotCase, context: SnapshotContext) -> Verdict | None:
    if needs_guard(context.kind) and not case.is_guarded:
        return _later(Reason.NOT_GUARDED, "run `ledger-reaper snapshots guard`: a compaction could take other segments")
    if context.kind == SnapshotKind.INDEX and case.segments:
        # this reason keeps the time of the first sighting, so the index goes as soon as the segments have gone
        return _later(Reason.OWNER_ABSENT_ONCE, f"{case.segments} segments of its topic have to go first")
    return None


def _by_second_look(case: SnapshotCase, policy: Policy, now_ms: int) -> Verdict:
    is_gone = case.reference.presence is Presence.GONE
    if is_second_look(case.absent_since_ms, policy, now_ms=now_ms):
        return Verdict(Outcome.DELETED, Reason.OWNER_GONE if is_gone else Reason.UNREFERENCED)
    if is_gone:
        return _later(Reason.OWNER_ABSENT_ONCE, f"{case.reference.key} seems gone; it is checked again later")
    return _later(Reason.UNREFERENCED_ONCE, "no index names it now; it is checked again later")


def _later(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.RETRY, reason, detail)
