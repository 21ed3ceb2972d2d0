"""Sends orphans to the request topic, so that the sweep judges each of them again; each exactly once.

1. A plan is durable before the first request is sent: which orphans, and where the partitions ended.
2. Findings are numbered; a partition's requests go out in that order, under a producer name that the broker gives
   to one at a time. So what a run that was cut short got stored is a prefix, and its last number tells all.
3. A second run looks that number up in the topic and goes on behind it. The broker's deduplication is not relied
   on: it is switched off on topics of pulsar/system, whatever their policy says.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming.adapters.pulsar.publish import Copy, publish
from streaming.adapters.pulsar.read import numbered, read
from streaming.audit import columns as a
from streaming.audit import join
from streaming.audit.options import FindingFilters
from streaming.audit.place import Place
from streaming.audit.publication import asked
from streaming.audit.walk.suspects import request_of
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.ports import TopicAdmin
from streaming.sweep.pace import Pace
from streaming.topics.setup import ensure_topics
from udfs import columns as c
from udfs.audit import FindingClass
from udfs.wire import encode

AUDIT_ID = "AUDIT_ID"  # property of a published request: <plan>/<number of the finding>

_FOLDER = "published"
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class PublicationPlan:
    """One publication. after: partition's full name -> where it ended (ledger id, entry id) before the first send."""

    name: str
    audit_id: str
    at_ms: int
    requests: int
    size_bytes: int
    after: Mapping[str, tuple[int, int]]
    is_done: bool = False


def prepare(
    settings: Settings, place: Place, plan: PublicationPlan, orphans: DataFrame
) -> tuple[PublicationPlan, bool]:
    """Write the plan and its orphans down, or find what an earlier run wrote; True if this is the first run of it.

    Makes or checks the topics. Raises ConfigError, UnavailableError.
    """
    known = _read(place, plan.name)
    if known is not None:
        return known, False
    topic = settings.topics.requests[0]
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
        if not admin.partitions(topic):
            raise ConfigError(f"{topic} is not partitioned: requests are written to fixed partitions")
        fresh = replace(plan, after=admin.last_positions(topic))
    asked.keep(place, plan.name, orphans)
    _write(place, fresh)
    return fresh, True


def send(settings: Settings, orphans: DataFrame, plan: PublicationPlan, *, is_fresh: bool, per_second: float) -> None:
    """Send what of a prepared plan's orphans is not stored yet. Raises what the executors raise; then call again."""
    partitions = len(plan.after)
    target = (F.crc32(F.col(c.REFERENCE_KEY).cast("binary")) % partitions).cast("int")
    running = max(1, min(partitions, orphans.sparkSession.sparkContext.defaultParallelism))
    (
        orphans.where(join.is_class(FindingClass.ORPHAN))
        .withColumn(c.TARGET_PARTITION, target)
        .repartition(partitions, c.TARGET_PARTITION)
        .sortWithinPartitions(c.TARGET_PARTITION, a.NUMBER)
        .foreachPartition(_Publisher(settings, plan, per_second / running, is_fresh))
    )


def finish(place: Place, plan: PublicationPlan) -> None:
    """Remember that all of it is stored."""
    _write(place, replace(plan, is_done=True))


def plan_name(audit_id: str, filters: FindingFilters) -> str:
    """Equal for every try of the same publication, and for no other."""
    return f"audit-{audit_id}-{_chosen(filters)}"


def unfinished(place: Place, filters: FindingFilters) -> list[PublicationPlan]:
    """Publications with the same filters that were cut short. Raises UnavailableError."""
    return [plan for plan in plans(place) if not plan.is_done and plan.name.endswith(f"-{_chosen(filters)}")]


def _chosen(filters: FindingFilters) -> str:
    return sha256(json.dumps(asdict(filters), sort_keys=True, default=str).encode()).hexdigest()[:12]


def plans(place: Place) -> list[PublicationPlan]:
    """Everything that audits have published from there, oldest first."""
    found = [_read(place, name.removesuffix(".json")) for name in place.names(_FOLDER)]
    return sorted((plan for plan in found if plan is not None), key=lambda plan: plan.at_ms)


def _read(place: Place, name: str) -> PublicationPlan | None:
    content = place.read(f"{_FOLDER}/{name}.json")
    if content is None:
        return None
    fields = json.loads(content)
    after = {partition: (ledger_id, entry_id) for partition, (ledger_id, entry_id) in fields.pop("after").items()}
    return PublicationPlan(**fields, after=after)


def _write(place: Place, plan: PublicationPlan) -> None:
    place.write(f"{_FOLDER}/{plan.name}.json", json.dumps(asdict(plan), indent=2).encode())


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
            # the generator runs once the producer's name is ours: only then a look at the topic tells all
            publish(self.settings.pulsar, topic, name, self._copies(topic, group), is_exclusive=False)

    def _copies(self, topic: str, rows: Iterator[Any]) -> Iterator[Copy]:
        pace = Pace(self.per_second)
        last = -1 if self.is_fresh else self._last_stored(topic)
        for row in rows:
            number = row[a.NUMBER]
            if number > last:
                pace.wait_for(1)
                key = row[c.REFERENCE_KEY].encode()
                properties = {AUDIT_ID: f"{self.plan.name}/{number}"}
                # the Python client ignores sequence id 0
                yield Copy(number + 1, key, encode(request_of(row.asDict())), properties)

    def _last_stored(self, topic: str) -> int:
        """Number of the last finding that an earlier run got stored in this partition; -1: none."""
        with admin_for(self.settings) as admin:
            _settle(admin, topic, self.settings.pulsar.timeout_seconds)
            last = admin.last_positions(topic)
        after = {topic: self.plan.after[topic]} if self.plan.after[topic][1] >= 0 else None
        messages = read(self.settings.pulsar, last, after=after)
        return max((number for number, _message in numbered(messages, AUDIT_ID, self.plan.name)), default=-1)


def _settle(admin: TopicAdmin, topic: str, timeout_seconds: float) -> None:
    """Return when nothing is on its way from the broker to the bookies that an earlier run had handed over."""
    deadline = time.monotonic() + timeout_seconds
    while admin.internal_stats(topic).pending_adds:
        if time.monotonic() > deadline:
            raise UnavailableError(f"{topic} is always being written to; try again when it is quieter")
        time.sleep(_POLL_SECONDS)
