"""Copies are sent to RETRY and DLQ once, in a form that brokers store, and in the order of their chunks."""

import base64
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.config.load import load
from streaming.deletion.chunks.outbox import (
    MAX_CHUNK,
    Mark,
    _partition,
    _Publisher,
    chunk_of,
    refuse_outdated,
    sequence_id,
)
from streaming.deletion.service import LedgerDeletionService, bounds_of
from streaming.errors import ConfigError, FencedError, ReaperError, SafetyError, StopRequestedError, UnavailableError
from streaming.ports import Copy
from streaming.queries.delivery.completion import Extent
from streaming.state.receipts import ChunkSummary
from tests.services import EPOCH, service_of
from udfs import columns as c
from udfs.records import Outcome, Reason
from udfs.requests.retry import BASE64_KEY, COPY_ID, CUT_BYTES, CUT_FROM, MAX_SHOWN_BYTES, REAL_TOPIC, REASON
from udfs.units import MAX_CHUNK_ROWS, MAX_ROWS_PER_CHUNK

COPY = {(str(Outcome.RETRY), str(Reason.IN_USE)): 1}
AWAY = UnavailableError("broker away")
BROKEN = RuntimeError("Job 7 cancelled")


class World:
    """Receipts, broker and ZooKeeper in memory, with single failures by chunk."""

    def __init__(self, marks: tuple[str, ...] = (), chunks: tuple[int, ...] = ()) -> None:
        self.marks = list(marks)
        self.committed: dict[int, str] = dict.fromkeys(chunks, "an earlier run's")
        self.newest_chunk = max(chunks, default=0)
        self.table_id = "T"
        self.events: list[Any] = []
        self.fails_to_publish: dict[int, Exception] = {}
        self.loses_answer: dict[int, Exception] = {}
        self.is_mine = True
        self.counted: list[int] = []
        self.doubted: list[int] = []
        self.outcomes = COPY
        self.copies = {"RETRY": 1}
        self.looked_after: list[int] = []
        self.in_doubt = False
        self.synced = 0
        self.are_remembered: dict[str, int] = {}
        self.are_stored: dict[str, int] = {}
        self.asked: list[Any] = []
        self.left_out: list[dict[str, int]] = []
        self.epoch = EPOCH

    def append(self, rows: str, chunk: int) -> None:
        self.in_doubt = True
        assert chunk not in self.committed, "Delta would add nothing: these receipts would be lost"
        self.committed[chunk] = rows
        if chunk in self.loses_answer:
            raise self.loses_answer.pop(chunk)
        self.newest_chunk = chunk
        self.in_doubt = False

    def sync(self) -> None:
        self.synced = self.newest_chunk

    def catch_up(self) -> None:
        if self.in_doubt and self.newest_chunk + 1 in self.committed:
            self.newest_chunk += 1
        self.in_doubt = False

    def of_chunk(self, chunk: int) -> int:
        return chunk

    def summary(self, _chunk: int) -> Any:
        by_type: dict[tuple[str | None, str, str], int] = {
            ("LEDGER", outcome, reason): n for (outcome, reason), n in self.outcomes.items()
        }
        return ChunkSummary(
            by_type=by_type, copies=self.copies, deleted_bytes=0, has_refreshed=False, epochs=frozenset({self.epoch})
        )

    def deleted_by_owner(self, chunk: int) -> int:
        return chunk

    def count(self, deleted: int, *, is_doubtful: bool) -> None:
        self.counted.append(deleted)
        self.doubted += [deleted] if is_doubtful else []

    def started_ms(self, chunk: int) -> int:
        return 100_000_000 * chunk

    def remembered(self, table_id: str) -> dict[str, int]:
        assert table_id == self.table_id
        return self.are_remembered

    def stored(self, partitions: list[str], table_id: str, since_ms: int) -> dict[str, int]:
        self.asked.append((partitions, table_id, since_ms))
        return self.are_stored

    def send(self, chunk: int, table_id: str, stored: dict[str, int]) -> None:
        assert table_id == self.table_id
        self.left_out.append(stored)
        if chunk in self.fails_to_publish:
            raise self.fails_to_publish.pop(chunk)
        self.events.append(chunk)

    def mark(self, text: str) -> None:
        assert self.synced == self.newest_chunk, "a power loss could lose copies that count as published"
        self.marks.append(text)
        self.events.append(text)

    @property
    def published(self) -> list[int]:
        return [event for event in self.events if isinstance(event, int)]


