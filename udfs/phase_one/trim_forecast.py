"""Which ledgers a broker is about to drop from a topic's list, as a broker of Pulsar 4.0.8 decides it.

1. A broker drops from the old end: each ledger that is over (closed, and every cursor is past it) and whose retention
   has ended, by time or by size. It stops at the first that stays. The newest ledger, which is open, always stays.
2. Without retention (0 minutes or 0 MB) it drops a ledger as soon as the last cursor leaves it. Nobody can say that
   before, so such a topic has nothing to mark.
3. By time, a ledger is about to be dropped for ahead_ms before its retention ends. By size, it is when the topic would
   be too large with one more ledger as large as its largest.
4. We count every cursor, also those of readers, which a broker moves on by itself. So we may mark less than it drops.
5. A mark allows nothing. Whatever is wrong here costs a mark, or a request that is kept.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from udfs.formats.internal_stats import Position
from udfs.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from udfs.phase_one.marks import MarkedTopic, Marks
from udfs.phase_one.requests import uploads_in
from udfs.phase_one.watched import Names, ZnodeKind
from udfs.records import LedgerComponent, LedgerType
from udfs.units import MIB, MINUTE_MS

NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long, and up to which size, a broker keeps what every cursor is past. -1: without limit."""

    minutes: int
    megabytes: int

    @property
    def is_none(self) -> bool:
        """Whether the broker keeps nothing."""
        return self.minutes == 0 or self.megabytes == 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a broker does next. ids: what it is about to drop. next_ms: when that may be more; None: unknown."""

    ids: tuple[int, ...] = ()
    next_ms: int | None = None


class Sign(StrEnum):
    """What a change of a znode says about the topic."""

    LOADED = "loaded"
    CLOSED = "closed"


def sign_of(kind: ZnodeKind, before: Names | None, after: Names) -> Sign | None:
    """Say what changed names tell; None: nothing. before None: there was no such znode.

    LOADED: only a broker that has the topic loaded makes a list, writes one with other ledgers, or has a cursor begin a
    ledger. CLOSED: a cursor has given up its ledger, as every cursor does that had one when its broker unloads the
    topic.
    """
    if kind is ZnodeKind.TOPIC:
        return Sign.LOADED if before is None or before.keys() != after.keys() else None
    if kind is not ZnodeKind.CURSOR or before is None:
        return None
    earlier, now = _cursor_ledgers(before), _cursor_ledgers(after)
    if now - earlier:
        return Sign.LOADED
    return Sign.CLOSED if earlier - now else None


def about_to_drop(  # noqa: PLR0913  all that decides it
    ledgers: Iterable[LedgerInfo],
    open_bytes: int,
    cursors: Collection[Position],
    retention: Retention,
    *,
    now_ms: int,
    ahead_ms: int,
) -> Outlook:
    """Return what the broker is about to drop. cursors: up to where each has acknowledged; none: it waits for nobody.

    open_bytes: the size of the newest ledger, which the list does not have.
    """
    listed = sorted(ledgers, key=lambda each: each.ledger_id)
    if retention.is_none or len(listed) < 2:
        return Outlook()
    sizes = [each.size_bytes for each in listed[:-1]] + [max(open_bytes, listed[-1].size_bytes)]
    too_large = sum(sizes) + max(sizes) - retention.megabytes * MIB if retention.megabytes >= 0 else -1
    chosen: list[int] = []
    freed = 0
    for ledger in _over(listed[:-1], cursors):
        freed += ledger.size_bytes
        due_ms = ledger.timestamp_ms + retention.minutes * MINUTE_MS - ahead_ms
        has_ended = retention.minutes >= 0 and now_ms > due_ms
        if not has_ended and freed > too_large:
            return Outlook(tuple(chosen), due_ms + 1 if retention.minutes >= 0 else None)
        chosen.append(ledger.ledger_id)
    return Outlook(tuple(chosen))


def marks_for(info: ManagedLedgerInfo, ids: Collection[int]) -> Marks:
    """Return the marks for these ledgers of a list: their copies in BookKeeper, and every upload of them."""
    chosen = [each for each in info.ledgers if each.ledger_id in ids]
    freed = {each.ledger_id for each in chosen if _is_bookkeeper_free(each)}
    uploads = {name: at for name, at in uploads_in(info).items() if name[0] in ids}
    return Marks(frozenset(each.ledger_id for each in chosen) - freed, uploads)


def has_unmarked(info: ManagedLedgerInfo, marked: Marks) -> bool:
    """Whether the list names a closed ledger that is not marked yet."""
    newest = max((each.ledger_id for each in info.ledgers), default=-1)
    closed = {each.ledger_id for each in info.ledgers} - {newest}
    return bool(marks_for(info, closed).without(marked.ledgers, marked.uploads))


def no_longer_listed(marked: MarkedTopic, in_use: Collection[int], uploads: Collection[tuple[int, str]]) -> bool:
    """Whether something is marked that the list names no more."""
    return bool(marked.all.without(in_use, uploads))


def _over(closed: Sequence[LedgerInfo], cursors: Collection[Position]) -> list[LedgerInfo]:
    """Return the closed ledgers that every cursor is past, the oldest first."""
    if not cursors:
        return list(closed)
    at, entry = min(cursors)
    return [
        each
        for each in closed
        if each.ledger_id < at or (each.ledger_id == at and each.entries is not None and entry + 1 >= each.entries)
    ]


def _is_bookkeeper_free(ledger: LedgerInfo) -> bool:
    return ledger.offload is not None and ledger.offload.complete and ledger.offload.bookkeeper_deleted


def _cursor_ledgers(names: Names) -> set[int]:
    return {
        ledger_id
        for (component, ledger_id, _uuid), request in names.items()
        if component is LedgerComponent.MANAGED_CURSOR and request.ledger_type is LedgerType.LEDGER
    }
