"""Snapshots in parts under crashes behind any message, compaction, trims and restarts; and without each rule once.

The model: a topic gets aborts, loses its oldest ledgers, and its snapshot is written to a compacted topic by a writer
that may crash behind each message. Topics with similar names have single snapshots there. After each event somebody
recovers. Then
a) no aborted id whose marker's ledger lives is missing from what was recovered and what replaying finds;
b) once a snapshot was written whole, there always is one that says up to where it is complete;
c) what is recovered beyond the living ids were aborted ids, since trimmed; behind a whole write no stale part stays;
d) no topic's snapshot takes away what another topic has.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.aborts import Aborts, aborts_of, joined
from udfs.snapshots.codec import Snapshot, decode_snapshot, encode_snapshot
from udfs.snapshots.keys import Capacity, PartKey, part_key_of
from udfs.snapshots.snapshot_parts import PartMessage, Recovered, counting_of, pieces, recover, split, write

TOPIC = "persistent://t/ns/orders"
Row = tuple[int, int, int, int]
Write = Callable[["World"], Iterator[PartMessage]]
Recover = Callable[["World"], Recovered]


class BrokenError(AssertionError):
    """An invariant does not hold."""


@dataclass
class World:
    """A topic with its aborts, and the log of its snapshots' compacted topic.

    shared: key -> what compaction takes for the key. written: parts of the last whole write, as a writer remembers it.
    """

    shared: Callable[[str], str] = str
    capacity: Capacity = field(default_factory=lambda: Capacity(2, 10_000))
    rows: list[Row] = field(default_factory=list)
    first_ledger: int = 0
    ledger: int = 0
    log: list[PartMessage] = field(default_factory=list)
    was_whole: bool = False
    written: int = 0
    others: set[str] = field(default_factory=set)

    @property
    def ledgers(self) -> range:
        return range(self.first_ledger, self.ledger + 1)

    @property
    def living(self) -> list[Row]:
        return [row for row in self.rows if row[2] in self.ledgers]

    @property
    def end(self) -> Position:
        return (self.rows[-1][2], self.rows[-1][3]) if self.rows else BEFORE_ALL

    @property
    def latest(self) -> dict[str, bytes]:
        found = {self.shared(step.key): step for step in self.log}
        return {step.key: step.value for step in found.values() if step.value is not None}

    def abort(self, count: int) -> None:
        self.rows += [(0, len(self.rows) + each, self.ledger, len(self.rows) + each) for each in range(count)]

    def add_other(self, number: int) -> None:
        """A broker writes the single snapshot of a topic whose name is like one of the issue's keys."""
        key = f"{TOPIC}-{number}"
        self.others.add(key)
        self.log.append(PartMessage(key, encode_snapshot(Snapshot(key, (1, 1), aborts_of([])))))

    def compact(self) -> None:
        self.log = [PartMessage(key, value) for key, value in self.latest.items()]


def written(world: World) -> Iterator[PartMessage]:
    known = recovered(world)
    replayed = [row for row in world.living if row[2:] > known.max_read]
    ids = {row[:2] for row in known.aborts.tuples()}
    rows = sorted(known.aborts.tuples() + [row for row in replayed if row[:2] not in ids], key=lambda row: row[2:])
    return write(TOPIC, aborts_of(rows), world.end, world.capacity, tuple(world.latest))


def recovered(world: World) -> Recovered:
    return recover(world.latest, TOPIC, world.ledgers)


def part_by_part(world: World) -> Recovered:
    """The same with one part in memory at a time, and a look whether it is the same."""
    found = recovered(world)
    one_by_one = list(pieces(counting_of(world.latest, TOPIC), lambda key: world.latest[str(key)], world.ledgers))
    assert joined(one_by_one).tuples() == found.aborts.tuples()
    return found


def check(world: World, recovering: Recover) -> None:
    found = recovering(world)
    replayed = {row[:2] for row in world.living if row[2:] > found.max_read}
    recovered_ids = {row[:2] for row in found.aborts.tuples()}
    living = {row[:2] for row in world.living}
    if living - recovered_ids - replayed:
        raise BrokenError("a: an aborted id is missing")
    if world.was_whole and not found.generation:
        raise BrokenError("b: no snapshot is complete")
    if recovered_ids - {row[:2] for row in world.rows}:
        raise BrokenError("c: an id that never was aborted")
    if recovered_ids - living:
        raise BrokenError("c: a dead id was not dropped")
    if found.aborts.rows != len(recovered_ids):
        raise BrokenError("c: an id counts twice")
    if world.others - world.latest.keys():
        raise BrokenError("d: another topic's snapshot is gone")


Event = tuple[str, int]


