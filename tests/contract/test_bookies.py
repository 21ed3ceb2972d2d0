"""The port Bookies: what bookies register, and what they can read. The HTTP servers are stubs."""

import json
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from streaming.adapters.bookkeeper.bookies import HttpBookies
from streaming.adapters.memory.bookies import MemoryBookies
from streaming.adapters.memory.store import MemoryStore
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import Bookies, PlacedEntry
from tests.builders import ROOT, put
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from udfs.formats.bookie_disk import BookieDisk
from udfs.formats.bookie_info import http_addresses
from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

Open = Callable[[Sequence[tuple[int, int]]], Bookies]
ID = "127.0.0.1:3181"
METRICS = b"""# TYPE bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES gauge
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/l",ledgerDir="/l"} 700
bookie_ACTIVE_ENTRY_LOG_TOTAL{indexDir="/l",ledgerDir="/l"} 3
bookie_ACTIVE_LEDGER_TOTAL{indexDir="/l",ledgerDir="/l"} 9
bookie_ledgers_count{indexDir="/l",ledgerDir="/l"} 12
bookie_write_cache_size{indexDir="/l",ledgerDir="/l"} 5
bookie_RECLAIMED_DELETION_SPACE_BYTES{indexDir="/l",ledgerDir="/l"} 30
"""
GC, DETAILS, INFO = "/api/v1/bookie/gc", "/api/v1/bookie/gc_details", "/api/v1/bookie/info"
CONFIG, SUSPENDED = "/api/v1/config/server_config", "/api/v1/bookie/gc/suspend_compaction"
GC_DETAILS = b"""[{"forceCompacting": false, "majorCompacting": false, "minorCompacting": false,
"lastMajorCompactionTime": 1544578144944, "lastMinorCompactionTime": 1544578149000,
"lastEntryLocationCompactionTime": 1544578144944, "majorCompactionCounter": 0, "minorCompactionCounter": 2,
"entryLocationCompactionCounter": 0}]"""
# as BookKeeper 4.17.2 answers
ANSWERS = {
    "/metrics": METRICS,
    CONFIG: b'{"gcWaitTime": "900000", "minorCompactionThreshold": "0.2", "majorCompactionThreshold": "0.5"}',
    INFO: b'{"freeSpace": 400, "totalSpace": 1000}',
    GC: b'{"is_in_force_gc": "false"}',
    DETAILS: GC_DETAILS,
    SUSPENDED: b'{"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}',
}
DISK = BookieDisk(
    url="http://b1:8000",
    entry_log_bytes=700,
    reclaimed_bytes=30,
    minor_threshold=0.2,
    major_threshold=0.5,
    gc_wait_seconds=900,
    live_bytes=700,
    entry_logs=3,
    ledgers=12,
    write_cache_bytes=5,
    disk_total_bytes=1000,
    disk_free_bytes=400,
    last_minor_ms=1544578149000,
    is_collecting=False,
)
CONTROL = (900, 0)
ON_BOTH = [(*CONTROL, ("b0", "b1"))]
READ = 2 << 24 | 2 << 16  # version 2 of BookKeeper's protocol, operation READENTRY


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
            for path, body in ANSWERS.items():
                stub.answer_with(path, CannedAnswer(200, body))
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
    bookies.disks["http://b1:8000"] = DISK
    return bookies


def _refuse() -> Sequence[tuple[int, int]]:
    pytest.fail("control entries are read although every entry can be read")


def test_a_registered_bookie_has_an_id_and_an_address(bookie_with: Open) -> None:
    registered = bookie_with([]).registered()
    assert [*registered] == [ID]
    assert len(http_addresses(registered)) == 1


def test_a_writable_bookie_is_not_read_only(bookie_with: Open) -> None:
    assert bookie_with([]).read_only() == frozenset()


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
    assert bookies.disk(url) == replace(DISK, url=url)


@pytest.mark.parametrize("compact", [False, True])
def test_a_bookie_collects_on_request(bookie_with: Open, compact: bool) -> None:
    bookies = bookie_with([])
    (url,) = http_addresses(bookies.registered())
    bookies.collect(url, compact=compact)


def test_a_bookie_that_does_not_answer_is_unavailable_and_reads_nothing(bookie_with: Open) -> None:
    bookies, nowhere = bookie_with([(5, 0)]), "http://127.0.0.1:1"
    with pytest.raises(UnavailableError, match="bookie"):
        bookies.disk(nowhere)
    with pytest.raises(UnavailableError, match="bookie"):
        bookies.collect(nowhere, compact=False)
    assert bookies.readable([nowhere], [(5, 0)], _refuse) == [None]


