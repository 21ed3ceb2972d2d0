"""Sends a deletion request for each orphan of a plan to the request topic, each exactly once.

1. The plan is durable before the first request is sent (publication_plan.py).
2. Findings are numbered. A later run reads from the topic which numbers it has, and sends the other findings' requests.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit.publication.publication_plan import PublicationPlan
from streaming.audit.tables import Rows
from streaming.audit.walk.suspects import request_of
from streaming.clients import publish, publish_in_batches
from streaming.config.settings import Settings
from streaming.ports import Copy
from streaming.sweep.pace import Pace
from streaming.topics.stored import NONE_STORED, stored_numbers
from udfs import columns as c
from udfs.requests.request_format import encode

AUDIT_ID = "AUDIT_ID"  # property of a request that an audit sent: <plan>/<number of the finding>
_AT_ONCE = 4  # partitions that are sent to at the same time
# From this number of requests on, several requests share an entry, which a bookie stores as fast as an entry with one
# request. Of fewer requests, each becomes an entry of its own, so that waiting requests can be counted exactly.
_BATCHED = 1_000


def send(settings: Settings, orphans: Rows, plan: PublicationPlan, *, is_fresh: bool, per_second: float) -> None:
    """Send the requests of the plan that the topic does not have yet.

    Raises UnavailableError, FencedError and StoppedError; a second call sends what the topic does not have by then.

    Args:
        settings: the configuration.
        orphans: the orphans of the plan.
        plan: the plan.
        is_fresh: no request of this plan was sent before.
        per_second: requests per second, for all partitions together.
    """
    schema = _empty(orphans).append(_TARGET)
    targeted = orphans.tables.keep_batches(_targeted(orphans, len(plan.after)), schema)
    # a partition without requests needs no producer
    used = [row[c.TARGET_PARTITION] for row in targeted.select(_USED).fetched()]
    publisher = _Publisher(settings, plan, per_second / max(1, min(len(used), _AT_ONCE)), is_fresh)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        of_partition = f"FROM rows WHERE {c.TARGET_PARTITION} = $partition ORDER BY {a.NUMBER}"
        list(pool.map(lambda number: publisher(number, targeted.select(of_partition, partition=number)), used))


_TARGET = pa.field(c.TARGET_PARTITION, pa.int64())
_USED = f"SELECT DISTINCT {c.TARGET_PARTITION} FROM rows ORDER BY ALL"


def _empty(rows: Rows) -> pa.Schema:
    with rows.reader() as reader:
        return reader.schema


def _targeted(orphans: Rows, partitions: int) -> Iterator[pa.RecordBatch]:
    """Add the partition of each request. All requests of an owner go to the same partition.

    Every version of this program chooses the same partition, so that any version can resume a publication.
    """
    for batch in orphans.batches():
        targets = [crc32(key.encode()) % partitions for key in batch.column(c.REFERENCE_KEY).to_pylist()]
        yield batch.append_column(_TARGET, pa.array(targets, _TARGET.type))


@dataclass(frozen=True, slots=True)
class _Publisher:
    settings: Settings
    plan: PublicationPlan
    per_second: float
    is_fresh: bool

    def __call__(self, partition: int, orphans: Rows) -> None:
        topic = f"{self.settings.topics.requests[0]}-partition-{partition}"
        name = f"ledger-reaper-{self.plan.name}-{partition}"
        is_batched = self.plan.requests >= _BATCHED
        send_all = publish_in_batches if is_batched else partial(publish, is_exclusive=False)
        # send_all starts the generator once the producer's name is ours. From then on no other producer can add
        # requests of this plan, so the stored requests are final.
        send_all(self.settings, topic, name, self._copies(topic, orphans.each()))

    def _copies(self, topic: str, rows: Iterator[dict[str, Any]]) -> Iterator[Copy]:
        pace = Pace(self.per_second)
        sent = NONE_STORED
        if not self.is_fresh:
            sent = stored_numbers(self.settings, topic, self.plan.after[topic], AUDIT_ID, self.plan.name)
        for row in rows:
            number = row[a.NUMBER]
            if number not in sent:
                pace.wait_for(1)
                key = row[c.REFERENCE_KEY].encode()
                properties = {AUDIT_ID: f"{self.plan.name}/{number}"}
                # The client chooses the sequence id: where brokers deduplicate, they would drop a request whose id is
                # below that of a stored request.
                yield Copy(sequence_id=None, key=key, payload=encode(request_of(row)), properties=properties)
