"""`ledger-reaper snapshots repair --namespace`: remove the messages that keep a namespace's topics from loading.

A broker that loads a topic decodes every message of the namespace's indexes, or of its single snapshots, and closes the
topic at the first message that it can't decode (seen on Pulsar 4.0.8). Compaction keeps such a message while it is the
last of its key, so another message has to replace it:
1. A key that names a topic of the namespace gets an empty snapshot. Any other key gets a tombstone.
2. The bytes are in the journal before anything is sent. Only messages that the operator was shown are replaced, and
   never a value of the topic that its key names.
3. Then the topic is compacted, and read again to verify that no such message is left.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.snapshots.repair.repair_journal import Act, RepairEntry, RepairJournal
from streaming.terminal import some_of
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import namespace_of
from udfs.snapshots.aborts import aborts_of
from udfs.snapshots.codec import Snapshot, encode_snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import empty_index
from udfs.snapshots.values import READ_WHOLE, Fault, ReadValue, names_its_topic

MOST = 1_000  # messages of one namespace that one run removes
_BYTES_AT_ONCE = 64 * 1024 * 1024  # of values in memory
_NAMED = 5
_TOMBSTONE = b""  # in the journal; no value of a snapshot is empty


class Compacted(Protocol):
    """Reads of a namespace's snapshot topics."""

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield the messages that a compacted reader gets; the last message of each key counts."""
        ...


class Store(Compacted, Protocol):
    """The methods of SnapshotStore in use here. Every method raises UnavailableError, RefusedError."""

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Return which of the topics the namespace has."""
        ...

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        """Return the position of the topic's newest entry."""
        ...

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, or a tombstone (None), and return its position once it is stored."""
        ...

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Compact the topic; False if the compaction did not end in time."""
        ...


def refuse_blocked(topics: SnapshotTopics, topic: str) -> None:
    """Refuse a topic that would not load with any index. Raises SafetyError, UnavailableError, RefusedError."""
    namespace = namespace_of(topic)
    present = topics.present(namespace)
    kinds = {kind for kind in SnapshotKind if system_topic(namespace, kind) in present}
    if messages := blocking_in(topics, namespace, kinds):
        raise SafetyError(
            f"{topic}: no topic of {namespace} loads while brokers read messages there that they can't decode: "
            f"{named(messages)}. Nothing was sent: `ledger-reaper snapshots repair --namespace {namespace}` "
            "removes them"
        )


def blocking_in(topics: Compacted, namespace: str, kinds: Collection[SnapshotKind]) -> list[ReadValue]:
    """Return the messages that no broker can decode, up to MOST of them. Raises UnavailableError, RefusedError."""
    return _chosen(topics, namespace, kinds, lambda read: read.is_blocking)


def _chosen(
    topics: Compacted, namespace: str, kinds: Collection[SnapshotKind], is_chosen: Callable[[ReadValue], bool]
) -> list[ReadValue]:
    chosen: list[ReadValue] = []
    for kind in READ_WHOLE:
        for read in topics.compacted(namespace, kind) if kind in kinds else ():
            if is_chosen(read) and len(chosen) < MOST:
                chosen.append(read)
    return chosen


def named(messages: Sequence[ReadValue]) -> str:
    """Name some of the messages."""
    return some_of([describe(message) for message in messages], _NAMED)


def describe(read: ReadValue) -> str:
    """Name one message: its topic, position and key, and why no broker can decode it."""
    return f"{read.kind} {read.position[0]}:{read.position[1]} (key {read.key!r}: {read.detail})"


def in_doubt(namespace: str, messages: Sequence[ReadValue]) -> str:
    """Report kept messages that brokers may be unable to decode, and what an operator can do."""
    return (
        f"{namespace}: kept {len(messages)} messages that brokers may be unable to decode, because a topic, or brokers "
        f"of another version, may need them: {named(messages)}. If topics of the namespace do not load, and no broker "
        f"of another version ever used it, `ledger-reaper snapshots repair --unknown-schemas --namespace {namespace}` "
        "removes those that are not a value of their own topic; docs/snapshots-repair.md shows how to remove such a "
        "value"
    )


