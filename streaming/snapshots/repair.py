"""`ledger-reaper snapshots repair`: give a topic an index with which it loads again; `undo` puts the old one back.

1. A topic that works is refused, and so is one of which anything is not known. One whose segments hold ids twice
   works, and is replayed all the same.
2. A guard is made first: a repair without one is broken again within a minute.
3. The index that is replaced is in the journal, on disk, before the new one is sent; so it is with an undo.
4. Right before that the topic is looked at once more, and nothing is sent if its index is another one by then.
5. Afterwards the topic is loaded, and again where its broker writes no index from which it could go on: a fault of
   Pulsar's. If none comes, the repair says so, and its own index stands there, with which the topic is replayed again.
6. The topic must have in memory all ids that the old snapshot tells of and whose markers live
   for certain, and a reader that comes to the topic's end must get no message of any id that it tells of. Where not all
   old ids are known, or the reader does not come to the end, the repair says that it is not verified. A topic that
   worked is unloaded once more before that, in case a client had it loaded from the old index.
7. A repair that is cut short once its index was published says so, and the next one goes on with it, until one was
   verified. An index that a broker wrote in the midst of a replay is never what an undo puts back.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.first_index import FirstIndex, silent
from streaming.snapshots.guard import Guards
from streaming.snapshots.looks import Look, Looks
from streaming.snapshots.parts import Sender
from streaming.snapshots.repair_journal import Act, Entry, RepairJournal
from streaming.snapshots.repaired import Repaired, ignorance
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import namespace_of
from udfs.records import Presence
from udfs.snapshots.audit import READY, BufferFacts, is_half_replayed
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.keys import SegmentKey, SnapshotKind
from udfs.snapshots.repairing import (
    Remedy,
    all_told,
    before_the_end,
    empty_index,
    lost_of,
    moved_index,
    refusal_of,
)
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import Read

JOURNAL = "snapshots-journal"
_NAMED = 10
_PATIENCE_MINUTES, _WAIT_SECONDS = 10, 1.0  # a broker that replays reads the whole topic
_QUIET_SECONDS = 10.0  # what a broker may take for one segment
_SAY_MS, _SAY_ENTRIES = 30_000, 100_000  # how often a repair that waits says so


class TopicLoader(Protocol):
    """How a topic is unloaded and loaded."""

    def unload(self, topic: str) -> None:
        """Let its broker close it. Raises UnavailableError, RefusedError."""
        ...

    def load(self, topic: str) -> None:
        """Ask for it once, as a client does. Raises UnavailableError, RefusedError."""
        ...

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        """Yield the transaction's id of each entry that a reader gets; None: it has none.

        Raises UnavailableError where that is not all up to the end that the topic had.
        """
        ...


@dataclass(frozen=True, slots=True)
class Repairs:
    """Repairs one topic at a time. sender: opens a producer on a system topic.

    journal: its folder outlives us. say: is told in words what a repair waits for.
    """

    topics: SnapshotTopics
    store: MetadataStore
    broker: Broker
    loader: TopicLoader
    sender: Callable[[str], AbstractContextManager[Sender]]
    journal: RepairJournal
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = silent

    def repair(self, topic: str, remedy: Remedy = Remedy.REPLAY) -> Repaired:
        """Give the topic an index with which it loads, or go on with a repair that was cut short.

        Raises SafetyError where it is refused, or what came out is not whole. Raises UnavailableError.
        """
        look = self.look(topic)
        begun = self._begun(look)
        if begun is not None and (refusal_of(look.facts, remedy) or is_half_replayed(look.facts)):
            return self._go_on(look, begun)
        self._refuse(look, remedy)
        self._guard(topic)
        with suppress(RefusedError):  # it is not loaded
            self.loader.unload(topic)
        again = self.look(topic)
        self._refuse(again, remedy)
        old = again.index
        if old is None or look.index is None or old.position != look.index.position:
            raise SafetyError(f"{topic}: somebody wrote its index meanwhile; look at it again")
        new = empty_index(topic) if remedy is Remedy.REPLAY else self._republished(again)
        is_half = is_half_replayed(again.facts)
        name = self._write_down(topic, old, new, Act.REPAIR_OF_HALF if is_half else Act.REPAIR)
        with _cut_short(topic, "is or may be published"):
            # allowed: the topic does not load with the old one, or holds ids twice, or would seal them twice at the
            # next load; and the journal has it
            self._send(topic, new)
            self.journal.mark_sent(name)
        with _cut_short(topic, "is published"):
            if look.facts.doubled_ids or is_half:
                with suppress(RefusedError):  # a client may have had it loaded from the old index meanwhile
                    self.loader.unload(topic)
            self.say(f"{topic} has a new index; the old one is {name} in the journal")
            return self._ended(name, [look], new, is_whole=not is_half)

    def _begun(self, look: Look) -> Entry | None:
        """Return what a repair began with that was cut short or not verified; None where there is none to go on with.

        Its index must be one with which the topic loads.
        """
        if look.index is None or look.facts.in_metadata is not Presence.PRESENT:
            return None
        topic, last = look.facts.topic, None
        for entry in self.journal.of(topic):
            if (entry.begins or entry.is_undo) and self._was_sent(entry, look.index.data):
                last = entry
                break
        if last is None or not last.begins or last.is_done or lost_of(look.facts):
            return None
        return None if self.looks.lost_in(topic, _index_of(last.name, last.by)) else last

    def _go_on(self, look: Look, begun: Entry) -> Repaired:
        """Take up a repair whose index is published: wait, and verify."""
        topic = look.facts.topic
        self._guard(topic)
        replaced = Read(
            SnapshotKind.INDEX,
            topic,
            topic,
            begun.position,
            0,
            len(begun.replaced),
            value=_index_of(begun.name, begun.replaced),
            data=begun.replaced,
        )
        self.say(f"{topic}: a repair that was cut short, or not verified, goes on ({begun.name} in the journal)")
        with _cut_short(topic, "is published"):
            looks = [look, self.looks.look_from(topic, replaced)]
            done = self._ended(begun.name, looks, begun.by, is_whole=not begun.is_again)
        return replace(done, went_on=True)

    def _ended(self, name: str, looks: Sequence[Look], new: bytes, *, is_whole: bool) -> Repaired:
        """Bring a repair to its end whose index, new, is published.

        looks: what was there before, and before that. is_whole: the repair began with more than half a replay's index.
        """
        topic = looks[0].facts.topic
        remedy = Remedy.REPLAY if new == empty_index(topic) else Remedy.REPUBLISH
        self._load(topic)
        not_written, loads = self._first_index(topic, new)
        self._not_doubled(topic)
        buffer = self._load(topic)
        told = all_told(look.told for look in looks)
        delivered, why = self._delivered(topic, told.known)
        if buffer.aborted < len(told.sure):  # some may have gone while the topic was replayed
            ledgers = self.looks.ledgers(topic)
            told = all_told(look.told_with(ledgers) for look in looks)
        if buffer.aborted < len(told.sure):
            found = f"{buffer.aborted} aborted ids, and its old snapshot tells of {len(told.sure)}"
            read = why or f"a reader gets {delivered} entries, none of them aborted"
            raise SafetyError(f"{topic} is loaded and has {found}; {read}: keep consumers away until it is known why")
        not_verified = ignorance(told, is_whole=is_whole) or why
        if not not_verified and not not_written:
            self.journal.mark_done(name)
        return Repaired(
            topic,
            name,
            buffer.aborted,
            len(told.known),
            len(told.sure),
            delivered,
            not_verified,
            loads,
            not_written,
            remedy,
        )

    def _guard(self, topic: str) -> None:
        Guards(self.topics, self.store, self.broker, self.clock).require(namespace_of(topic))

    @property
    def looks(self) -> Looks:
        """Reads what decides about a topic."""
        return Looks(self.topics, self.store)

    def look(self, topic: str) -> Look:
        """Read what decides about a topic. Raises UnavailableError, RefusedError."""
        return self.looks.look(topic)

    def undo(self, topic: str) -> tuple[str, str]:
        """Put back the index that the last repair replaced; returns the journal's names of it and of what is there now.

        A broker that replays a topic seals it anew, and writes indexes of its own behind ours within a second. So what
        is there now goes to the journal first, and another undo puts that back. Raises ConfigError where the journal
        has none, and SafetyError where that is refused: also where more segments of the old index are lost by now than
        when it was replaced. So a topic is at most as broken then as it was before.
        """
        seen = self._replaceable(topic)
        name, old, lost = self._replaced_last(topic, seen.data)
        self._refuse_worse(topic, old, lost)
        with suppress(RefusedError):  # it is not loaded
            self.loader.unload(topic)
        now = self._replaceable(topic)
        if now.position != seen.position:
            raise SafetyError(f"{topic}: somebody wrote its index meanwhile; take its clients away, and try again")
        self._refuse_worse(topic, old, lost)
        kept = self._write_down(topic, now, old, Act.UNDO)
        # allowed: what is replaced is in the journal, nobody wrote an index since it was unloaded, and no more segments
        # of the old one are lost than when it was replaced
        place = self._send(topic, old)
        self.journal.mark_sent(kept)
        with suppress(RefusedError):  # a client may have had it loaded from what was replaced meanwhile
            self.loader.unload(topic)
        self._refuse_written_over(topic, place)
        self._guard(topic)  # one that has moved on since is moved back, as far as what the old index names is there
        return name, kept

    def _replaceable(self, topic: str) -> Read:
        """Return the index that is there now. Raises SafetyError where it can't be kept in the journal."""
        index = self.looks.latest_index(topic)
        if index is None:
            raise SafetyError(f"{topic} has no index now: somebody took away the one that the repair published")
        if not isinstance(index.value, Index):
            raise SafetyError(f"{topic}: its index can't be read ({index.fault}), so it is not replaced")
        return index

    def _refuse_worse(self, topic: str, old: bytes, lost: int) -> None:
        """Refuse an index that more segments are lacking to than when it was replaced; lost: how many that were."""
        try:
            index = decode_index(old)
        except FormatError as error:
            raise SafetyError(f"{topic}: the journal's index is none ({error}), so it is not put back") from error
        if index.topic != topic:
            raise SafetyError(f"{topic}: the journal's index is that of {index.topic}, so it is not put back")
        if index.entries.rows and index.max_read == BEFORE_ALL:
            raise SafetyError(
                f"{topic}: the index that would be put back was written in the midst of a replay: the next load would "
                "seal every id twice. Nothing was sent"
            )
        now = self.looks.lost_in(topic, index)
        if now > lost:
            raise SafetyError(
                f"{topic}: of the index that would be put back {now} segments that the topic needs can't be read by "
                f"now, and {lost} when it was replaced: the topic would not load with it. Nothing was sent"
            )

    def _replaced_last(self, topic: str, now: bytes) -> tuple[str, bytes, int]:
        """Return what the last repair or undo replaced; one that broke off before it sent anything does not count.

        now: the index that is there. The number is that of the segments that were lost when it was replaced; an entry
        of an older version does not say it, and counts as 0.
        """
        for entry in self.journal.of(topic):
            if entry.is_again and not entry.begins:
                continue  # what a broker wrote in the midst of a repair is not what that repair replaced
            if not self._was_sent(entry, now):
                continue
            if entry.is_again:  # and what an earlier repair replaced is older than what this one did
                raise ConfigError(
                    f"the journal {self.journal.folder.location} holds no repair of {topic} that can be taken back: "
                    f"the last one ({entry.name}) replaced an index that was written in the midst of a replay"
                )
            if entry.replaced != now:
                return entry.name, entry.replaced, entry.lost
            if not entry.is_undo:
                raise SafetyError(f"{topic}: the index that the repair replaced is there already")
        raise ConfigError(f"the journal {self.journal.folder.location} holds no repair of {topic}")

    def _was_sent(self, entry: Entry, now: bytes) -> bool:
        """Whether an entry's index was published, as far as that can be told. now: the index that is there.

        One that was killed between the broker's answer and the mark left its index in the topic.
        """
        if entry.was_sent or entry.by == now:
            return True
        return any(
            read.topic == entry.topic and read.data == entry.by and read.position > entry.position
            for read in self.topics.stored(namespace_of(entry.topic), SnapshotKind.INDEX)
        )

    def _republished(self, look: Look) -> bytes:
        """Publish the lost segments once more, and return the index that names their new places."""
        topic, old = look.facts.topic, look.index.value if look.index is not None else None
        index = before_the_end(old) if isinstance(old, Index) else None
        kept = {(number, marker) for number, _place, marker in places_of(index)} if index is not None else set()
        if not kept:  # an empty index is a replay of the whole topic, which nobody asked for
            raise SafetyError(f"{topic}: nothing before maxReadPosition can be kept: use --replay")
        lost = [each for each in lost_of(look.facts) if (each.sequence, each.marker) in kept]
        missing = [each.sequence for each in lost if (each.sequence, each.marker) not in look.values]
        if index is None or missing:
            some = ", ".join(map(str, missing[:_NAMED]))
            raise SafetyError(f"{topic}: the compacted topic lacks segments {some} too, so only a replay can repair it")
        if look.facts.doubled_ids:
            twice = f"{look.facts.doubled_ids} ids stand in several of its segments"
            raise SafetyError(f"{topic}: {twice}, so only a replay can repair it")
        if len({each.sequence for each in look.facts.named}) < len(look.facts.named):
            raise SafetyError(f"{topic}: its index names a segment's number twice, so only a replay can repair it")
        with self.sender(system_topic(namespace_of(topic), SnapshotKind.SEGMENT)) as sender:
            places = {
                (each.sequence, each.marker): sender.send(
                    str(SegmentKey(each.sequence, topic)), look.values[each.sequence, each.marker]
                )
                for each in lost
            }
        return moved_index(index, places)

    def _first_index(self, topic: str, new: bytes) -> tuple[str, int]:
        """Wait for an index from which the broker could go on; returns what it lacks, and how many loads that took.

        new: what the repair published.

        Where it lacks something to the end, ours stands there: with that one, the broker replays the topic once more.
        """
        wait = FirstIndex(
            lambda: self.looks.latest_index(topic),
            lambda: self.topics.more.buffer(topic, with_segments=True),
            lambda: self._again(topic, new),
            2 * self.topics.more.snapshot_seconds() + _QUIET_SECONDS,
            self.clock,
            self.sleep,
            lambda what: self.say(f"{topic}: {what}"),
        )
        lacks, loads = wait.wait()
        if lacks:
            self._once_more(topic, new)
        return lacks, loads

    def _again(self, topic: str, new: bytes) -> None:
        with suppress(RefusedError):  # it is not loaded
            self.loader.unload(topic)
        self._once_more(topic, new)
        with suppress(RefusedError):  # a client may have had it loaded from what its broker wrote
            self.loader.unload(topic)
        self._load(topic)

    def _once_more(self, topic: str, new: bytes) -> None:
        """Replace what a broker wrote in the midst of a replay: its next load would seal every id once more."""
        index = self._replaceable(topic)
        if index.data != new:
            name = self._write_down(topic, index, new, Act.AGAIN)
            # allowed: it is in the journal, and with ours a broker finds whatever the topic still has
            self._send(topic, new)
            self.journal.mark_sent(name)

    def _not_doubled(self, topic: str) -> None:
        if self.look(topic).facts.doubled_ids:
            raise SafetyError(
                f"{topic}: ids stand in several segments of its new index, as a client had it loaded from an older "
                "one meanwhile: take its clients away, and try again. Nothing is worse than before"
            )

    def _delivered(self, topic: str, known: Collection[tuple[int, int]]) -> tuple[int, str]:
        """Read the topic as a client does; return how many entries came, and why that is not all, "" where it is.

        known: ids of aborted transactions. Raises SafetyError at a message of one of them.
        """
        count = 0
        self.say(f"{topic} is loaded, and is read once as a client does")
        try:
            for transaction in self.loader.delivered(topic):
                count += 1
                if transaction is not None and transaction in known:
                    raise SafetyError(
                        f"{topic}: a reader got a message of aborted transaction {transaction}: keep consumers away, "
                        f"and `ledger-reaper snapshots undo --topic {topic}`"
                    )
                if count % _SAY_ENTRIES == 0:
                    self.say(f"{topic}: {count} entries were read")
        except (UnavailableError, RefusedError) as error:
            return count, f"no reader came to the topic's end: {error}"
        return count, ""

    def _refuse(self, look: Look, remedy: Remedy) -> None:
        if why := refusal_of(look.facts, remedy):
            raise SafetyError(f"{look.facts.topic} is not repaired: {why}")

    def _write_down(self, topic: str, old: Read, new: bytes, act: Act) -> str:
        return self.journal.write(old, new, self.looks.lost_in(topic, old.value), act)

    def _refuse_written_over(self, topic: str, place: Position) -> None:
        index = self.looks.latest_index(topic)
        if index is None or index.position != place:
            raise SafetyError(
                f"{topic}: the index was put back, and a broker that had it loaded wrote an index of its own over "
                "it: take its clients away, and try again"
            )

    def _send(self, topic: str, value: bytes) -> Position:
        with self.sender(system_topic(namespace_of(topic), SnapshotKind.INDEX)) as sender:
            return sender.send(topic, value)

    def _load(self, topic: str) -> BufferFacts:
        began_ms = said_ms = self.clock.now_ms()
        until_ms = began_ms + _PATIENCE_MINUTES * 60_000
        while True:
            buffer = None
            with suppress(UnavailableError, RefusedError):
                self.loader.load(topic)
            with suppress(UnavailableError, RefusedError):
                buffer = self.topics.more.buffer(topic)
            if buffer is not None and buffer.state == READY:
                return buffer
            if self.clock.now_ms() >= until_ms:
                raise UnavailableError(
                    f"{topic} was given a new index and is not loaded after {_PATIENCE_MINUTES} minutes. Its broker "
                    "may still be reading the topic, then wait for it. If its log says that it failed to recover, "
                    f"`ledger-reaper snapshots undo --topic {topic}` puts the old index back"
                )
            if (now_ms := self.clock.now_ms()) - said_ms >= _SAY_MS:
                said_ms = now_ms
                state = "not loaded" if buffer is None else buffer.state
                self.say(f"{topic} is not ready after {(now_ms - began_ms) // 1_000} seconds: {state}")
            self.sleep(_WAIT_SECONDS)


def _index_of(name: str, data: bytes) -> Index:
    try:
        return decode_index(data)
    except FormatError as error:
        raise SafetyError(f"the journal's file {name} holds no index ({error}): look at it, or move it away") from error


@contextmanager
def _cut_short(topic: str, how: str) -> Iterator[None]:
    """Say of a repair that is cut short in the block what became of it. how: its new index is there or not."""
    again = (
        f"The repair's index {how}, and {topic} is not verified: run the same command again, which goes on from there"
    )
    try:
        yield
    except KeyboardInterrupt:
        raise UnavailableError(f"{topic}: the repair was interrupted. {again}") from None
    except (UnavailableError, RefusedError) as error:
        raise UnavailableError(f"{error}. {again}") from error
