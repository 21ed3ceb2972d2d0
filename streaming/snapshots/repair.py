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
"""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.first_index import FirstIndex
from streaming.snapshots.guard import Guards
from streaming.snapshots.looks import Look, Looks
from streaming.snapshots.parts import Sender
from streaming.state.filesystem import Folder
from udfs.formats.errors import FormatError
from udfs.paths import namespace_of
from udfs.snapshots.audit import READY, BufferFacts
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.keys import SegmentKey, SnapshotKind
from udfs.snapshots.repairing import (
    Remedy,
    Told,
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
class Repaired:
    """What a repair came to. aborted: ids that the broker has now.

    loads: how often the topic was loaded. not_written: what its index lacks of what the broker has in memory; "" where
    the broker could go on from it.

    known: ids that the old snapshot told of. expected: those of them that the broker must have. delivered: how many
    entries a reader got afterwards; none of them was of a known id. not_verified: why that says too little; "" where
    all old ids are known and the reader came to the end. remedy: how.
    """

    topic: str
    journal: str
    aborted: int
    known: int
    expected: int
    delivered: int
    not_verified: str = ""
    loads: int = 1
    not_written: str = ""
    remedy: Remedy = Remedy.REPLAY

    def in_words(self) -> str:
        """Return one line for people."""
        reader = f"a reader gets {self.delivered} entries" + ("" if self.not_verified else ", none of them aborted")
        return (
            f"{self.topic} is loaded again and has {self.aborted} aborted ids (its old snapshot told of {self.known}); "
            f"{reader}. The old index is {self.journal} in the journal" + self._unwritten()
        )

    def _unwritten(self) -> str:
        if not self.not_written:
            return ""
        again = (
            "the whole topic again"
            if self.remedy is Remedy.REPLAY
            else "the topic behind the last segment of the repair's index again"
        )
        return (
            f". Its broker has not written its own snapshot yet: {self.not_written}. That is a fault of Pulsar's "
            "(apache/pulsar#26565), and loses nothing: the broker goes on as messages come, and until then it reads "
            f"{again} at each load"
        )


@dataclass(frozen=True, slots=True)
class Repairs:
    """Repairs one topic at a time. sender: opens a producer on a system topic. journal: a folder that outlives us."""

    topics: SnapshotTopics
    store: MetadataStore
    broker: Broker
    loader: TopicLoader
    sender: Callable[[str], AbstractContextManager[Sender]]
    journal: Folder
    clock: Clock
    sleep: Callable[[float], None] = time.sleep

    def repair(self, topic: str, remedy: Remedy = Remedy.REPLAY) -> Repaired:
        """Give the topic an index with which it loads.

        Raises SafetyError where it is refused, or what came out is not whole. Raises UnavailableError.
        """
        look = self.look(topic)
        self._refuse(look, remedy)
        Guards(self.topics, self.store, self.broker, self.clock).require(namespace_of(topic))
        with suppress(RefusedError):  # it is not loaded
            self.loader.unload(topic)
        again = self.look(topic)
        self._refuse(again, remedy)
        old = again.index
        if old is None or look.index is None or old.position != look.index.position:
            raise SafetyError(f"{topic}: somebody wrote its index meanwhile; look at it again")
        new = empty_index(topic) if remedy is Remedy.REPLAY else self._republished(again)
        name = self._write_down(topic, old, new)
        # allowed: the topic does not load with the old one, or holds ids twice, and the journal has it
        self._send(topic, new)
        if look.facts.doubled_ids:
            with suppress(RefusedError):  # a client may have had it loaded from the old index meanwhile
                self.loader.unload(topic)
        self._load(topic)
        not_written, loads = self._first_index(topic, new)
        self._not_doubled(topic)
        buffer = self._load(topic)
        undo = f"keep consumers away, and `ledger-reaper snapshots undo --topic {topic}`"
        told = look.told
        delivered, why = self._delivered(look, undo)
        if buffer.aborted < len(told.sure):
            told = look.told_with(self.looks.ledgers(topic))  # some may have gone while the topic was replayed
        if buffer.aborted < len(told.sure):
            found = f"{buffer.aborted} aborted ids, and its old snapshot tells of {len(told.sure)}"
            read = why or f"a reader gets {delivered} entries, none of them aborted"
            raise SafetyError(f"{topic} is loaded and has {found}; {read}: keep consumers away until it is known why")
        return Repaired(
            topic,
            name,
            buffer.aborted,
            len(told.known),
            len(told.sure),
            delivered,
            _ignorance(told) or why,
            loads,
            not_written,
            remedy,
        )

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
        kept = self._write_down(topic, now, old, is_undo=True)
        # allowed: what is replaced is in the journal, nobody wrote an index since it was unloaded, and no more segments
        # of the old one are lost than when it was replaced
        self._send(topic, old)
        # a guard that has moved on since is moved back, as far as what the old index names is there
        Guards(self.topics, self.store, self.broker, self.clock).require(namespace_of(topic))
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
        now = self.looks.lost_in(topic, index)
        if now > lost:
            raise SafetyError(
                f"{topic}: of the index that would be put back {now} segments that the topic needs can't be read by "
                f"now, and {lost} when it was replaced: the topic would not load with it. Nothing was sent"
            )

    def _replaced_last(self, topic: str, now: bytes) -> tuple[str, bytes, int]:
        """Return what the last repair or undo replaced; an undo that broke off before it sent anything does not count.

        now: the index that is there. The number is that of the segments that were lost when it was replaced; an entry
        of an older version does not say it, and counts as 0.
        """
        for name in sorted(self.journal.names(), reverse=True):
            content = self.journal.read(name) if name.endswith(".json") else None
            entry: dict[str, Any] = json.loads(content) if content else {}
            if entry.get("topic") != topic or entry.get("is_again"):
                continue  # what a broker wrote in the midst of a repair is not what that repair replaced
            replaced = base64.b64decode(entry["replaced"])
            if replaced != now:
                return name, replaced, int(entry.get("lost", 0))
            if not entry.get("is_undo"):
                raise SafetyError(f"{topic}: the index that the repair replaced is there already")
        raise ConfigError(f"the journal {self.journal.location} holds no repair of {topic}")

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
            self._write_down(topic, index, new, is_again=True)
            # allowed: it is in the journal, and with ours a broker finds whatever the topic still has
            self._send(topic, new)

    def _not_doubled(self, topic: str) -> None:
        if self.look(topic).facts.doubled_ids:
            raise SafetyError(
                f"{topic}: ids stand in several segments of its new index, as a client had it loaded from an older "
                "one meanwhile: take its clients away, and try again. Nothing is worse than before"
            )

    def _delivered(self, look: Look, undo: str) -> tuple[int, str]:
        """Read the topic as a client does; return how many entries came, and why that is not all, "" where it is.

        Raises SafetyError at a message that was taken back.
        """
        count = 0
        try:
            for transaction in self.loader.delivered(look.facts.topic):
                count += 1
                if transaction is not None and transaction in look.told.known:
                    raise SafetyError(
                        f"{look.facts.topic}: a reader got a message of aborted transaction {transaction}: {undo}"
                    )
        except (UnavailableError, RefusedError) as error:
            return count, f"no reader came to the topic's end: {error}"
        return count, ""

    def _refuse(self, look: Look, remedy: Remedy) -> None:
        if why := refusal_of(look.facts, remedy):
            raise SafetyError(f"{look.facts.topic} is not repaired: {why}")

    def _write_down(self, topic: str, old: Read, new: bytes, *, is_undo: bool = False, is_again: bool = False) -> str:
        name = f"{self.clock.now_ms():015d}.json"
        if name in self.journal.names():
            raise UnavailableError(f"the journal has {name} already; try again")
        entry = {
            "topic": topic,
            "key": old.key,
            "position": list(old.position),
            "replaced": base64.b64encode(old.data).decode(),
            "by": base64.b64encode(new).decode(),
            "lost": self.looks.lost_in(topic, old.value),
            "is_undo": is_undo,
            "is_again": is_again,
        }
        self.journal.write(name, json.dumps(entry).encode())
        return name

    def _send(self, topic: str, value: bytes) -> None:
        with self.sender(system_topic(namespace_of(topic), SnapshotKind.INDEX)) as sender:
            sender.send(topic, value)

    def _load(self, topic: str) -> BufferFacts:
        until_ms = self.clock.now_ms() + _PATIENCE_MINUTES * 60_000
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
            self.sleep(_WAIT_SECONDS)


def _ignorance(told: Told) -> str:
    """Why what is known of the old ids says too little; "" where it says all."""
    if not told.known:
        return "no old ids are known"
    if told.unknown:
        more = f" and {len(told.unknown) - _NAMED} more" if len(told.unknown) > _NAMED else ""
        return f"the ids of segments {', '.join(map(str, told.unknown[:_NAMED]))}{more} are not known"
    return ""
