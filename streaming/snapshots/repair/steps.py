"""`ledger-reaper snapshots repair`: give a topic an index with which it loads again; `undo` restores the old index.

The steps of a repair: guard, unload, record, publish, load, verify.

1. A working topic is refused, and so is a topic about which any fact is unknown. A topic with doubled ids works, and is
   replayed all the same.
2. The guard comes first.
3. The replaced index is in the journal, on disk, before the new index is sent. The same holds for an undo.
4. Right before that, the topic is read again, and nothing is sent if its index has changed.
5. Then the topic is loaded, and loaded again if its broker writes no index that could be loaded (a fault of Pulsar's).
   If the broker never writes such an index, the repair reports it and leaves its own, with which the topic is replayed
   at the next load.
6. The broker must have in memory all ids of the old snapshot whose markers certainly exist, and a reader that reaches
   the topic's end must get no message of any known id. If some old ids are not known, or the reader does not reach the
   end, the repair reports that it is not verified. A topic that could be loaded with the old index is unloaded again
   before step 5, in case a client caused such a load.
7. A repair that is interrupted after its index was published reports that, and the next runs resume it until it is
   verified. No undo restores an index that a broker wrote during a replay, and no topic is loaded from it.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.ports import MetadataStore
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.blocking import refuse_blocked
from streaming.snapshots.repair.finish import finish, silent
from streaming.snapshots.repair.repair_journal import Act, RepairEntry, RepairJournal
from streaming.snapshots.repair.repair_result import RepairResult
from streaming.snapshots.repair.repair_undo import RepairUndo
from streaming.snapshots.repair.topic_session import (
    Session,
    TopicLoader,
    TopicState,
    index_of,
    interruption,
    unfinished,
)
from udfs.snapshots.codec import Index, decode_index, encode_segment
from udfs.snapshots.keys import SegmentKey, SnapshotKind
from udfs.snapshots.repair_rules import (
    Remedy,
    complete_part_of,
    empty_index,
    lost_segments_of,
    moved_index,
    refusal_of,
)
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.topic_findings import NamedSegment, is_half_replayed
from udfs.snapshots.values import ReadValue

JOURNAL = "snapshots-journal"
_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """Repairs one topic at a time."""

    topics: SnapshotTopics
    store: MetadataStore
    loader: TopicLoader
    sender: Callable[[str], AbstractContextManager[Sender]]  # opens a producer on a system topic
    journal: RepairJournal  # its folder outlives the process
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = silent  # receives progress messages

    def repair(self, topic: str, remedy: Remedy = Remedy.REPLAY) -> RepairResult:
        """Give the topic an index with which it loads, or resume an interrupted repair.

        Raises SafetyError if the repair is refused or its result is wrong. Raises UnavailableError.
        """
        session = self._session(topic)
        refuse_blocked(self.topics, topic)
        state = session.state()
        interrupted = unfinished(session, state)
        if interrupted is not None and (refusal_of(state.facts, remedy) or is_half_replayed(state.facts)):
            return _resume(session, state, interrupted, remedy)
        _refuse(state, remedy)
        # without a guard, a repaired topic is broken again within a minute
        session.guard()
        session.unload()
        again = session.state()
        _refuse(again, remedy)
        old = again.index
        if old is None or state.index is None or old.position != state.index.position:
            raise SafetyError(
                f"{topic}: its index has changed during the repair, and nothing was sent: disconnect the topic's "
                "clients, and run the command again"
            )
        new = empty_index(topic) if remedy is Remedy.REPLAY else _republished(session, again)
        is_half = is_half_replayed(again.facts)
        name = session.record(old, new, Act.REPAIR_OF_HALF if is_half else Act.REPAIR)
        with interruption(topic, "repair", _left(topic, "is or may be published")):
            # allowed: the topic does not load with the old index, or has doubled ids, or would seal ids twice at the
            # next load; and the journal has it
            session.publish(new)
            self.journal.mark_sent(name)
        with interruption(topic, "repair", _left(topic, "is published")):
            if state.facts.doubled_ids or is_half:
                session.unload()  # a client may have had it loaded from the old index in the meantime
            self.say(f"{topic} has a new index; the old one is {name} in the journal")
            return finish(session, name, [state], new, is_whole=not is_half)

    def undo(self, topic: str) -> tuple[str, str]:
        """Restore the index that the last repair replaced; returns the journal's names of it and of the current index.

        Raises ConfigError, SafetyError, UnavailableError: see RepairUndo.
        """
        refuse_blocked(self.topics, topic)
        return RepairUndo(self._session(topic)).undo()

    def state_of(self, topic: str) -> TopicState:
        """Read everything that decides about a topic. Raises UnavailableError, RefusedError."""
        return self._session(topic).state()

    def _session(self, topic: str) -> Session:
        return Session(
            topic=topic,
            topics=self.topics,
            store=self.store,
            loader=self.loader,
            sender=self.sender,
            journal=self.journal,
            clock=self.clock,
            sleep=self.sleep,
            say=self.say,
        )


def _resume(session: Session, state: TopicState, entry: RepairEntry, remedy: Remedy) -> RepairResult:
    """Resume a repair whose index is published: load and verify."""
    topic = session.topic
    if remedy is Remedy.REPUBLISH and entry.by == empty_index(topic):
        raise SafetyError(
            f"{topic}: a repair by replay was started and not verified ({entry.name} in the journal), so the segments "
            "are not published again. Run the command without --republish to resume that repair; `ledger-reaper "
            f"snapshots undo --topic {topic}` undoes it"
        )
    session.guard()
    replaced = ReadValue(
        kind=SnapshotKind.INDEX,
        key=topic,
        topic=topic,
        position=entry.position,
        publish_ms=0,
        size_bytes=len(entry.replaced),
        value=index_of(entry.name, entry.replaced),
        data=entry.replaced,
    )
    session.say(f"{topic}: resuming a repair that was interrupted or not verified ({entry.name} in the journal)")
    with interruption(topic, "repair", _left(topic, "is published")):
        states = [state, session.state_with(replaced)]
        done = finish(session, entry.name, states, entry.by, is_whole=not entry.is_again)
    return replace(done, went_on=True)


def _republished(session: Session, state: TopicState) -> bytes:
    """Publish the lost segments again, and return the index that names their new positions."""
    topic = session.topic
    index, lost = _to_be_republished(state)
    left = (
        "Some of its lost segments are or may be published again, which changes nothing as long as no index names "
        f"them, and the index of {topic} is unchanged: run the same command again"
    )
    segments = system_topic(session.namespace, SnapshotKind.SEGMENT)
    with interruption(topic, "repair", left), session.sender(segments) as sender:
        places = {
            (segment.sequence, segment.marker): sender.send(
                str(SegmentKey(segment.sequence, topic)),
                encode_segment(state.values[segment.sequence, segment.marker]),
            )
            for segment in lost
        }
    moved = moved_index(index, places)
    new_index = decode_index(moved)
    with interruption(topic, "repair", left):
        session.hold(new_index)
        lost_again = session.lost_in(new_index)
    if lost_again:  # no index named them yet, so a guard that moved in the meantime did not keep them
        raise SafetyError(
            f"{topic}: {lost_again} segments that were published again were trimmed before their guard was in place, "
            "so no index names them. Nothing has changed: run the same command again"
        )
    return moved


def _to_be_republished(state: TopicState) -> tuple[Index, list[NamedSegment]]:
    """Return the part of the index that stays, and its lost segments. Raises SafetyError if only a replay helps."""
    topic, old = state.facts.topic, state.index.value if state.index is not None else None
    index = complete_part_of(old) if isinstance(old, Index) else None
    kept = {(number, marker) for number, _position, marker in named_segments(index)} if index is not None else set()
    if not kept:  # an empty index is a replay of the whole topic, which was not requested
        raise SafetyError(
            f"{topic}: its index names no segment before its maxReadPosition, so nothing of it can be kept: run the "
            "command with --replay"
        )
    lost = [segment for segment in lost_segments_of(state.facts) if (segment.sequence, segment.marker) in kept]
    missing = [segment.sequence for segment in lost if (segment.sequence, segment.marker) not in state.values]
    if index is None or missing:
        some = ", ".join(map(str, missing[:_NAMED]))
        raise SafetyError(
            f"{topic}: the compacted topic has no segments {some} either, so only a replay can repair it: run the "
            "command with --replay"
        )
    if state.facts.doubled_ids:
        twice = f"{state.facts.doubled_ids} ids are in several of its segments"
        raise SafetyError(f"{topic}: {twice}, so only a replay can repair it: run the command with --replay")
    if len({segment.sequence for segment in state.facts.named}) < len(state.facts.named):
        raise SafetyError(
            f"{topic}: its index names a segment's number twice, so only a replay can repair it: run the command with "
            "--replay"
        )
    return index, lost


def _refuse(state: TopicState, remedy: Remedy) -> None:
    if why := refusal_of(state.facts, remedy):
        raise SafetyError(f"{state.facts.topic} is not repaired: {why}")


def _left(topic: str, how: str) -> str:
    return f"The repair's index {how}, and {topic} is not verified: run the same command again to resume the repair"
