"""`ledger-reaper snapshots trim`: let a broker drop ids of aborted transactions whose messages are gone.

A broker drops such ids only while a transaction ends on their topic, and of segments whole ones only. On a topic where
none ends any more they stay for ever. This commits an empty transaction there, which an operator has to ask for: it
adds an entry to the topic. It is refused where that could do harm: a broker that trims segments which share ids can
forget all ids that it has (seen on Pulsar 4.0.8), and one that loads the topic may seal ids twice right before.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.snapshots.repair.steps import Repairs
from streaming.snapshots.repair.topic_state import TopicState
from udfs.paths import namespace_of
from udfs.records import Presence
from udfs.snapshots.audit import RECOVERING, BufferFacts, TopicFacts, is_half_replayed
from udfs.snapshots.codec import Index, Snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import lost_segments_of, missing_in

_TRIES, _WAIT_SECONDS = 60, 1.0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a trim came to. segments, ids: how many dead ones there were; ids: of a single snapshot."""

    topic: str
    segments: int
    ids: int

    def in_words(self) -> str:
        """Return one line for people."""
        what = f"{self.segments} segments" if self.segments else f"{self.ids} ids"
        return f"the broker has dropped {what} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Trims:
    """Trims one topic at a time. commit: commits an empty transaction on a topic."""

    repairs: Repairs
    commit: Callable[[str], object]
    sleep: Callable[[float], None] = time.sleep

    def trim(self, topic: str) -> Trimmed:
        """Let its broker drop the dead ids. Raises SafetyError where that is refused, UnavailableError."""
        look = self.repairs.state_of(topic)
        facts, segments, ids = look.facts, dead_segments(look.facts), self._dead_ids(look)
        buffer = self.repairs.topics.more.buffer(topic, with_segments=True)
        if why := refusal_of(facts, segments + ids) or doubling(look, buffer):
            raise SafetyError(f"{topic} is not trimmed: {why}")
        self.commit(topic)
        for _try in range(_TRIES):
            now = self.repairs.state_of(topic)
            if not dead_segments(now.facts) and not self._dead_ids(now):
                return Trimmed(topic, segments, ids)
            self.sleep(_WAIT_SECONDS)
        raise UnavailableError(f"an empty transaction was committed on {topic}, and its broker has dropped nothing yet")

    def _dead_ids(self, look: TopicState) -> int:
        """How many ids of a single snapshot are dead; none where there is an index, which counts then."""
        if look.index is not None:
            return 0
        topic, ledgers, dead = look.facts.topic, look.facts.ledgers, 0
        for read in self.repairs.topics.compacted(namespace_of(topic), SnapshotKind.SINGLE):
            if read.topic == topic:
                value = read.value
                markers = value.aborts.ledger.tolist() if isinstance(value, Snapshot) else []
                dead = sum(marker not in ledgers for marker in markers)
        return dead


@dataclass(frozen=True, slots=True)
class Left:
    """A topic that was left as it is. error: why; SafetyError where there is nothing to be done or it could do harm."""

    topic: str
    error: ReaperError

    @property
    def is_refused(self) -> bool:
        """Whether we refused it, so that another try would, too."""
        return isinstance(self.error, SafetyError)


def trim_each(trim: Callable[[str], Trimmed], topics: Iterable[str]) -> Iterator[Trimmed | Left]:
    """Trim one topic after the other; where one fails, the others have their turn all the same."""
    for topic in topics:
        try:
            yield trim(topic)
        except ReaperError as error:
            yield Left(topic, error)


def dead_segments(facts: TopicFacts) -> int:
    """How many segments the index names whose last marker's ledger is gone."""
    return sum(each.marker[0] not in facts.ledgers for each in facts.named)


def refusal_of(facts: TopicFacts, dead: int) -> str:
    """Return why nothing may be committed on a topic; "" where it may."""
    if facts.in_metadata is not Presence.PRESENT:
        return facts.detail or "ZooKeeper does not have the topic, or it could not be read"
    if facts.doubled_ids:
        return f"{facts.doubled_ids} ids stand in more than one segment, and a trim can lose them all: repair it first"
    if lost_segments_of(facts):
        return "segments that it needs can't be read: repair it first"
    if not dead:
        return "it has no ids that a broker would drop"
    return ""


def doubling(look: TopicState, buffer: BufferFacts | None) -> str:
    """Return how a commit could have a broker seal ids twice, or has done so and not written it yet; "" where it can't.

    A commit loads the topic. A broker that loads it from an index of half a replay, or from one that names markers
    behind its maxReadPosition, finds these ids once more, seals them again, and forgets all ids at the trim that comes.
    buffer: what the broker has in memory, with its segments.
    """
    facts, value = look.facts, look.index.value if look.index is not None else None
    if is_half_replayed(facts):
        return "its index was written in the midst of a replay, and the next load would seal every id twice: repair it"
    if buffer is not None and buffer.state in RECOVERING:
        return "its broker is replaying it: wait until it is loaded"
    if not isinstance(value, Index):
        return ""
    if any(each.marker > value.max_read and each.marker[0] in facts.ledgers for each in facts.named):
        return (
            "its index was written while a transaction was open, and names segments behind its maxReadPosition, which "
            "the next load would seal twice: it has to be written anew, which the end of any transaction does"
        )
    if why := missing_in(value, buffer.sealed if buffer is not None else ()):
        return f"{why}: wait until it has written it"
    return ""
