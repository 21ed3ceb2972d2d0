"""Aborted transactions of one topic as columns: ten million of them are four arrays, and no objects."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from udfs.snapshots.varints import Longs


class TxnIds(NamedTuple):
    """Ids of transactions."""

    most: Longs  # the coordinator's number (0 to 15)
    least: Longs  # that coordinator's counter

    @property
    def rows(self) -> int:
        """How many ids there are."""
        return len(self.most)

    def pairs(self) -> list[tuple[int, int]]:
        """Return (most, least) of each, in order."""
        return list(zip(self.most.tolist(), self.least.tolist(), strict=True))


class Aborts(NamedTuple):
    """Aborted transactions: ids as in TxnIds, and the position of each abort marker in the topic."""

    most: Longs
    least: Longs
    ledger: Longs
    entry: Longs

    @property
    def rows(self) -> int:
        """How many aborted transactions there are."""
        return len(self.most)

    @property
    def ids(self) -> TxnIds:
        """The ids alone."""
        return TxnIds(self.most, self.least)

    def between(self, start: int, end: int) -> "Aborts":
        """Return the rows from `start` up to `end`, as views."""
        return Aborts(*(column[start:end] for column in self))

    def tuples(self) -> list[tuple[int, int, int, int]]:
        """Return (most, least, ledger, entry) of each, in order."""
        return list(zip(*(column.tolist() for column in self), strict=True))


def aborts_of(rows: Iterable[tuple[int, int, int, int]]) -> Aborts:
    """Turn rows (most, least, ledger, entry) into columns."""
    table = np.array(list(rows), dtype=np.int64).reshape(-1, 4)
    return Aborts(*(np.ascontiguousarray(table[:, column]) for column in range(4)))


def ids_of(pairs: Iterable[tuple[int, int]]) -> TxnIds:
    """Turn pairs (most, least) into columns."""
    table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return TxnIds(*(np.ascontiguousarray(table[:, column]) for column in range(2)))


def joined(pieces: Sequence[Aborts]) -> Aborts:
    """Return all rows of the pieces, in order."""
    if not pieces:
        return aborts_of([])
    return Aborts(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def merged(pieces: Sequence[Aborts]) -> Aborts:
    """Return the ids of all pieces, each once with its last marker, in the order of the markers."""
    rows = joined(pieces)
    by_id = np.lexsort((rows.entry, rows.ledger, rows.least, rows.most))
    most, least = rows.most[by_id], rows.least[by_id]
    is_last = np.ones(rows.rows, dtype=np.bool_)
    is_last[:-1] = (most[1:] != most[:-1]) | (least[1:] != least[:-1])
    kept = np.sort(by_id[is_last])  # in the order of the pieces: rows with the same marker keep their order
    order = kept[np.lexsort((rows.entry[kept], rows.ledger[kept]))]
    return Aborts(*(column[order] for column in rows))


def trimmed(aborts: Aborts, ledgers: Collection[int]) -> Aborts:
    """Return the rows whose marker's ledger is in the topic's list of ledgers."""
    kept = np.isin(aborts.ledger, np.fromiter(ledgers, dtype=np.int64))
    return aborts if bool(kept.all()) else Aborts(*(column[kept] for column in aborts))
