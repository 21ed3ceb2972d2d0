"""Finds the owners that a chunk may read: those of requests that their senders may send."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.sweep.messages import RowDecoder
from udfs import columns as c
from udfs.records import PendingDelete
from udfs.requests.admission import Admission


@dataclass(frozen=True, slots=True)
class AdmittedOwners:
    """Spark's task: record batches of schemas.MESSAGE become counts of admitted requests by owner, schemas.OWNER.

    A row without an owner counts all messages.
    """

    query: str  # schemas.REQUESTS or RETRY
    admission: Admission
    most_bytes: int  # a message whose payload is larger is no request

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the requests in record batches."""
        # the sweep's own reader, so that both admit the same messages
        reader = RowDecoder(self.query, self.admission, self.most_bytes)
        total = 0
        requests: Counter[tuple[str, str]] = Counter()
        for batch in batches:
            total += batch.num_rows
            named = batch.filter(pc.is_valid(batch.column(c.REFERENCE_KEY)))
            for message in reader.read(named.to_pylist()):
                # A refused request must not cause a read: otherwise a client that may publish to any one topic could
                # make this service read the znodes of all topics, and make brokers load them.
                if isinstance(message.request, PendingDelete):
                    requests[message.row[c.TENANT], message.row[c.REFERENCE_KEY]] += 1
        counts = [{c.TENANT: tenant, c.REFERENCE_KEY: owner, c.ASKED: n} for (tenant, owner), n in requests.items()]
        yield pa.RecordBatch.from_pylist([{c.ASKED: total}, *counts], schema=schemas.OWNER)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests there are for which owner."""

    total: int  # all messages, admitted or not
    by_owner: Counter[tuple[str, str]]  # admitted requests by (tenant, reference key)


def count_requests(rows: DataFrame, task: AdmittedOwners) -> RequestCounts:
    """Count the messages in rows of schemas.MESSAGE, and the admitted requests of each owner, in one job."""
    total = 0
    by_owner: Counter[tuple[str, str]] = Counter()
    for row in rows.drop(c.MESSAGE_KEY).mapInArrow(task, from_arrow_schema(schemas.OWNER)).collect():
        if row[c.REFERENCE_KEY] is None:
            total += row[c.ASKED]
        else:
            by_owner[row[c.TENANT], row[c.REFERENCE_KEY]] += row[c.ASKED]
    return RequestCounts(total, by_owner)
