"""The sweep of transaction-buffer snapshots: look, read the owners, journal, read again, send a tombstone, look again.

A tombstone can't be made to depend on anything. Instead:
1. we read the snapshot topics, segments before indexes, and their owners after that, and judge (udfs.judge_snapshot);
2. the bytes are in the journal before anything is sent. Right before each tombstone we look whether a newer instance
   has taken over, and read the owner once more;
3. afterwards we read what has come into the topics since our look. Where somebody wrote the same key before our
   tombstone, an index came to name the segment, or the owner is back, we publish the bytes again. That look is taken
   whatever fails, and of each tombstone that we tried to send. Where it fails itself, the next look at the same key
   finds that the journal has it and that its topic lives without it, and publishes it again before it answers;
4. segments go before the index of their topic. Behind their tombstones we write a record of our own and ask for a
   compaction, since brokers can't delete a loaded topic while a tombstone in the segments topic can be read.
If the brokers fail, the requests for that namespace come back later; the others go on.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from streaming.adapters.pulsar.snapshot_topics import system_topic
from streaming.clock import Clock
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.state.journal import SnapshotEntry
from streaming.sweep.jobs import Job, Limiter, OpenJob, SweepRules, Swept, one_for_each, swept_of
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.judge_snapshot import IndexFacts, IndexStanding, MessageFacts, SnapshotCase, judge_snapshot
from udfs.paths import namespace_of, topic_of
from udfs.records import Outcome, Reason, Reference, SnapshotContext, Verdict
from udfs.references import key_of
from udfs.snapshots.codec import Index
from udfs.snapshots.keys import SnapshotKind, segment_key_of
from udfs.snapshots.segments import keeper_of, places_of
from udfs.snapshots.values import ReadValue

log = logging.getLogger("ledger-reaper")

_PUT_BACK_TRIES = 5
_AT_ONCE = 50  # tombstones behind one look: they take a second or two
_IN_ORDER = (SnapshotKind.SEGMENT, SnapshotKind.SINGLE, SnapshotKind.INDEX)
_READ_WITH = {
    SnapshotKind.SINGLE: (SnapshotKind.SINGLE,),
    SnapshotKind.SEGMENT: (SnapshotKind.SEGMENT, SnapshotKind.INDEX),
    SnapshotKind.INDEX: (SnapshotKind.SEGMENT, SnapshotKind.INDEX),
}


class Snapshots(Protocol):
    """The snapshot topics of namespaces. Every method raises UnavailableError, RefusedError."""

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Return which of the topics the namespace has."""
        ...

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        """Return the place of the topic's newest entry."""
        ...

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield what a compacted reader gets: of a key, the last message counts."""
        ...

    def stored(
        self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL, with_bytes_of: Collection[str] = ()
    ) -> Iterator[ReadValue]:
        """Yield what lies behind a place in the topic's own ledgers."""
        ...

    def is_guarded(self, namespace: str) -> bool:
        """Whether something keeps the segments that indexes name."""
        ...

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, or a tombstone (None), and return its place once it is stored."""
        ...

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Have the topic compacted; False where it did not end in time."""
        ...


class SnapshotJournal(Protocol):
    """Where messages are written down before their keys get tombstones."""

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError."""
        ...

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> Mapping[str, tuple[Position, bytes]]:
        """Return, of those keys that it has, place and bytes of what was written last. Raises UnavailableError."""
        ...


@dataclass(slots=True, kw_only=True)
class SnapshotJob(OpenJob):
    """A job for one message. data: its bytes, once they were read. sent_at: place of its tombstone.

    is_proven: the tombstone was found there afterwards, and nobody had needed the message meanwhile.
    is_open: a tombstone may be there, and whether anybody needed the message is not known.
    """

    context: SnapshotContext
    data: bytes = b""
    sent_at: Position | None = None
    is_proven: bool = False
    is_open: bool = False

    @property
    def topic(self) -> str:
        """Return the owner's full name."""
        return topic_of(self.job.request.managed_ledger)

    @property
    def kind(self) -> SnapshotKind:
        """Return which of the topics holds the message."""
        return SnapshotKind(self.context.kind)

    @property
    def place(self) -> Position:
        """Return the place that the request names."""
        return self.job.request.ledger_id, self.context.entry_id

    @property
    def message(self) -> str:
        """Return what tells it from all others of its namespace."""
        return f"{self.context.kind}/{self.place[0]}:{self.place[1]}/{self.context.key}"


