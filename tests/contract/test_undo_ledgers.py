"""An undo that comes too late takes back what it made, and only that, and only where no bookie can have the entries."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.undo.ledgers import Result, Undone, UndoSelection, undo
from tests.builders import ROOT, exists, put
from tests.contract.http_stub import HttpStub, Told, http_stub
from tests.unit.undo.test_ledgers import World
from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

READ = "/api/v1/ledger/read/"
GONE = Told(500, b'{"error": "no such ledger"}')
THERE = Told(200, json.dumps(dict.fromkeys(map(str, range(1000)), "entry")).encode())
ITS_BOOKIE = "127.0.0.1:3181"  # as the ledger's metadata names it


@pytest.fixture
def bookie() -> Iterator[HttpStub]:
    """The HTTP server of a bookie."""
    with http_stub() as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, bookie: HttpStub) -> World:
    """Ledger 5 was deleted. Its bookie is registered, and another one."""
    made = World(tmp_path)
    _register(made, ITS_BOOKIE, bookie)
    _register(made, "127.0.0.1:3182", bookie)
    return made


def _register(world: World, name: str, bookie: HttpStub) -> None:
    info = BookieServiceInfoFormat()
    at = urlsplit(bookie.url)
    info.endpoints.add(id="httpserver", port=at.port or 0, host=at.hostname or "", protocol="http")
    put(world.store.tree, f"{ROOT}/available/{name}", info.SerializeToString())


def _undo(world: World) -> Result:
    (result,) = undo(world.settings, world.store, MemoryPulsar(), UndoSelection(ledger_id=5)).results
    return result


def test_an_undo_that_comes_too_late_leaves_nothing_behind_and_may_be_repeated(world: World, bookie: HttpStub) -> None:
    bookie.tell(READ, GONE)
    for _again in range(2):
        result = _undo(world)
        assert result.status is Undone.TOO_LATE
        assert "its metadata was taken away again" in result.detail
        assert not exists(world.store.tree, world.path)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([THERE], id="both entries"),
        pytest.param([GONE, THERE], id="one of them"),
        pytest.param([GONE, GONE, THERE], id="both, at the second look: the bookie was busy"),
    ],
)
def test_what_can_be_read_stays(world: World, bookie: HttpStub, answers: list[Told]) -> None:
    bookie.tell(READ, *answers)
    assert _undo(world).status is Undone.PUT_BACK
    assert exists(world.store.tree, world.path)


def test_what_a_bookie_that_is_away_may_still_hold_stays(world: World, bookie: HttpStub) -> None:
    bookie.tell(READ, GONE)
    world.store.tree.remove(f"{ROOT}/available/{ITS_BOOKIE}")
    result = _undo(world)
    assert result.status is Undone.UNREADABLE
    assert ITS_BOOKIE in result.detail
    assert exists(world.store.tree, world.path)


def test_nothing_is_taken_back_where_no_bookie_reads_ledgers_by_http(world: World, bookie: HttpStub) -> None:
    bookie.tell(READ, Told(404))
    assert _undo(world).status is Undone.PUT_BACK
    assert exists(world.store.tree, world.path)


def test_metadata_that_somebody_changed_meanwhile_stay(world: World, bookie: HttpStub) -> None:
    bookie.tell(READ, GONE)
    world.store.faults.before(lambda operation, _: _change(world) if operation == "delete_guarded" else None)
    result = _undo(world)
    assert result.status is Undone.TOO_LATE
    assert "could not be taken away again (CHANGED)" in result.detail
    assert world.store.tree.read(world.path).data == b"another's"


def test_metadata_that_somebody_made_anew_meanwhile_stay(world: World, bookie: HttpStub) -> None:
    """With the same version, since each begins with 0."""
    bookie.tell(READ, GONE)

    def make_anew(operation: str, paths: Sequence[str]) -> None:
        if operation == "read_many" and list(paths) == [world.path] and bookie.asked:
            world.store.tree.remove(world.path)
            put(world.store.tree, world.path, b"another's")

    world.store.faults.before(make_anew)
    assert "somebody has changed its metadata" in _undo(world).detail
    assert exists(world.store.tree, world.path)


def test_metadata_that_this_run_did_not_make_stay(world: World, bookie: HttpStub) -> None:
    bookie.tell(READ, GONE)
    put(world.store.tree, world.path, world.data)
    assert _undo(world).status is Undone.EXISTS
    assert exists(world.store.tree, world.path)


def _change(world: World) -> None:
    world.store.tree.write(world.path, b"another's", -1)
