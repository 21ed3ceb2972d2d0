"""What is committed is published, in the order of its chunks, whatever breaks off in between."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.adapters.pulsar.publish import Copy
from streaming.config.load import load
from streaming.deletion import service as module
from streaming.deletion.outbox import Mark, _Publisher, sequence_id
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import FencedError, SafetyError, StopRequestedError, UnavailableError
from tests.services import service_of
from udfs import columns as c
from udfs.records import Outcome, Reason
from udfs.retry import COPY_ID, CUT_BYTES, CUT_FROM, REAL_TOPIC, REASON

COPY = {(Outcome.RETRY, Reason.IN_USE): 1}
AWAY = UnavailableError("broker away")
BROKEN = RuntimeError("Job 7 cancelled")
SETTINGS = load(None).pulsar
PUBLISHER = _Publisher(SETTINGS, "T", "p", {})


class World:
    """Receipts, broker and ZooKeeper in memory; what goes wrong next is said by chunk, once."""

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
        self.looked_after: list[int] = []
        self.in_doubt = False
        self.synced = 0
        self.remembered: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.asked: list[Any] = []
        self.left_out: list[dict[str, int]] = []

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
        return SimpleNamespace(copies={"RETRY": 1}, total=1, outcomes=COPY, has_refreshed=False, epochs={1})

    def deleted_by_owner(self, chunk: int) -> int:
        return chunk

    def begun_ms(self, chunk: int) -> int:
        return 100_000_000 * chunk

    def look(self, _settings: Any, partitions: list[str], table_id: str, since_ms: int) -> dict[str, int]:
        self.asked.append((partitions, table_id, since_ms))
        return self.stored

    def publish(self, chunk: int, _settings: Any, table_id: str, _prefix: str, stored: dict[str, int]) -> None:
        assert table_id == self.table_id
        self.left_out.append(stored)
        if chunk in self.fails_to_publish:
            raise self.fails_to_publish.pop(chunk)
        self.events.append(chunk)

    def mark(self, text: str) -> None:
        assert self.synced == self.newest_chunk, "a power loss could take what is said to be published"
        self.marks.append(text)
        self.events.append(text)

    @property
    def published(self) -> list[int]:
        return [event for event in self.events if isinstance(event, int)]


Start = Callable[[World], LedgerDeletionService]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """The service over such a world; a chunk's sweep is its commit."""
    monkeypatch.setattr(module, "_OUTAGE_WAITS_S", (0,))

    def make(world: World) -> LedgerDeletionService:
        monkeypatch.setattr(module, "publish_copies", world.publish)
        monkeypatch.setattr(module, "remembered_copies", lambda *_: world.remembered)
        monkeypatch.setattr(module, "stored_copies", world.look)

        def sweep(self: LedgerDeletionService, _query: str, _batch: int, rows: Any, _total: int, chunk: int) -> None:
            self._check_stop()
            world.append(rows, chunk)

        monkeypatch.setattr(LedgerDeletionService, "_sweep", sweep)
        return service_of(
            LedgerDeletionService,
            identity=SimpleNamespace(
                rules=SimpleNamespace(epoch=("/epoch", 1)), retry_partitions=1, dead_letter_partitions=1
            ),
            guards=SimpleNamespace(
                still_mine=lambda: world.is_mine,
                published=lambda: world.marks[-1] if world.marks else "",
                mark_published=world.mark,
            ),
            blast_radius=SimpleNamespace(count=lambda deleted, **_: world.counted.append(deleted)),
            receipts=world,
            watch=SimpleNamespace(after=world.looked_after.append),
        )

    return make


def work(service: LedgerDeletionService, rows: Any) -> None:
    service._chunk("requests", 0, rows, 1)


def test_a_mark_stands_before_the_first_copy_and_after_the_last(
    start: Start,
) -> None:
    world = World()
    service = start(world)
    service.publish_again()
    work(service, "a")
    work(service, "b")
    assert world.events == ["T:0:1", 1, "T:1", "T:1:2", 2, "T:2"]


def test_a_chunk_does_not_overtake_one_whose_publication_broke_off(
    start: Start,
) -> None:
    world = World(("T:4",), (4,))
    service = start(world)
    service.publish_again()
    world.fails_to_publish[5] = BROKEN
    with pytest.raises(RuntimeError, match="cancelled"):
        work(service, "a")
    work(service, "b")
    assert world.published == [5, 6]
    assert world.counted == [5, 6]
    assert world.looked_after == [5, 6]


def test_as_long_as_a_chunk_is_not_published_no_other_is_committed(
    start: Start,
) -> None:
    world = World()
    service = start(world)
    service.publish_again()
    for failure in (BROKEN, FencedError("another"), None):
        if failure:
            world.fails_to_publish[1] = failure
        with pytest.raises((RuntimeError, FencedError, StopRequestedError)):
            work(service, "a")
    assert list(world.committed) == [1]
    assert world.marks[-1] == "T:0:1"


def test_an_outage_of_the_broker_is_waited_for(start: Start) -> None:
    world = World()
    world.fails_to_publish[1] = AWAY
    service = start(world)
    service.publish_again()
    work(service, "a")
    assert world.published == [1]


def test_who_was_replaced_does_not_take_the_producers_back(start: Start) -> None:
    world = World()
    world.is_mine = False
    service = start(world)
    service.publish_again()
    with pytest.raises(FencedError):
        work(service, "a")
    assert world.events == []


