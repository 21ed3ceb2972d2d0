"""The port Bookies: what bookies register, and what they can read. The HTTP servers are stubs."""

import json
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from streaming.adapters.bookkeeper.bookies import HttpBookies
from streaming.adapters.memory.bookies import MemoryBookies
from streaming.adapters.memory.store import MemoryStore
from streaming.errors import UnavailableError
from streaming.ports import Bookies
from tests.builders import ROOT, put
from tests.contract.http_stub import CannedAnswer, http_stub
from udfs.formats.bookie_disk import BookieDisk
from udfs.formats.bookie_info import http_addresses
from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

Open = Callable[[Sequence[tuple[int, int]]], Bookies]
ID = "127.0.0.1:3181"
METRICS = b"bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES 700\nbookie_RECLAIMED_DELETION_SPACE_BYTES 30\n"
CONTROL = (900, 0)


@pytest.fixture(params=["memory", "http"])
def bookie_with(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Register a bookie that can read these entries, and report its disk."""
    if request.param == "memory":
        yield _in_memory
        return
    with http_stub() as stub:

        def serve(entries: Sequence[tuple[int, int]]) -> Bookies:
            at, store, info = urlsplit(stub.url), MemoryStore(), BookieServiceInfoFormat()
            info.endpoints.add(id="httpserver", port=at.port or 0, host=at.hostname or "", protocol="http")
            put(store.tree, f"{ROOT}/available/{ID}", info.SerializeToString())
            stub.answer_with("/metrics", CannedAnswer(200, METRICS))
            stub.answer_with("/api/v1/config/server_config", CannedAnswer(200, b'{"gcWaitTime": "900000"}'))
            stub.answer_with("/api/v1/ledger/read/", CannedAnswer(500))
            for ledger_id, entry_id in entries:
                path = f"?ledger_id={ledger_id}&start_entry_id={entry_id}&end_entry_id={entry_id}"
                stub.answer_with(
                    f"/api/v1/ledger/read/{path}", CannedAnswer(200, json.dumps({str(entry_id): "entry"}).encode())
                )
            return HttpBookies(store, ROOT)

        yield serve


def _in_memory(entries: Sequence[tuple[int, int]]) -> Bookies:
    bookies = MemoryBookies()
    bookies.addresses[ID] = "http://b1:8000"
    bookies.entries |= {*entries}
    bookies.disks["http://b1:8000"] = BookieDisk(
        url="http://b1:8000",
        entry_log_bytes=700,
        reclaimed_bytes=30,
        minor_threshold=0.0,
        major_threshold=0.0,
        gc_wait_seconds=900,
    )
    return bookies


def _refuse() -> Sequence[tuple[int, int]]:
    pytest.fail("control entries are read although every entry can be read")


def test_a_registered_bookie_has_an_id_and_an_address(bookie_with: Open) -> None:
    registered = bookie_with([]).registered()
    assert [*registered] == [ID]
    assert len(http_addresses(registered)) == 1


def test_an_entry_can_be_read_or_not_if_the_bookie_reads_a_control_entry(bookie_with: Open) -> None:
    bookies = bookie_with([(5, 0), CONTROL])
    urls = http_addresses(bookies.registered())
    assert bookies.readable(urls, [(5, 0), (5, 1)], lambda: [CONTROL]) == [True, False]


def test_a_bookie_that_reads_no_control_entry_proves_nothing(bookie_with: Open) -> None:
    bookies = bookie_with([(5, 0)])
    urls = http_addresses(bookies.registered())
    assert bookies.readable(urls, [(5, 0), (5, 1)], lambda: [CONTROL]) == [True, None]


def test_control_entries_are_not_requested_if_every_entry_can_be_read(bookie_with: Open) -> None:
    bookies = bookie_with([(5, 0)])
    assert bookies.readable(http_addresses(bookies.registered()), [(5, 0)], _refuse) == [True]


def test_without_a_bookie_it_is_unknown_whether_an_entry_exists(bookie_with: Open) -> None:
    assert bookie_with([CONTROL]).readable([], [(5, 0)], _refuse) == [None]


def test_a_bookie_reports_its_disk(bookie_with: Open) -> None:
    bookies = bookie_with([])
    (url,) = http_addresses(bookies.registered())
    disk = bookies.disk(url)
    assert (disk.url, disk.entry_log_bytes, disk.reclaimed_bytes, disk.gc_wait_seconds) == (url, 700, 30, 900)


def test_a_bookie_that_does_not_answer_is_unavailable_and_reads_nothing(bookie_with: Open) -> None:
    bookies, nowhere = bookie_with([(5, 0)]), "http://127.0.0.1:1"
    with pytest.raises(UnavailableError, match="bookie"):
        bookies.disk(nowhere)
    assert bookies.readable([nowhere], [(5, 0)], _refuse) == [None]
