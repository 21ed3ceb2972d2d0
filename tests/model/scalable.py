"""Brokers of Pulsar 5.0 with a scalable topic: its layout names segments, each of which is a topic with ledgers.

A change of the layout has several steps, and a broker may die after each of them:
- creation: the layout, then each segment;
- split and merge: the new segments, the end of the old ones, the layout. After a crash the next split or merge uses the
  same ids again;
- prune: the layout, then the segment;
- deletion: the layout, then each segment;
- migration of a persistent topic: the layout alone. The topic stays, as a sealed segment, and no broker deletes it.

A broker shows nothing of a segment that it has loaded. It reads the layout from its own cache, which may be older than
ZooKeeper's. Operators delete segments' znodes by hand, and restore lists, layouts and segments from a backup.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from streaming.adapters.pulsar.admin_api.segments import HIDDEN, layout_in, view_of_segment
from streaming.adapters.pulsar.http import Answer
from tests.builders import HOUR_MS, LAYOUT_PATH, TOPIC, exists, put
from tests.model.pulsar import TOPICS, Pulsar, Topic
from tests.world import ObservedTree, path_of
from udfs.owners.references import key_of, owner_of
from udfs.paths import managed_ledger_path, segment_of, topic_of
from udfs.records import BrokerView, Presence

SCALABLE = "public/default/orders"
ALL_STEPS = 9  # more than any change has
_MOST_IDS = 8  # a topic with more segments would only slow the test down
_LAST_HASH = 0xFFFF


@dataclass(frozen=True)
class Piece:
    """A segment, as its layout describes it."""

    first_hash: int
    last_hash: int
    is_active: bool = True
    legacy_topic: str = ""


def id_of(name: str) -> int:
    """Return the id of a segment."""
    return int(name.rpartition("-")[2])


@dataclass
class Layout:
    """The layout of the scalable topic."""

    pieces: dict[int, Piece]
    next_id: int
    epoch: int = 0

    def changed(self, pieces: dict[int, Piece], next_id: int) -> "Layout":
        return Layout(pieces, next_id, self.epoch + 1)

    def names(self) -> set[str]:
        """Return the segments that have managed ledgers of their own."""
        return {name_of(number, piece) for number, piece in self.pieces.items() if not piece.legacy_topic}

    def data(self) -> bytes:
        """Return the znode's value, with the fields that Pulsar 5.0.0-M1 writes."""
        segments = {
            str(number): {
                "segmentId": number,
                "hashRange": {"start": piece.first_hash, "end": piece.last_hash},
                "state": "ACTIVE" if piece.is_active else "SEALED",
                "parentIds": [],
                "childIds": [],
                "active": piece.is_active,
                "sealed": not piece.is_active,
                "legacy": bool(piece.legacy_topic),
            }
            | ({"legacyTopicName": piece.legacy_topic} if piece.legacy_topic else {})
            for number, piece in self.pieces.items()
        }
        fields = {"epoch": self.epoch, "nextSegmentId": self.next_id, "segments": segments, "properties": {}}
        return json.dumps(fields).encode()


def name_of(number: int, piece: Piece) -> str:
    """Return the managed ledger of a segment."""
    return f"public/default/segment/orders/{piece.first_hash:04x}-{piece.last_hash:04x}-{number}"