@pytest.mark.parametrize("failure", [pytest.param(AWAY, id="tried again"), pytest.param(BROKEN, id="breaks off")])
def test_a_commit_whose_answer_was_lost_counts(start: Start, failure: Exception) -> None:
    world = World()
    world.loses_answer[1] = failure
    service = start(world)
    service.publish_again()
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
        pytest.param("T:6", [7], id="all but the newest, as older versions say it"),
        pytest.param("T:6:7", [7], id="begun"),
        pytest.param("T:4:5", [5, 6, 7], id="several, in order"),
        pytest.param("", [7], id="nothing known"),
        pytest.param("S:9", [7], id="another table's"),
        pytest.param("T:nonsense", [7], id="nonsense"),
    ],
)
def test_a_start_publishes_what_is_not_known_to_have_gone_out(start: Start, mark: str, sent: list[int]) -> None:
    world = World((mark,), (1, 2, 3, 4, 5, 6, 7))
    for chunk in sent[:1]:
        world.fails_to_publish[chunk] = AWAY
    start(world).publish_again()
    assert world.published == sent
    assert world.marks[-1] == ("T:7" if sent else mark)


@pytest.mark.parametrize("mark", ["T:8", "T:7:8", "T:6:8"])
def test_receipts_that_know_less_than_was_published_stop_the_start(start: Start, mark: str) -> None:
    world = World((mark,), (5, 6, 7))
    service = start(world)
    with pytest.raises(SafetyError, match=r"with chunk 7, and chunk 8 has been published.*Restore.*move state"):
        service.publish_again()
    assert service.stop.is_set()
    assert world.events == []


@pytest.mark.parametrize("mark", ["T:6:7", "", "S:9"])
def test_what_brokers_have_and_have_forgotten_is_looked_for_and_left_out(start: Start, mark: str) -> None:
    world = World((mark,), (5, 6, 7))
    world.remembered = {"RETRY-0": -1, "RETRY-1": sequence_id(6, 9), "DLQ-0": -1}
    world.stored = {"RETRY-0": sequence_id(7, 2)}
    start(world).publish_again()
    assert world.asked == [(["RETRY-0", "DLQ-0"], "T", 700_000_000 - 3_600_000)]
    assert world.left_out == [world.stored]


@pytest.mark.parametrize("mark", ["T:7", "T:6"])
def test_where_no_copy_can_have_gone_out_unknown_none_is_looked_for(start: Start, mark: str) -> None:
    world = World((mark,), (5, 6, 7))
    world.remembered = {"RETRY-0": -1}
    start(world).publish_again()
    assert world.asked == []


@pytest.mark.parametrize(
    ("remembered", "stored"),
    [
        pytest.param(sequence_id(8, 0), 0, id="the broker remembers them"),
        pytest.param(-1, sequence_id(8, 0), id="the topic holds them"),
    ],
)
def test_copies_of_chunks_that_the_receipts_lack_stop_the_start(start: Start, remembered: int, stored: int) -> None:
    world = World(("T:6:7",), (5, 6, 7))
    world.remembered = {"RETRY-0": remembered}
    world.stored = {"RETRY-0": stored}
    with pytest.raises(SafetyError, match="with chunk 7, and RETRY-0 has copies of chunk 8"):
        start(world).publish_again()
    assert world.events == []


def test_what_is_stored_is_not_sent_and_the_others_keep_their_places() -> None:
    rows = [
        {c.CHUNK: 3, c.MESSAGE_KEY: b"", c.PAYLOAD: b"%d" % place, c.MESSAGE_PROPERTIES: None, c.DELAY_MS: 0}
        for place in range(4)
    ]
    publisher = _Publisher(SETTINGS, "T", "p", {"RETRY-0": sequence_id(3, 1)})
    sent = [(copy.sequence_id, copy.payload, copy.properties) for copy in publisher._copies("RETRY-0", iter(rows))]
    assert sent == [(sequence_id(3, place), b"%d" % place, {COPY_ID: f"T/{sequence_id(3, place)}"}) for place in (2, 3)]
    assert len(list(publisher._copies("RETRY-1", iter(rows)))) == 4


def test_a_copy_that_no_broker_would_store_is_made_to_fit() -> None:
    row = {
        c.CHUNK: 3,
        c.MESSAGE_KEY: b"k" * 300_000,
        c.PAYLOAD: bytes(8 << 20),
        c.MESSAGE_PROPERTIES: {"foreign": "x" * 5_000_000, REASON: "NOT_JSON", REAL_TOPIC: "y" * 5_000_000},
        c.DELAY_MS: 0,
    }
    (copy,) = PUBLISHER._copies("p", iter([row]))
    assert copy.properties == {REASON: "NOT_JSON", CUT_FROM: str(8 << 20), COPY_ID: f"T/{copy.sequence_id}"}
    assert (copy.key, copy.payload) == (b"", bytes(CUT_BYTES))


def test_a_copy_that_fits_goes_as_it_is() -> None:
    this = sequence_id(3, 0)
    properties = {"a": "b", COPY_ID: "of the message that it is a copy of"}
    row = {c.CHUNK: 3, c.MESSAGE_KEY: b"k", c.PAYLOAD: bytes(1 << 20), c.MESSAGE_PROPERTIES: properties, c.DELAY_MS: 7}
    (copy,) = PUBLISHER._copies("p", iter([row]))
    assert copy == Copy(this, b"k", bytes(1 << 20), {"a": "b", COPY_ID: f"T/{this}"}, 7)


def test_a_mark_is_read_as_it_was_written() -> None:
    for mark in (Mark("T", 4, 4), Mark("T", 4, 6), Mark("T", 0, 1)):
        assert Mark.parse(str(mark), "T") == mark