class StoredEntries(socketserver.StreamRequestHandler):
    """A bookie's own port: answers reads with BookKeeper's error codes, and data."""

    codes: Mapping[tuple[int, int], int] = {}  # ledger and entry -> code; 0: it stores the entry; -1: it hangs up

    def handle(self) -> None:
        while request := self.rfile.read(24):
            length, header, ledger_id, entry_id = struct.unpack(">iiqq", request)
            assert (length, header) == (20, READ)
            code = self.codes.get((ledger_id, entry_id), 1)
            if code < 0:
                return
            data = b"entry" * 20_000 if code == 0 else b""
            self.wfile.write(struct.pack(">iiiqq", 24 + len(data), READ, code, ledger_id, entry_id) + data)


@contextmanager
def storing(*codes: Mapping[tuple[int, int], int]) -> Iterator[HttpBookies]:
    """Register bookies b0, b1, … that answer reads of entries with these codes."""
    store = MemoryStore()
    with ExitStack() as stack:
        for number, each in enumerate(codes):
            handler = type("Handler", (StoredEntries,), {"codes": each})
            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(server.shutdown)
            info = BookieServiceInfoFormat()
            info.endpoints.add(id="bookie", port=server.server_address[1], host="127.0.0.1", protocol="bookie-rpc")
            put(store.tree, f"{ROOT}/available/b{number}", info.SerializeToString())
        yield HttpBookies(store, ROOT, timeout_seconds=5)


@pytest.mark.parametrize(
    ("first", "second", "is_stored"),
    [
        pytest.param(0, 1, True, id="the first has it"),
        pytest.param(1, 0, True, id="the second has it"),
        pytest.param(101, 0, True, id="the first can not read its disk, and the second has it"),
        pytest.param(1, 2, False, id="one has no such ledger, the other no such entry"),
        pytest.param(1, 101, None, id="the second can not read its disk"),
        pytest.param(102, 1, None, id="the first requires authentication"),
        pytest.param(-1, 1, None, id="the first hangs up"),
    ],
)
def test_an_entry_is_gone_only_if_each_of_its_bookies_answers_so(
    first: int, second: int, is_stored: bool | None
) -> None:
    with storing({(5, 7): first, CONTROL: 0}, {(5, 7): second, CONTROL: 0}) as bookies:
        assert bookies.stored([(5, 7, ("b0", "b1"))], lambda _doubted: ON_BOTH).answers == [is_stored]


def test_an_entry_is_not_gone_if_a_bookie_that_has_returned_another_entry_breaks() -> None:
    with storing({(5, 7): 1, CONTROL: 0}, {(6, 1): 0, (5, 7): 101, CONTROL: 0}) as bookies:
        asked = [(6, 1, ("b1",)), (5, 7, ("b0", "b1"))]
        assert bookies.stored(asked, lambda _doubted: ON_BOTH).answers == [True, None]


@pytest.mark.parametrize(
    ("first", "second", "is_stored"),
    [
        pytest.param(0, 0, False, id="both"),
        pytest.param(0, 1, None, id="only the first"),
        pytest.param(0, 101, None, id="the second breaks"),
        pytest.param(1, 1, None, id="none: another cluster's bookies answer"),
    ],
)
def test_a_bookie_that_stores_no_other_entry_of_the_cluster_is_not_believed(
    first: int, second: int, is_stored: bool | None
) -> None:
    with storing({CONTROL: first}, {CONTROL: second}) as bookies:
        asked = [(5, 7, ("b0", "b1")), (5, 8, ("b0",))]
        stored = bookies.stored(asked, lambda _doubted: [(*CONTROL, ("b0", "b1"))])
        assert stored.answers == [is_stored, False if first == 0 else None]


def test_each_bookie_that_leaves_an_answer_unknown_is_named_with_its_fault() -> None:
    with storing({(5, 7): 102}, {(5, 7): 101}, {(5, 7): -1}, {}, {(5, 7): 1, CONTROL: 0}) as bookies:
        named = ("b0", "b1", "b2", "b3", "b4", "away")
        stored = bookies.stored([(5, 7, named)], lambda _doubted: [(*CONTROL, ("b3", "b4"))])
        bookies.store.create(f"{ROOT}/available/empty", b"")
        unaddressed = bookies.stored([(5, 7, ("empty",))], lambda _doubted: ())
    assert stored.answers == [None]
    assert stored.faults == {
        "b0": "failed to read an entry: it answers with BookKeeper's error 102 (it requires authentication, which this "
        "read can't do)",
        "b1": "failed to read an entry: it answers with BookKeeper's error 101 (it can't read its disk)",
        "b2": "failed to read an entry: it closed the connection",
        "away": "is away (not registered)",
    }
    assert unaddressed.faults == {"empty": "has registered no address"}