def run(
    events: list[Event],
    writing: Write = written,
    recovering: Recover = recovered,
    shared: Callable[[str], str] = str,
) -> None:
    world = World(shared)
    for event, number in events:
        if event == "abort":
            world.abort(number)
        elif event == "roll":
            world.ledger += 1
        elif event == "trim":
            world.first_ledger = min(world.ledger, world.first_ledger + number)
        elif event == "capacity":
            world.capacity = Capacity(1 + number % 5, 10_000) if number % 2 else Capacity(1_000, 40 + number)
        elif event == "other":
            world.add_other(number)
        elif event == "compact":
            world.compact()
        else:
            _write(world, writing, recovering, None if event == "write" else number)
        check(world, recovering)


def _write(world: World, writing: Write, recovering: Recover, crash_behind: int | None) -> None:
    for sent, step in enumerate(writing(world)):
        if sent == crash_behind:
            return
        world.log.append(step)
        if sent % 3 == 2:
            world.compact()
        key = part_key_of(step.key)
        if step.value is not None and key is not None and key.number is None:
            world.was_whole = True
            world.written = sent
        check(world, recovering)
    parts = [part_key_of(key) for key in world.latest]
    numbers = sorted(key.number for key in parts if key and key.number)
    if numbers != list(range(1, len(numbers) + 1)) or len({key.generation for key in parts if key}) > 1:
        raise BrokenError("c: a stale part stays")
    if len(numbers) >= len(list(split(aborts_of(world.living), world.capacity))):
        raise BrokenError("c: more parts than ids")


