"""`ledger-reaper snapshots trim`: let a broker drop ids of aborted transactions whose messages are gone.

A broker drops such ids only when a transaction ends on their topic, and it drops only whole segments of ids. On a topic
without further transactions they stay for ever. This command commits an empty transaction there. Only an operator
starts it, because it adds an entry to the topic.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.snapshots.repair.steps import Repairs
from streaming.snapshots.repair.topic_session import TopicState
from streaming.terminal import count_of
from udfs.paths import namespace_of
from udfs.records import Presence
from udfs.snapshots.codec import Index, Snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import lost_segments_of, missing_in
from udfs.snapshots.topic_findings import RECOVERING, BufferFacts, TopicFacts, is_half_replayed

_TRIES, _WAIT_SECONDS = 60, 1.0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of a trim."""

    topic: str
    segments: int  # segments that were dropped: the ledger of their last abort marker is gone
    ids: int  # ids that were dropped from a single snapshot: the ledgers of their abort markers are gone

    def describe(self) -> str:
        """Return one line for the terminal."""
        what = count_of(self.segments, "segment") if self.segments else count_of(self.ids, "id")
        return f"the broker has dropped {what} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Trims:
    """Trims one topic at a time."""

    repairs: Repairs
    commit: Callable[[str], object]  # commits an empty transaction on a topic
    sleep: Callable[[float], None] = time.sleep

    def trim(self, topic: str) -> Trimmed:
        """Make the broker drop ids whose markers are gone. Raises SafetyError if that is refused, UnavailableError."""
        state = self.repairs.state_of(topic)
        facts, segments, ids = state.facts, dead_segments(state.facts), self._dead_ids(state)
        buffer = self.repairs.topics.more.buffer(topic, with_segments=True)
        if why := refusal_of(facts, segments + ids) or doubling(state, buffer):
            raise SafetyError(f"{topic} is not trimmed: {why}")
        self.commit(topic)
        for _try in range(_TRIES):
            now = self.repairs.state_of(topic)
            if not dead_segments(now.facts) and not self._dead_ids(now):
                return Trimmed(topic, segments, ids)
            self.sleep(_WAIT_SECONDS)
        raise UnavailableError(f"an empty transaction was committed on {topic}, and its broker has dropped nothing yet")

    def _dead_ids(self, state: TopicState) -> int:
        """Count the ids of a single snapshot whose markers are gone; 0 if there is an index."""
        if state.index is not None:
            return 0  # dead_segments counts its segments
        topic, ledgers, dead = state.facts.topic, state.facts.ledgers, 0
        for read in self.repairs.topics.compacted(namespace_of(topic), SnapshotKind.SINGLE):
            if read.topic == topic:
                value = read.value
                markers = value.aborts.ledger.tolist() if isinstance(value, Snapshot) else []
                dead = sum(marker not in ledgers for marker in markers)
        return dead


@dataclass(frozen=True, slots=True)
class Left:
    """A topic that was not trimmed."""

    topic: str
    error: ReaperError  # SafetyError: there is nothing to trim, or it could do harm

    @property
    def is_refused(self) -> bool:
        """Whether the trim was refused; another try would be refused, too."""
        return isinstance(self.error, SafetyError)


def trim_each(trim: Callable[[str], Trimmed], topics: Iterable[str]) -> Iterator[Trimmed | Left]:
    """Trim one topic after the other; a failure does not stop the next topics."""
    for topic in topics:
        try:
            yield trim(topic)
        except ReaperError as error:
            yield Left(topic, error)


def dead_segments(facts: TopicFacts) -> int:
    """Count the segments in the index whose last marker's ledger is gone."""
    return sum(each.marker[0] not in facts.ledgers for each in facts.named)


def refusal_of(facts: TopicFacts, dead: int) -> str:
    """Explain why nothing may be committed on a topic; "" if it may."""
    if facts.in_metadata is not Presence.PRESENT:
        return facts.detail or "ZooKeeper does not have the topic, or it could not be read"
    # a broker that trims segments which share ids can forget all its ids (seen on Pulsar 4.0.8)
    if facts.doubled_ids:
        return f"{facts.doubled_ids} ids are in several segments, and a trim can lose them all: repair it first"
    if lost_segments_of(facts):
        return "segments that it needs can't be read: repair it first"
    if not dead:
        return "it has no ids that a broker would drop"
    return ""


def doubling(state: TopicState, buffer: BufferFacts | None) -> str:
    """Explain why a commit could make the broker write ids into segments (seal them) twice; "" if it could not.

    A commit loads the topic. A broker that loads it from an index written during a replay, or from an index that names
    markers after its maxReadPosition, finds these ids again, seals them again, and forgets all ids at the next trim.
    The commit must also wait while the broker replays the topic, or has sealed segments that its index does not name.

    buffer: the broker's transaction buffer, with its segments.
    """
    facts, value = state.facts, state.index.value if state.index is not None else None
    if is_half_replayed(facts):
        return "its index was written during a replay, and the next load would seal every id twice: repair it"
    if buffer is not None and buffer.state in RECOVERING:
        return "its broker is replaying it: wait until it is loaded"
    if not isinstance(value, Index):
        return ""
    if any(each.marker > value.max_read and each.marker[0] in facts.ledgers for each in facts.named):
        return (
            "its index was written while a transaction was open, and names segments after its maxReadPosition: "
            "the next load would seal their ids twice. Wait until any transaction on the topic ends: then the broker "
            "writes a new index"
        )
    if why := missing_in(value, buffer.sealed if buffer is not None else ()):
        return f"{why}: wait until it has written its index"
    return ""