def test_a_bookie_whose_answers_prove_nothing_is_named_and_one_that_nobody_reaches() -> None:
    with storing({}) as bookies:
        stored = bookies.stored([(5, 7, ("b0",))], lambda _doubted: [(*CONTROL, ("b0",))])
    assert stored.faults == {
        "b0": "stores no entry of an existing ledger of this cluster, so its answers prove nothing"
    }
    fault = bookies.stored([(5, 7, ("b0",))], lambda _doubted: ()).faults["b0"]  # its server has stopped
    assert fault.startswith("can't be reached at 127.0.0.1:")


def test_only_bookies_that_have_nothing_are_asked_for_other_entries() -> None:
    doubted = []

    def control(bookies: frozenset[str]) -> Sequence[PlacedEntry]:
        doubted.append(bookies)
        return ON_BOTH

    with storing({(5, 7): 0, CONTROL: 0}, {CONTROL: 0}) as bookies:
        assert bookies.stored([(5, 7, ("b0",)), (5, 8, ("b0",))], control).answers == [True, False]
        assert doubted == []
        assert bookies.stored([(5, 7, ("b0",)), (5, 8, ("b0", "b1"))], control).answers == [True, False]
    assert doubted == [{"b1"}]


@pytest.mark.parametrize(
    ("host", "port"),
    [
        pytest.param("127.0.0.1", 70_000, id="no port"),
        pytest.param("x" * 70, 3181, id="no name of a host"),
        pytest.param("a..b", 3181, id="a name with an empty part"),
        pytest.param("a\0b", 3181, id="a zero in a name"),
    ],
)
def test_a_bookie_that_registered_nonsense_is_away(host: str, port: int) -> None:
    store, info = MemoryStore(), BookieServiceInfoFormat()
    info.endpoints.add(id="bookie", port=port, host=host, protocol="bookie-rpc")
    put(store.tree, f"{ROOT}/available/b0", info.SerializeToString())
    bookies = HttpBookies(store, ROOT, timeout_seconds=1)
    assert bookies.stored([(5, 7, ("b0",))], lambda _doubted: ON_BOTH).answers == [None]


def test_a_bookie_that_is_not_registered_may_store_every_entry() -> None:
    with storing({CONTROL: 0}) as bookies:
        entries = [(5, 7, ("b0", "away")), (5, 7, ("b0",)), (5, 7, ())]
        assert bookies.stored(entries, lambda _doubted: ON_BOTH).answers == [None, False, None]


def test_each_bookie_is_asked_for_many_entries_over_one_connection_and_not_again_after_a_fault() -> None:
    with storing({(5, 0): 0, (5, 1): 0, (5, 3): 102, (5, 4): 0}) as bookies:
        answers = bookies.stored([(5, entry, ("b0",)) for entry in range(5)], lambda _doubted: ()).answers
    assert answers == [True, True, False, None, None]


def test_an_answer_that_is_not_a_bookies_tells_nothing() -> None:
    with http_stub() as stub:
        at, store, info = urlsplit(stub.url), MemoryStore(), BookieServiceInfoFormat()
        info.endpoints.add(id="bookie", port=at.port or 0, host=at.hostname or "", protocol="bookie-rpc")
        put(store.tree, f"{ROOT}/available/b0", info.SerializeToString())
        bookies = HttpBookies(store, ROOT, timeout_seconds=1)
        assert bookies.stored([(5, 7, ("b0",))], lambda _doubted: ()).answers == [None]


def test_bookies_in_memory_answer_for_their_own_entries() -> None:
    bookies = MemoryBookies()
    bookies.stored_by = {"b0": {(5, 7)}, "b1": {CONTROL}}
    entries = [(5, 7, ("b0", "b1")), (5, 8, ("b0", "b1")), (5, 8, ("b0", "away")), (5, 8, ())]
    assert bookies.stored(entries, lambda _doubted: ON_BOTH).answers == [True, False, None, None]
    stored = bookies.stored(entries, lambda _doubted: ())
    assert stored.answers == [True, None, None, None]
    assert stored.faults == {"b1": "proves nothing", "away": "does not answer"}


