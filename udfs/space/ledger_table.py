"""A table of all ledgers of a cluster, in columns: about 75 bytes for each, so that millions fit into memory."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from udfs.formats.ledger_metadata import LedgerNumbers, PlacedLedger, numbers_of, parse_placed
from udfs.formats.ledger_placement import entries_at
from udfs.owners.named_owner import (
    APPLICATION,
    BUCKET_TOPIC,
    COMPACTED_TOPIC,
    COMPONENT,
    CURSOR,
    MANAGED_LEDGER,
    SCHEMA_ID,
)
from udfs.records import LedgerComponent, LedgerState
from udfs.verdicts.finding_classes import FindingClass, Unclaimed, claim_of

Ints = npt.NDArray[np.int64]
Segments = tuple[tuple[int, tuple[str, ...]], ...]
_Value = TypeVar("_Value")

RECORD_BYTES = 36  # of each copy of an entry beside payload and digest: the record's length and the entry's header
NO_OWNER = -1
_SEVERAL_SEGMENTS = -1
_COLUMNS = 10
_ENSEMBLE, _OWNER = 5, 9  # numbers of columns
_MOST_PARSED = 100_000  # claims, and ensembles, to remember: at most about 40 MB of each
_OWNER_KEYS = (MANAGED_LEDGER, COMPACTED_TOPIC, BUCKET_TOPIC, SCHEMA_ID)


class Kind(IntEnum):
    """The writer of a ledger, by the ledger's own metadata."""

    DATA = 0
    CURSOR = 1
    SCHEMA = 2
    COMPACTED = 3
    BUCKET = 4
    FOREIGN = 5  # another application
    UNCLEAR = 6  # Pulsar, but the metadata name no owner that we know


_KIND_OF = {
    LedgerComponent.MANAGED_LEDGER: Kind.DATA,
    LedgerComponent.MANAGED_CURSOR: Kind.CURSOR,
    LedgerComponent.SCHEMA_STORAGE: Kind.SCHEMA,
    LedgerComponent.COMPACTED_LEDGER: Kind.COMPACTED,
    LedgerComponent.DELAYED_INDEX_BUCKET: Kind.BUCKET,
}


Claim = tuple[Kind, str]  # what the metadata say wrote the ledger, and its owner; "": they name none


