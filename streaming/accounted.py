"""Which messages of a partition have a receipt or wait for one, as positions; in columns, as there may be millions."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming import columns as c
from streaming.tables import opened

_POSITION = [c.POSITION_LEDGER, c.POSITION_ENTRY, c.POSITION_BATCH]


class Accounted:
    """Read at once, the waiting first: a message leaves them only after its receipt is there."""

    def __init__(self, state_dir: str, partition: str) -> None:
        nothing = pa.schema([c.MESSAGE.field(name) for name in _POSITION]).empty_table()
        parts = [
            table.to_pyarrow_dataset().to_table(filter=ds.field(c.SOURCE) == partition, columns=_POSITION)
            for name in ("waiting", "receipts")
            if (table := opened(state_dir, name)) is not None
        ]
        self._table = pa.concat_tables([nothing, *(part.cast(nothing.schema) for part in parts)])

    def entries(self) -> dict[int, set[int]]:
        """Ledger -> entries known without a hole: of a producer's batch, all up to the last one that is known."""
        batch_index = c.POSITION_BATCH
        counted = self._table.group_by(_POSITION[:2]).aggregate([(batch_index, "max"), (batch_index, "count_distinct")])
        sent_alone = pa.scalar(1, pa.int64())
        needed = pc.max_element_wise(pc.add(pc.cast(counted[f"{batch_index}_max"], pa.int64()), 1), sent_alone)
        whole = counted.filter(pc.equal(counted[f"{batch_index}_count_distinct"], needed))
        found: dict[int, set[int]] = defaultdict(set)
        for ledger, entry in zip(*(whole[name].to_pylist() for name in _POSITION[:2]), strict=True):
            found[ledger].add(entry)
        return found

    def messages(self) -> set[tuple[int, int, int]]:
        """(ledger, entry, index in the producer's batch or -1) of each."""
        return set(zip(*(self._table[name].to_pylist() for name in _POSITION), strict=True))
