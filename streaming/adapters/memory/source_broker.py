"""A fake of SourceBroker, which tests/contract/test_source_broker.py compares with Pulsar."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from streaming.adapters.pulsar.readers.frames import ReceiveTimeout
from streaming.errors import RefusedError, UnavailableError
from udfs.formats.entry import Weight, head_in, weight_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.paths import base_topic, encode_name


@dataclass(slots=True)
class _Partition:
    ledgers: dict[int, list[bytes | None]]  # None: an entry that is sent to no reader
    cursors: dict[str, Position] = field(default_factory=dict)
    last_confirmed: Position = BEFORE_ALL
    open_since: Position | None = None  # the first entry of an open transaction


class MemorySourceBroker:
    """One Pulsar. `unavailable` names topics and partitions that do not answer, `busy` subscriptions in use."""

    def __init__(self, subscription: str) -> None:
        self.unavailable: set[str] = set()
        self.busy: set[str] = set()
        self._subscription = subscription
        self._pending: dict[str, Position] = {}
        self._after: dict[str, Position] = {}
        self.epoch = 0  # a reader of an earlier one is closed
        self.readers: set[_Scout] = set()  # that are open
        self.scouted: list[tuple[str, Position]] = []  # the start of each reader
        self._ids = count(4)
        self._topics: dict[str, int] = {}
        self._partitions: dict[str, _Partition] = {}

    # what a test does to the topics

    def create(self, topic: str, partitions: int = 0) -> list[str]:
        """Create a topic, or add partitions; with the subscriptions of the others."""
        before = self._partitions.get(f"{topic}-partition-0")
        self._topics[topic] = partitions
        names = self.partitions(topic)
        for name in names:
            if name not in self._partitions:
                ledger = next(self._ids)
                cursors = dict.fromkeys(before.cursors if before is not None else (), (ledger, -1))
                self._partitions[name] = _Partition({ledger: []}, cursors, (ledger, -1))
        return names

    def delete(self, topic: str) -> None:
        """Delete a topic with its ledgers and subscriptions."""
        for name in self.partitions(topic):
            del self._partitions[name]
        del self._topics[topic]

    def publish(self, partition: str, data: bytes | None) -> Position:
        """Store an entry; None: one that is sent to no reader, such as a marker."""
        stored = self._partitions[partition]
        ledger = max(stored.ledgers)
        stored.ledgers[ledger].append(data)
        stored.last_confirmed = (ledger, len(stored.ledgers[ledger]) - 1)
        return stored.last_confirmed

    def roll(self, partition: str) -> int:
        """Close the newest ledger; return the next ledger's id."""
        ledger = next(self._ids)
        self._partitions[partition].ledgers[ledger] = []
        self._trim(partition)
        return ledger

    def expire(self, partition: str) -> None:
        """Move all subscriptions past everything, as a TTL does."""
        stored = self._partitions[partition]
        stored.cursors = dict.fromkeys(stored.cursors, stored.last_confirmed)
        self._trim(partition)

    def open_transaction(self, partition: str) -> None:
        """Send readers nothing that is stored from now on, until end_transaction."""
        stored = self._partitions[partition]
        stored.open_since = (max(stored.ledgers), len(stored.ledgers[max(stored.ledgers)]))

    def end_transaction(self, partition: str) -> None:
        """Send readers everything again."""
        self._partitions[partition].open_since = None

    def close_readers(self) -> None:
        """Close the connections of all readers, as a broker does that restarts."""
        self.epoch += 1

    def free(self) -> None:
        """No other consumer uses a subscription any more."""
        self.busy.clear()
        for partition, upto in self._pending.items():
            self.acknowledge(partition, upto)
        self._pending.clear()

    # the port

    def partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions, or the name of a topic without partitions; [] if none."""
        self._require_available(topic)
        if topic not in self._topics:
            return []
        return [f"{topic}-partition-{number}" for number in range(self._topics[topic])] or [topic]

    def stats(self, partition: str) -> InternalStats | None:
        """Return the partition's ledgers and cursors; None if it does not exist."""
        self._require_available(partition)
        stored = self._partitions.get(partition)
        if stored is None:
            return None
        return InternalStats(
            ledgers=tuple((ledger, len(entries)) for ledger, entries in stored.ledgers.items()),
            cursors={encode_name(name): at for name, at in stored.cursors.items()},
            pending_adds=0,
            sizes={ledger: sum(len(entry or b"") for entry in entries) for ledger, entries in stored.ledgers.items()},
            last_confirmed=stored.last_confirmed,
        )

    def ensure_subscription(self, partition: str, subscription: str) -> None:
        """Create the durable subscription at the earliest entry, unless it exists."""
        self._require_available(partition)
        stored = self._partitions.get(partition)
        if stored is None:
            raise RefusedError(f"there is no topic {base_topic(partition)}")
        stored.cursors.setdefault(subscription, (min(stored.ledgers), -1))

    @contextmanager
    def scout(self, partition: str, after: Position) -> Iterator["_Scout"]:
        """Open a reader of the entries after a position."""
        self._require_available(partition)
        if partition not in self._partitions:
            raise UnavailableError(f"no broker serves {partition}")
        self.scouted.append((partition, after))
        scout = _Scout(self, partition, self._partitions[partition], after)
        self.readers.add(scout)
        try:
            yield scout
        finally:
            self.readers.discard(scout)

    def acknowledge(self, partition: str, upto: Position) -> None:
        """Acknowledge every message of the subscription up to this entry; if it is busy, when it is freed."""
        if partition in self.busy or partition in self.unavailable:
            self._pending[partition] = upto
            return
        self.ensure_subscription(partition, self._subscription)
        cursors = self._partitions[partition].cursors
        cursors[self._subscription] = max(cursors[self._subscription], upto)
        self._trim(partition)

    def listen(self, partition: str, after: Position) -> None:
        """Have a partition ring when a reader gets an entry after this position."""
        self._after[partition] = after

    def rung(self, timeout_seconds: float) -> Collection[str]:  # noqa: ARG002
        """Return the partitions that have rung; do not wait."""
        rung = {name for name, after in self._after.items() if self._rings(name, after)}
        for name in rung:
            del self._after[name]
        return rung

    def not_listening(self) -> Collection[str]:
        """Return the partitions that do not answer or are gone."""
        return {name for name in self._after if name in self.unavailable or name not in self._partitions}

    def faults(self, seconds: float) -> Mapping[str, str]:  # noqa: ARG002
        """Return the partitions whose subscription is busy, however long it has been, with the reason."""
        asked = {*self._pending, *self._after} & self.busy
        return dict.fromkeys(asked, "Exclusive consumer is already connected")

    def close(self) -> None:
        """Do nothing."""

    def _require_available(self, partition: str) -> None:
        if partition in self.unavailable:
            raise UnavailableError(f"{partition}: no broker answers")

    def _rings(self, partition: str, after: Position) -> bool:
        if partition in self.not_listening():
            return False
        return any(position > after for position, _data in _sent(self._partitions[partition]))

    def _trim(self, partition: str) -> None:
        """Delete closed ledgers that every subscription has read; without subscriptions all of them, as Pulsar does."""
        stored = self._partitions[partition]
        for ledger in sorted(stored.ledgers)[:-1]:
            last = (ledger, len(stored.ledgers[ledger]) - 1)
            if any(at < last for at in stored.cursors.values()):
                break
            del stored.ledgers[ledger]


class _Scout:
    def __init__(self, broker: MemorySourceBroker, partition: str, stored: _Partition, after: Position) -> None:
        self._broker, self._partition, self._stored = broker, partition, stored
        self._at = (after[0], max(after[1] - 1, -1))  # brokers send the entry at the position again
        self._epoch = broker.epoch
        positions = [position for position, _data in _sent(stored)]
        self.last: Position | None = positions[-1] if positions else BEFORE_ALL

    def next_weight(self, timeout_seconds: float) -> tuple[Position, Weight]:  # noqa: ARG002
        """Return the next entry's weight; raise ReceiveTimeout at once if there is none."""
        if self._partition in self._broker.unavailable or self._epoch != self._broker.epoch:
            raise UnavailableError("the connection broke")
        for position, data in _sent(self._stored):
            if position > self._at:
                self._at = position
                return position, weight_of(data, head_in(data))
        raise ReceiveTimeout


def _sent(stored: _Partition) -> Iterator[tuple[Position, bytes]]:
    """Yield the entries that readers get."""
    for ledger, entries in sorted(stored.ledgers.items()):
        for number, data in enumerate(entries):
            if stored.open_since is not None and (ledger, number) >= stored.open_since:
                return
            if data is not None:
                yield (ledger, number), data
