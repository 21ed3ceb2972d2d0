"""A model of Pulsar and BookKeeper: the writes of brokers, their order, and interruptions between them.

Every action ends like that of a real broker: completely, or interrupted in one of the windows W1 to W10, which leak a
ledger. The model records references beside the znodes and does not read them from the znodes.

Assumptions: a broker stalls for less than the quarantine, but for longer than the quiet period of OPEN ledgers. It may
overwrite a list, a cursor or a locator that was deleted and created again during the stall, if ZooKeeper's versions
match, and so name a ledger that was recovered (CLOSED) during the stall. A list's ledger has no entries before the list
names it.

Not modelled (decision 7): such a write to a list that was created again also names the deleted topic's other ledgers,
which the service may have deleted. See `_add_ledger`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tests.builders import (
    DAY_MS,
    MINUTE_MS,
    SCHEMA,
    TOPIC,
    bucket_request,
    compacted_request,
    cursor_request,
    cursor_znode,
    data_request,
    exists,
    list_znode,
    locator_znode,
    offloaded,
    schema_request,
)
from tests.model.storage import Storage
from tests.world import ObservedTree, path_of
from udfs.formats.managed_ledger import parse_cursor
from udfs.owners.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, KeyOwner, key_of, owner_of
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import BrokerView, Presence

TOPICS = (TOPIC, f"{TOPIC}-partition-0")
CURSORS = ("billing", "audit")
STALL_LIMIT_MS = DAY_MS  # the quarantine: after it no session of a stalled broker is alive
FLUSH_MS = MINUTE_MS  # brokers write dirty cursors once a minute


@dataclass
class Cursor:
    """A durable cursor, as its broker remembers it."""

    ledger_id: int = -1
    buckets: list[int] = field(default_factory=list)


@dataclass
class Topic:
    """A topic, as its broker remembers it."""

    ledgers: list[int] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)  # offloaded, the BookKeeper copy is free
    cursors: dict[str, Cursor] = field(default_factory=dict)
    compacted: int = -1  # newer than or equal to `durable`
    durable: int = -1  # the compacted ledger that a broker finds after a crash
    dirty_since_ms: int = -1


@dataclass
class Stalled:
    """A broker that stopped between the creation of a ledger and its publication."""

    ledger_id: int
    since_ms: int
    publish: Callable[[], None]
    writes_on: bool = False  # the broker is alive, and still writes to the ledger


class Pulsar(Storage):
    """Brokers, bookies and operators of one cluster. Implements the port Broker as its admin API would answer."""

    def __init__(self, tree: ObservedTree) -> None:
        super().__init__(tree)
        self.topics: dict[str, Topic] = {}
        self.schemas: dict[str, list[int]] = {}
        self.stalled: list[Stalled] = []
        self.silent: set[str] = set()
        self.unloaded: dict[
            str, object
        ] = {}  # topics that no broker has loaded, or only recently; and their state then
        self.lazy: set[str] = set()  # topics whose broker has not opened the cursor of their compaction yet
        self.hidden: KeyOwner | None = None

    def names(self) -> Sequence[str]:
        """Return the topics with which acts and forgers deal."""
        return TOPICS

    def references(self) -> dict[int, frozenset[str]]:
        """Return the references to each ledger: of every znode as last written, and of every broker's memory.

        A ledger that a stalled broker created is referred to once it is published. It must exist then.
        """
        references: dict[int, set[str]] = {}
        for path, ids in self.written.items():
            for ledger_id in ids:
                references.setdefault(ledger_id, set()).add(path)
        for name, topic in self.topics.items():
            for ledger_id in self._remembered(topic):
                references.setdefault(ledger_id, set()).add(f"broker of {name}")
        return {ledger_id: frozenset(owners) for ledger_id, owners in references.items()}

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Answer like brokers: from memory, with loads of existing topics, and without an answer for silent topics."""
        return [self._view(name) for name in managed_ledgers]

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        """Return UNREADABLE: these brokers know no scalable topics."""
        return [BrokerView(presence=Presence.UNREADABLE)] * len(segments)

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Return whether each schema exists."""
        return [self._schema_view(name) for name in schema_ids]

    def require_answers(self) -> int:
        """Return 1: one broker answers."""
        return 1

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass: flush dirty cursors, and end brokers that stalled for the whole limit."""
        self.tree.clock.advance(milliseconds)
        now_ms = self.tree.clock.now_ms()
        self.hidden = None
        for name, topic in self.topics.items():
            if 0 <= topic.dirty_since_ms <= now_ms - FLUSH_MS:
                self._flush(name, topic, lost=True)
        # brokers' answers show topics that were loaded in the meantime only from now on
        self.unloaded = {name: state for name, state in self.unloaded.items() if state == self._state(name)}
        dead = [
            stalled
            for stalled in self.stalled
            if now_ms - stalled.since_ms >= STALL_LIMIT_MS
            and not (stalled.writes_on and self.ledgers[stalled.ledger_id].is_open)  # a recovery fences its writer
        ]
        self.stalled = [stalled for stalled in self.stalled if stalled not in dead]
        self.leak({stalled.ledger_id for stalled in dead})

    # topics

    def create_topic(self, name: str, *, stalls: bool) -> None:
        """A broker loads a topic that does not exist: it creates an empty znode, then a ledger, then the list."""
        path = managed_ledger_path(name)
        if name in self.topics or (exists(self.tree, path) and self.written.get(path)):
            return
        if not exists(self.tree, path):
            self.create(path, b"", ())
        self._add_ledger(name, Topic(), stalls=stalls)

    def roll_over(self, name: str, *, stalls: bool) -> None:
        """The current ledger is full: close it, create another, write the list."""
        topic = self.topics.get(name)
        if topic is None:
            return
        for ledger_id in topic.ledgers[-1:]:
            self.close(ledger_id)
        self._add_ledger(name, topic, stalls=stalls)

    def split_brain(self, name: str) -> None:
        """A broker loses its session without noticing: the next broker drops its last ledger, which stays OPEN."""
        topic = self.topics.get(name)
        if topic is None or not topic.ledgers or not exists(self.tree, managed_ledger_path(name)):
            return
        ledger_id = topic.ledgers.pop()
        topic.given_up.discard(ledger_id)
        self.on_leak(ledger_id)
        self._add_ledger(name, topic, stalls=False, dropped=frozenset({ledger_id}))

    def trim(self, name: str, *, written: bool, lost: bool) -> None:
        """Drop the oldest ledger: memory first, then the list, then the ledger (W1 lost, W2 not written)."""
        topic = self.topics.get(name)
        if topic is None or len(topic.ledgers) < 2:
            return
        ledger_id = topic.ledgers.pop(0)
        if not written:
            return
        was_given_up = ledger_id in topic.given_up
        topic.given_up.discard(ledger_id)
        self._write_list(name, topic, dropped={ledger_id})
        if not was_given_up:
            self.delete(ledger_id, lost=lost)

    def offload(self, name: str, *, lost: bool) -> None:
        """Move the oldest ledger to tiered storage and give up its BookKeeper copy; the ledger stays listed (T1)."""
        topic = self.topics.get(name)
        if topic is None or len(topic.ledgers) < 2 or not exists(self.tree, managed_ledger_path(name)):
            return
        ledger_id = next((each for each in topic.ledgers[:-1] if each not in topic.given_up), None)
        if ledger_id is not None:
            topic.given_up.add(ledger_id)
            self._write_list(name, topic, dropped={ledger_id})
            self.delete(ledger_id, lost=lost)

    def delete_topic(self, name: str, *, lost: bool) -> None:
        """Truncate, delete cursors, delete the znode; what is lost on the way stays in BookKeeper."""
        topic = self.topics.get(name)
        if topic is None:
            return
        for cursor in list(topic.cursors):
            self.delete_cursor(name, cursor, lost=lost)
        listed = self.written.get(managed_ledger_path(name), frozenset())
        compaction_s = self.written.get(cursor_path(name, COMPACTION_CURSOR), frozenset())
        self.remove(managed_ledger_path(name))
        self._drop_all(compaction_s, lost=lost)
        del self.topics[name]
        self.lazy.discard(name)
        own = {*topic.ledgers, topic.compacted, topic.durable} - topic.given_up - {-1}
        for ledger_id in own:
            self.close(ledger_id)
            self.delete(ledger_id, lost=lost)
        self.leak(listed - own)

    def restore_list(self, name: str) -> None:
        """An operator reverts a trim: an existing ledger is listed again."""
        topic, path = self.topics.get(name), managed_ledger_path(name)
        if topic is None or not exists(self.tree, path):
            return
        own = [ledger_id for ledger_id, ledger in self.ledgers.items() if key_of(ledger.request) == f"data:{name}"]
        garbage = [ledger_id for ledger_id in own if ledger_id not in topic.ledgers and self.is_garbage(ledger_id)]
        if garbage:
            topic.ledgers = sorted([*topic.ledgers, garbage[0]])
            topic.given_up.discard(garbage[0])
            self._write_list(name, topic, dropped=set())

    def lose_metadata(self, name: str, *, loaded: bool) -> None:
        """W10: an operator deletes the topic's znodes by hand, under a running broker or not."""
        topic = self.topics.get(name)
        if topic is None:
            return
        before = self._held(name)
        self.remove(managed_ledger_path(name))
        for cursor in topic.cursors.values():
            cursor.buckets.clear()  # only the broker's memory names them now, and no answer shows it
        # nor do answers show which BookKeeper copies are free; copies that were deleted already are no loss
        topic.given_up = {ledger_id for ledger_id in topic.given_up if not exists(self.tree, path_of(ledger_id))}
        if not loaded:
            del self.topics[name]
        self.leak(before - self._held(name))

    def crash(self, *, is_lazy: bool = False) -> None:
        """kill -9 of all brokers: the next brokers remember only what was written, and recover (close) ledgers.

        Args:
            is_lazy: they open a compaction's cursor only when the next compaction runs (lazyCursorRecovery).
        """
        self.lazy = set(self.topics) if is_lazy else set()
        for name, topic in list(self.topics.items()):
            path = managed_ledger_path(name)
            before = self._held(name)
            if exists(self.tree, path):
                topic.compacted, topic.dirty_since_ms = topic.durable, -1
                topic.ledgers = sorted(self.written.get(path, frozenset()) | topic.given_up)
                topic.cursors = {c: held for c, held in topic.cursors.items() if cursor_path(name, c) in self.written}
            else:
                del self.topics[name]
            for ledger_id in self._held(name):
                self.close(ledger_id)
            self.leak(before - self._held(name))

    def settle(self) -> None:
        """End all that keeps garbage for long: brokers forget the znodes that an operator deleted."""
        self.crash()

    def unload(self, name: str, *, lost: bool) -> None:
        """Close cursors and topic, so that only znodes have its references; the next use loads the topic.

        Brokers may report the topic as not loaded until some time has passed.
        """
        topic, path = self.topics.get(name), managed_ledger_path(name)
        if topic is None or not exists(self.tree, path):
            return
        before = self._held(name)
        for cursor in topic.cursors:
            self.close_cursor(name, cursor, lost=lost)
        compaction = cursor_path(name, COMPACTION_CURSOR)
        if exists(self.tree, compaction):
            self._flush(name, topic, lost=lost)
            self.tree.write(compaction, cursor_znode(properties={COMPACTED_LEDGER_PROPERTY: topic.durable}))
            self._drop_all(self.written.pop(compaction, frozenset()), lost=lost)
        else:  # an operator deleted the znodes: only the broker's memory named the compacted ledger
            topic.compacted = topic.durable = -1
        self.lazy.discard(name)
        topic.ledgers = sorted(self.written.get(path, frozenset()) | topic.given_up)
        topic.cursors = {c: held for c, held in topic.cursors.items() if cursor_path(name, c) in self.written}
        for ledger_id in self._held(name):
            self.close(ledger_id)
        self.leak(before - self._held(name))
        self.unloaded[name] = self._state(name)

    # cursors

    def open_cursor(self, name: str, cursor: str) -> None:
        """Create a subscription: a znode that names no ledger."""
        topic = self.topics.get(name)
        if topic is not None and cursor not in topic.cursors and exists(self.tree, managed_ledger_path(name)):
            topic.cursors[cursor] = Cursor()
            self._write_cursor(name, cursor)

    def switch_cursor(self, name: str, cursor: str, *, stalls: bool, lost: bool) -> None:
        """Create and write a new cursor ledger, publish it in the znode, then delete the old ledger (W6).

        Older brokers also create a cursor in this order: the ledger first, then a znode that names it.
        """
        topic = self.topics.get(name)
        path = cursor_path(name, cursor)
        if topic is None or (cursor in topic.cursors) != exists(self.tree, path):
            return
        seen = self.seen(path)
        created = self.make(lambda ledger_id: cursor_request(ledger_id, name, cursor), is_open=True)

        def publish() -> None:
            held = topic.cursors.get(cursor) or Cursor()
            data, ids = cursor_znode(created, buckets=held.buckets), {created, *held.buckets}
            if not self.cas(path, seen, data, ids):
                self.delete(created, lost=lost)
                return
            current = self.topics.setdefault(name, Topic()).cursors.setdefault(cursor, held)
            old, current.ledger_id = current.ledger_id, created
            self.delete(old, lost=lost)  # brokers never close it

        self._now_or_later(created, publish, stalls=stalls)

    def close_cursor(self, name: str, cursor: str, *, lost: bool) -> None:
        """Unload: write the position into the znode, then delete the ledger."""
        topic = self.topics.get(name)
        if topic is None or cursor not in topic.cursors or not exists(self.tree, cursor_path(name, cursor)):
            return
        old, topic.cursors[cursor].ledger_id = topic.cursors[cursor].ledger_id, -1
        self._write_cursor(name, cursor)
        self.delete(old, lost=lost)

    def delete_cursor(self, name: str, cursor: str, *, lost: bool) -> None:
        """Unsubscribe: delete the znode, then ledger and buckets."""
        topic = self.topics.get(name)
        if topic is None or cursor not in topic.cursors:
            return
        held = topic.cursors.pop(cursor)
        self.remove(cursor_path(name, cursor))
        for ledger_id in (held.ledger_id, *held.buckets):
            self.delete(ledger_id, lost=lost)

    def touch_cursor(self, name: str, cursor: str) -> None:
        """Change a subscription's properties: the znode gets only a new version."""
        topic = self.topics.get(name)
        if topic is not None and cursor in topic.cursors and exists(self.tree, cursor_path(name, cursor)):
            self._write_cursor(name, cursor)

    # delayed delivery, compaction, schemas

    def seal_bucket(self, name: str, cursor: str, *, stalls: bool) -> None:
        """Write and close a delayed-delivery bucket, then name it in the cursor's properties, in any order (W8).

        A broker may stall before the close.
        """
        topic = self.topics.get(name)
        if topic is None or cursor not in topic.cursors:
            return
        created = self.make(lambda ledger_id: bucket_request(ledger_id, name), is_open=True)
        held, path = topic.cursors[cursor], cursor_path(name, cursor)

        def publish() -> None:
            self.close(created)
            current = self.topics.get(name)
            if current is not topic or topic.cursors.get(cursor) is not held or not exists(self.tree, path):
                self.delete(created, lost=True)
                return
            held.buckets.append(created)
            self._write_cursor(name, cursor)

        self._now_or_later(created, publish, stalls=stalls)

    def drop_bucket(self, name: str, cursor: str, *, lost: bool) -> None:
        """Drop a bucket whose messages are all delivered."""
        topic = self.topics.get(name)
        if topic is None or cursor not in topic.cursors or not exists(self.tree, cursor_path(name, cursor)):
            return
        for ledger_id in topic.cursors[cursor].buckets[:1]:
            topic.cursors[cursor].buckets.remove(ledger_id)
            self._write_cursor(name, cursor)
            self.delete(ledger_id, lost=lost)

    def compact(self, name: str, *, durable: bool, lost: bool, stalls: bool = False) -> None:
        """Write and close a compacted ledger; then memory names it, and later the durable position, in no znode.

        The compactor is a client of the topic's broker, and may write for days: the broker that owns the topic at its
        end accepts the ledger, even if another compaction has ended in the meantime.
        """
        topic = self.topics.get(name)
        if topic is None or not exists(self.tree, managed_ledger_path(name)):
            return
        created = self.make(lambda ledger_id: compacted_request(ledger_id, name), is_open=True)

        def publish() -> None:
            self.close(created)
            if self.topics.get(name) is not topic or not exists(self.tree, managed_ledger_path(name)):
                self.delete(created, lost=lost)
            else:
                self._accept_compacted(name, topic, created, durable=durable, lost=lost)

        self._now_or_later(created, publish, stalls=stalls, writes_on=True)

    def _accept_compacted(self, name: str, topic: Topic, created: int, *, durable: bool, lost: bool) -> None:
        self.lazy.discard(name)
        if not exists(self.tree, cursor_path(name, COMPACTION_CURSOR)):
            self.write(cursor_path(name, COMPACTION_CURSOR), cursor_znode())
        before, topic.compacted = topic.compacted, created
        if before != topic.durable:
            self.leak({before})
        elif before >= 0:
            self.on_leak(before)  # announced first, as in PIP-186
        topic.dirty_since_ms = self.tree.clock.now_ms()
        if durable:
            self._flush(name, topic, lost=lost)

    def put_schema(self, *, stalls: bool, lost: bool) -> None:
        """Write and close a schema's ledger, then name it in the locator (W7). A stall happens before the close."""
        path = schema_path(SCHEMA)
        earlier = list(self.schemas.get(SCHEMA, ()))
        seen, births = self.seen(path), self.births(path)
        created = self.make(schema_request, is_open=True)

        def publish() -> None:
            self.close(created)
            ids = [*earlier, created] if self.births(path) == births else [created]
            if self.cas(path, seen, locator_znode(*ids), set(ids)):
                self.schemas[SCHEMA] = ids
            else:
                self.delete(created, lost=lost)

        self._now_or_later(created, publish, stalls=stalls)

    def delete_schema(self, *, lost: bool) -> None:
        """Delete every ledger, ignoring errors, and then the locator."""
        if SCHEMA in self.schemas:
            self.remove(schema_path(SCHEMA))
            for ledger_id in self.schemas.pop(SCHEMA):
                self.delete(ledger_id, lost=lost)

    def wake(self, index: int) -> None:
        """A stalled broker continues where it stopped."""
        if self.stalled:
            self.stalled.pop(index % len(self.stalled)).publish()

    def is_garbage(self, ledger_id: int) -> bool:
        """Return whether nothing refers to an existing ledger, and no broker can refer to it later if it is OPEN."""
        if not exists(self.tree, path_of(ledger_id)) or ledger_id in self.references():
            return False
        return not self.ledgers[ledger_id].is_open or self._is_superseded(ledger_id)

    def _is_superseded(self, ledger_id: int) -> bool:
        """Return whether the owner of an OPEN ledger is gone, or names a newer ledger of a kind written in order."""
        request = self.ledgers[ledger_id].request
        owner = owner_of(key_of(request))
        path = schema_path(owner.name) if owner.kind == "schema" else managed_ledger_path(owner.name)
        if owner.kind == "cursor":
            path = cursor_path(owner.name, owner.cursor)
        if not exists(self.tree, path):
            return True
        named = {
            other for other in self.written.get(path, ()) if key_of(self.ledgers[other].request) == key_of(request)
        }
        return owner.kind in ("data", "cursor") and max(named, default=-1) > ledger_id

    def _view(self, name: str) -> BrokerView:
        if name in self.silent:
            return BrokerView(presence=Presence.UNREADABLE, detail="503")
        if self.hidden is not None and self.hidden.name == name:
            return BrokerView(presence=Presence.GONE)
        topic = self.topics.get(name)
        if topic is None:
            is_present = exists(self.tree, managed_ledger_path(name))
            return BrokerView(presence=Presence.PRESENT if is_present else Presence.GONE)
        if name in self.unloaded and exists(self.tree, managed_ledger_path(name)):
            return BrokerView(presence=Presence.PRESENT, is_loaded=False)
        cursors = {cursor: held.ledger_id for cursor, held in topic.cursors.items()}
        if name in self.lazy:
            return BrokerView(presence=Presence.PRESENT, ledgers=tuple(topic.ledgers), cursors=cursors)
        if exists(self.tree, cursor_path(name, COMPACTION_CURSOR)):
            cursors[COMPACTION_CURSOR] = -1
        return BrokerView(
            presence=Presence.PRESENT, ledgers=tuple(topic.ledgers), cursors=cursors, compacted_ledger=topic.compacted
        )

    def _state(self, name: str) -> object:
        """Return the state that every action of a broker with the loaded topic changes."""
        root = managed_ledger_path(name)
        paths = [path for path in self.written if path.startswith(root)]
        return repr(self.topics.get(name)), {path: (self.seen(path), self.births(path)) for path in paths}

    def _schema_view(self, name: str) -> BrokerView:
        if name in self.silent:
            return BrokerView(presence=Presence.UNREADABLE, detail="503")
        is_hidden = self.hidden is not None and self.hidden.name == name
        return BrokerView(presence=Presence.PRESENT if name in self.schemas and not is_hidden else Presence.GONE)

    def _remembered(self, topic: Topic) -> set[int]:
        """Return the ledgers that the broker keeps in BookKeeper."""
        held = {cursor.ledger_id for cursor in topic.cursors.values()}
        held |= {bucket for cursor in topic.cursors.values() for bucket in cursor.buckets}
        return (held | set(topic.ledgers) - topic.given_up | {topic.compacted, topic.durable}) - {-1}

    def _held(self, name: str) -> set[int]:
        """Return the ledgers that the topic refers to, in memory or in znodes."""
        root = managed_ledger_path(name)
        written = [ids for path, ids in self.written.items() if path == root or path.startswith(f"{root}/")]
        topic = self.topics.get(name)
        return {ledger_id for ids in written for ledger_id in ids} | (self._remembered(topic) if topic else set())

    def _add_ledger(self, name: str, topic: Topic, *, stalls: bool, dropped: frozenset[int] = frozenset()) -> None:
        path = managed_ledger_path(name)
        seen, births = self.seen(path), self.births(path)
        created = self.make(lambda ledger_id: data_request(ledger_id, name), is_open=True)
        self.ledgers[created].has_entries = False
        listed = [*topic.ledgers, created]

        def publish() -> None:
            before = self.written.get(path, frozenset())
            ids = (
                listed if self.births(path) == births else [created]
            )  # not modelled: the deleted topic's other ledgers
            kept = set(ids) - topic.given_up
            if seen is None or not self.cas(path, seen, self._list(ids, topic), kept):
                self.delete(created, lost=True)  # W4: the broker gives up the ledger, and its delete may fail
                return
            self.ledgers[created].has_entries = self.ledgers[created].is_open  # a recovery fences its writer
            self.topics.setdefault(name, topic).ledgers = ids
            topic.given_up.intersection_update(ids)
            self.leak(before - kept - dropped)

        self._now_or_later(created, publish, stalls=stalls)

    def _list(self, ids: Sequence[int], topic: Topic) -> bytes:
        return list_znode(*[offloaded(ledger) if ledger in topic.given_up else ledger for ledger in ids])

    def _write_list(self, name: str, topic: Topic, *, dropped: set[int]) -> None:
        path = managed_ledger_path(name)
        if exists(self.tree, path):
            before = self.written.get(path, frozenset())
            self.tree.write(path, self._list(topic.ledgers, topic))
            topic.given_up.intersection_update(topic.ledgers)
            self.written[path] = frozenset(topic.ledgers) - topic.given_up
            self.leak(before - self.written[path] - dropped)  # W2: dropped from memory before, and not deleted

    def _write_cursor(self, name: str, cursor: str) -> None:
        held = self.topics[name].cursors[cursor]
        path = cursor_path(name, cursor)
        self.write(path, cursor_znode(held.ledger_id, buckets=held.buckets))
        self.written[path] = frozenset({held.ledger_id, *held.buckets}) - {-1}

    def _drop_all(self, ledger_ids: frozenset[int], *, lost: bool) -> None:
        for ledger_id in ledger_ids:
            self.close(ledger_id)
            self.delete(ledger_id, lost=lost)

    def _flush(self, name: str, topic: Topic, *, lost: bool) -> None:
        """Write the cursor's position into its ledger; a cursor without a ledger gets one, which its znode names."""
        path = cursor_path(name, COMPACTION_CURSOR)
        if exists(self.tree, path) and parse_cursor(self.tree.read(path).data).cursors_ledger_id == -1:
            created = self.make(lambda ledger_id: cursor_request(ledger_id, name, COMPACTION_CURSOR), is_open=True)
            self.tree.write(path, cursor_znode(created))
            self.written[path] = frozenset({created})
        old, topic.durable, topic.dirty_since_ms = topic.durable, topic.compacted, -1
        if old != topic.durable:
            self.delete(old, lost=lost)

    def _now_or_later(
        self, ledger_id: int, publish: Callable[[], None], *, stalls: bool, writes_on: bool = False
    ) -> None:
        if stalls:
            self.stalled.append(Stalled(ledger_id, self.tree.clock.now_ms(), publish, writes_on))
            self.on_leak(ledger_id)  # an audit takes the unnamed ledger for an orphan
        else:
            publish()
