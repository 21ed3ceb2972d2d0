"""Which messages of a partition have a receipt or wait for one, by position; in columns, as there may be millions."""

from collections.abc import Collection, Iterable, Mapping
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
    """Messages of some ledgers of a partition, by position. accounted() reads them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

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


def accounted(state_dir: str, wanted: Mapping[str, Collection[int]]) -> dict[str, Accounted]:
    """Read the messages of some ledgers of each partition, as of now: one scan, however many partitions.

    We read the table `waiting` before the receipts: a message leaves it only after it has its receipt.
    """
    schema = pa.schema([schemas.MESSAGE.field(name) for name in (c.SOURCE, *_POSITION)])
    ledgers = {ledger for each in wanted.values() for ledger in each}
    found = schema.empty_table()
    if ledgers:
        ledger = ds.field(c.POSITION_LEDGER)
        # the bounds let Delta leave out files unread
        rows = (ledger >= min(ledgers)) & (ledger <= max(ledgers)) & ledger.isin(list(ledgers))
        rows &= ds.field(c.SOURCE).isin(list(wanted))
        batches = [
            batch
            for name in ("waiting", "receipts")
            if (table := opened(state_dir, name)) is not None
            for batch in scan(table, rows, schema.names)
        ]
        found = pa.concat_tables([found, *(pa.table(batch).cast(schema) for batch in batches)])
    return {partition: Accounted(each) for partition, each in _by_source(found, wanted).items()}


def _by_source(table: pa.Table, partitions: Iterable[str]) -> dict[str, pa.Table]:
    sources = table[c.SOURCE].combine_chunks().dictionary_encode()
    codes = sources.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    positions = table.select(_POSITION).take(order)
    bounds = np.searchsorted(codes[order], np.arange(len(sources.dictionary) + 1))
    found = {
        source: positions.slice(bounds[code], bounds[code + 1] - bounds[code])
        for code, source in enumerate(sources.dictionary.to_pylist())
    }
    return {partition: found.get(partition, positions.slice(0, 0)) for partition in partitions}


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