class ScalablePulsar(Pulsar):
    """Brokers with one scalable topic."""

    def __init__(self, tree: ObservedTree) -> None:
        super().__init__(tree)
        self.layout: Layout | None = None  # as last written
        self.earlier: list[Layout] = []  # from which an operator may restore
        self._answered_ms = 0  # since brokers read the layout in their cache
        self.answered: Layout | None = None  # the layout in the brokers' cache, while it differs from ZooKeeper's
        self.created: set[str] = set()  # every segment there ever was
        self.terminated: set[str] = set()
        # the ledgers of lists that an operator deleted by hand while their segments are needed, and how often each list
        # had been created
        self.lost: dict[str, tuple[set[int], int]] = {}

    def names(self) -> Sequence[str]:
        """Return the topics with which acts and forgers deal."""
        return sorted(self.created) or TOPICS[:1]

    def references(self) -> dict[int, frozenset[str]]:
        """Return the references to each ledger; a live segment whose list is lost needs all that the list named."""
        references = super().references()
        for name in self._needed():
            for ledger_id in self._lost_by(name):
                references[ledger_id] = references.get(ledger_id, frozenset()) | {f"layout, by {name}"}
        return references

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Answer like brokers: nothing about loaded segments, and about others only what the layout shows."""
        return [self._view_of(name, existing) for name in managed_ledgers]

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        """Return whether the brokers' layout names each segment."""
        return [self._by_layout(name) for name in segments]

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass; brokers' caches of the layout expire."""
        super().pass_time(milliseconds)
        self._answered_ms += milliseconds
        if self._answered_ms >= HOUR_MS:
            self._brokers_answer(None)

    # changes of the layout: each stops after so many steps

    def create_scalable(self, *, steps: int) -> None:
        """Create the topic with two segments."""
        if self.layout is None:
            pieces = {0: Piece(0, _LAST_HASH // 2), 1: Piece(_LAST_HASH // 2 + 1, _LAST_HASH)}
            self._write_layout(Layout(pieces, next_id=2))
            self._create_segments(pieces, steps - 1)

    def open_scalable(self, *, steps: int) -> None:
        """A broker becomes the topic's controller, and creates active segments that are missing."""
        if self.layout is not None:
            self._create_segments(self.layout.pieces, steps)

    def split(self, index: int, *, steps: int, is_late: bool = False) -> None:
        """Split an active segment.

        Args:
            index: of the segment among the active ones.
            steps: after which the broker dies.
            is_late: another controller has changed the layout in the meantime, so the last step fails.
        """
        active = self._active()
        if self.layout is None or not active or self.layout.next_id + 2 > _MOST_IDS:
            return
        number = active[index % len(active)]
        parent, next_id = self.layout.pieces[number], self.layout.next_id
        middle = (parent.first_hash + parent.last_hash) // 2
        if middle < parent.last_hash:
            halves = (Piece(parent.first_hash, middle), Piece(middle + 1, parent.last_hash))
            self._replace([number], {next_id + at: half for at, half in enumerate(halves)}, steps, is_late=is_late)

    def merge(self, index: int, *, steps: int, is_late: bool = False) -> None:
        """Merge two neighbours; the arguments are those of `split`."""
        active = self._active()
        if self.layout is None or len(active) < 2 or self.layout.next_id + 1 > _MOST_IDS:
            return
        first, second = (active + active)[index % (len(active) - 1) :][:2]
        left, right = self.layout.pieces[first], self.layout.pieces[second]
        if left.last_hash + 1 == right.first_hash:
            merged = {self.layout.next_id: Piece(left.first_hash, right.last_hash)}
            self._replace([first, second], merged, steps, is_late=is_late)

    def prune(self, index: int, *, steps: int, lost: bool) -> None:
        """Remove a sealed segment from the layout, then delete it. A legacy segment's topic stays for good."""
        layout = self.layout
        sealed = [] if layout is None else [number for number, piece in layout.pieces.items() if not piece.is_active]
        if layout is None or not sealed or not steps:
            return
        number = sealed[index % len(sealed)]
        piece = layout.pieces[number]
        left = {other: kept for other, kept in layout.pieces.items() if other != number}
        self._write_layout(layout.changed(left, layout.next_id))
        if steps > 1 and not piece.legacy_topic:
            self.delete_topic(name_of(number, piece), lost=lost)

    def delete_scalable(self, *, steps: int, lost: bool) -> None:
        """Delete the topic: its layout, then its segments one after the other."""
        if self.layout is None or not steps:
            return
        names = sorted(self.layout.names())
        self._write_layout(None)
        for name in names[: steps - 1]:
            self.delete_topic(name, lost=lost)

    def delete_segment(self, name: str, *, lost: bool) -> None:
        """An operator lets a broker delete a segment, whether a layout names it or not."""
        if segment_of(name) is not None:
            self.delete_topic(name, lost=lost)

    def migrate(self) -> None:
        """Make the persistent topic a sealed segment of the new scalable topic."""
        if self.layout is None and TOPIC in self.topics:
            self.terminated.add(TOPIC)
            legacy = Piece(0, _LAST_HASH, is_active=False, legacy_topic=topic_of(TOPIC))
            self._write_layout(Layout({0: legacy, 1: Piece(0, _LAST_HASH)}, next_id=2))

    # operators

    def roll_back_layout(self, *, is_cached: bool) -> None:
        """An operator restores the layout of a moment ago; brokers may still have the newer one in their cache."""
        if self.layout is None or not self.earlier:
            return
        self._write_layout(self.earlier[-1], answered=self.layout if is_cached else None)
        for name in self.named() & self.created - self.topics.keys():
            path = managed_ledger_path(name)
            if not exists(self.tree, path):  # the operator restores its list later
                self.lost.setdefault(name, (self._existing(name), self.births(path)))

    def roll_back_list(self, name: str) -> None:
        """An operator restores a list that does not name the newest ledger; a broker that has it loaded still does."""
        topic, path = self.topics.get(name), managed_ledger_path(name)
        if topic is None or len(topic.ledgers) < 2 or not exists(self.tree, path):
            return
        older = [ledger_id for ledger_id in topic.ledgers[:-1] if exists(self.tree, path_of(ledger_id))]
        is_closed = self.unloaded.get(name) == self._state(name)
        if name in self.unloaded and not is_closed:
            return  # not modelled: a broker loaded it a moment ago, which no answer shows yet
        before = self.written.get(path, frozenset())
        self.tree.write(path, self._list(older, topic))
        self.written[path] = frozenset(older) - topic.given_up
        if is_closed:  # no broker remembers more
            topic.ledgers = older
            self.unloaded[name] = self._state(name)
        for ledger_id in before - self.written[path]:
            self.on_leak(ledger_id)  # an audit may take it for an orphan

    def restore_segment(self, name: str) -> None:
        """An operator restores a pruned segment from a backup: its place in the layout, then its list."""
        segment, path = segment_of(name), managed_ledger_path(name)
        layout = self.layout
        if segment is None or layout is None or name in self.topics or exists(self.tree, path):
            return
        if name not in layout.names():
            if segment.segment_id in layout.pieces or segment.segment_id >= layout.next_id:
                return
            piece = Piece(segment.first_hash, segment.last_hash, is_active=False)
            self._write_layout(layout.changed({**layout.pieces, segment.segment_id: piece}, layout.next_id))
        self.lost.pop(name, None)
        ids = sorted(self._existing(name))
        if ids:
            for ledger_id in ids:
                self.close(ledger_id)
            topic = self.topics[name] = Topic(ids)
            self.create(path, self._list(ids, topic), ids)
            self.unloaded[name] = self._state(name)

    def lose_metadata(self, name: str, *, loaded: bool) -> None:
        """An operator deletes the topic's znodes by hand."""
        path = managed_ledger_path(name)
        if segment_of(name) is not None and name in self.topics and exists(self.tree, path):
            self.lost[name] = set(self.written.get(path, ())), self.births(path)
        super().lose_metadata(name, loaded=loaded)
        self._forget_unneeded()

    # what changes for a segment

    def create_topic(self, name: str, *, stalls: bool) -> None:
        """Create the topic; a segment whose list was lost starts without the list's ledgers."""
        self.leak(self._lost_by(name))
        self.lost.pop(name, None)
        super().create_topic(name, stalls=stalls)

    def roll_over(self, name: str, *, stalls: bool) -> None:
        """Start another ledger, unless the topic is terminated."""
        if name not in self.terminated:
            super().roll_over(name, stalls=stalls)

    def delete_topic(self, name: str, *, lost: bool) -> None:
        """Delete the topic, which may be created again."""
        self.terminated.discard(name)
        super().delete_topic(name, lost=lost)

    def is_garbage(self, ledger_id: int) -> bool:
        """Return whether the service has to delete the ledger some time."""
        owner = owner_of(key_of(self.ledgers[ledger_id].request))
        if (
            owner.kind == "compacted"
            and owner.name not in self.named()
            and exists(self.tree, managed_ledger_path(owner.name))
        ):
            return False  # brokers have to know the topic, and of a segment that no layout names they know nothing
        return super().is_garbage(ledger_id) and not (owner.kind != "schema" and self._is_held(owner.name))

    def settle(self) -> None:
        """Unload every segment as well, because the service keeps what a loaded segment leaked."""
        super().settle()
        self._brokers_answer(None)
        for name in self.created & self.topics.keys():
            self.unload(name, lost=False)

    def _is_held(self, name: str) -> bool:
        """Return whether the service keeps all ledgers of a segment because of its layout."""
        segment = segment_of(name)
        if segment is None or self.layout is None:
            return False
        piece = self.layout.pieces.get(segment.segment_id)
        if piece is not None and (piece.legacy_topic or name != name_of(segment.segment_id, piece)):
            return True  # the layout has another segment with this id
        has_list = exists(self.tree, managed_ledger_path(name))
        return not has_list and (piece is not None or segment.segment_id >= self.layout.next_id)

    def named(self) -> set[str]:
        """Return the segments that the layout in ZooKeeper or in a broker's cache names."""
        return {name for layout in (self.layout, self.answered) if layout is not None for name in layout.names()}

    def _needed(self) -> set[str]:
        """Return the segments that are in use, and those that the next split or merge may take over."""
        waiting = {name for name in self.created if self.layout is not None and id_of(name) >= self.layout.next_id}
        return self.named() | waiting

    def _existing(self, name: str) -> set[int]:
        """Return the existing ledgers of a topic's data, in its list or not."""
        own = {ledger_id for ledger_id, ledger in self.ledgers.items() if key_of(ledger.request) == f"data:{name}"}
        return {ledger_id for ledger_id in own if exists(self.tree, path_of(ledger_id))}

    def _lost_by(self, name: str) -> set[int]:
        """Return the ledgers of a lost list, unless a broker that wrote a cursor has created an empty list since."""
        ids, births = self.lost.get(name, (set(), 0))
        return ids if self.births(managed_ledger_path(name)) == births else set()

    def _active(self) -> list[int]:
        pieces = self.layout.pieces if self.layout is not None else {}
        active = [number for number, piece in pieces.items() if piece.is_active]
        return sorted(active, key=lambda number: pieces[number].first_hash)

    def _replace(self, parents: Sequence[int], children: dict[int, Piece], steps: int, *, is_late: bool) -> None:
        assert self.layout is not None
        pieces = self.layout.pieces
        self._create_segments(children, steps)
        for number in parents[: max(0, steps - len(children))]:
            name = name_of(number, pieces[number])
            self.terminated.add(name)
            for ledger_id in self.topics[name].ledgers[-1:] if name in self.topics else ():
                self.close(ledger_id)
        if steps > len(parents) + len(children) and not is_late:
            sealed = {number: replace(pieces[number], is_active=False) for number in parents}
            next_id = max(children) + 1
            self._write_layout(self.layout.changed({**pieces, **sealed, **children}, next_id))

    def _create_segments(self, pieces: dict[int, Piece], steps: int) -> None:
        active = [(number, piece) for number, piece in pieces.items() if piece.is_active]
        for number, piece in active[: max(0, steps)]:
            name = name_of(number, piece)
            self.created.add(name)
            self.create_topic(name, stalls=False)

    def _write_layout(self, layout: Layout | None, *, answered: Layout | None = None) -> None:
        if self.layout is not None:
            self.earlier = [*self.earlier, self.layout][-3:]
        self.layout = layout
        if layout is None:
            self.earlier = []
            self.remove(LAYOUT_PATH)
        else:
            put(self.tree, LAYOUT_PATH, layout.data())
        self._brokers_answer(answered)

    def _brokers_answer(self, layout: Layout | None) -> None:
        """Let brokers answer with another layout than ZooKeeper's; None: with ZooKeeper's."""
        self.answered, self._answered_ms = layout, 0
        self._forget_unneeded()

    def _forget_unneeded(self) -> None:
        for name in self.lost.keys() - self._needed():  # nothing needs the ledgers of its lost list any more
            self.leak(self._lost_by(name))
            self.lost.pop(name)

    def _view_of(self, name: str, existing: Collection[str]) -> BrokerView:
        is_hidden = self.hidden is not None and self.hidden.name == name
        if segment_of(name) is None or name in self.silent or is_hidden:
            return self._view(name)
        is_closed = name in self.unloaded and exists(self.tree, managed_ledger_path(name))
        if name in self.topics and not is_closed:
            return HIDDEN
        if name in existing:
            return BrokerView(presence=Presence.PRESENT, is_loaded=False)
        return self._by_layout(name)

    def _by_layout(self, name: str) -> BrokerView:
        if name in self.silent:
            return BrokerView(presence=Presence.UNREADABLE, detail="503")
        layout = self.answered or self.layout
        answer = Answer(404, None, f"Scalable topic not found: topic://{SCALABLE}")
        if layout is not None:
            answer = Answer(200, json.loads(layout.data()), "")
        read = layout_in(SCALABLE, "broker", answer)
        segment = segment_of(name)
        assert segment is not None
        return read if isinstance(read, BrokerView) else view_of_segment(segment, read)
