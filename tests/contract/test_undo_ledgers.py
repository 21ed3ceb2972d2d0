"""An undo reports what bookies answer over HTTP about a ledger's entries; the metadata stay, whatever they answer."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from streaming.adapters.bookkeeper.bookies import HttpBookies
from streaming.adapters.memory.store import MemoryStore
from streaming.errors import UnavailableError
from streaming.undo.undo_report import NO_BOOKIE_READS, NOT_READ, Undone, UndoResult
from tests.builders import ROOT, exists, put
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from tests.unit.undo.test_restore_ledgers import World
from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

READ = "/api/v1/ledger/read/"
CONTROL = 900  # a ledger of our own request topic, with entries that certainly exist
OF_CONTROL = f"{READ}?ledger_id={CONTROL}&start_entry_id=0&end_entry_id=0"
GONE = CannedAnswer(500, b'{"error": "no such ledger"}')
THERE = CannedAnswer(200, json.dumps(dict.fromkeys(map(str, range(1000)), "entry")).encode())
ITS_BOOKIE = "127.0.0.1:3181"  # its name in the ledger's metadata


@pytest.fixture
def bookie() -> Iterator[HttpStub]:
    """The HTTP server of a bookie."""
    with http_stub() as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, bookie: HttpStub) -> World:
    """Ledger 5 was deleted. Its bookie and another bookie are registered; both read existing entries."""
    created = World(tmp_path)
    created.bookies = HttpBookies(created.store, ROOT)
    created.pulsar.store(f"{created.settings.topics.requests[0]}-partition-0", (CONTROL, 2))
    bookie.answer_with(OF_CONTROL, THERE)
    _register(created, ITS_BOOKIE, bookie)
    _register(created, "127.0.0.1:3182", bookie)
    return created


def _register(world: World, name: str, bookie: HttpStub) -> None:
    info = BookieServiceInfoFormat()
    at = urlsplit(bookie.url)
    info.endpoints.add(id="httpserver", port=at.port or 0, host=at.hostname or "", protocol="http")
    put(world.store.tree, f"{ROOT}/available/{name}", info.SerializeToString())


def _undo(world: World) -> UndoResult:
    (result,) = world.results()
    return result


def _bookies(timeout_seconds: float = 5) -> HttpBookies:
    return HttpBookies(MemoryStore(), ROOT, timeout_seconds)


def test_metadata_stay_although_no_bookie_reads_the_entries(world: World, bookie: HttpStub) -> None:
    """A bookie answers so, too, if it can't reach the bookie that has them: BookKeeper issue 4172."""
    bookie.answer_with(READ, GONE)
    result = _undo(world)
    assert (result.status, result.detail) == (Undone.UNREADABLE, NO_BOOKIE_READS)
    assert exists(world.store.tree, world.path)
    assert _undo(world).status is Undone.EXISTS


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([THERE], id="both entries"),
        pytest.param([GONE, THERE], id="one of them"),
        pytest.param([GONE, GONE, THERE], id="both, when they are read again: the bookie was busy"),
        pytest.param([*[GONE] * 4, THERE], id="both, at the second check: the bookie was busy for longer"),
    ],
)
def test_a_readable_ledger_stays(world: World, bookie: HttpStub, answers: list[CannedAnswer]) -> None:
    bookie.answer_with(READ, *answers)
    assert _undo(world).status is Undone.PUT_BACK
    assert exists(world.store.tree, world.path)


def test_a_ledger_that_an_absent_bookie_may_have_stays(world: World, bookie: HttpStub) -> None:
    bookie.answer_with(READ, GONE)
    world.store.tree.remove(f"{ROOT}/available/{ITS_BOOKIE}")
    result = _undo(world)
    assert result.status is Undone.UNREADABLE
    assert ITS_BOOKIE in result.detail
    assert exists(world.store.tree, world.path)


def test_nothing_is_removed_if_no_bookie_reads_ledgers_over_http(world: World, bookie: HttpStub) -> None:
    bookie.answer_with(READ, CannedAnswer(404))
    assert _undo(world).status is Undone.PUT_BACK
    assert exists(world.store.tree, world.path)


