"""Batches that the fallback processes: their entries, their batch ids, and their commits."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.pulsar.readers.admin_entries import NOTHING_SHOWN, WITHHELD
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.deletion.fallback import Fallback
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import SafetyError, UnavailableError
from streaming.queries.life import FallbackResult
from streaming.queries.names import checkpoint_of, queries_of
from udfs.entry_ranges import EntrySpan
from udfs.proto.message_id_pb2 import MessageIdData


class Service:
    """Records its arguments, and fails with `failure`."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.noted: list[Any] = []
        self.failure: Exception | None = None

    def restart(self, query: str) -> None:
        self.said.append(("restart", query))

    def describe(self, *_: object) -> None: ...

    def note(self, spans: Any) -> None:
        self.noted.append(spans)

    def take(self, query: str, rows: Any, batch_id: int) -> None:
        self.said.append((query, batch_id, rows))
        if self.failure is not None:
            raise self.failure


class Rows(dict[str, list[EntrySpan]]):
    """A fake DataFrame."""

    def unpersist(self) -> None: ...


class World:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.query = queries_of(settings)[0]
        self.checkpoint = Path(checkpoint_of(settings, self.query.name))
        self.partition = f"{self.query.topics[0]}-partition-0"
        self.pulsar, self.service = MemoryPulsar(), Service()
        self.reports_last_message, self.shows, self.now_s = True, True, 0.0
        self.why = NOTHING_SHOWN
        self.fallback = Fallback(
            settings=settings,
            admin=self.pulsar,
            service=cast("LedgerDeletionService", self.service),
            read=self._read,
            reports_last_message=lambda _partition: self.reports_last_message,
            monotonic=lambda: self.now_s,
        )

    def _read(self, _query: str, spans: Any, /, *, gives_up: bool = False) -> Any:
        if not self.shows and not gives_up:
            raise UnavailableError(f"{self.partition}: {self.why}")
        return Rows({partition: list(each) for partition, each in spans.items()})

    def begin(self, number: int, ledger: int, entry: int, *, committed: bool) -> None:
        for folder in ("offsets", "commits"):
            (self.checkpoint / folder).mkdir(parents=True, exist_ok=True)
        written = MessageIdData(ledgerId=ledger, entryId=entry).SerializeToString()
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps({self.partition: [*written]})}")
        if committed:
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def rescue(self) -> tuple[FallbackResult, list[tuple[Any, ...]]]:
        self.service.said.clear()
        return self.fallback(self.query), self.service.said[1:]

    @property
    def committed(self) -> list[str]:
        folder = self.checkpoint / "commits"
        return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    file = tmp_path / "config.toml"
    file.write_text(f'[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return World(load(file))


def test_the_started_batch_is_processed_and_committed(world: World) -> None:
    world.pulsar.store(world.partition, (5, 4), (6, 3))
    world.begin(7, 5, 1, committed=True)
    world.begin(8, 6, 0, committed=False)
    rescued, given = world.rescue()
    assert rescued == FallbackResult(has_news=True)
    assert given == [("requests", 8, {world.partition: [EntrySpan(5, 2, 3), EntrySpan(6, 0, 0)]})]
    assert world.committed == ["7", "8"]
    assert world.service.said[0] == ("restart", "requests")


def test_nothing_is_committed_where_working_it_off_fails(world: World) -> None:
    world.pulsar.store(world.partition, (5, 4))
    world.begin(0, 5, 3, committed=False)
    world.service.failure = UnavailableError("the disk is away")
    with pytest.raises(UnavailableError):
        world.rescue()
    assert world.committed == []
    assert world.service.noted == [], "it is noted as processed only after it has its receipts"
    world.service.failure = None
    assert world.rescue()[1] == [("requests", 0, {world.partition: [EntrySpan(5, 0, 3)]})]
    assert world.committed == ["0"]
    assert world.service.noted == [{world.partition: [EntrySpan(5, 0, 3)]}]


@pytest.mark.parametrize("why", [NOTHING_SHOWN, f"{WITHHELD} 503"])
def test_entries_that_only_time_can_prove_lost_are_given_up_after_ten_minutes_and_not_before(
    world: World, why: str
) -> None:
    world.why = why
    world.pulsar.store(world.partition, (5, 4))
    world.begin(0, 5, 3, committed=False)
    world.shows = False
    for world.now_s in (100.0, 400.0, 699.0):
        with pytest.raises(UnavailableError):
            world.rescue()
    world.now_s = 700.0
    world.rescue()
    assert world.committed == ["0"]


def test_an_outage_of_another_kind_restarts_that_time(world: World) -> None:
    world.pulsar.store(world.partition, (5, 4))
    world.begin(0, 5, 3, committed=False)
    world.shows = False
    with pytest.raises(UnavailableError):
        world.rescue()
    world.shows, world.service.failure = True, UnavailableError("the disk is away")
    with pytest.raises(UnavailableError):
        world.rescue()
    world.shows, world.now_s = False, 900.0
    with pytest.raises(UnavailableError, match=NOTHING_SHOWN):
        world.rescue()


def test_a_batch_whose_entries_are_all_deleted_is_committed_without_work(world: World) -> None:
    world.pulsar.store(world.partition, (9, 0))
    world.begin(0, 5, 3, committed=False)
    assert world.rescue() == (FallbackResult(has_news=True), [])
    assert world.committed == ["0"]


def test_without_a_started_batch_waiting_requests_are_processed_once_and_nothing_is_committed(world: World) -> None:
    world.pulsar.store(world.partition, (5, 4))
    world.begin(3, 5, 1, committed=True)
    world.reports_last_message = False
    reached = {world.partition: (5, 3)}
    assert world.rescue() == (
        FallbackResult(has_news=True, may_start=False, reached=reached),
        [("requests", 4, {world.partition: [EntrySpan(5, 2, 3)]})],
    )
    assert world.rescue() == (FallbackResult(has_news=False, may_start=False, reached=reached), [])
    world.pulsar.store(world.partition, (5, 5))
    world.reports_last_message = True
    assert world.rescue() == (
        FallbackResult(has_news=True, may_start=True, reached={world.partition: (5, 4)}),
        [("requests", 4, {world.partition: [EntrySpan(5, 4, 4)]})],
    )
    assert world.committed == ["3"]


def test_before_the_first_batch_everything_is_processed(world: World) -> None:
    world.pulsar.store(world.partition, (5, 2))
    assert world.rescue()[1] == [("requests", 0, {world.partition: [EntrySpan(5, 0, 1)]})]


def test_an_empty_topic_has_no_news(world: World) -> None:
    world.pulsar.store(world.partition, (5, 0))
    assert world.rescue() == (FallbackResult(has_news=False), [])


@pytest.mark.parametrize("is_committed", [False, True])
def test_nothing_of_another_querys_topic_is_read_or_committed(world: World, is_committed: bool) -> None:
    world.partition = "persistent://rival/reaper/d-partition-0"
    world.pulsar.store(world.partition, (5, 4))
    world.begin(0, 5, 3, committed=is_committed)
    committed = world.committed
    with pytest.raises(SafetyError, match="has read persistent://rival/reaper/d, which query requests does not read"):
        world.rescue()
    assert world.service.said == []
    assert world.committed == committed
