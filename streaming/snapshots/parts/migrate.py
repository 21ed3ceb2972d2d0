"""`ledger-reaper snapshots migrate`: convert a topic's snapshot from one form to another (udfs/snapshots/migration.py).

1. The topic must not be loaded. This is checked right before each message.
2. The journal has the topic's snapshots of every form before the first message is sent.
3. The new form is complete before the old form goes. After an interruption, run the command again.
4. Afterwards everything is read again. Parts and a single snapshot must have exactly the ids of the old form. Segments
   must have exactly those of them whose markers are not after maxReadPosition: the broker finds later ids again by
   replay.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.errors import SafetyError
from streaming.ports import MetadataStore
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.topic import Sender, ensure
from streaming.snapshots.repair.repair_journal import Act, RepairEntry, RepairJournal
from streaming.snapshots.repair.topic_session import ledgers_of
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import namespace_of
from udfs.snapshots import migration, sealed_segments
from udfs.snapshots.aborts import Aborts
from udfs.snapshots.codec import Segment, decode_index, encode_segment
from udfs.snapshots.keys import Capacity, SnapshotKind
from udfs.snapshots.migration import SnapshotMessage, Stored, StoredForm
from udfs.snapshots.repair_rules import is_half
from udfs.snapshots.values import ReadValue

FORMS = {"parts": SnapshotKind.PARTS, "segments": SnapshotKind.INDEX, "single": SnapshotKind.SINGLE}
NAMES = {kind: name for name, kind in FORMS.items()}
_OVERHEAD_BYTES = 10 * 1024  # of a message, besides its value
_PART_IDS = 100_000
_MESSAGE_BYTES = 5 * 1024 * 1024  # Pulsar's default, if the broker does not report its limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """The result of a migration; the fields of --json."""

    topic: str
    before: str
    after: str
    ids: int  # of the old form
    kept: int  # ids of the new form; the others are after its maxReadPosition, where the broker finds them again
    values: int  # messages with a value that were sent
    tombstones: int  # tombstones that were sent
    is_dry: bool  # nothing was sent
    warning: str

    def describe(self) -> str:
        """Return lines for the terminal."""
        verb = "would be converted" if self.is_dry else "was converted"
        replayed = self.ids - self.kept
        again = f", and its broker finds {replayed} again as it replays the topic" if replayed else ""
        line = (
            f"{self.topic} {verb} from {self.before} to {self.after}: {self.kept} of {self.ids} aborted ids{again}; "
            f"{self.values} messages and {self.tombstones} tombstones"
        )
        return f"{line}\n{self.warning}" if self.warning else line


class Replaced(NamedTuple):
    """The snapshots that a migration replaced."""

    entry: str  # the first journal entry of the migration's last run
    values: dict[SnapshotKind, dict[str, bytes]]  # by kind and key; {}: the journal has no migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """Migrates one topic at a time."""

    topics: SnapshotTopics
    store: MetadataStore
    guards: Guards
    sender: Callable[[str], AbstractContextManager[Sender]]  # opens a producer on a system topic
    journal: RepairJournal
    compact: Callable[[str], object]  # compacts a namespace's segments

    def migrate(self, topic: str, to: str, *, is_dry: bool = False) -> Migrated:
        """Convert a topic's snapshot to the form `to`, a key of FORMS; is_dry: only count the messages.

        Raises SafetyError if that is refused. After UnavailableError or RefusedError, run it again.
        """
        self.refuse_loaded(topic)
        stored = self.stored(topic)
        old = self.form(topic, stored)
        kind = FORMS[to]
        if old.kind is None:
            raise SafetyError(f"{topic} has no snapshot to migrate")
        if old.kind is kind and not _left_over(stored, kind):
            raise SafetyError(f"the snapshot of {topic} is in the form {to} already")
        is_segmented, most_bytes = self.topics.more.broker_settings()
        most_bytes = (most_bytes or _MESSAGE_BYTES) - _OVERHEAD_BYTES
        try:
            messages = self._messages(topic, old, kind, most_bytes, stored)
            sent, entry = (self._count(messages), "") if is_dry else self._send(topic, kind, stored, messages)
        except (FormatError, ValueError) as error:
            raise SafetyError(f"{topic} is not migrated: {error}") from error
        expected = migration.before(old, old.max_read) if kind is SnapshotKind.INDEX else old.aborts
        if not is_dry:
            self._verify(topic, kind, expected)
            self.journal.mark_done(entry)
            # while a reader gets a tombstone of a segment, no client can delete a loaded topic of the namespace
            if sent[SnapshotKind.SEGMENT, True]:
                self.compact(namespace_of(topic))
        tombstones = sum(count for (_kind, is_tombstone), count in sent.items() if is_tombstone)
        return Migrated(
            topic=topic,
            before=NAMES[old.kind],
            after=to,
            ids=old.aborts.rows,
            kept=expected.rows,
            values=sum(sent.values()) - tombstones,
            tombstones=tombstones,
            is_dry=is_dry,
            warning=_warning(kind, is_segmented=is_segmented),
        )

    def replaced(self, topic: str) -> Replaced:
        """Return the topic's snapshots as they were before its last migration.

        An interrupted migration and the runs that resume it are one migration.
        """
        pending: list[RepairEntry] = []
        last_run: list[RepairEntry] = []
        newest = ""
        for entry in self.journal.of(_name(topic)):  # newest first
            pending.append(entry)
            if entry.by:
                continue
            run = [each for each in pending if each is entry or each.by == entry.name.encode()]
            pending = [each for each in pending if each not in run]
            if not entry.was_sent:  # it was interrupted before it changed anything
                continue
            if newest and entry.is_done:
                break
            newest = newest or entry.name
            last_run = run
        values: dict[SnapshotKind, dict[str, bytes]] = {}
        for entry in last_run:
            kind, _, key = entry.key.partition("/")
            values.setdefault(SnapshotKind(kind), {})[key] = entry.replaced
        return Replaced(newest, values)

    def refuse_loaded(self, topic: str) -> None:
        """Raise SafetyError if a broker has the topic loaded."""
        if self.topics.more.buffer(topic) is not None:
            raise SafetyError(
                f"{topic} is loaded: its broker would write its own snapshot over the new one. Disconnect its clients, "
                "unload it (`pulsar-admin topics unload`), and run the same command again"
            )

    def stored(self, topic: str) -> Stored:
        """Read the topic's snapshots of every form."""
        namespace = namespace_of(topic)
        present = self.topics.present(namespace)
        kinds = [kind for kind in SnapshotKind if system_topic(namespace, kind) in present]
        values = {kind: self._values(topic, kind) for kind in kinds}
        reads = self.topics.stored(namespace, SnapshotKind.SEGMENT) if SnapshotKind.SEGMENT in kinds else ()
        at = {read.position: read.value for read in reads if read.topic == topic and isinstance(read.value, Segment)}
        return Stored(values, at)

    def _values(self, topic: str, kind: SnapshotKind) -> dict[str, bytes]:
        """Return the latest value of each key. Raises SafetyError if a value can't be read."""
        latest: dict[str, ReadValue] = {}
        for read in self.topics.compacted(namespace_of(topic), kind, (topic,)):
            if read.topic == topic:
                latest.pop(read.key, None)
                if not read.is_null:
                    latest[read.key] = read
        for read in latest.values():
            if read.fault is not None:
                raise SafetyError(f"{read.key} in {kind} is no value: {read.detail}")
        return {
            key: encode_segment(read.value) if isinstance(read.value, Segment) else read.data
            for key, read in latest.items()
        }

    def form(self, topic: str, stored: Stored) -> StoredForm:
        """Return the form that counts. Raises SafetyError if it can't be read, or must be repaired first."""
        ledgers = ledgers_of(self.store, topic)
        if not ledgers:
            raise SafetyError(f"ZooKeeper does not have {topic}, or the topic has no ledger: check the name")
        index = stored.latest.get(SnapshotKind.INDEX, {}).get(topic)
        try:
            form = migration.current(stored, topic, ledgers, (max(ledgers), 1 << 40))
            if form.kind is SnapshotKind.INDEX and index is not None and is_half(decode_index(index)):
                raise FormatError("its index was written during a replay: repair it first")
        except FormatError as error:
            raise SafetyError(f"the snapshot of {topic} can't be used: {error}") from error
        return form

    def _messages(
        self, topic: str, old: StoredForm, kind: SnapshotKind, most_bytes: int, stored: Stored
    ) -> Generator[SnapshotMessage, Position, None]:
        if kind is SnapshotKind.INDEX:
            ids = sealed_segments.ids_of_a_segment(self.topics.more.segment_bytes(), topic)
            yield from migration.to_segments(topic, old, ids, stored.keys)
        elif kind is SnapshotKind.SINGLE:
            for message in migration.to_single(topic, old, most_bytes, stored.keys):
                yield message
        else:
            capacity = Capacity(_PART_IDS, most_bytes)
            for message in migration.to_parts(topic, old, capacity, stored.keys):
                yield message

    def _count(self, messages: Generator[SnapshotMessage, Position, None]) -> Counter[tuple[SnapshotKind, bool]]:
        counted: Counter[tuple[SnapshotKind, bool]] = Counter()
        for message in _steps(messages, lambda _message: BEFORE_ALL):
            counted[message.kind, message.value is None] += 1
        return counted

    def _send(
        self, topic: str, kind: SnapshotKind, stored: Stored, messages: Generator[SnapshotMessage, Position, None]
    ) -> tuple[Counter[tuple[SnapshotKind, bool]], str]:
        """Send the messages; returns how many of each kind, and the run's first entry in the journal."""
        namespace = namespace_of(topic)
        first = next(messages)  # raises before anything is sent if a single snapshot would be too large
        self._prepare(namespace, kind)
        entry = self._record(topic, stored)
        sent: Counter[tuple[SnapshotKind, bool]] = Counter()
        places: list[Position] = []
        with ExitStack() as stack:
            senders: dict[SnapshotKind, Sender] = {}

            def send(message: SnapshotMessage) -> Position:
                if message.kind not in senders:
                    senders[message.kind] = stack.enter_context(self.sender(system_topic(namespace, message.kind)))
                # until the index names them, nothing else keeps the new segments from being trimmed
                if message.kind is SnapshotKind.INDEX and message.value is not None:
                    self.guards.hold(namespace, places)
                # before each message: the topic's broker would write its own form over the new one
                self.refuse_loaded(topic)
                # allowed: no broker has the topic, messages of the old form go only after the new form is complete,
                # and the journal has what is replaced
                position = senders[message.kind].send(message.key, message.value)
                if message.kind is SnapshotKind.SEGMENT and message.value is not None:
                    places.append(position)
                return position

            for message in _steps(messages, send, first):
                sent[message.kind, message.value is None] += 1
        if places:
            self.guards.hold(namespace, places)
        return sent, entry

    def _prepare(self, namespace: str, kind: SnapshotKind) -> None:
        """Create missing topics of the new form, not partitioned, and the guard of segments."""
        if kind is SnapshotKind.PARTS:
            ensure(self.topics.admin, namespace)
            return
        for topic_kind in (SnapshotKind.SEGMENT, SnapshotKind.INDEX) if kind is SnapshotKind.INDEX else (kind,):
            self.topics.admin.create_topic(system_topic(namespace, topic_kind))
        if kind is SnapshotKind.INDEX:
            self.guards.require(namespace)

    def _record(self, topic: str, stored: Stored) -> str:
        """Write the topic's snapshots to the journal; returns the first entry, which the other entries name."""
        first = ""
        for kind, values in stored.latest.items():
            for key, value in values.items():
                about = ReadValue(
                    kind=kind,
                    key=f"{kind}/{key}",
                    topic=_name(topic),
                    position=BEFORE_ALL,
                    publish_ms=0,
                    size_bytes=len(value),
                    data=value,
                )
                name = self.journal.write(about, first.encode(), 0, Act.MIGRATION, BEFORE_ALL)
                first = first or name
        self.journal.mark_sent(first)
        return first

    def _verify(self, topic: str, kind: SnapshotKind, expected: Aborts) -> None:
        new = self.form(topic, self.stored(topic))
        if new.kind is not kind or migration.missing(new.aborts, expected) or migration.missing(expected, new.aborts):
            raise SafetyError(
                f"{topic}: the new form does not have the ids of the old form ({new.aborts.rows} aborted ids "
                f"instead of {expected.rows}). Keep its clients away: `ledger-reaper snapshots undo --migrated "
                f"--topic {topic}` restores the old form"
            )