@pytest.mark.parametrize(
    "control",
    [
        pytest.param([GONE], id="it reads nothing at all: BookKeeper requires a password, for example"),
        pytest.param([CannedAnswer(200, b"{}")], id="it returns nothing"),
        pytest.param([CannedAnswer(404)], id="it has no such service"),
    ],
)
def test_a_bookie_that_can_not_read_control_entries_proves_nothing(
    world: World, bookie: HttpStub, control: list[CannedAnswer]
) -> None:
    bookie.answer_with(READ, GONE)
    bookie.answers[OF_CONTROL].clear()
    bookie.answer_with(OF_CONTROL, *control, GONE)
    result = _undo(world)
    assert result.status is Undone.PUT_BACK
    assert result.detail.endswith(NOT_READ)
    assert exists(world.store.tree, world.path)


@pytest.mark.parametrize(
    ("control", "answer"),
    [
        pytest.param([THERE, THERE], False, id="it reads all the time"),
        pytest.param([THERE, GONE], None, id="it broke meanwhile"),
        pytest.param([GONE, THERE], None, id="it recovered meanwhile"),
    ],
)
def test_a_bookie_must_read_control_entries_before_and_after(
    bookie: HttpStub, control: list[CannedAnswer], *, answer: bool | None
) -> None:
    bookie.answer_with(READ, GONE)
    bookie.answer_with(OF_CONTROL, *control)
    assert _bookies().readable([bookie.url], [(5, 0)], lambda: [(CONTROL, 0)]) == [answer]


def test_a_bookie_that_does_not_answer_is_waited_for_once_without_requests_to_brokers(bookie: HttpStub) -> None:
    def control() -> list[tuple[int, int]]:
        pytest.fail("a broker may wait for the same bookie")

    bookie.answer_with(READ, CannedAnswer(500, after_seconds=5))
    assert _bookies(0.2).readable([bookie.url], [(5, 0)], control) == [None]
    assert len(bookie.requests) == 1


def test_a_bookie_that_stops_answering_gets_no_requests_for_further_control_entries(bookie: HttpStub) -> None:
    bookie.answer_with(READ, GONE, CannedAnswer(500, after_seconds=5))
    control = [(ledger_id, 0) for ledger_id in range(CONTROL + 1, CONTROL + 9)]
    assert _bookies(0.2).readable([bookie.url], [(5, 0)], lambda: control) == [None]
    assert len(bookie.requests) == 3


def test_a_single_control_entry_is_enough(bookie: HttpStub) -> None:
    bookie.answer_with(READ, GONE)
    bookie.answer_with(OF_CONTROL, THERE)
    assert _bookies().readable([bookie.url], [(5, 0)], lambda: [(7, 0), (CONTROL, 0)]) == [False]


def test_the_answer_of_a_single_able_bookie_is_enough(world: World, bookie: HttpStub) -> None:
    bookie.answer_with(READ, GONE)
    with http_stub() as broken:
        broken.answer_with(READ, GONE)
        _register(world, "127.0.0.1:3180", broken)
        assert _undo(world).status is Undone.UNREADABLE
        assert broken.requests


@pytest.mark.parametrize("entries", [0, 1])
def test_without_a_control_entry_the_result_is_unknown(world: World, bookie: HttpStub, entries: int) -> None:
    """A ledger's last entry can't be read while the ledger is written, so one entry is too few."""
    bookie.answer_with(READ, GONE)
    world.pulsar.store(f"{world.settings.topics.requests[0]}-partition-0", (CONTROL, entries))
    assert _undo(world).detail.endswith(NOT_READ)
    assert exists(world.store.tree, world.path)


def test_metadata_stay_if_a_broker_does_not_report_our_ledgers(world: World, bookie: HttpStub) -> None:
    bookie.answer_with(READ, GONE)
    world.pulsar.faults.before(_away)
    assert _undo(world).detail.endswith(NOT_READ)
    assert exists(world.store.tree, world.path)


def test_metadata_that_this_run_did_not_create_stay(world: World, bookie: HttpStub) -> None:
    bookie.answer_with(READ, GONE)
    put(world.store.tree, world.path, world.data)
    assert _undo(world).status is Undone.EXISTS
    assert exists(world.store.tree, world.path)


def _away(operation: str, _asked: Sequence[str]) -> None:
    if operation == "internal_stats":
        raise UnavailableError("no broker answers")
