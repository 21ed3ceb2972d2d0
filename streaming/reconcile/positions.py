"""The messages of a partition that have a receipt or wait for one, by position; in columns: there may be millions."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming import schemas
from streaming.state.delta.delta_tables import opened, scan
from udfs import columns as c

_POSITION = [c.POSITION_LEDGER, c.POSITION_ENTRY, c.POSITION_BATCH]

_Numbers = npt.NDArray[np.integer[Any]]

AccountedEntries = Mapping[int, range | set[int]]  # ledger -> its entries; a range from 0 if there is no hole


class Accounted:
    """Messages of some ledgers of a partition, by position; created by accounted()."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def entries(self) -> AccountedEntries:
        """Return the complete entries: those with every message up to the greatest batch index that was found."""
        ledger, entry, index = (self._table[name].to_numpy() for name in _POSITION)
        order = np.lexsort((index, entry, ledger))
        ledger, entry, index = ledger[order], entry[order], index[order]
        is_first = _changes(ledger, entry, index)
        ledger, entry, index = ledger[is_first], entry[is_first], index[is_first]
        start, end = _runs(_changes(ledger, entry))
        is_complete = end - start == np.maximum(index[end - 1] + 1, 1)
        ledger, entry = ledger[start[is_complete]], entry[start[is_complete]]
        complete: dict[int, range | set[int]] = {}
        for first, after in zip(*_runs(_changes(ledger)), strict=True):
            count = int(after - first)
            is_full = entry[after - 1] == count - 1  # entries are sorted and distinct
            complete[int(ledger[first])] = range(count) if is_full else set(entry[first:after].tolist())
        return complete

    def messages(self, ledgers: Collection[int]) -> set[tuple[int, int, int]]:
        """Return (ledger, entry, index in the producer's batch or -1) of each message in these ledgers."""
        is_in_ledgers = pc.is_in(self._table[c.POSITION_LEDGER], pa.array(sorted(ledgers), pa.int64()))
        return set(zip(*(self._table.filter(is_in_ledgers)[name].to_pylist() for name in _POSITION), strict=True))


def accounted(state_dir: str, ledgers: Mapping[str, Collection[int]]) -> dict[str, Accounted]:
    """Read the messages of some ledgers of each partition, as of now, in one scan for all partitions."""
    schema = pa.schema([schemas.MESSAGE.field(name) for name in (c.SOURCE, *_POSITION)])
    ids = {ledger for of_partition in ledgers.values() for ledger in of_partition}
    messages = schema.empty_table()
    if ids:
        ledger = ds.field(c.POSITION_LEDGER)
        # with the bounds, Delta can skip files
        rows = (ledger >= min(ids)) & (ledger <= max(ids)) & ledger.isin(list(ids))
        rows &= ds.field(c.SOURCE).isin(list(ledgers))
        batches = [
            batch
            for name in ("waiting", "receipts")  # in this order: a message leaves `waiting` after it has its receipt
            if (table := opened(state_dir, name)) is not None
            for batch in scan(table, rows, schema.names)
        ]
        messages = pa.concat_tables([messages, *(pa.table(batch).cast(schema) for batch in batches)])
    return {partition: Accounted(table) for partition, table in _by_source(messages, ledgers).items()}


def _by_source(table: pa.Table, partitions: Iterable[str]) -> dict[str, pa.Table]:
    sources = table[c.SOURCE].combine_chunks().dictionary_encode()
    codes = sources.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    positions = table.select(_POSITION).take(order)
    bounds = np.searchsorted(codes[order], np.arange(len(sources.dictionary) + 1))
    by_source = {
        source: positions.slice(bounds[code], bounds[code + 1] - bounds[code])
        for code, source in enumerate(sources.dictionary.to_pylist())
    }
    return {partition: by_source.get(partition, positions.slice(0, 0)) for partition in partitions}


def _changes(*sorted_columns: _Numbers) -> npt.NDArray[np.bool_]:
    """Return for each row whether it differs from the row before it."""
    is_other = np.ones(len(sorted_columns[0]), np.bool_)
    if len(is_other):
        is_other[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in sorted_columns])
    return is_other


def _runs(is_first: npt.NDArray[np.bool_]) -> tuple[_Numbers, _Numbers]:
    """Return the starts and the (exclusive) ends of runs of equal rows."""
    start = np.flatnonzero(is_first)
    return start, np.append(start[1:], len(is_first))[: len(start)]
