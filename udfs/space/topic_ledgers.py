"""Unites what ZooKeeper, BookKeeper and a topic's broker know of the topic's ledgers and cursors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, ranges_in
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    acknowledged_ranges,
    in_use_ids,
    parse_cursor,
    parse_managed_ledger,
)
from udfs.owners.references import (
    COMPACTED_LEDGER_PROPERTY,
    COMPACTION_CURSOR,
    DELAYED_BUCKET_PREFIX,
    bucket_id,
    compacted_by_znodes,
)
from udfs.paths import decode_name
from udfs.space.ledger_table import Claimed, LedgerTable
from udfs.space.topic_split import Cursor, ListedLedger, Place

_OF_BROKER = ("pulsar.dedup", COMPACTION_CURSOR)
_REPLICATOR_PREFIX = "pulsar.repl."


@dataclass(frozen=True, slots=True)
class CursorRead:
    """A cursor with the ledgers that it names."""

    cursor: Cursor
    ledger_id: int = -1  # its own; -1: none
    buckets: tuple[int, ...] = ()
    fault: str = ""  # why its ledgers are not all known


def listed_ledgers(
    data: bytes, stats: InternalStats | None, table: LedgerTable, unreadable: set[int]
) -> list[ListedLedger]:
    """Claim the ledgers of a topic's list, ascending. Raises FormatError.

    A ledger that is not in the table is MISSING; the caller reads it again, because it may be newer than the table.

    Args:
        data: of the topic's znode.
        stats: of its broker; None: no broker has it loaded, or none answered.
        table: of the ledgers in BookKeeper.
        unreadable: ledgers that exist, but whose metadata could not be read.
    """
    infos = _infos(data, stats)
    reported = _set_open(infos, stats, table)
    stored = [info.ledger_id for info in infos if not _is_tiered_only(info)]
    claims = dict(zip(stored, table.claim(stored), strict=True))
    return [_listed(info, claims.get(info.ledger_id), reported, unreadable) for info in infos]


def confirmed(ledgers: Sequence[ListedLedger], existing: set[int], still_listed: set[int]) -> list[ListedLedger]:
    """Return the ledgers after a second reading of those that are MISSING.

    Args:
        ledgers: of the first reading.
        existing: ledgers that exist now.
        still_listed: ledgers that the topic's list still names, read after `existing`.
    """
    return [
        ledger._replace(place=Place.UNCOUNTED)
        if ledger.place is Place.MISSING and ledger.ledger_id in existing
        else ledger
        for ledger in ledgers
        if ledger.place is not Place.MISSING or ledger.ledger_id in existing or ledger.ledger_id in still_listed
    ]


def is_current(stats: InternalStats, data: bytes) -> bool:
    """Whether a broker's answer can be as new as the topic's list, read before. Raises FormatError.

    A broker that was frozen may answer for a topic that another broker has taken over. It does not know the ledger that
    the other broker started then.
    """
    newest_id = in_use_ids(data).newest_id
    return newest_id < 0 or any(ledger_id == newest_id for ledger_id, _entries in stats.ledgers)


def needed_ids(data: bytes) -> set[int]:
    """Return the ledgers that a topic's list needs in BookKeeper. Raises FormatError."""
    return {info.ledger_id for info in parse_managed_ledger(data).ledgers if not _is_tiered_only(info)}


def read_cursor(name: str, data: bytes, stats: InternalStats | None) -> CursorRead:
    """Return a cursor by its encoded name. A cursor whose znode can't be parsed may hold any ledger."""
    try:
        info = parse_cursor(data)
        buckets, fault = _buckets(info)
        return CursorRead(_cursor(name, info, data, stats), info.cursors_ledger_id, buckets, fault)
    except FormatError as error:
        return CursorRead(unread_cursor(name), fault=str(error))


def unread_cursor(name: str) -> Cursor:
    """Return a cursor that could not be read, by its encoded name."""
    return Cursor(name=_decoded(name), position=(-1, -1), is_known=False, is_of_broker=_is_of_broker(name))