class SnapshotSweeper:
    """Works off groups of COMPACTED_MESSAGE requests. Holds no state between groups. open_topics: for one group."""

    def __init__(
        self,
        open_topics: Callable[[], AbstractContextManager[Snapshots]],
        loader: InUseLoader,
        journal: SnapshotJournal,
        clock: Clock,
        rules: SweepRules,
    ) -> None:
        self._open_topics = open_topics
        self._loader = loader
        self._journal = journal
        self._clock = clock
        self._rules = rules

    def sweep(
        self, jobs: Sequence[Job], _cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Work off jobs, in order. Raises UnavailableError (ZooKeeper or journal: do all again), FencedError."""
        begun = [_opened(job) for job in jobs]
        leads: dict[tuple[object, ...], SnapshotJob] = {}
        for one in begun:
            leads.setdefault((one.asks, one.message), one)
        by_namespace: defaultdict[str, list[SnapshotJob]] = defaultdict(list)
        for one in leads.values():
            by_namespace[namespace_of(one.topic)].append(one)
        with self._open_topics() as topics:
            for namespace, mine in by_namespace.items():
                self._sweep_namespace(_Namespace(topics, namespace), mine, limiter)
        now_ms = self._clock.now_ms()
        return [swept_of(one, leads[one.asks, one.message], self._rules.policy, now_ms=now_ms) for one in begun]

    def _sweep_namespace(self, namespace: "_Namespace", jobs: Sequence[SnapshotJob], limiter: Limiter | None) -> None:
        try:
            for kind in _IN_ORDER:
                mine = [one for one in jobs if one.kind is kind]
                try:
                    for start in range(0, len(mine), _AT_ONCE):
                        self._sweep_lot(namespace, kind, mine[start : start + _AT_ONCE], limiter)
                except BaseException:
                    try:
                        _tidy(namespace, kind, mine)
                    except _TopicsFailedError as error:  # the next look at a segment tidies; the first error counts
                        log.warning("%s: tombstones of %s can still be read: %s", namespace.name, kind, error)
                    raise
                _tidy(namespace, kind, mine)
        except _TopicsFailedError as failed:
            for one in jobs:
                if one.verdict is None or (one.is_to_delete and not one.is_proven):
                    one.verdict = failed.verdict  # a tombstone that was sent is found by the next look

    def _sweep_lot(
        self, namespace: "_Namespace", kind: SnapshotKind, jobs: Sequence[SnapshotJob], limiter: Limiter | None
    ) -> None:
        look = namespace.look(kind, jobs)
        self._judge(jobs, look)
        self._mend(namespace, kind, jobs, look)
        deletable, _others = one_for_each([one for one in jobs if one.is_to_delete], lambda one: one.message)
        if not deletable:
            return
        self._journal.write_snapshots([_entry(namespace.name, one) for one in deletable])
        if limiter is not None:
            limiter.wait_for(len(deletable))
        sent: list[SnapshotJob] = []
        try:
            for one in deletable:
                self._send(namespace, one, sent)
        except BaseException:
            try:
                self._verify(namespace, kind, sent, look)
            except (_TopicsFailedError, UnavailableError) as error:  # the next look mends; the first error counts
                log.error("%s: could not look whether anybody needed what got tombstones: %s", namespace.name, error)
            raise
        self._verify(namespace, kind, sent, look)
        if limiter is not None:
            limiter.done()

    def _judge(self, jobs: Sequence[SnapshotJob], look: "_Look") -> None:
        """Read the owners now, and judge."""
        references = self._loader.load({one.key for one in jobs})
        for one in jobs:
            latest = look.latest.get((one.kind, one.context.key))
            one.judged_on = references[one.key]
            one.length_bytes = 0 if latest is None else latest.size_bytes
            one.data = b"" if latest is None else latest.data
            case = SnapshotCase(
                request=one.job.request,
                latest=None if latest is None else _facts(latest),
                index=look.indexes.get(one.topic, IndexFacts()),
                segments=len(look.segments.get(one.topic, ())),
                is_guarded=look.is_guarded,
                reference=one.judged_on,
                absent_since_ms=one.job.absent_since_ms,
            )
            one.verdict = judge_snapshot(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _mend(self, namespace: "_Namespace", kind: SnapshotKind, jobs: Sequence[SnapshotJob], look: "_Look") -> None:
        """Put back what a living topic lacks since a tombstone of ours behind which nobody could look."""
        lacking = [one for one in jobs if one.is_in_use and look.lacks(kind, one.context.key)]
        if not lacking:
            return
        keys = {one.context.key for one in lacking}
        journaled = self._journal.newest_snapshots(system_topic(namespace.name, kind), keys)
        for one in lacking:
            if one.context.key not in journaled:
                continue  # the tombstone, if there is one, is not ours
            in_use, one.verdict = one.verdict, None  # so that it comes again if the brokers fail now
            place, data = journaled[one.context.key]
            written = namespace.written_behind(kind, place, {one.context.key})
            if written and not written[-1].is_null:
                one.verdict = in_use
                continue
            values = [read for read in written if not read.is_null]
            place = self._put_back(namespace, one, look, values[-1].data if values else data)
            why = f"its topic lives, and an earlier try had taken it away; put back at {place[0]}:{place[1]}"
            one.later(Reason.OWNER_CHANGED, why)
            log.error("%s: %s had a tombstone since an earlier try, and was put back", namespace.name, one.context.key)

    def _send(self, namespace: "_Namespace", one: SnapshotJob, sent: list[SnapshotJob]) -> None:
        """Send the tombstone, unless, right before that, the owner is not as it was judged. Raises FencedError.

        It counts as sent before we try: one without an answer may be stored all the same.
        """
        if self._rules.epoch not in self._loader.holding([self._rules.epoch]):
            raise FencedError("another instance of this service has taken over; stopping without deleting")
        if not self._is_as_judged(one):
            one.later(Reason.OWNER_CHANGED, "its topic came or went since we looked; nothing was sent")
            return
        # the judge has seen twice that nobody needs the value, its bytes are in the journal, and its owner was read now
        sent.append(one)
        one.is_open = True
        one.sent_at = namespace.send(one.kind, one.context.key, None)

    def _is_as_judged(self, one: SnapshotJob) -> bool:
        now = self._loader.load({one.key})[one.key].presence
        return one.judged_on is not None and now is one.judged_on.presence

    def _verify(self, namespace: "_Namespace", kind: SnapshotKind, sent: Sequence[SnapshotJob], look: "_Look") -> None:
        """Put back what somebody wrote or came to need in between, and say DELETED only of tombstones that we find.

        Where that fails for one of them, the others have their turn first.
        """
        if not sent:
            return
        written = namespace.written_since(kind, look, {one.context.key for one in sent})
        named = namespace.named_since(look, {one.topic for one in sent}) if kind is SnapshotKind.SEGMENT else set()
        since = _Since(written, named)
        failed: list[Exception] = []
        for one in sent:
            try:
                one.is_open = not self._is_settled(namespace, one, look, since)
            except (_TopicsFailedError, UnavailableError) as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _is_settled(self, namespace: "_Namespace", one: SnapshotJob, look: "_Look", since: "_Since") -> bool:
        """Verify one; False where the next look has to say what became of it."""
        mine = [read for read in since.written if read.key == one.context.key]
        if mine and not mine[-1].is_null:  # what came behind our tombstone counts, and ours must not replace it
            one.later(Reason.OWNER_CHANGED, "its key has a newer value by now, which was left as it is")
            return one.sent_at is not None
        if one.sent_at is None and not mine:
            return False  # it had no answer and is not stored; if it comes yet, the next look finds it
        sent_at = mine[-1].position if one.sent_at is None else one.sent_at
        between = [read for read in mine if not read.is_null and read.position < sent_at]
        segment = segment_key_of(one.context.key)
        is_named = (one.topic, one.place) in since.named or (segment and (one.topic, segment.sequence) in since.named)
        if between or is_named or not self._is_as_judged(one):
            place = self._put_back(namespace, one, look, between[-1].data if between else one.data)
            one.later(Reason.OWNER_CHANGED, f"its topic needed it a moment later; put back at {place[0]}:{place[1]}")
            log.error("%s: %s had a tombstone for a moment, and was put back", namespace.name, one.context.key)
        elif one.sent_at is None:
            return False  # a tombstone is there, but was not acknowledged: the next look says what became of it
        elif not any(read.is_null and read.position == one.sent_at for read in mine):
            one.later(Reason.STILL_THERE, "its tombstone was acknowledged, and is not found")
        else:
            one.is_proven = True
        return True

    def _put_back(self, namespace: "_Namespace", one: SnapshotJob, look: "_Look", data: bytes) -> Position:
        """Publish the bytes again; where somebody wrote the key right before that, publish theirs."""
        key, ours = one.context.key, set[Position]()
        for _try in range(_PUT_BACK_TRIES):
            place = namespace.send(one.kind, key, data)
            ours.add(place)
            since = namespace.written_since(one.kind, look, {key})
            others = [read for read in since if not read.is_null and read.position not in ours]
            theirs = [read for read in others if read.position > (one.sent_at or BEFORE_ALL)]
            if not theirs or theirs[-1].position > place or theirs[-1].data == data:
                break
            data = theirs[-1].data
        return place


@dataclass(frozen=True, slots=True)
class _Namespace:
    """One namespace's topics; whatever fails there becomes a _TopicsFailedError."""

    topics: Snapshots
    name: str
    untidy: set[SnapshotKind] = field(default_factory=set)

    def look(self, kind: SnapshotKind, jobs: Sequence[SnapshotJob]) -> "_Look":
        """Read what decides about these jobs, all of one kind."""
        with _failures():
            look = _Look()
            keys = {one.context.key for one in jobs}
            owners = {one.topic for one in jobs}
            present = self.topics.kinds(self.name)
            for each in _READ_WITH[kind]:
                if each in present:
                    look.last[each] = self.topics.last(self.name, each)
                    for read in self.topics.compacted(self.name, each, keys if each is kind else ()):
                        look.take(read, keys if each is kind else (), owners)
            if kind is SnapshotKind.SEGMENT and look.nulls:
                self.untidy.add(kind)
            look.is_guarded = kind is SnapshotKind.SEGMENT and kind in present and self.topics.is_guarded(self.name)
            return look

    def send(self, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, or a tombstone (None)."""
        with _failures():
            return self.topics.send(self.name, kind, key, value)

    def written_since(self, kind: SnapshotKind, look: "_Look", keys: Collection[str]) -> list[ReadValue]:
        """Return the messages with these keys that came since the look."""
        return self.written_behind(kind, look.last[kind], keys)

    def written_behind(self, kind: SnapshotKind, place: Position, keys: Collection[str]) -> list[ReadValue]:
        """Return the messages with these keys behind a place, as far as the topic still has them."""
        with _failures():
            return [read for read in self.topics.stored(self.name, kind, place, keys) if read.key in keys]

    def named_since(self, look: "_Look", owners: Collection[str]) -> set[tuple[str, object]]:
        """Return (owner, number) and (owner, place) of each segment that indexes came to name since the look."""
        with _failures():
            if SnapshotKind.INDEX not in look.last:
                return set()
            found: set[tuple[str, object]] = set()
            for read in self.topics.stored(self.name, SnapshotKind.INDEX, look.last[SnapshotKind.INDEX]):
                if read.topic in owners and isinstance(read.value, Index):
                    for number, place, _marker in places_of(read.value):
                        found |= {(read.topic, number), (read.topic, place)}
            return found

    def tidy(self, kind: SnapshotKind) -> None:
        """Write a live record behind tombstones of segments, and ask for a compaction that takes them away."""
        with _failures():
            if kind is SnapshotKind.SEGMENT and not self.topics.is_guarded(self.name):
                log.error("%s: its guard is gone or too late, so its tombstones are not compacted away", self.name)
                return
            if kind is SnapshotKind.SEGMENT:  # a compaction with nothing new behind tombstones shows them again
                self.topics.send(self.name, kind, *keeper_of(self.name))
            has_ended = self.topics.compact(self.name, kind)
            if kind is SnapshotKind.SEGMENT and has_ended and self._shows_nulls():
                has_ended = self.topics.compact(self.name, kind)  # the first one had begun before our record was there
            if not has_ended:
                log.warning("%s: compaction of %s has not ended; until then tombstones can be read", self.name, kind)

    def _shows_nulls(self) -> bool:
        return any(read.is_null for read in self.topics.compacted(self.name, SnapshotKind.SEGMENT))


@dataclass(slots=True)
class _Look:
    """What one look saw: the last entry of each topic before it, and what matters of the messages."""

    last: dict[SnapshotKind, Position] = field(default_factory=dict)
    latest: dict[tuple[SnapshotKind, str], ReadValue] = field(default_factory=dict)
    segments: dict[str, set[str]] = field(default_factory=dict)
    indexes: dict[str, IndexFacts] = field(default_factory=dict)
    is_guarded: bool = False
    nulls: int = 0

    def lacks(self, kind: SnapshotKind, key: str) -> bool:
        """Whether a key of a topic that is there has a tombstone or nothing."""
        latest = self.latest.get((kind, key))
        return kind in self.last and (latest is None or latest.is_null)

    def take(self, read: ReadValue, keys: Collection[str], owners: Collection[str]) -> None:
        """Take the next message of a topic; of a key, the last one counts."""
        self.nulls += read.kind is SnapshotKind.SEGMENT and read.is_null
        if read.key in keys:
            self.latest[read.kind, read.key] = read
        if read.topic not in owners:
            return
        if read.kind is SnapshotKind.INDEX:
            self.indexes[read.topic] = _index(read)
        elif read.kind is SnapshotKind.SEGMENT:
            mine = self.segments.setdefault(read.topic, set())
            is_value = not read.is_null and read.fault is None
            (mine.add if is_value else mine.discard)(read.key)


@dataclass(frozen=True, slots=True)
class _Since:
    """What came since a look. named: (owner, number) and (owner, place) of segments that indexes came to name."""

    written: Sequence[ReadValue]
    named: set[tuple[str, object]]


class _TopicsFailedError(Exception):
    """The brokers failed; carries the verdict of the requests for that namespace."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


@contextmanager
def _failures() -> Iterator[None]:
    """Only what is asked of brokers: where ZooKeeper fails, every request has to wait, not just one namespace's."""
    try:
        yield
    except UnavailableError as error:
        raise _TopicsFailedError(Verdict(Outcome.RETRY, Reason.STORE_UNAVAILABLE, str(error))) from error
    except RefusedError as error:
        raise _TopicsFailedError(Verdict(Outcome.RETRY, Reason.STORE_REFUSED, str(error))) from error


def _tidy(namespace: _Namespace, kind: SnapshotKind, jobs: Sequence[SnapshotJob]) -> None:
    """Have tombstones compacted away: ours, and those of segments that a look saw.

    Not while one is open: what a compaction leaves behind may be trimmed, and then nobody could put it back.
    """
    if any(one.is_open for one in jobs):
        return
    if kind in namespace.untidy or any(one.is_proven for one in jobs):
        namespace.tidy(kind)


def _opened(job: Job) -> SnapshotJob:
    context = job.request.snapshot_context
    if context is None:
        raise AssertionError(f"{job.request} names no message")
    return SnapshotJob(job, key_of(job.request), context=context)


def _facts(read: ReadValue) -> MessageFacts:
    return MessageFacts(read.position, read.publish_ms, read.is_null, str(read.fault or ""))


def _index(read: ReadValue) -> IndexFacts:
    if read.is_null:
        return IndexFacts()
    if not isinstance(read.value, Index):
        return IndexFacts(IndexStanding.FAULTY)
    rows = list(places_of(read.value))
    numbers = frozenset(number for number, _place, _marker in rows)
    return IndexFacts(IndexStanding.READABLE, numbers, frozenset(place for _number, place, _marker in rows))


def _entry(namespace: str, one: SnapshotJob) -> SnapshotEntry:
    if one.judged_on is None:
        raise AssertionError(f"{one.message} was not judged")
    topic = system_topic(namespace, one.kind)
    part = one.job.request.part or ""
    ledger_id, entry_id = one.place
    return SnapshotEntry(
        topic=topic,
        key=one.context.key,
        ledger_id=ledger_id,
        entry_id=entry_id,
        uuid=part,
        value=one.data,
        reference=one.judged_on,
    )
