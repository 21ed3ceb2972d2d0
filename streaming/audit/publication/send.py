"""Sends a deletion request for each orphan of a plan to its request topic, each exactly once.

1. The plan is durable before the first request is sent (publication_plan.py).
2. Findings are numbered. A later run reads from each topic which numbers it has, and sends the other requests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any
from zlib import crc32

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit.publication.asked import REQUEST_TOPIC
from streaming.audit.publication.publication_plan import OpenPlan, PublicationPlan
from streaming.audit.tables import Rows
from streaming.audit.walk.suspects import request_of
from streaming.clients import admin_for, publish, publish_in_batches
from streaming.config.settings import Settings
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.ports import Copy
from streaming.sweep.pace import Pace
from streaming.topics.setup import require_sendable
from streaming.topics.stored import NONE_STORED, stored_numbers
from udfs import columns as c
from udfs.paths import base_topic, partition_index
from udfs.requests.request_format import encode

AUDIT_ID = "AUDIT_ID"  # property of a request that an audit sent: <plan>/<number of the finding>
_AT_ONCE = 4  # partitions that are sent to at the same time
# From this number of requests on, several requests share an entry, which a bookie stores as fast as an entry with one
# request. Of fewer requests, each becomes an entry of its own, so that waiting requests can be counted exactly.
_BATCHED = 1_000


def send(
    settings: Settings, orphans: Rows, opened: OpenPlan, *, is_fresh: bool, per_second: float
) -> dict[str, tuple[int, str]]:
    """Send the requests of the plan that the topics do not have yet, and return lane -> requests that may be missing.

    Raises UnavailableError and FencedError if the shared topic fails, or all lanes fail, and StoppedError; a second
    call sends what the topics do not have by then.

    Args:
        settings: the configuration.
        orphans: the orphans of the plan, each with its request topic (asked.REQUEST_TOPIC).
        opened: the plan, whose topics exist.
        is_fresh: no request of this plan was sent before.
        per_second: requests per second, for all partitions together.
    """
    schema = _empty(orphans).append(_PARTITION)
    targeted = orphans.tables.keep_batches(_targeted(orphans, opened.partitions), schema)
    # a partition without requests needs no producer
    used = {row[_PARTITION.name]: row["n"] for row in targeted.select(_USED).fetched()}
    publisher = _Publisher(settings, opened.plan, per_second / max(1, min(len(used), _AT_ONCE)), is_fresh)
    lanes = _Lanes(settings, used)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        of_partition = f"FROM rows WHERE {_PARTITION.name} = $partition ORDER BY {a.NUMBER}"
        list(
            pool.map(
                lambda partition: lanes.attempt(
                    partition, lambda: publisher(partition, targeted.select(of_partition, partition=partition))
                ),
                used,
            )
        )
    lanes.check_sent()
    return lanes.unsent


_PARTITION = pa.field("request_partition", pa.string())
_USED = (
    f"SELECT {_PARTITION.name}, count(*) AS n FROM rows WHERE {_PARTITION.name} IS NOT NULL"
    f" GROUP BY {_PARTITION.name} ORDER BY ALL"
)
_MOST_FAILURES = 5  # lanes that fail without one that succeeds; then Pulsar is at fault


class _Lanes:
    """Lets a lane that fails concern only the requests of its tenant. Thread-safe."""

    def __init__(self, settings: Settings, requests: Mapping[str, int]) -> None:
        self._settings = settings
        self._requests = requests  # by partition
        self._lock = Lock()
        self._failures = 0
        self.unsent: dict[str, tuple[int, str]] = {}

    def attempt(self, partition: str, publish: Callable[[], object]) -> None:
        """Publish to a partition. Raises what fails, unless it is a lane's."""
        lane = base_topic(partition)
        try:
            publish()
        except (UnavailableError, RefusedError, FencedError) as error:
            # a tenant can fence our producer off its own lane, take the producer's name, or keep its broker busy
            with self._lock:
                self._failures += 1
                if not self._settings.topics.is_lane(lane) or self._failures >= _MOST_FAILURES:
                    raise
            self._note(lane, self._requests[partition], str(error))
        else:
            with self._lock:
                self._failures = 0

    def check_sent(self) -> None:
        """Note the lanes that were deleted before their requests were sent."""
        lanes: dict[str, int] = {}
        for partition, requests in self._requests.items():
            lane = base_topic(partition)
            if self._settings.topics.is_lane(lane) and lane not in self.unsent:
                lanes[lane] = lanes.get(lane, 0) + requests
        with admin_for(self._settings) as admin:
            for lane, requests in lanes.items():
                try:
                    require_sendable(admin, self._settings, lane)
                except (UnavailableError, RefusedError) as error:
                    self._note(lane, requests, str(error))

    def _note(self, lane: str, requests: int, why: str) -> None:
        with self._lock:
            before = self.unsent.get(lane, (0, ""))[0]
            self.unsent[lane] = (before + requests, why)


def _empty(rows: Rows) -> pa.Schema:
    with rows.reader() as reader:
        return reader.schema


def _targeted(orphans: Rows, partitions: Mapping[str, Sequence[str]]) -> Iterator[pa.RecordBatch]:
    """Add the partition of each request; null: its topic can't be used now.

    All requests of an owner go to the same partition. Every version of this program chooses the same partition, so that
    any version can resume a publication.
    """
    for batch in orphans.batches():
        topics, keys = (batch.column(name).to_pylist() for name in (REQUEST_TOPIC, c.REFERENCE_KEY))
        targets = [
            of_topic[crc32(key.encode()) % len(of_topic)] if (of_topic := partitions.get(topic)) else None
            for topic, key in zip(topics, keys, strict=True)
        ]
        yield batch.append_column(_PARTITION, pa.array(targets, _PARTITION.type))


@dataclass(frozen=True, slots=True)
class _Publisher:
    settings: Settings
    plan: PublicationPlan
    per_second: float
    is_fresh: bool

    def __call__(self, partition: str, orphans: Rows) -> None:
        name = f"ledger-reaper-{self.plan.name}-{partition_index(partition)}"
        is_batched = self.plan.requests >= _BATCHED
        send_all = publish_in_batches if is_batched else partial(publish, is_exclusive=False)
        # send_all starts the generator once the producer's name is ours. From then on no other producer can add
        # requests of this plan, so the stored requests are final.
        send_all(self.settings, partition, name, self._copies(partition, orphans.each()))

    def _copies(self, partition: str, rows: Iterator[dict[str, Any]]) -> Iterator[Copy]:
        pace = Pace(self.per_second)
        sent = NONE_STORED
        if not self.is_fresh:
            sent = stored_numbers(self.settings, partition, self.plan.after[partition], AUDIT_ID, self.plan.name)
        for row in rows:
            number = row[a.NUMBER]
            if number not in sent:
                pace.wait_for(1)
                key = row[c.REFERENCE_KEY].encode()
                properties = {AUDIT_ID: f"{self.plan.name}/{number}"}
                # The client chooses the sequence id: where brokers deduplicate, they would drop a request whose id is
                # below that of a stored request.
                yield Copy(sequence_id=None, key=key, payload=encode(request_of(row)), properties=properties)
