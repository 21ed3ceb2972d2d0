"""Stored entries, and a fake admin API, for the tests of reads without the connector."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.errors import RefusedError, UnavailableError
from tests.pulsar_fields import entry
from tests.unit.adapters.pulsar.frame_broker import Partition, settings_for
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import Ensembles, InternalStats, Position

TOPIC = "persistent://t/ns/topic-partition-0"
ORDINARY = entry(b"request")
LAST = (8, 2)
STORED: Mapping[Position, bytes | None] = {
    (7, 0): ORDINARY,
    (7, 1): None,
    (7, 2): ORDINARY,
    (8, 0): None,
    (8, 1): ORDINARY,
    LAST: ORDINARY,
}
ONE_BOOKIE = Ensembles(1, (0,))
ALL = [EntrySpan(7, 0, 2), EntrySpan(8, 0, 2)]


@dataclass
class Admin:
    """The admin API of a broker."""

    answers: Mapping[Position, Body | None] = field(default_factory=dict)  # None: no answer
    knows_last: bool = True  # whether it reports the last message
    is_up: bool = True  # whether the partition's broker answers at all
    exists: bool = True  # whether the partition does
    allows: bool = True  # whether our role may read stats
    stats: InternalStats = field(default_factory=lambda: InternalStats(ledgers=(), cursors={}, pending_adds=0))
    of_each: Ensembles | None = ONE_BOOKIE  # None: not reported
    requested: list[Position] = field(default_factory=list)

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        if most_bytes == 1:  # a control entry
            return self.answers.get(position)
        self.requested.append(position)
        return self.answers.get(position)

    def reports_last_message(self, partition: str, patience_seconds: float) -> bool:
        return self.knows_last

    def internal_stats(self, partition: str) -> InternalStats:
        if not self.is_up:
            raise UnavailableError("no broker answers")
        if not (self.exists and self.allows):
            raise RefusedError(f"Pulsar did not read internalStats of {partition}")
        return self.stats

    def partitions(self, topic: str) -> int | None:
        return 0 if self.exists else None

    def ensembles(self, partition: str) -> Mapping[int, Ensembles]:
        return {} if (each := self.of_each) is None else {ledger: each for ledger, _entries in self.stats.ledgers}


def body(payload: bytes, **metadata: str) -> Body:
    return Body(200, {f"x-pulsar-{name.replace('_', '-')}": text for name, text in metadata.items()}, payload, True)


def read_all(partition: Partition, admin: Admin, spans: list[EntrySpan]) -> list[tuple[Position, bytes, Any]]:
    read = fallback_entries(settings_for(partition), admin, TOPIC, spans)
    return [(position, message.content.payload, message.why) for position, message in read]
