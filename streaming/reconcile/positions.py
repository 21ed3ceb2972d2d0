"""Which messages of a partition have a receipt or wait for one, by position; in columns, as there may be millions."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming import schemas
from streaming.state.tables import opened, scan
from udfs import columns as c

_POSITION = [c.POSITION_LEDGER, c.POSITION_ENTRY, c.POSITION_BATCH]

_Numbers = npt.NDArray[np.integer[Any]]

AccountedEntries = Mapping[int, range | set[int]]  # ledger -> its entries; a range from 0 where there is no hole


class Accounted:
    """Messages of some ledgers of a partition, as of now.

    We read the table `waiting` before the receipts: a message leaves it only after it has its receipt.
    """

    def __init__(self, state_dir: str, partition: str, ledgers: Collection[int]) -> None:
        self._table = nothing = pa.schema([schemas.MESSAGE.field(name) for name in _POSITION]).empty_table()
        if not ledgers:
            return
        ledger = ds.field(c.POSITION_LEDGER)
        # the bounds let Delta leave out files unread
        wanted = (ledger >= min(ledgers)) & (ledger <= max(ledgers)) & ledger.isin(list(ledgers))
        batches = [
            batch
            for name in ("waiting", "receipts")
            if (table := opened(state_dir, name)) is not None
            for batch in scan(table, wanted & (ds.field(c.SOURCE) == partition), _POSITION)
        ]
        self._table = pa.concat_tables([nothing, *(pa.table(batch).cast(nothing.schema) for batch in batches)])

    def entries(self) -> AccountedEntries:
        """Entries without a hole. A producer's batch has none if every message up to the last one found is there."""
        ledger, entry, index = (self._table[name].to_numpy() for name in _POSITION)
        order = np.lexsort((index, entry, ledger))
        ledger, entry, index = ledger[order], entry[order], index[order]
        is_first = _changes(ledger, entry, index)
        ledger, entry, index = ledger[is_first], entry[is_first], index[is_first]
        begin, end = _runs(_changes(ledger, entry))
        is_whole = end - begin == np.maximum(index[end - 1] + 1, 1)
        ledger, entry = ledger[begin[is_whole]], entry[begin[is_whole]]
        found: dict[int, range | set[int]] = {}
        for first, behind in zip(*_runs(_changes(ledger)), strict=True):
            count = int(behind - first)
            is_full = entry[behind - 1] == count - 1  # they are sorted, and each is there once
            found[int(ledger[first])] = range(count) if is_full else set(entry[first:behind].tolist())
        return found

    def messages(self, ledgers: Collection[int]) -> set[tuple[int, int, int]]:
        """(ledger, entry, index in the producer's batch or -1) of each message in these ledgers."""
        of_them = pc.is_in(self._table[c.POSITION_LEDGER], pa.array(sorted(ledgers), pa.int64()))
        return set(zip(*(self._table.filter(of_them)[name].to_pylist() for name in _POSITION), strict=True))


def _changes(*sorted_columns: _Numbers) -> npt.NDArray[np.bool_]:
    """Whether each row differs from the one before it."""
    is_other = np.ones(len(sorted_columns[0]), np.bool_)
    if len(is_other):
        is_other[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in sorted_columns])
    return is_other


def _runs(is_first: npt.NDArray[np.bool_]) -> tuple[_Numbers, _Numbers]:
    """Where runs of equal rows begin, and where they end (exclusive)."""
    begin = np.flatnonzero(is_first)
    return begin, np.append(begin[1:], len(is_first))[: len(begin)]