def compacted_ids(cursors: Mapping[str, bytes], stats: InternalStats | None) -> set[int] | None:
    """Return the compacted ledgers in use; None: unknown.

    Args:
        cursors: znodes by encoded name.
        stats: of the topic's broker; None: no broker has it loaded, or none answered.
    """
    if COMPACTION_CURSOR not in cursors:
        return set()
    data = cursors[COMPACTION_CURSOR]
    try:
        if stats is None:
            # the znode of a cursor without a ledger is exact, even if a broker has loaded the topic since
            written = compacted_by_znodes([data])
            return None if written is None else {written} - {-1}
        # a broker may answer before it has opened the cursor, and then knows no compacted ledger yet
        if COMPACTION_CURSOR not in stats.cursors or stats.compacted_by_cursor is None:
            return None
        in_znode = parse_cursor(data).properties.get(COMPACTED_LEDGER_PROPERTY, -1)
        return {stats.compacted[0], stats.compacted_by_cursor, in_znode} - {-1}
    except FormatError:
        return None


def _cursor(name: str, info: ManagedCursorInfo, data: bytes, stats: InternalStats | None) -> Cursor:
    found = Cursor(
        name=_decoded(name),
        position=(info.mark_delete_ledger_id, info.mark_delete_entry_id),
        # while the cursor has a ledger, its znode has the position of the moment when that ledger was created
        is_known=info.cursors_ledger_id == -1 and info.mark_delete_ledger_id >= 0,
        is_of_broker=_is_of_broker(name),
        last_active_ms=info.last_active_ms or None,
    )
    if stats is not None and name in stats.cursors:
        return replace(
            found,
            position=stats.cursors[name],
            is_known=True,
            acknowledged=ranges_in(stats.acknowledged.get(name, "")),
            is_connected=True if name in stats.reading else None,
        )
    return replace(found, acknowledged=acknowledged_ranges(data)) if found.is_known else found


def _buckets(info: ManagedCursorInfo) -> tuple[tuple[int, ...], str]:
    """Return the ledgers of delayed buckets, and why some are unknown. Any subscriber can write these properties."""
    ids: list[int] = []
    fault = ""
    for name, value in info.cursor_properties.items():
        if name.startswith(DELAYED_BUCKET_PREFIX):
            try:
                ids.append(bucket_id(value))
            except FormatError as error:
                fault = str(error)
    return tuple(ids), fault


def _infos(data: bytes, stats: InternalStats | None) -> list[LedgerInfo]:
    """Return the ledgers that the list or the broker names, ascending."""
    infos: dict[int, LedgerInfo] = {}
    for info in parse_managed_ledger(data).ledgers:
        if info.ledger_id not in infos or not _is_tiered_only(info):
            infos[info.ledger_id] = info
    for ledger_id, entries in stats.ledgers if stats else ():
        if ledger_id not in infos and stats is not None:
            size = stats.sizes.get(ledger_id, 0)
            infos[ledger_id] = LedgerInfo(ledger_id=ledger_id, entries=entries, size_bytes=size)
    return [infos[ledger_id] for ledger_id in sorted(infos)]


def _set_open(infos: Sequence[LedgerInfo], stats: InternalStats | None, table: LedgerTable) -> int:
    """Set the length that the broker reports of the current ledger; return its id, or -1."""
    if stats is None or not stats.ledgers or not infos or stats.ledgers[-1][0] != infos[-1].ledger_id:
        return -1
    ledger_id, entries = stats.ledgers[-1]
    table.set_open(ledger_id, length=stats.sizes.get(ledger_id, 0), entries=entries)
    return ledger_id


def _listed(info: LedgerInfo, claimed: Claimed | None, reported: int, unreadable: Collection[int]) -> ListedLedger:
    if claimed is not None and claimed.is_first:
        return ListedLedger(
            info.ledger_id,
            Place.BOOKKEEPER,
            claimed.length,
            claimed.entries,
            info.timestamp_ms,
            stored=claimed.stored,
            is_offloaded=info.offload is not None and info.offload.complete,
            is_exact=claimed.is_closed or info.ledger_id == reported,
        )
    place = Place.MISSING
    if _is_tiered_only(info):
        place = Place.TIERED_ONLY
    elif claimed is not None or info.ledger_id in unreadable:
        place = Place.UNCOUNTED
    return ListedLedger(info.ledger_id, place, info.size_bytes, info.entries or 0, info.timestamp_ms)


def _is_tiered_only(info: LedgerInfo) -> bool:
    return info.offload is not None and info.offload.complete and info.offload.bookkeeper_deleted


def _is_of_broker(name: str) -> bool:
    return name in _OF_BROKER or name.startswith(_REPLICATOR_PREFIX)


def _decoded(name: str) -> str:
    try:
        return decode_name(name)
    except ValueError:
        return name
