"""Sends a deletion request for each orphan of a plan to the request topic, each exactly once.

1. The plan is durable before the first request is sent (publication_plan.py).
2. Findings are numbered, and the requests of a partition are sent in that order. A later run reads the last stored
   number from the topic and continues after it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming.audit import audit_columns as a
from streaming.audit.findings import is_class
from streaming.audit.publication.publication_plan import PublicationPlan
from streaming.audit.walk.suspects import request_of
from streaming.clients import publish
from streaming.config.settings import Settings
from streaming.ports import Copy
from streaming.sweep.pace import Pace
from streaming.topics.stored import last_stored
from udfs import columns as c
from udfs.requests.request_format import encode
from udfs.verdicts.finding_classes import FindingClass

AUDIT_ID = "AUDIT_ID"  # property of a request that an audit sent: <plan>/<number of the finding>


def send(settings: Settings, orphans: DataFrame, plan: PublicationPlan, *, is_fresh: bool, per_second: float) -> None:
    """Send the requests of the plan that the topic does not have yet.

    Raises the errors of the executors; a second call continues after the last stored request.

    Args:
        settings: the configuration.
        orphans: the orphans of the plan.
        plan: the plan.
        is_fresh: no request of this plan was sent before.
        per_second: requests per second, for all tasks together.
    """
    partitions = len(plan.after)
    target = (F.crc32(F.col(c.REFERENCE_KEY).cast("binary")) % partitions).cast("int")
    running = max(1, min(partitions, orphans.sparkSession.sparkContext.defaultParallelism))
    (
        orphans.where(is_class(FindingClass.ORPHAN))
        .withColumn(c.TARGET_PARTITION, target)
        .repartition(partitions, c.TARGET_PARTITION)
        # The stored requests of an interrupted run are a prefix, which the last stored number identifies: they are sent
        # in this order, under a producer name that the broker grants to one producer at a time.
        .sortWithinPartitions(c.TARGET_PARTITION, a.NUMBER)
        .foreachPartition(_Publisher(settings, plan, per_second / running, is_fresh))
    )


@dataclass(frozen=True, slots=True)
class _Publisher:
    settings: Settings
    plan: PublicationPlan
    per_second: float
    is_fresh: bool

    def __call__(self, rows: Iterable[Row]) -> None:
        for partition, group in groupby(rows, key=lambda row: row[c.TARGET_PARTITION]):
            topic = f"{self.settings.topics.requests[0]}-partition-{partition}"
            name = f"ledger-reaper-{self.plan.name}-{partition}"
            # publish() starts the generator once the producer's name is ours. From then on no other producer can add
            # requests of this plan, so the topic's last request is final.
            publish(self.settings, topic, name, self._copies(topic, group), is_exclusive=False)

    def _copies(self, topic: str, rows: Iterator[Any]) -> Iterator[Copy]:
        pace = Pace(self.per_second)
        last = (
            -1 if self.is_fresh else last_stored(self.settings, topic, self.plan.after[topic], AUDIT_ID, self.plan.name)
        )
        for row in rows:
            number = row[a.NUMBER]
            # not by the broker's deduplication: brokers disable it on topics of pulsar/system, whatever the topic's
            # policy is
            if number > last:
                pace.wait_for(1)
                key = row[c.REFERENCE_KEY].encode()
                properties = {AUDIT_ID: f"{self.plan.name}/{number}"}
                payload = encode(request_of(row.asDict()))
                # the Python client ignores sequence id 0
                yield Copy(sequence_id=number + 1, key=key, payload=payload, properties=properties)