def start(world: World) -> LedgerDeletionService:
    """Start the service in this world; a chunk's sweep is its commit."""

    def sweep(_query: str, _batch: int, rows: Any, chunk: int) -> None:
        service.gate.check_stop()
        world.append(rows, chunk)

    service = service_of(
        receipts=world,
        copies=world,
        coordination=SimpleNamespace(
            still_mine=lambda: world.is_mine,
            published=lambda: world.marks[-1] if world.marks else "",
            mark_published=world.mark,
        ),
        blast_radius=world,
        watch=SimpleNamespace(after=world.looked_after.append),
        sweep=sweep,
    )
    return service


def work(service: LedgerDeletionService, rows: Any) -> None:
    service._chunk("requests", 0, rows)


def test_a_mark_is_written_before_the_first_copy_and_after_the_last() -> None:
    world = World()
    service = start(world)
    service.outbox.publish_again()
    work(service, "a")
    work(service, "b")
    assert world.events == ["T:0:1", 1, "T:1", "T:1:2", 2, "T:2"]


def test_a_chunk_does_not_overtake_a_chunk_whose_publication_failed() -> None:
    world = World(("T:4",), (4,))
    service = start(world)
    service.outbox.publish_again()
    world.fails_to_publish[5] = BROKEN
    with pytest.raises(RuntimeError, match="cancelled"):
        work(service, "a")
    work(service, "b")
    assert world.published == [5, 6]
    assert world.counted == [5, 6]
    assert world.looked_after == [5, 6]


def test_as_long_as_a_chunk_is_not_published_no_other_is_committed() -> None:
    world = World()
    service = start(world)
    service.outbox.publish_again()
    for failure in (BROKEN, FencedError("another"), None):
        if failure:
            world.fails_to_publish[1] = failure
        with pytest.raises((RuntimeError, FencedError, StopRequestedError)):
            work(service, "a")
    assert list(world.committed) == [1]
    assert world.marks[-1] == "T:0:1"


def test_a_chunk_without_copies_is_marked_and_nothing_is_sent() -> None:
    world = World()
    world.copies = {}
    service = start(world)
    service.outbox.publish_again()
    work(service, "a")
    assert world.events == ["T:1"]
    assert world.counted == [1]


@pytest.mark.parametrize(
    ("outcome", "doubted"),
    [
        pytest.param(Outcome.DELETED, [], id="deleted"),
        pytest.param(Outcome.ALREADY_GONE, [1], id="gone, and a task that ran twice may have deleted it"),
    ],
)
def test_the_deletes_of_a_chunk_are_in_doubt_if_a_ledger_was_already_gone(outcome: Outcome, doubted: list[int]) -> None:
    world = World()
    world.outcomes = {(str(Outcome.RETRY), str(Reason.IN_USE)): 3, (str(outcome), "R"): 1}
    service = start(world)
    service.outbox.publish_again()
    work(service, "a")
    assert (world.counted, world.doubted) == ([1], doubted)


def test_a_chunk_before_the_start_has_read_the_published_copies_is_a_fault_of_this_program() -> None:
    service = start(World(("T:1",), (1,)))
    with pytest.raises(AssertionError, match="before publish_again"):
        _ = service.outbox.oldest_unfinished


def test_the_oldest_unfinished_chunk_follows_the_last_published_chunk() -> None:
    world = World(("T:4",), (4,))
    service = start(world)
    service.outbox.publish_again()
    assert service.outbox.oldest_unfinished == 0
    world.newest_chunk = 6
    assert service.outbox.oldest_unfinished == 5


def test_a_batch_without_messages_publishes_a_chunk_that_was_committed_and_not_published() -> None:
    world = World(("T:4",), (4,))
    service = start(world)
    service.outbox.publish_again()
    world.events.clear()
    world.committed[5], world.newest_chunk = "a query that failed after its commit", 5
    service.process_rows("requests", 0, cast("Any", None), Extent({}, 0))
    assert world.published == [5]
    assert service.outbox.oldest_unfinished == 0