class Claimed(NamedTuple):
    """A ledger that an owner refers to."""

    length: int
    entries: int
    stored: int
    is_closed: bool
    is_first: bool  # False: another owner has claimed it before, and its bytes count there


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """All ledgers, by ascending id. Rows are indexes into the columns."""

    ids: Ints
    length: Ints  # bytes of one copy; 0 while a ledger is not closed, until `set_open`
    entries: Ints
    quorum: Ints  # copies of each entry
    overhead: Ints  # bytes of each copy of an entry beside its payload
    ensemble: Ints  # index into ensembles; -1: the ledger has several segments, or none
    is_closed: npt.NDArray[np.bool_]
    changed_ms: Ints
    kind: Ints
    owner: Ints  # index into owners
    ensembles: tuple[tuple[str, ...], ...]
    owners: tuple[str, ...]  # tenant/ns/persistent/encoded; of a schema the topic's own name
    segments: dict[int, Segments]  # by id, of ledgers with several segments or none
    claimed: npt.NDArray[np.bool_]  # whether an owner refers to it

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, ledger_ids: Sequence[int]) -> list[int]:
        """Return the row of each ledger, in order; -1: there is no such ledger."""
        if not ledger_ids or not len(self.ids):
            return [-1] * len(ledger_ids)
        wanted = np.array(ledger_ids, np.int64)
        rows = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        found: list[int] = np.where(self.ids[rows] == wanted, rows, -1).tolist()
        return found

    def claim(self, ledger_ids: Sequence[int]) -> list["Claimed | None"]:
        """Claim distinct ledgers for an owner; None: there is no such ledger."""
        rows = self.rows_of(ledger_ids)
        if not len(self.ids):
            return [None] * len(rows)
        picked = np.array(rows, np.int64)
        is_first = ~self.claimed[picked]
        self.claimed[picked[picked >= 0]] = True
        length, entries = self.length[picked], self.entries[picked]
        stored = (length + entries * self.overhead[picked]) * self.quorum[picked]
        columns = (each.tolist() for each in (length, entries, stored, self.is_closed[picked], is_first))
        return [Claimed(*facts) if row >= 0 else None for row, *facts in zip(rows, *columns, strict=True)]

    def set_open(self, ledger_id: int, *, length: int, entries: int) -> None:
        """Set the size that a topic's broker reports of the ledger that it writes; a closed ledger is unchanged."""
        (row,) = self.rows_of([ledger_id])
        if row >= 0 and not self.is_closed[row]:
            self.length[row], self.entries[row] = max(0, length), max(0, entries)

    def unclaimed(self, is_wanted: Callable[[str], bool]) -> list[int]:
        """Return the unclaimed ledgers whose metadata name an owner that is wanted; is_wanted("") if they name none."""
        # NO_OWNER (-1) selects the last element
        wanted = np.array([*map(is_wanted, self.owners), is_wanted("")], np.bool_)
        return [int(ledger_id) for ledger_id in self.ids[~self.claimed & wanted[self.owner]]]

    def drop(self, ledger_ids: Sequence[int]) -> None:
        """Forget the bytes of ledgers that do not exist any more."""
        rows = np.array([row for row in self.rows_of(ledger_ids) if row >= 0], np.int64)
        self.length[rows] = self.entries[rows] = 0
        self.claimed[rows] = True

    def of_owner(self, ledger_ids: Iterable[int], kind: Kind, owner: str) -> set[int]:
        """Return those of the ledgers whose own metadata name this kind and owner."""
        ids = list(ledger_ids)
        return {
            ledger_id
            for ledger_id, row in zip(ids, self.rows_of(ids), strict=True)
            if row >= 0 and self.kind[row] == kind and self.owner[row] >= 0 and self.owners[self.owner[row]] == owner
        }

    @property
    def stored(self) -> Ints:
        """Bytes that bookies together keep of each ledger."""
        return (self.length + self.entries * self.overhead) * self.quorum

    def on_bookies(self) -> dict[str, tuple[int, int]]:
        """Return (ledgers, bytes of their records) of each bookie that an ensemble names; empty ledgers don't count.

        Of ledgers that are striped over more bookies than an entry has copies, the bytes of a bookie are an estimate:
        every entry counts as an average one. Their sum over all bookies is exact.
        """
        totals = _Totals()
        sizes = np.array([len(ensemble) for ensemble in self.ensembles], np.int64)
        filled = (self.entries > 0) & (self.ensemble >= 0)
        row_sizes = sizes[np.maximum(self.ensemble, 0)] if len(sizes) else np.zeros(len(self), np.int64)
        for size, quorum in {*zip(row_sizes[filled].tolist(), self.quorum[filled].tolist(), strict=True)}:
            rows = np.flatnonzero(filled & (row_sizes == size) & (self.quorum == quorum))
            self._add_striped(rows, size, quorum, totals)
        for row in self.rows_of(list(self.segments)):
            self._add_segments(row, totals)
        return totals.by_bookie()

    def _add_striped(self, rows: Ints, size: int, quorum: int, totals: "_Totals") -> None:
        """Add ledgers of one segment, whose ensembles all have this size."""
        entries = self.entries[rows]
        codes = self.ensemble[rows]
        copies = entries * quorum
        before = np.zeros(len(rows), np.int64)
        for member in range(size):
            held = sum(
                ((entries - first + size - 1) // size for first in _residues(member, size, quorum)),
                np.zeros(len(rows), np.int64),
            )
            length = _portion(self.length[rows] * quorum, before, before + held, copies)
            before += held
            record_bytes = length + held * self.overhead[rows]
            ledgers = np.bincount(codes, held > 0, len(self.ensembles))
            live = np.bincount(codes, record_bytes, len(self.ensembles))
            for code in np.flatnonzero(ledgers):
                totals.add(self.ensembles[code][member], int(ledgers[code]), int(live[code]))

    def _add_segments(self, row: int, totals: "_Totals") -> None:
        """Add a ledger of several segments."""
        entries, quorum = int(self.entries[row]), int(self.quorum[row])
        segments = self.segments[int(self.ids[row])]
        ends = [*(first for first, _bookies in segments[1:]), entries]
        held: dict[str, int] = {}
        for (first, bookies), end in zip(segments, ends, strict=False):
            for member, bookie in enumerate(bookies):
                residues = _residues(member, len(bookies), quorum)
                count = sum(entries_at(min(first, entries), min(end, entries), len(bookies), each) for each in residues)
                held[bookie] = held.get(bookie, 0) + count
        length, before = int(self.length[row]) * quorum, 0
        for bookie, count in held.items():
            if count:
                of_bookie = length * (before + count) // (entries * quorum) - length * before // (entries * quorum)
                totals.add(bookie, 1, of_bookie + count * int(self.overhead[row]))
            before += count


@dataclass(slots=True)
class LedgerRows:
    """Ledgers in any order."""

    _numbers: "array[int]" = field(default_factory=lambda: array("q"))  # one after another, each of _COLUMNS numbers
    _ensembles: dict[tuple[str, ...], int] = field(default_factory=dict)
    _owners: dict[str, int] = field(default_factory=dict)
    _segments: dict[int, Segments] = field(default_factory=dict)

    def add(
        self, ledger_id: int, numbers: LedgerNumbers, where: tuple[str, ...] | None, claim: Claim, changed_ms: int
    ) -> None:
        """Add a ledger.

        Args:
            ledger_id: its id.
            numbers: of its metadata.
            where: the bookies of its only segment; None: see add_segments().
            claim: its kind and owner.
            changed_ms: the latest time that its znode names.
        """
        kind, owner = claim
        self._numbers.extend(
            (
                ledger_id,
                max(0, numbers.length_bytes),
                max(0, numbers.last_entry_id + 1),
                max(0, numbers.write_quorum),
                RECORD_BYTES + numbers.digest_bytes,
                _SEVERAL_SEGMENTS if where is None else self._ensembles.setdefault(where, len(self._ensembles)),
                numbers.is_closed,
                max(changed_ms, numbers.ctime_ms),
                kind,
                self._owners.setdefault(owner, len(self._owners)) if owner else NO_OWNER,
            )
        )

    def add_segments(self, ledger_id: int, segments: Segments) -> None:
        """Note the segments of a ledger that has several, or none."""
        self._segments[ledger_id] = segments

    def extend(self, other: "LedgerRows") -> None:
        """Add the ledgers of others."""
        rows = np.frombuffer(other._numbers, np.int64).reshape(-1, _COLUMNS).copy()
        ensembles = [self._ensembles.setdefault(each, len(self._ensembles)) for each in other._ensembles]
        owners = [self._owners.setdefault(each, len(self._owners)) for each in other._owners]
        # the last index, -1, is that of none
        rows[:, _ENSEMBLE] = np.array([*ensembles, _SEVERAL_SEGMENTS], np.int64)[rows[:, _ENSEMBLE]]
        rows[:, _OWNER] = np.array([*owners, NO_OWNER], np.int64)[rows[:, _OWNER]]
        self._numbers.frombytes(rows.tobytes())
        self._segments |= other._segments

    def build(self) -> LedgerTable:
        """Return the table, and forget the ledgers. It does not depend on the order in which they were added."""
        columns = np.frombuffer(self._numbers, np.int64).reshape(-1, _COLUMNS).T
        order = np.argsort(columns[0], kind="stable")
        ids, length, entries, quorum, overhead, ensemble, is_closed, changed_ms, kind, owner = (
            each[order] for each in columns
        )
        del columns  # a view of the numbers
        self._numbers = array("q")
        ensemble, ensembles = _renumbered(ensemble, [*self._ensembles])
        owner, owners = _renumbered(owner, [*self._owners])
        return LedgerTable(
            ids=ids,
            length=length,
            entries=entries,
            quorum=quorum,
            overhead=overhead,
            ensemble=ensemble,
            is_closed=is_closed.astype(np.bool_),
            changed_ms=changed_ms,
            kind=kind,
            owner=owner,
            ensembles=ensembles,
            owners=owners,
            segments=self._segments,
            claimed=np.zeros(len(ids), np.bool_),
        )


@dataclass(slots=True)
class TableBuilder:
    """Parses ledgers into rows. Most ledgers have their topic and their ensemble in common with others."""

    rows: LedgerRows = field(default_factory=LedgerRows)
    # by the part of the metadata that names the owner
    _claims: dict[tuple[bytes | None, ...], Claim] = field(default_factory=dict)
    # by the serialized custom metadata, and segments, of ledgers that parse_placed has parsed
    _parsed_claims: dict[tuple[bytes, ...], Claim] = field(default_factory=dict)
    _parsed_ensembles: dict[tuple[bytes, ...], tuple[str, ...]] = field(default_factory=dict)

    def add_znode(self, ledger_id: int, data: bytes, znode_changed_ms: int) -> None:
        """Add a ledger by the data of its znode. Raises FormatError.

        znode_changed_ms: the latest time that its znode names.
        """
        numbers = numbers_of(data)
        if numbers is not None:
            claim = self._parsed_claims.get(numbers.custom_metadata)
            bookies = self._parsed_ensembles.get(numbers.segments)
            if claim and bookies and 0 < numbers.write_quorum <= len(bookies):
                self.rows.add(ledger_id, numbers, bookies, claim, znode_changed_ms)
                return
        placed = parse_placed(data)
        claim = self.add(ledger_id, placed, znode_changed_ms)
        if numbers is not None:
            if claim[0] is Kind.DATA and len(self._parsed_claims) < _MOST_PARSED:
                self._parsed_claims[numbers.custom_metadata] = claim
            if len(placed.segments) == 1 and len(self._parsed_ensembles) < _MOST_PARSED:
                self._parsed_ensembles[numbers.segments] = placed.segments[0][1]

    def add(self, ledger_id: int, placed: PlacedLedger, znode_changed_ms: int) -> Claim:
        """Add a parsed ledger, and return its kind and owner. znode_changed_ms: as of add_znode()."""
        metadata, where = placed.metadata, None
        if len(placed.segments) == 1 and 0 < placed.write_quorum <= len(placed.segments[0][1]):
            where = placed.segments[0][1]
        else:
            self.rows.add_segments(ledger_id, placed.segments)
        numbers = LedgerNumbers(
            is_closed=metadata.state is LedgerState.CLOSED,
            length_bytes=metadata.length_bytes,
            last_entry_id=metadata.last_entry_id,
            ctime_ms=metadata.ctime_ms or 0,
            write_quorum=placed.write_quorum,
            digest_bytes=placed.digest_bytes,
        )
        claim = self._claim(metadata.custom_metadata)
        self.rows.add(ledger_id, numbers, where, claim, znode_changed_ms)
        return claim

    def build(self) -> LedgerTable:
        """Return the table of all ledgers that were added."""
        return self.rows.build()

    def taken(self) -> LedgerRows:
        """Return the ledgers that were added since the last call."""
        rows, self.rows = self.rows, LedgerRows()
        return rows

    def _claim(self, custom: Mapping[str, bytes]) -> Claim:
        """Return the kind of a ledger by its metadata, and its owner."""
        # a topic has many ledgers, and checking its name takes longer than everything else here
        key = (
            custom.get(APPLICATION),
            custom.get(COMPONENT),
            *map(custom.get, _OWNER_KEYS),
            *([b""] * (CURSOR in custom)),
        )
        found = self._claims.get(key)
        if found is None:
            claim = claim_of(0, custom)
            if isinstance(claim, Unclaimed):
                found = Kind.FOREIGN if claim.finding_class is FindingClass.FOREIGN else Kind.UNCLEAR, ""
            else:
                found = _KIND_OF[claim.component], claim.managed_ledger
            self._claims[key] = found
        return found


@dataclass(slots=True)
class _Totals:
    ledgers: Counter[str] = field(default_factory=Counter)
    live: Counter[str] = field(default_factory=Counter)

    def add(self, bookie: str, ledgers: int, live: int) -> None:
        self.ledgers[bookie] += ledgers
        self.live[bookie] += live

    def by_bookie(self) -> dict[str, tuple[int, int]]:
        return {bookie: (self.ledgers[bookie], self.live[bookie]) for bookie in sorted(self.ledgers)}


def _renumbered(codes: Ints, values: Sequence[_Value]) -> tuple[Ints, tuple[_Value, ...]]:
    """Renumber indexes into `values` in the order in which they appear; -1 stays."""
    used, first = np.unique(codes[codes >= 0], return_index=True)
    order = used[np.argsort(first)]
    new = np.full(len(values) + 1, -1, np.int64)
    new[order] = np.arange(len(order))
    return new[codes], tuple(values[code] for code in order.tolist())


def _residues(member: int, size: int, quorum: int) -> list[int]:
    """Return the entries, modulo the ensemble's size, that this member of it holds."""
    return [(member - copy) % size for copy in range(quorum)]


def _portion(total: Ints, start: Ints, end: Ints, whole: Ints) -> Ints:
    """Return the portion of `total` from start/whole to end/whole; portions that follow each other add up to it."""
    return np.floor(total * (end / whole)).astype(np.int64) - np.floor(total * (start / whole)).astype(np.int64)