@contextmanager
def serving(answers: Mapping[str, CannedAnswer]) -> Iterator[tuple[HttpStub, HttpBookies]]:
    """Serve a bookie whose other paths answer 404, as with httpServerEnabled=false."""
    with http_stub() as stub:
        for path in ANSWERS:
            stub.answer_with(path, answers.get(path, CannedAnswer(404)))
        yield stub, HttpBookies(MemoryStore(), ROOT, timeout_seconds=1)


def test_a_bookie_without_an_http_api_still_reports_its_metrics() -> None:
    with serving({"/metrics": CannedAnswer(200, METRICS)}) as (stub, bookies):
        disk = bookies.disk(stub.url)
    assert (disk.live_bytes, disk.ledgers, disk.entry_logs, disk.reclaimed_bytes) == (700, 12, 3, 30)
    assert (disk.disk_total_bytes, disk.major_threshold, disk.is_collecting) == (None, None, None)
    (fault,) = disk.faults
    assert "httpServerEnabled=true" in fault


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(CannedAnswer(500), id="fails"),
        pytest.param(CannedAnswer(200, b"<html>"), id="no JSON"),
        pytest.param(CannedAnswer(200, b"[" * 100_000), id="nested"),
        pytest.param(CannedAnswer(200, b" " * (17 << 20)), id="too large"),
        pytest.param(CannedAnswer(200, b"x", (("Content-Encoding", "gzip"),)), id="compressed"),
        pytest.param(CannedAnswer(200, after_seconds=2), id="too slow"),
    ],
)
def test_a_question_without_an_answer_is_a_fault_and_the_others_are_known(answer: CannedAnswer) -> None:
    answers = {path: CannedAnswer(200, body) for path, body in ANSWERS.items()} | {DETAILS: answer}
    with serving(answers) as (stub, bookies):
        disk = bookies.disk(stub.url)
    assert (disk.live_bytes, disk.disk_free_bytes, disk.major_threshold, disk.last_minor_ms) == (700, 400, 0.5, None)
    (fault,) = disk.faults
    assert DETAILS in fault


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(CannedAnswer(404), id="none"),
        pytest.param(CannedAnswer(200, b"jvm_threads 5\n"), id="of another service"),
        pytest.param(CannedAnswer(200, METRICS + b" " * (17 << 20)), id="too large"),
        pytest.param(CannedAnswer(200, METRICS, after_seconds=2), id="too slow"),
    ],
)
def test_a_bookie_without_metrics_is_unavailable(answer: CannedAnswer) -> None:
    with serving({"/metrics": answer}) as (stub, bookies), pytest.raises(UnavailableError, match="metrics"):
        bookies.disk(stub.url)


def test_a_bookie_that_sends_its_headers_byte_by_byte_is_unavailable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\n" + b"X-More: 1\r\n" * 20:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        started = time.monotonic()
        with pytest.raises(UnavailableError):
            HttpBookies(MemoryStore(), ROOT, timeout_seconds=0.5).disk(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("compact", [False, True])
def test_a_collection_forces_a_compaction_only_if_that_was_requested(compact: bool) -> None:
    with serving({path: CannedAnswer(200, body) for path, body in ANSWERS.items()}) as (stub, bookies):
        bookies.collect(stub.url, compact=compact)
    (put,) = (request for request in stub.requests if request.method == "PUT")
    assert put.path == GC
    assert json.loads(put.body) == {"forceMajor": compact, "forceMinor": False}


def test_a_bookie_that_is_so_old_that_it_would_compact_is_not_asked_to_collect() -> None:
    with serving({GC: CannedAnswer(200, ANSWERS[GC])}) as (stub, bookies):
        with pytest.raises(RefusedError, match="gcWaitTime"):
            bookies.collect(stub.url, compact=False)
        assert [request.method for request in stub.requests] == ["GET"]
        bookies.collect(stub.url, compact=True)


@pytest.mark.parametrize(
    ("status", "error", "remedy"),
    [
        (404, RefusedError, "httpServerEnabled"),
        (403, RefusedError, "httpServerEnabled"),
        (400, RefusedError, "log"),
        (500, UnavailableError, "log"),
    ],
)
def test_a_bookie_that_does_not_collect_is_named_with_a_remedy(
    status: int, error: type[Exception], remedy: str
) -> None:
    answers = {SUSPENDED: CannedAnswer(200, b"{}"), GC: CannedAnswer(status)}
    with serving(answers) as (stub, bookies), pytest.raises(error, match=remedy):
        bookies.collect(stub.url, compact=False)
