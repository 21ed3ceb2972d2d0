"""Forecasts which ledgers a broker is about to drop from a topic's list, by the rules of Pulsar 4.0.8's brokers.

1. A broker drops the oldest ledgers that are consumed (closed, and every cursor is past them) and whose retention has
   ended, by time or by size. It stops at the first ledger that stays. The newest ledger, which is open, always stays.
2. Without retention (0 minutes or 0 MB) it drops a ledger as soon as the last cursor leaves it. That can't be
   predicted, so such a topic has nothing to mark.
3. By time, a ledger is about to be dropped from ahead_ms before the end of its retention. By size, it is about to be
   dropped when the topic would be too large with one more ledger, as large as the topic's largest.
4. We count every cursor, including those of readers, which a broker moves by itself. So we may mark less than it drops.
5. A mark permits no delete. A wrong forecast causes a missing mark, or a request for a ledger that the sweep keeps.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from udfs.formats.internal_stats import Position
from udfs.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from udfs.phase_one.marks import MarkedTopic, Marks
from udfs.phase_one.pip_186_requests import uploads_in
from udfs.phase_one.vanished_names import Names, ZnodeKind
from udfs.records import LedgerComponent, LedgerType
from udfs.units import MIB, MINUTE_MS

NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long, and up to which size, a broker keeps consumed ledgers. -1: without limit."""

    minutes: int
    megabytes: int

    @property
    def is_none(self) -> bool:
        """Whether the broker keeps no consumed ledger."""
        return self.minutes == 0 or self.megabytes == 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """A forecast for a topic."""

    ids: tuple[int, ...] = ()  # ledgers that the broker is about to drop
    next_ms: int | None = None  # when there may be more; None: unknown


class Sign(StrEnum):
    """What a change of a znode shows about the topic."""

    # Only a broker that has the topic loaded creates its list, changes the ledgers in it, or starts a cursor's ledger.
    LOADED = "loaded"
    # A cursor has released its ledger, as every cursor with a ledger does when its broker unloads the topic.
    CLOSED = "closed"


def sign_of(kind: ZnodeKind, before: Names | None, after: Names) -> Sign | None:
    """Return the sign in changed names, if any; before None: there was no such znode."""
    if kind is ZnodeKind.TOPIC:
        return Sign.LOADED if before is None or before.keys() != after.keys() else None
    if kind is not ZnodeKind.CURSOR or before is None:
        return None
    earlier, now = _cursor_ledgers(before), _cursor_ledgers(after)
    if now - earlier:
        return Sign.LOADED
    return Sign.CLOSED if earlier - now else None


def about_to_drop(  # noqa: PLR0913  the facts of the broker's decision
    ledgers: Iterable[LedgerInfo],
    open_bytes: int,
    cursors: Collection[Position],
    retention: Retention,
    *,
    now_ms: int,
    ahead_ms: int,
) -> Outlook:
    """Forecast which ledgers the broker drops.

    Args:
        ledgers: the topic's list.
        open_bytes: the size of the newest ledger; the list names this ledger without its size.
        cursors: the acknowledged position of each cursor; without cursors, every closed ledger is consumed.
        retention: of the topic.
        now_ms: the time, in ms since 1970.
        ahead_ms: how far to look ahead.
    """
    listed = sorted(ledgers, key=lambda ledger: ledger.ledger_id)
    if retention.is_none or len(listed) < 2:
        return Outlook()
    sizes = [each.size_bytes for each in listed[:-1]] + [max(open_bytes, listed[-1].size_bytes)]
    too_large = sum(sizes) + max(sizes) - retention.megabytes * MIB if retention.megabytes >= 0 else -1
    chosen: list[int] = []
    freed = 0
    for ledger in _consumed(listed[:-1], cursors):
        freed += ledger.size_bytes
        due_ms = ledger.timestamp_ms + retention.minutes * MINUTE_MS - ahead_ms
        has_ended = retention.minutes >= 0 and now_ms > due_ms
        if not has_ended and freed > too_large:
            return Outlook(tuple(chosen), due_ms + 1 if retention.minutes >= 0 else None)
        chosen.append(ledger.ledger_id)
    return Outlook(tuple(chosen))


def marks_for(info: ManagedLedgerInfo, ids: Collection[int]) -> Marks:
    """Return the marks for these ledgers of a list: copies that BookKeeper still has, and all their uploads."""
    chosen = [ledger for ledger in info.ledgers if ledger.ledger_id in ids]
    freed = {ledger.ledger_id for ledger in chosen if _is_bookkeeper_free(ledger)}
    uploads = {name: at for name, at in uploads_in(info).items() if name[0] in ids}
    return Marks(frozenset(ledger.ledger_id for ledger in chosen) - freed, uploads)


def has_unmarked(info: ManagedLedgerInfo, marked: Marks) -> bool:
    """Whether the list names a closed ledger that is not marked yet."""
    newest = max((ledger.ledger_id for ledger in info.ledgers), default=-1)
    closed = {ledger.ledger_id for ledger in info.ledgers} - {newest}
    return bool(marks_for(info, closed).without(marked.ledgers, marked.uploads))


def no_longer_listed(marked: MarkedTopic, in_use: Collection[int], uploads: Collection[tuple[int, str]]) -> bool:
    """Whether something is marked that the list no longer names."""
    return bool(marked.all.without(in_use, uploads))


def _consumed(closed: Sequence[LedgerInfo], cursors: Collection[Position]) -> list[LedgerInfo]:
    """Return the closed ledgers that every cursor is past, oldest first."""
    if not cursors:
        return list(closed)
    at, entry = min(cursors)
    return [
        ledger
        for ledger in closed
        if ledger.ledger_id < at
        or (ledger.ledger_id == at and ledger.entries is not None and entry + 1 >= ledger.entries)
    ]


def _is_bookkeeper_free(ledger: LedgerInfo) -> bool:
    return ledger.offload is not None and ledger.offload.complete and ledger.offload.bookkeeper_deleted


def _cursor_ledgers(names: Names) -> set[int]:
    return {
        ledger_id
        for (component, ledger_id, _uuid), request in names.items()
        if component is LedgerComponent.MANAGED_CURSOR and request.ledger_type is LedgerType.LEDGER
    }