def test_a_table_without_a_chunk_asks_no_partition_for_copies() -> None:
    world = World()
    world.are_remembered = {"RETRY-0": -1}
    start(world).outbox.publish_again()
    assert (world.asked, world.events) == ([], [])


def test_the_first_chunk_of_a_table_is_published_again() -> None:
    world = World(chunks=(1,))
    world.are_remembered = {"RETRY-0": -1, "RETRY-1": sequence_id(1, 0)}
    start(world).outbox.publish_again()
    assert world.asked == [(["RETRY-0"], "T", 100_000_000 - 3_600_000)]
    assert world.events == ["T:0:1", 1, "T:1"]


def test_an_outage_of_the_broker_is_waited_for() -> None:
    world = World()
    world.fails_to_publish[1] = AWAY
    service = start(world)
    service.outbox.publish_again()
    work(service, "a")
    assert world.published == [1]


class ForgetfulBroker(World):
    """A partition whose broker drops stored copies while it remembers the producer. One try sends five of ten."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        super().__init__()
        self.topic: list[int] = []
        self.failures = list(failures)
        self.memory = -1

    def forget(self) -> None:
        self.memory = -1

    def remembered(self, _table_id: str) -> dict[str, int]:
        return {"RETRY-0": self.memory}

    def stored(self, partitions: list[str], table_id: str, since_ms: int) -> dict[str, int]:
        self.asked.append((partitions, table_id, since_ms))
        return {partition: max(self.topic) for partition in partitions if self.topic}

    def send(self, chunk: int, _table_id: str, stored: dict[str, int]) -> None:
        for place in range(10):
            if place == 5 and self.failures:
                raise self.failures.pop(0)
            this = sequence_id(chunk, place)
            if this > max(stored.get("RETRY-0", 0), self.memory):
                self.topic.append(this)
                self.memory = this
        self.events.append(chunk)


def test_a_publication_that_outlives_the_brokers_memory_stores_each_copy_once() -> None:
    world = ForgetfulBroker([AWAY, AWAY])
    service = start(world)
    waits = iter((world.forget, world.forget))
    service.outbox.outages.log = lambda _waiting: next(waits)()
    service.outbox.publish_again()
    work(service, "a")
    work(service, "b")
    assert world.topic == [sequence_id(chunk, place) for chunk in (1, 2) for place in range(10)]
    assert world.asked == [(["RETRY-0"], "T", 100_000_000 - 3_600_000)] * 2


def test_so_does_one_that_broke_off_and_that_the_next_query_resumes_days_later() -> None:
    world = ForgetfulBroker([BROKEN])
    service = start(world)
    service.outbox.publish_again()
    with pytest.raises(RuntimeError, match="cancelled"):
        work(service, "a")
    world.forget()
    work(service, "b")
    assert world.topic == [sequence_id(chunk, place) for chunk in (1, 2) for place in range(10)]


def test_a_try_does_not_ask_where_no_copy_of_its_chunk_was_sent() -> None:
    world = ForgetfulBroker([])
    service = start(world)
    service.outbox.publish_again()
    for rows in ("a", "b"):
        world.forget()
        work(service, rows)
    assert world.asked == []


def test_a_replaced_run_does_not_take_the_producers_back() -> None:
    world = World()
    world.is_mine = False
    service = start(world)
    service.outbox.publish_again()
    with pytest.raises(FencedError):
        work(service, "a")
    assert world.events == []


def test_a_chunk_that_another_run_wrote_is_not_published_and_stops_this_one() -> None:
    world = World()
    service = start(world)
    service.outbox.publish_again()
    world.epoch = EPOCH + 1
    with pytest.raises(FencedError, match="chunk 1 of the receipts was written by another run"):
        work(service, "a")
    assert service.gate.stop.is_set()
    assert world.events == []


@pytest.mark.parametrize("failure", [pytest.param(AWAY, id="tried again"), pytest.param(BROKEN, id="breaks off")])
def test_a_commit_whose_answer_was_lost_counts(failure: Exception) -> None:
    world = World()
    world.loses_answer[1] = failure
    service = start(world)
    service.outbox.publish_again()
    if failure is AWAY:
        work(service, "a")
    else:
        with pytest.raises(RuntimeError):
            work(service, "a")
    work(service, "b")
    assert world.committed == {1: "a", 2: "b"}
    assert world.published == [1, 2]


@pytest.mark.parametrize(
    ("mark", "sent"),
    [
        pytest.param("T:7", [], id="all has gone out"),
        pytest.param("T:6", [7], id="all but the newest, in the form of older versions"),
        pytest.param("T:6:7", [7], id="begun"),
        pytest.param("T:4:5", [5, 6, 7], id="several, in order"),
        pytest.param("", [7], id="nothing known"),
        pytest.param("S:9", [7], id="another table's"),
        pytest.param("T:nonsense", [7], id="nonsense"),
    ],
)
def test_a_start_publishes_copies_that_may_not_have_been_published(mark: str, sent: list[int]) -> None:
    world = World((mark,), (1, 2, 3, 4, 5, 6, 7))
    for chunk in sent[:1]:
        world.fails_to_publish[chunk] = AWAY
    start(world).outbox.publish_again()
    assert world.published == sent
    assert world.marks[-1] == ("T:7" if sent else mark)


@pytest.mark.parametrize("mark", ["T:8", "T:7:8", "T:6:8"])
def test_receipts_that_know_less_than_was_published_stop_the_start(mark: str) -> None:
    world = World((mark,), (5, 6, 7))
    service = start(world)
    with pytest.raises(SafetyError, match=r"with chunk 7, and chunk 8 has been published.*Restore.*move state"):
        service.outbox.publish_again()
    assert service.gate.stop.is_set()
    assert world.events == []


@pytest.mark.parametrize("mark", ["T:6:7", "", "S:9"])
def test_copies_that_brokers_stored_and_no_longer_remember_are_found_and_left_out(mark: str) -> None:
    world = World((mark,), (5, 6, 7))
    world.are_remembered = {"RETRY-0": -1, "RETRY-1": sequence_id(6, 9), "DLQ-0": -1}
    world.are_stored = {"RETRY-0": sequence_id(7, 2)}
    start(world).outbox.publish_again()
    assert world.asked == [(["RETRY-0", "DLQ-0"], "T", 700_000_000 - 3_600_000)]
    assert world.left_out == [world.are_stored]


@pytest.mark.parametrize("mark", ["T:7", "T:6"])
def test_no_copies_are_searched_if_none_can_have_been_published_unnoticed(mark: str) -> None:
    world = World((mark,), (5, 6, 7))
    world.are_remembered = {"RETRY-0": -1}
    start(world).outbox.publish_again()
    assert world.asked == []


@pytest.mark.parametrize(
    ("remembered", "stored"),
    [
        pytest.param(sequence_id(8, 0), 0, id="the broker remembers them"),
        pytest.param(-1, sequence_id(8, 0), id="the topic holds them"),
    ],
)
def test_copies_of_chunks_without_receipts_stop_the_start(remembered: int, stored: int) -> None:
    world = World(("T:6:7",), (5, 6, 7))
    world.are_remembered = {"RETRY-0": remembered}
    world.are_stored = {"RETRY-0": stored}
    with pytest.raises(SafetyError, match="with chunk 7, and RETRY-0 has copies of chunk 8"):
        start(world).outbox.publish_again()
    assert world.events == []


def test_a_mark_is_read_as_it_was_written() -> None:
    for mark in (Mark("T", 4, 4), Mark("T", 4, 6), Mark("T", 0, 1)):
        assert Mark.parse(str(mark), "T") == mark


@pytest.mark.parametrize(
    ("text", "done", "begun"),
    [
        pytest.param("T:0", 0, 0, id="nothing yet"),
        pytest.param("T:7:3", 7, 7, id="started is never less than done"),
        pytest.param("T:12:13", 12, 13, id="several digits"),
    ],
)
def test_a_mark_contains_the_last_published_chunk(text: str, done: int, begun: int) -> None:
    assert Mark.parse(text, "T") == Mark("T", done, begun)


@pytest.mark.parametrize("text", ["", "T", "T:", "T:-1", "T:1:", "T:1:2:3", "S:1", "TT:1", " T:1", "T:1\n"])
def test_a_mark_of_another_table_is_ignored(text: str) -> None:
    assert Mark.parse(text, "T") is None


def test_receipts_may_end_with_the_chunk_that_was_started() -> None:
    Mark("T", 6, 7).check(7)
    refuse_outdated({"RETRY-0": sequence_id(7, 3), "DLQ": -1}, 7)
    with pytest.raises(SafetyError):
        Mark("T", 6, 7).check(6)
    with pytest.raises(SafetyError):
        refuse_outdated({"RETRY-0": sequence_id(7, 0)}, 6)


SETTINGS = load(None).pulsar
PUBLISHER = _Publisher(settings=SETTINGS, table_id="T", producer_prefix="p", stored={})
LARGEST_LONG = (1 << 63) - 1


def row_of(**given: Any) -> dict[str, Any]:
    """The columns of a receipt that a copy is created from."""
    return {
        c.CHUNK: 3,
        c.MESSAGE_KEY: b"k",
        c.PAYLOAD: b"p",
        c.MESSAGE_PROPERTIES: {"a": "b"},
        c.DELAY_MS: 7,
    } | given


@pytest.mark.parametrize(
    ("chunk", "place", "number"),
    [
        pytest.param(1, 0, 1 << 20, id="the first row of the first chunk"),
        pytest.param(1, MAX_ROWS_PER_CHUNK - 1, (1 << 21) - 1, id="the last row that a chunk may have"),
        pytest.param(2, 0, 1 << 21, id="the first row of the second chunk"),
        pytest.param(MAX_CHUNK, 0, LARGEST_LONG - (1 << 20) + 1, id="the last chunk"),
        pytest.param(MAX_CHUNK, MAX_ROWS_PER_CHUNK - 1, LARGEST_LONG, id="the last number of all"),
    ],
)
def test_a_sequence_id_contains_chunk_and_index_and_ascends_with_both(chunk: int, place: int, number: int) -> None:
    assert sequence_id(chunk, place) == number
    assert chunk_of(number) == chunk


@pytest.mark.parametrize(
    ("chunk", "place"),
    [
        pytest.param(0, 0, id="the Python client ignores sequence id 0"),
        pytest.param(-1, 0, id="no chunk"),
        pytest.param(MAX_CHUNK + 1, 0, id="beyond the last chunk"),
        pytest.param(1, -1, id="no place"),
        pytest.param(1, MAX_ROWS_PER_CHUNK, id="would be the next chunk's first"),
    ],
)
def test_an_index_that_would_give_another_rows_sequence_id_is_refused(chunk: int, place: int) -> None:
    with pytest.raises(ReaperError, match=rf"chunk {chunk}, row {place} does not fit.*lower service.chunk_rows"):
        sequence_id(chunk, place)


@pytest.mark.parametrize(
    "last_rows",
    [
        pytest.param([1_199_999], id="one source"),
        pytest.param([MAX_ROWS_PER_CHUNK - 1], id="one row too many for one chunk"),
        pytest.param([1_048_574], id="exactly one chunk"),
        pytest.param([104_857] * 10, id="ten sources"),
        pytest.param([2_500] * 1_000, id="a thousand sources"),
        pytest.param([5_000_000, 3, 700_000], id="unequal sources"),
    ],
)
def test_every_index_of_the_largest_chunk_fits_into_a_sequence_id(last_rows: list[int]) -> None:
    bounds = [0, *bounds_of(last_rows, MAX_CHUNK_ROWS), max(last_rows) + 1]
    for first, end in pairwise(bounds):
        rows = sum(max(0, min(end, last + 1) - first) for last in last_rows)
        assert chunk_of(sequence_id(1, rows - 1)) == 1


def test_the_configuration_refuses_larger_chunks(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[service]\nchunk_rows = {MAX_CHUNK_ROWS}\n")
    assert load(config).service.chunk_rows == MAX_CHUNK_ROWS == 838_860
    config.write_text(f"[service]\nchunk_rows = {MAX_CHUNK_ROWS + 1}\n")
    with pytest.raises(ConfigError, match=r"service\.chunk_rows"):
        load(config)


@pytest.mark.parametrize(("number", "name"), [(-1, "t"), (0, "t-partition-0"), (12, "t-partition-12")])
def test_a_topic_without_partitions_is_its_own_partition(number: int, name: str) -> None:
    assert _partition("t", number) == name


def test_stored_copies_are_not_sent_and_the_others_keep_their_indices() -> None:
    rows = [row_of(**{c.PAYLOAD: b"%d" % place, c.MESSAGE_PROPERTIES: None}) for place in range(4)]
    publisher = _Publisher(settings=SETTINGS, table_id="T", producer_prefix="p", stored={"RETRY-0": sequence_id(3, 1)})
    sent = [(copy.sequence_id, copy.payload, copy.properties) for copy in publisher._copies("RETRY-0", iter(rows))]
    assert sent == [(sequence_id(3, place), b"%d" % place, {COPY_ID: f"T/{sequence_id(3, place)}"}) for place in (2, 3)]
    assert len(list(publisher._copies("RETRY-1", iter(rows)))) == 4


def test_without_stored_copies_the_first_row_of_the_first_chunk_is_sent() -> None:
    (copy,) = PUBLISHER._copies("p", iter([row_of(**{c.CHUNK: 1})]))
    assert copy.sequence_id == 1 << 20


def test_a_copy_that_is_too_large_for_brokers_is_shortened() -> None:
    row = row_of(
        **{
            c.MESSAGE_KEY: b"k" * 300_000,
            c.PAYLOAD: bytes(8 << 20),
            c.MESSAGE_PROPERTIES: {"foreign": "x" * 5_000_000, REASON: "NOT_JSON", REAL_TOPIC: "y" * 5_000_000},
            c.DELAY_MS: 0,
        }
    )
    (copy,) = PUBLISHER._copies("p", iter([row]))
    assert copy.properties == {REASON: "NOT_JSON", CUT_FROM: str(8 << 20), COPY_ID: f"T/{copy.sequence_id}"}
    assert (copy.key, copy.payload) == (b"", bytes(CUT_BYTES))


@pytest.mark.parametrize("key", [b"\x00\xff", b"a\nb", "ä".encode(), b" k", b"k\x7f"])
def test_a_key_that_could_not_be_shown_becomes_base64(key: bytes) -> None:
    (copy,) = PUBLISHER._copies("p", iter([row_of(**{c.MESSAGE_KEY: key})]))
    assert (base64.b64decode(copy.key or b""), copy.properties[BASE64_KEY]) == (key, "true")
    (again,) = PUBLISHER._copies("p", iter([row_of(**{c.MESSAGE_KEY: copy.key})]))
    assert again.key == copy.key


@pytest.mark.parametrize("value", ["x" * MAX_SHOWN_BYTES, "\x01" * (MAX_SHOWN_BYTES // 6)])
def test_the_properties_of_a_delayed_copy_are_small_enough_to_be_shown(value: str) -> None:
    about = {"foreign": value, REAL_TOPIC: "t", REASON: "r"}
    publisher = _Publisher(settings=SETTINGS, table_id="T", producer_prefix="p", stored={}, retry_topic="RETRY")
    row = row_of(**{c.MESSAGE_PROPERTIES: about})
    (put_off,) = publisher._copies("RETRY-0", iter([row]), most_shown=publisher._most_shown("RETRY"))
    assert (put_off.key, set(put_off.properties)) == (b"", {REAL_TOPIC, REASON, COPY_ID})
    (dead,) = publisher._copies("DLQ", iter([row]), most_shown=publisher._most_shown("DLQ"))
    assert (dead.key, dead.properties.items() >= about.items()) == (b"k", True)


def test_a_copy_that_fits_goes_as_it_is() -> None:
    this = sequence_id(3, 0)
    properties = {"a": "b", COPY_ID: "of the message that it is a copy of"}
    (copy,) = PUBLISHER._copies("p", iter([row_of(**{c.PAYLOAD: bytes(1000), c.MESSAGE_PROPERTIES: properties})]))
    assert copy == Copy(
        sequence_id=this, key=b"k", payload=bytes(1000), properties={"a": "b", COPY_ID: f"T/{this}"}, delay_ms=7
    )


def test_a_copy_has_no_field_that_its_message_did_not_have() -> None:
    nothing = dict.fromkeys((c.MESSAGE_KEY, c.PAYLOAD, c.MESSAGE_PROPERTIES, c.DELAY_MS))
    (copy,) = PUBLISHER._copies("p", iter([row_of(**nothing)]))
    assert copy == Copy(
        sequence_id=sequence_id(3, 0), key=b"", payload=b"", properties={COPY_ID: f"T/{sequence_id(3, 0)}"}
    )
