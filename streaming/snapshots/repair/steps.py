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
   verified. An index that a broker wrote in the midst of a replay is never what an undo puts back, nor what a topic is
   loaded from.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.blocking import blocking_in, named
from streaming.snapshots.repair.first_index import silent
from streaming.snapshots.repair.journal import Act, Entry, RepairJournal
from streaming.snapshots.repair.load import Loading
from streaming.snapshots.repair.outcome import Repaired, ignorance
from streaming.snapshots.repair.session import Replacing, Sent, TopicLoader, cut_short, index_of
from streaming.snapshots.repair.topic_state import Look, Looks
from streaming.snapshots.repair.undo import TakeBack
from streaming.snapshots.repair.verify import Reading
from udfs.paths import namespace_of
from udfs.records import Presence
from udfs.snapshots.audit import NamedSegment, is_half_replayed
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
from udfs.snapshots.values import ReadValue

JOURNAL = "snapshots-journal"
_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
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
        self._refuse_blocked(topic)
        look = self.look(topic)
        begun = self._begun(look)
        if begun is not None and (refusal_of(look.facts, remedy) or is_half_replayed(look.facts)):
            return self._go_on(look, begun, remedy)
        self._refuse(look, remedy)
        self._replacing.guard(topic)
        self._replacing.unload(topic)
        again = self.look(topic)
        self._refuse(again, remedy)
        old = again.index
        if old is None or look.index is None or old.position != look.index.position:
            raise SafetyError(f"{topic}: somebody wrote its index meanwhile; look at it again")
        new = empty_index(topic) if remedy is Remedy.REPLAY else self._republished(again)
        is_half = is_half_replayed(again.facts)
        name = self._replacing.write_down(topic, old, new, Act.REPAIR_OF_HALF if is_half else Act.REPAIR)
        with cut_short(topic, "repair", _became(topic, "is or may be published")):
            # allowed: the topic does not load with the old one, or holds ids twice, or would seal them twice at the
            # next load; and the journal has it
            self._replacing.send(topic, new)
            self.journal.mark_sent(name)
        with cut_short(topic, "repair", _became(topic, "is published")):
            if look.facts.doubled_ids or is_half:
                self._replacing.unload(topic)  # a client may have had it loaded from the old index meanwhile
            self.say(f"{topic} has a new index; the old one is {name} in the journal")
            return self._ended(name, [look], new, is_whole=not is_half)

    def undo(self, topic: str) -> tuple[str, str]:
        """Put back the index that the last repair replaced; returns the journal's names of it and of what is there now.

        Raises ConfigError, SafetyError, UnavailableError: see TakeBack.
        """
        self._refuse_blocked(topic)
        return TakeBack(self._replacing).undo(topic)

    @property
    def looks(self) -> Looks:
        """Reads what decides about a topic."""
        return self._replacing.looks

    def look(self, topic: str) -> Look:
        """Read what decides about a topic. Raises UnavailableError, RefusedError."""
        return self.looks.look(topic)

    @property
    def _replacing(self) -> Replacing:
        return Replacing(
            topics=self.topics,
            store=self.store,
            broker=self.broker,
            loader=self.loader,
            sender=self.sender,
            journal=self.journal,
            clock=self.clock,
        )

    def _begun(self, look: Look) -> Entry | None:
        """Return what a repair began with that was cut short or not verified; None where there is none to go on with.

        Its index must be one with which the topic loads. One of which nobody can tell whether it was sent counts.
        """
        if look.index is None or look.facts.in_metadata is not Presence.PRESENT:
            return None
        topic, last = look.facts.topic, None
        for entry in self.journal.of(topic):
            if not (entry.begins or entry.is_undo):
                continue
            if self._replacing.was_sent(entry, look.index.data) is not Sent.NO:
                last = entry
                break
        if last is None or not last.begins or last.is_done or lost_of(look.facts):
            return None
        return None if self.looks.lost_in(topic, index_of(last.name, last.by)) else last

    def _go_on(self, look: Look, begun: Entry, remedy: Remedy) -> Repaired:
        """Take up a repair whose index is published: wait, and verify."""
        topic = look.facts.topic
        if remedy is Remedy.REPUBLISH and begun.by == empty_index(topic):
            raise SafetyError(
                f"{topic}: a repair by replay began and was not verified ({begun.name} in the journal), so its "
                f"segments are not published again. Without --republish, that one is gone on with; `ledger-reaper "
                f"snapshots undo --topic {topic}` takes it back"
            )
        self._replacing.guard(topic)
        replaced = ReadValue(
            kind=SnapshotKind.INDEX,
            key=topic,
            topic=topic,
            position=begun.position,
            publish_ms=0,
            size_bytes=len(begun.replaced),
            value=index_of(begun.name, begun.replaced),
            data=begun.replaced,
        )
        self.say(f"{topic}: a repair that was cut short, or not verified, goes on ({begun.name} in the journal)")
        with cut_short(topic, "repair", _became(topic, "is published")):
            looks = [look, self.looks.look_from(topic, replaced)]
            done = self._ended(begun.name, looks, begun.by, is_whole=not begun.is_again)
        return replace(done, went_on=True)

    def _ended(self, name: str, looks: Sequence[Look], new: bytes, *, is_whole: bool) -> Repaired:
        """Bring a repair to its end whose index, new, is published.

        looks: what was there before, and before that. is_whole: the repair began with more than half a replay's index.
        """
        topic = looks[0].facts.topic
        remedy = Remedy.REPLAY if new == empty_index(topic) else Remedy.REPUBLISH
        loading = Loading(replacing=self._replacing, topic=topic, new=new, sleep=self.sleep, say=self.say)
        loading.ready()
        not_written, loads = loading.first_index()
        self._not_doubled(topic)
        buffer = loading.ready()
        told = all_told(look.told for look in looks)
        delivered, why = Reading(self.topics, self.loader, self.say).read(topic, told.known)
        if buffer.aborted < len(told.sure):  # some may have gone while the topic was replayed
            ledgers = self.looks.ledgers(topic)
            told = all_told(look.told_with(ledgers) for look in looks)
        if buffer.aborted < len(told.sure):
            found = f"{buffer.aborted} aborted ids, and its old snapshot tells of {len(told.sure)}"
            read = why or f"a reader gets {delivered} entries, none of them aborted"
            raise SafetyError(f"{topic} is loaded and has {found}; {read}: keep consumers away until it is known why")
        not_verified = ignorance(told, is_whole=is_whole) or why
        if not not_verified:  # also where its broker has written nothing: what comes later is no matter of this repair
            self.journal.mark_done(name)
        return Repaired(
            topic=topic,
            journal=name,
            aborted=buffer.aborted,
            known=len(told.known),
            expected=len(told.sure),
            delivered=delivered,
            not_verified=not_verified,
            loads=loads,
            not_written=not_written,
            remedy=remedy,
        )

    def _republished(self, look: Look) -> bytes:
        """Publish the lost segments once more, and return the index that names their new places."""
        topic = look.facts.topic
        index, lost = self._to_be_republished(look)
        became = (
            "Some of its lost segments are or may be published once more, which changes nothing as long as no index "
            f"names them, and the index of {topic} is as it was: run the same command again"
        )
        segments = system_topic(namespace_of(topic), SnapshotKind.SEGMENT)
        with cut_short(topic, "repair", became), self.sender(segments) as sender:
            places = {
                (each.sequence, each.marker): sender.send(
                    str(SegmentKey(each.sequence, topic)), look.values[each.sequence, each.marker]
                )
                for each in lost
            }
        moved = moved_index(index, places)
        named = decode_index(moved)
        with cut_short(topic, "repair", became):
            self._replacing.hold(topic, named)
            lost_again = self.looks.lost_in(topic, named)
        if lost_again:  # no index named them yet, so that a guard that was moved meanwhile did not keep them
            raise SafetyError(
                f"{topic}: {lost_again} segments that were published once more were trimmed before their guard was "
                "there, so no index names them. Nothing has changed: run the same command again"
            )
        return moved

    def _to_be_republished(self, look: Look) -> tuple[Index, list[NamedSegment]]:
        """Return what of the index stays, and its lost segments. Raises SafetyError where only a replay can repair."""
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
        return index, lost

    def _not_doubled(self, topic: str) -> None:
        if self.look(topic).facts.doubled_ids:
            raise SafetyError(
                f"{topic}: ids stand in several segments of its new index, as a client had it loaded from an older "
                "one meanwhile: disconnect its clients, and try again. Nothing is worse than before"
            )

    def _refuse_blocked(self, topic: str) -> None:
        """Refuse where the topic would not load whatever its index is."""
        namespace = namespace_of(topic)
        present = self.topics.present(namespace)
        kinds = {kind for kind in SnapshotKind if system_topic(namespace, kind) in present}
        if messages := blocking_in(self.topics, namespace, kinds):
            raise SafetyError(
                f"{topic}: no topic of {namespace} loads while brokers read messages there that they can't decode: "
                f"{named(messages)}. Nothing was sent: `ledger-reaper snapshots repair --namespace {namespace}` "
                "removes them"
            )

    def _refuse(self, look: Look, remedy: Remedy) -> None:
        if why := refusal_of(look.facts, remedy):
            raise SafetyError(f"{look.facts.topic} is not repaired: {why}")


def _became(topic: str, how: str) -> str:
    return (
        f"The repair's index {how}, and {topic} is not verified: run the same command again, which goes on from there"
    )