def _steps(
    messages: Generator[SnapshotMessage, Position, None],
    send: Callable[[SnapshotMessage], Position],
    first: SnapshotMessage | None = None,
) -> Iterator[SnapshotMessage]:
    """Send the messages one by one, and yield each; `messages` receives each position."""
    try:
        message = next(messages) if first is None else first
        while True:
            position = send(message)
            yield message
            message = messages.send(position)
    except StopIteration:
        return


def _left_over(stored: Stored, kind: SnapshotKind) -> bool:
    """Whether an interrupted migration to that form left other forms beside it."""
    others = {
        SnapshotKind.PARTS: (SnapshotKind.INDEX, SnapshotKind.SEGMENT, SnapshotKind.SINGLE),
        SnapshotKind.SINGLE: (SnapshotKind.SEGMENT, SnapshotKind.PARTS),
        SnapshotKind.INDEX: (SnapshotKind.PARTS,),  # a single snapshot stays, as when a broker starts to write segments
    }
    return any(stored.latest.get(each) for each in others[kind])


def _warning(kind: SnapshotKind, *, is_segmented: bool | None) -> str:
    if kind is SnapshotKind.PARTS:
        return "No broker reads parts: keep clients away until the topic is migrated to segments or a single snapshot"
    if kind is SnapshotKind.INDEX and is_segmented is False:
        return (
            "The broker does not read segments (transactionBufferSegmentedSnapshotEnabled is off): keep clients away "
            "until all brokers have been restarted with it on"
        )
    return ""


def _name(topic: str) -> str:
    """Return the name under which the journal has the snapshots that migrations of a topic replaced."""
    return f"migration of {topic}"
