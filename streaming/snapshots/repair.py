"""`ledger-reaper snapshots repair`: have a broker replay a topic whose segments are lost; `undo` puts the index back.

1. A topic that works is refused, and so is one of which anything is not known.
2. A guard is made first: a repair without one is broken again within a minute.
3. The index that is replaced is in the journal, on disk, before the new one is sent.
4. Right before that the topic is looked at once more, and nothing is sent if its index is another one by then.
5. Afterwards the topic is loaded, and must have in memory all ids that the old segments still tell of.
"""

import base64
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from streaming.clock import Clock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.guard import Guards
from streaming.snapshots.owners import listed
from streaming.snapshots.parts import Sender
from streaming.snapshots.read import SnapshotTopics, system_topic
from streaming.state.filesystem import Folder
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_path, namespace_of
from udfs.records import Presence
from udfs.snapshots.audit import READY, BufferFacts, NamedSegment, TopicFacts
from udfs.snapshots.codec import Index, Segment
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repairing import empty_index, refusal_of
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import Read

JOURNAL = "snapshots-journal"
_TRIES, _WAIT_SECONDS = 120, 1.0  # a broker that replays reads the whole topic


class TopicLoader(Protocol):
    """How a topic is unloaded and loaded."""

    def unload(self, topic: str) -> None:
        """Let its broker close it. Raises UnavailableError, RefusedError."""
        ...

    def load(self, topic: str) -> None:
        """Ask for it once, as a client does. Raises UnavailableError, RefusedError."""
        ...


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair came to. aborted: ids that the broker has now; expected: those that the old segments told of."""

    topic: str
    journal: str
    aborted: int
    expected: int


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a topic. index: its latest message; None where it has none."""

    facts: TopicFacts
    index: Read | None
    expected: int


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

    def repair(self, topic: str) -> Repaired:
        """Have the broker replay the topic. Raises SafetyError where it is refused, or what came out is not whole."""
        look = self.look(topic)
        self._refuse(look)
        self._guard(namespace_of(topic))
        with suppress(RefusedError):  # it is not loaded
            self.loader.unload(topic)
        again = self.look(topic)
        self._refuse(again)
        old = again.index
        if old is None or look.index is None or old.position != look.index.position:
            raise SafetyError(f"{topic}: somebody wrote its index meanwhile; look at it again")
        new = empty_index(topic)
        name = self._write_down(topic, old, new)
        self._send(topic, new)
        buffer = self._load(topic)
        if buffer.aborted < look.expected:
            raise SafetyError(
                f"{topic} was replayed and has {buffer.aborted} aborted ids, and its old segments tell of "
                f"{look.expected}: keep consumers away, and `ledger-reaper snapshots undo --topic {topic}`"
            )
        return Repaired(topic, name, buffer.aborted, look.expected)

    def undo(self, topic: str) -> str:
        """Put back the index that the last repair replaced; returns the journal's name of it.

        Raises ConfigError where the journal has none. The topic is as broken then as it was before.
        """
        names = [name for name in self.journal.names() if name.endswith(".json")]
        for name in sorted(names, reverse=True):
            content = self.journal.read(name)
            entry: dict[str, Any] = json.loads(content) if content else {}
            if entry.get("topic") == topic:
                with suppress(RefusedError):
                    self.loader.unload(topic)
                self._send(topic, base64.b64decode(entry["replaced"]))
                return name
        raise ConfigError(f"the journal {self.journal.location} holds no repair of {topic}")

    def look(self, topic: str) -> Look:
        """Read what decides about a topic. Raises UnavailableError, RefusedError."""
        namespace = namespace_of(topic)
        index = self._latest_index(namespace, topic)
        value = index.value if index is not None else None
        places = {place: (sequence, marker) for sequence, place, marker in places_of(value)} if isinstance(
            value, Index
        ) else {}  # fmt: skip
        readable = self._readable(namespace, topic, places) if places else set()
        named = tuple(NamedSegment(number, at, marker, at in readable) for at, (number, marker) in places.items())
        (node,) = self.store.read_many([managed_ledger_path(topic)])
        presence, ledgers, _why = listed(node)
        facts = TopicFacts(
            topic,
            presence,
            Presence.UNREADABLE,
            ledgers=frozenset(ledgers),
            named=named,
            buffer=self.topics.more.buffer(topic),
        )
        return Look(facts, index, self._ids(namespace, facts))

    def _latest_index(self, namespace: str, topic: str) -> Read | None:
        found: Read | None = None
        for read in self.topics.compacted(namespace, SnapshotKind.INDEX):
            if read.topic == topic:
                found = None if read.is_null else read
        return found

    def _readable(self, namespace: str, topic: str, places: dict[Position, tuple[int, Position]]) -> set[Position]:
        return {
            read.position
            for read in self.topics.stored(namespace, SnapshotKind.SEGMENT)
            if isinstance(read.value, Segment)
            and read.topic == topic
            and places.get(read.position, (-1,))[0] == read.sequence
        }

    def _ids(self, namespace: str, facts: TopicFacts) -> int:
        """How many distinct ids the named segments tell of whose marker's ledger lives, as far as any can be read."""
        numbers = {each.sequence for each in facts.named if each.marker[0] in facts.ledgers}
        ids: dict[int, set[tuple[int, int]]] = {}
        for read in self.topics.compacted(namespace, SnapshotKind.SEGMENT) if numbers else ():
            if read.topic == facts.topic and read.sequence in numbers:
                value = read.value
                ids[read.sequence] = set(value.ids.pairs()) if isinstance(value, Segment) else set()
        return len(set().union(*ids.values()))

    def _refuse(self, look: Look) -> None:
        if why := refusal_of(look.facts):
            raise SafetyError(f"{look.facts.topic} is not repaired: {why}")

    def _guard(self, namespace: str) -> None:
        for each in Guards(self.topics, self.store, self.broker, self.clock).keep([namespace]):
            if each.error:
                raise UnavailableError(f"no guard for {namespace}, so nothing was repaired: {each.error}")

    def _write_down(self, topic: str, old: Read, new: bytes) -> str:
        name = f"{self.clock.now_ms():015d}.json"
        entry = {
            "topic": topic,
            "key": old.key,
            "position": list(old.position),
            "replaced": base64.b64encode(old.data).decode(),
            "by": base64.b64encode(new).decode(),
        }
        self.journal.write(name, json.dumps(entry).encode())
        return name

    def _send(self, topic: str, value: bytes) -> None:
        with self.sender(system_topic(namespace_of(topic), SnapshotKind.INDEX)) as sender:
            sender.send(topic, value)

    def _load(self, topic: str) -> BufferFacts:
        for _try in range(_TRIES):
            with suppress(UnavailableError, RefusedError):
                self.loader.load(topic)
            buffer = self.topics.more.buffer(topic)
            if buffer is not None and buffer.state == READY:
                return buffer
            self.sleep(_WAIT_SECONDS)
        raise UnavailableError(
            f"{topic} was given an empty index and is not loaded yet: look at the broker's log; "
            f"`ledger-reaper snapshots undo --topic {topic}` puts the old one back"
        )
