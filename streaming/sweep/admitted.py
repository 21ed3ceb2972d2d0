"""Which owners a chunk may look at: those of requests that their senders may send.

A request that is refused must cost nobody a read: whoever may publish anywhere could else make us read the znodes of
all topics, and make brokers load them. So nothing is read of an owner before a request for it was admitted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.sweep.messages import MessageReader
from udfs import columns as c
from udfs.admission import Admission
from udfs.records import PendingDelete


@dataclass(frozen=True, slots=True)
class AdmittedOwners:
    """Spark's task: record batches of schemas.MESSAGE become counts of admitted requests by owner, schemas.OWNER.

    It reads messages as the sweep does, so that both admit the same ones. query: schemas.REQUESTS or RETRY.
    most_bytes: a message whose payload is larger is no request.
    """

    query: str
    admission: Admission
    most_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count."""
        reader = MessageReader(self.query, self.admission, self.most_bytes)
        asked: Counter[tuple[str, str]] = Counter()
        for batch in batches:
            for message in reader.read(batch.to_pylist()):
                if isinstance(message.request, PendingDelete):
                    asked[message.row[c.TENANT], message.row[c.REFERENCE_KEY]] += 1
        yield pa.RecordBatch.from_pylist(
            [{c.TENANT: tenant, c.REFERENCE_KEY: owner, c.ASKED: n} for (tenant, owner), n in asked.items()],
            schema=schemas.OWNER,
        )


def admitted_owners(rows: DataFrame, task: AdmittedOwners) -> Counter[tuple[str, str]]:
    """Count the requests in rows of schemas.MESSAGE that were admitted, by (tenant, reference key) of their owner."""
    named = rows.where(F.col(c.REFERENCE_KEY).isNotNull()).drop(c.MESSAGE_KEY)
    asked: Counter[tuple[str, str]] = Counter()
    for row in named.mapInArrow(task, from_arrow_schema(schemas.OWNER)).collect():
        asked[row[c.TENANT], row[c.REFERENCE_KEY]] += row[c.ASKED]
    return asked