EVENTS = st.one_of(
    st.tuples(st.just("abort"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["roll", "write", "compact"]), st.just(1)),
    st.tuples(st.just("trim"), st.integers(1, 2)),
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("capacity"), st.integers(0, 4)),
    st.tuples(st.just("other"), st.integers(1, 3)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_no_crash_at_any_message_loses_an_id(events: list[Event]) -> None:
    run(events, recovering=part_by_part)


def _drawn(seed: int, *, changes_capacity: bool) -> list[Event]:
    dice = random.Random(seed)
    kinds = ["abort", "abort", "roll", "write", "crash", "crash", "trim", "compact", "other"]
    kinds += ["capacity"] * changes_capacity
    return [(dice.choice(kinds), dice.randint(1, 5)) for _ in range(40)]


def test_the_same_draws_that_find_broken_rules_find_nothing_here() -> None:
    for seed in range(15):
        run(_drawn(seed, changes_capacity=True), recovering=part_by_part)


def _run_all(draws: list[list[Event]], writing: Write, recovering: Recover, shared: Callable[[str], str]) -> None:
    for events in draws:
        run(events, writing, recovering, shared)


def _end_first(world: World) -> Iterator[PartMessage]:
    steps = list(written(world))
    yield from sorted(steps, key=lambda step: "-end-" not in step.key)


def _newest_first(world: World) -> Iterator[PartMessage]:
    steps = list(written(world))
    values = [step for step in steps if step.value is not None]
    yield from [*values[-2::-1], values[-1], *(step for step in steps if step.value is None)]


def _tombstones_first(world: World) -> Iterator[PartMessage]:
    yield from sorted(written(world), key=lambda step: step.value is not None)


def _no_tombstones(world: World) -> Iterator[PartMessage]:
    yield from (step for step in written(world) if step.value is not None)


def _shrinking(world: World) -> Iterator[PartMessage]:
    """Parts of whatever size under the keys of one generation."""
    for step in written(world):
        key = part_key_of(step.key)
        assert key is not None
        yield PartMessage(str(PartKey(1, Capacity(1, 10_000), key.number, TOPIC)), step.value)


def _evenly(world: World) -> Iterator[PartMessage]:
    """As many parts as before, each as large as the others."""
    steps = list(written(world))
    values = [decode_snapshot(step.value) for step in steps if step.value is not None]
    aborts, size = (
        joined([value.aborts for value in values]),
        -(-sum(each.aborts.rows for each in values) // len(values)),
    )
    for number, step in enumerate(steps):
        if step.value is None:
            yield step
        else:
            part = replace(values[number], aborts=aborts.between(number * size, (number + 1) * size))
            yield PartMessage(step.key, encode_snapshot(part))


def _resumed(world: World) -> Iterator[PartMessage]:
    """Parts that are there already are taken for ours, as if the last writer had been about to write the same."""
    present = world.latest
    yield from (step for step in written(world) if step.value is None or "-end-" in step.key or step.key not in present)


def _tombstones_by_number(world: World) -> Iterator[PartMessage]:
    """Only those parts that the writer remembers, instead of the keys that are read."""
    for step in written(world):
        key = part_key_of(step.key)
        assert key is not None
        if step.value is not None or (key.number or 0) <= world.written:
            yield step


def _old_generations_first(world: World) -> Iterator[PartMessage]:
    steps = list(written(world))
    (generation,) = {key.generation for step in steps if step.value and (key := part_key_of(step.key))}
    old = [step for step in steps if (key := part_key_of(step.key)) and key.generation != generation]
    yield from [*old, *(step for step in steps if step not in old)]


def _part_is_complete_somewhere(world: World) -> Iterator[PartMessage]:
    for step in written(world):
        key = part_key_of(step.key)
        if step.value is None or key is None or key.number is None:
            yield step
        else:
            part = decode_snapshot(step.value)
            yield PartMessage(step.key, encode_snapshot(replace(part, max_read=world.end)))


def _highest_max_read(world: World) -> Recovered:
    found = recovered(world)
    values = [decode_snapshot(value) for key, value in world.latest.items() if part_key_of(key)]
    return replace(found, max_read=max([found.max_read, *(value.max_read for value in values)]))


def _end_alone(world: World) -> Recovered:
    found = recovered(world)
    ends = [value for key, value in world.latest.items() if "-end-" in key]
    aborts: Aborts = decode_snapshot(ends[-1]).aborts if ends else found.aborts
    return replace(found, aborts=aborts)


def _dead_ids_too(world: World) -> Recovered:
    return recover(world.latest, TOPIC, range(world.ledger + 1))


def _newest_generation(world: World) -> Recovered:
    """Parts without an `end` count, as if somebody had written one."""
    known = [key for key in map(part_key_of, world.latest) if key is not None]
    ends = {str(key._replace(number=None)) for key in known}
    made_up = dict.fromkeys(ends, encode_snapshot(Snapshot(TOPIC, world.end, aborts_of([]))))
    return recover(made_up | world.latest, TOPIC, world.ledgers)


def _first_of_each_key(world: World) -> Recovered:
    values: dict[str, bytes] = {}
    for step in world.log:
        if step.value is not None and step.key in world.latest:
            values.setdefault(step.key, step.value)
    return recover(values, TOPIC, world.ledgers)


def _doubles_kept(world: World) -> Recovered:
    found = recovered(world)
    keys = [str(key) for key in counting_of(world.latest, TOPIC)]
    aborts = joined([decode_snapshot(world.latest[key]).aborts for key in keys]) if keys else found.aborts
    living = [row for row in aborts.tuples() if row[2] in world.ledgers]
    return replace(found, aborts=aborts_of(living))


def _nothing_replayed(world: World) -> Recovered:
    return replace(recovered(world), max_read=world.end)


def _keys_of_the_issue(key: str) -> str:
    """`<topic>-1`, ..., `<topic>-end`."""
    part = part_key_of(key)
    return key if part is None else f"{part.topic}-{part.number or 'end'}"


@pytest.mark.parametrize(
    ("writing", "recovering"),
    [
        pytest.param(_end_first, recovered, id="end first"),
        pytest.param(_newest_first, recovered, id="newest part first"),
        pytest.param(_tombstones_first, recovered, id="tombstones before end"),
        pytest.param(_no_tombstones, recovered, id="stale parts never tombstoned"),
        pytest.param(_shrinking, recovered, id="capacity changes within a generation"),
        pytest.param(_evenly, recovered, id="parts not filled oldest first"),
        pytest.param(_resumed, recovered, id="resumed behind what is there"),
        pytest.param(_tombstones_by_number, recovered, id="keys by number instead of read"),
        pytest.param(_old_generations_first, recovered, id="old generation tombstoned before the new end"),
        pytest.param(written, _newest_generation, id="a generation without end counts"),
        pytest.param(written, _first_of_each_key, id="not the latest value of a key"),
        pytest.param(written, _doubles_kept, id="no set"),
        pytest.param(written, _nothing_replayed, id="no replay behind maxReadPosition"),
        pytest.param(_part_is_complete_somewhere, _highest_max_read, id="maxReadPosition of any part"),
        pytest.param(written, _end_alone, id="only what stands in end"),
        pytest.param(written, _dead_ids_too, id="ids of trimmed ledgers kept"),
    ],
)
def test_without_one_rule_some_draw_breaks(writing: Write, recovering: Recover) -> None:
    with_capacities = writing in (_shrinking, _evenly, _old_generations_first) or recovering is _newest_generation
    draws = [_drawn(seed, changes_capacity=with_capacities) for seed in range(400)]
    with pytest.raises(BrokenError):
        _run_all(draws, writing, recovering, str)


def test_with_the_keys_of_the_issue_topics_take_away_each_others_snapshots() -> None:
    draws = [_drawn(seed, changes_capacity=False) for seed in range(400)]
    with pytest.raises(BrokenError):
        _run_all(draws, written, recovered, _keys_of_the_issue)