@dataclass(frozen=True, slots=True)
class Blocking:
    """Removes messages that block loading, in one namespace at a time."""

    store: Store
    journal: RepairJournal

    def messages(self, namespace: str) -> list[ReadValue]:
        """Return the messages that block loading. Raises UnavailableError, RefusedError."""
        return blocking_in(self.store, namespace, self.store.kinds(namespace))

    def doubtful(self, namespace: str) -> list[ReadValue]:
        """Return messages that may block loading, and are not removed. Raises UnavailableError, RefusedError."""
        return _chosen(self.store, namespace, self.store.kinds(namespace), lambda read: read.is_doubtful)

    def remove(self, namespace: str, shown: Sequence[ReadValue]) -> None:
        """Remove these messages. Raises SafetyError if some can't be removed, UnavailableError: run it again."""
        for kind in READ_WHOLE:
            chosen = {read.position: read for read in shown if read.kind is kind}
            if not chosen:
                continue
            for chunk in _chunks(self._last_of_their_keys(namespace, kind, chosen)):
                self._replace(namespace, kind, chunk)
            if not self.store.compact(namespace, kind):
                raise UnavailableError(
                    f"the compaction of {system_topic(namespace, kind)} has not ended yet: run the same command again"
                )
        if left := self.messages(namespace):
            raise SafetyError(
                f"{namespace}: {len(left)} messages that no broker can decode are left: {named(left)}. If the same "
                "message is left again, no client can write its key or its metadata, and no command removes it"
            )

    def undo(self, namespace: str) -> tuple[int, list[str]]:
        """Publish removed messages again; returns how many, and the keys that have another message by now.

        Raises ConfigError if the journal has no such message, SafetyError, UnavailableError, RefusedError.
        """
        count, others = 0, list[str]()
        kinds = self.store.kinds(namespace)
        journaled = 0
        for kind in (each for each in READ_WHOLE if each in kinds):
            newest: dict[str, RepairEntry] = {}
            for entry in self.journal.of(system_topic(namespace, kind)):
                newest.setdefault(entry.key, entry)
            journaled += len(newest)
            for key, now in self._latest(namespace, kind, newest).items():
                entry = newest[key]
                has = _TOMBSTONE if now is None or now.is_null else now.data
                if has == entry.by:
                    self.store.send(namespace, kind, key, entry.replaced)
                    count += 1
                elif has != entry.replaced:
                    others.append(key)
        if not journaled:
            raise ConfigError(
                f"the journal {self.journal.folder.location} holds no message of {namespace} that was removed"
            )
        return count, others

    def _last_of_their_keys(
        self, namespace: str, kind: SnapshotKind, chosen: Mapping[Position, ReadValue]
    ) -> Iterator[ReadValue]:
        """Yield the messages that compaction keeps: the last of their keys."""
        # This read judges the messages again, by schemas that are requested after the messages: a broker of another
        # version may have registered a schema since the operator was shown them
        keys = {read.key for read in chosen.values()}
        last = {read.key: read for read in self.store.compacted(namespace, kind) if read.key in keys}
        return (read for read in last.values() if read.key and read.is_blocking and read.position in chosen)

    def _replace(self, namespace: str, kind: SnapshotKind, chunk: Sequence[ReadValue]) -> None:
        now = self._latest(namespace, kind, [read.key for read in chunk])
        end = self.store.last(namespace, kind)
        for read in chunk:
            latest = now.get(read.key)
            if latest is None or latest.position != read.position:
                continue  # another message has replaced it
            _refuse_value(latest)
            value = _replacement(latest)
            about = replace(latest, topic=system_topic(namespace, kind))
            name = self.journal.write(about, value or _TOMBSTONE, 0, Act.REMOVAL, end)
            # allowed: no broker can decode it, and it is in the journal
            self.store.send(namespace, kind, read.key, value)
            self.journal.mark_sent(name)

    def _latest(self, namespace: str, kind: SnapshotKind, keys: Collection[str]) -> dict[str, ReadValue | None]:
        """Return the latest message of each key, with its bytes; None for a key without messages."""
        latest: dict[str, ReadValue | None] = dict.fromkeys(keys)
        for read in self.store.compacted(namespace, kind, latest) if latest else ():
            if read.key in latest:
                latest[read.key] = read
        return latest


def _refuse_value(read: ReadValue) -> None:
    """Raise SafetyError if a topic may need the message, although it was classified as undecodable."""
    was_delivered = read.fault is not Fault.UNREADABLE  # the bytes of an encrypted message can't be read
    if was_delivered and names_its_topic(read):
        raise SafetyError(f"{describe(read)} is a value of its own topic, and was not removed")


def _replacement(read: ReadValue) -> bytes | None:
    """Return the value that replaces a message; None: a tombstone."""
    # no broker ever reads such a key
    if not read.topic:
        return None
    # with an empty snapshot a broker replays the topic: that loses nothing, whatever the topic's broker does
    if read.kind is SnapshotKind.INDEX:
        return empty_index(read.topic)
    return encode_snapshot(Snapshot(read.topic, BEFORE_ALL, aborts_of([])))


def _chunks(reads: Iterator[ReadValue]) -> Iterator[list[ReadValue]]:
    chunk: list[ReadValue] = []
    size = 0
    for read in reads:
        chunk.append(read)
        size += read.size_bytes
        if size >= _BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
