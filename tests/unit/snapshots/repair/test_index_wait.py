"""A repair waits as long as the broker writes anything, and has the topic loaded again where it stops in between."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from streaming.clock import ManualClock
from streaming.errors import RefusedError, UnavailableError
from streaming.snapshots.repair.finish import FEW_SEGMENTS, LOADS, IndexWait
from udfs.formats.entry import Content
from udfs.formats.internal_stats import Position
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import Index, encode_index, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import BufferFacts
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import UndeliveredMessage

TOPIC = "persistent://t/ns/orders"
QUIET_SECONDS, STEP_MS = 20, 1_000
TWO = frozenset({(5, 1), (5, 9)})
LOADED = BufferFacts(state="Ready", snapshot_type="Segment", aborted=4, sealed=TWO, written=0)


def _index(*markers: Position, entry: int = 0, data: bytes | None = None) -> ReadValue:
    rows = [(number, (9, number), marker) for number, marker in enumerate(markers)]
    value = encode_index(Index(TOPIC, entries_of(rows), (6, 0), ids_of([]))) if data is None else data
    found = UndeliveredMessage(batch_index=-1, content=Content(key=TOPIC.encode(), payload=value, properties={}))
    return read_message(SnapshotKind.INDEX, "t/ns", (1, entry), found, lambda _version: SchemaOrigin.BROKERS)


@dataclass
class World:
    """A broker that has this to say at each look; the last one stays."""

    says: Sequence[tuple[BufferFacts | None, ReadValue | None]]
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000))
    looks: int = 0
    loads: int = 1

    def buffer(self) -> BufferFacts | None:
        return self.says[min(self.looks, len(self.says) - 1)][0]

    def index(self) -> ReadValue | None:
        self.looks += 1
        return self.says[min(self.looks, len(self.says)) - 1][1]

    def again(self) -> None:
        self.loads += 1

    def wait(self) -> tuple[str, int]:
        step: Callable[[float], None] = lambda _seconds: self.clock.advance(STEP_MS)  # noqa: E731
        return IndexWait(
            index=self.index,
            buffer=self.buffer,
            again=self.again,
            quiet_seconds=QUIET_SECONDS,
            clock=self.clock,
            sleep=step,
        ).wait()


def test_an_index_that_names_all_ends_the_wait_at_once() -> None:
    world = World([(LOADED, _index(*TWO))])
    assert (world.wait(), world.looks) == (("", 1), 1)


def test_an_error_that_passes_is_neither_silence_nor_an_end() -> None:
    world = World([(LOADED, None)] * 10 + [(LOADED, _index(*TWO))])
    real, fails = world.buffer, iter([True] * 40)

    def buffer() -> BufferFacts | None:
        if world.looks == 5 and next(fails, False):
            raise UnavailableError("503")
        return real()

    world.buffer = buffer  # type: ignore[method-assign]
    assert world.wait() == ("", 1)


def test_a_broker_that_never_answers_ends_the_wait() -> None:
    def buffer() -> BufferFacts | None:
        raise RefusedError("403")

    world = World([(LOADED, None)])
    world.buffer = buffer  # type: ignore[method-assign]
    with pytest.raises(RefusedError):
        world.wait()
    assert world.clock.now_ms() == 1_000 + 600_000


def test_silence_ends_with_another_load() -> None:
    world = World([(LOADED, None)] * 22 + [(LOADED, _index(*TWO))])
    assert (world.wait(), world.looks) == (("", 2), 23)
    assert world.clock.now_ms() == 1_000 + (QUIET_SECONDS + 1) * STEP_MS


@pytest.mark.parametrize("is_written", [True, False])
def test_whatever_changes_is_no_silence(is_written: bool) -> None:
    """It writes a segment, or an index that does not name all, every 19 seconds."""

    def said(look: int) -> tuple[BufferFacts, ReadValue]:
        change = look // 19
        return replace(LOADED, written=change * is_written), _index((5, 1), entry=change * (not is_written))

    world = World([*map(said, range(190)), (LOADED, _index(*TWO))])
    assert world.wait() == ("", 1)


def test_a_broker_that_changes_for_ever_is_given_up_after_ten_minutes() -> None:
    world = World([(replace(LOADED, written=look), None) for look in range(9_000)])
    lacks, loads = world.wait()
    assert (lacks, loads) == ("its broker has sealed 2 segments, and 2 of them are not in its index", LOADS)
    assert world.clock.now_ms() == 1_000 + LOADS * 600_000


@pytest.mark.parametrize("buffer", [None, replace(LOADED, state="Initializing")])
def test_a_topic_that_is_not_loaded_any_more_is_loaded_again(buffer: BufferFacts | None) -> None:
    world = World([(buffer, _index(*TWO))])
    assert world.wait() == ("its broker does not have it loaded any more", LOADS)
    assert world.loads == LOADS


def test_an_index_that_is_torn_names_nothing() -> None:
    world = World([(LOADED, _index(data=b"torn"))])
    assert world.wait() == ("its broker has sealed 2 segments, and 2 of them are not in its index", LOADS)


def _segments(count: int) -> Iterator[Position]:
    return ((5, entry) for entry in range(count))


def test_many_segments_are_not_tried_again() -> None:
    for count, loads in ((FEW_SEGMENTS, LOADS), (FEW_SEGMENTS + 1, 1)):
        world = World([(replace(LOADED, sealed=frozenset(_segments(count))), None)])
        assert (world.wait()[1], world.loads) == (loads, loads)
