"""State on a disk and on an S3 store: receipts, waiting retries, journal, settlements and notes."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from streaming import schemas
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.identity import ClusterIdentity
from streaming.errors import FencedError, UnavailableError
from streaming.reconcile.memory import UnreadMemory
from streaming.state import journal, receipts
from streaming.state.filesystem import below, folder_of
from streaming.state.journal import ParquetJournal
from streaming.state.notes import hold, parked_queries
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.state.outcomes import ReceiptFilter, followed, newest_of, receipts_of
from streaming.state.receipts import Receipts
from streaming.state.settlements import REPLAYED, REPLAYING, WRITTEN_OFF, PlanWriter, SettlementFolder
from streaming.state.waiting import Waiting, outstanding
from streaming.state.watched import Watched
from tests.builders import DAY_MS, NOW_MS
from tests.contract.s3_server import S3Server, s3_running
from tests.tasks import Tasks
from tests.unit.state.test_journal import entry
from udfs import columns as c

SOURCE = "persistent://pulsar/system/d-RETRY-partition-0"
SECRET = f"secret{uuid4().hex}"
NO_SPARK: Any = None


@dataclass(frozen=True, slots=True)
class Store:
    """Where the state of a test lies. files: the names of all that are there."""

    settings: Settings
    files: Callable[[], list[str]]
    server: S3Server | None = None

    @property
    def state(self) -> str:
        return self.settings.state_dir


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_running() as running:
        yield running


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    config = tmp_path / "config.toml"
    if request.param == "disk":
        folder = tmp_path / "state"
        config.write_text(f'[state]\ndir = "{folder}"\n')
        return Store(load(config), lambda: _files(folder))
    server: S3Server = request.getfixturevalue("server")
    profile = tmp_path / "profile"
    profile.write_text(f"[default]\naws_access_key_id = any\naws_secret_access_key = {SECRET}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    bucket = f"state-{uuid4().hex[:20]}"
    server.client().create_bucket(Bucket=bucket)
    config.write_text(f'[state]\ndir = "s3://{bucket}/of/me"\n[s3]\nendpoint = "{server.endpoint}"\n')
    return Store(load(config), lambda: _objects(server, bucket), server)


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _objects(server: S3Server, bucket: str) -> list[str]:
    keys = [key.removeprefix("of/me/") for key in server.keys(bucket)]
    return [key for key in keys if key and not key.endswith("/")]


@pytest.fixture
def state(store: Store) -> str:
    return store.state


def _append(table: Receipts, chunk: int, work: Any = None, **values: object) -> None:
    row = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk, c.AT_MS: NOW_MS + chunk} | values
    rows: Any = Tasks(pa.Table.from_pylist([row], schema=schemas.RECEIPT))
    table.append(rows, chunk, work)


def _messages(due: dict[int, int]) -> Any:
    """Entry -> due ms."""
    blank: dict[str, object] = dict.fromkeys(schemas.MESSAGE.names) | {
        c.SOURCE: SOURCE, c.POSITION_LEDGER: 1, c.POSITION_BATCH: -1, c.PAYLOAD: b"{}", c.MESSAGE_PROPERTIES: []
    }  # fmt: skip
    rows = [blank | {c.POSITION_ENTRY: entry, c.DUE_MS: ms} for entry, ms in due.items()]
    return Tasks(pa.Table.from_pylist(rows, schema=schemas.MESSAGE))


def _entries(rows: Iterable[dict[str, Any]]) -> list[int]:
    return sorted(row[c.POSITION_ENTRY] for row in rows)


def test_a_chunk_is_stored_once_and_read_by_the_next_run(state: str) -> None:
    table = Receipts(NO_SPARK, state)
    assert table.newest_chunk == 0
    _append(table, 1)
    _append(table, 1, lambda _batches: pytest.fail("worked off twice"))
    _append(table, 2, **{c.OUTCOME: "DELETED", c.REASON: "UNREFERENCED", c.BYTES: 7})
    table.sync()

    again = Receipts(NO_SPARK, state)
    assert (again.table_id, again.newest_chunk) == (table.table_id, 2)
    assert [row[c.CHUNK] for row in receipts.rows(state, ds.field(c.CHUNK) == 2)] == [2]
    assert again.summary(2).deleted_bytes == receipts.total(state, None, c.BYTES) == 7


def test_a_chunk_is_summed_up_by_its_outcomes(state: str) -> None:
    table = Receipts(NO_SPARK, state)
    deleted = {c.OUTCOME: "DELETED", c.REASON: "UNREFERENCED", c.TENANT: "a", c.REFERENCE_KEY: "t/a", c.BYTES: 7}
    kinds: list[dict[str, object]] = [
        deleted,
        deleted | {c.BYTES: None},
        deleted | {c.REFERENCE_KEY: "t/b", c.REFRESHED: True},
        {c.OUTCOME: "RETRY", c.REASON: "IN_USE", c.TARGET: "retry", c.BYTES: 100},
        {c.OUTCOME: "RETRY", c.REASON: "TOO_YOUNG", c.TARGET: "retry"},
        {c.OUTCOME: "DEAD_LETTER", c.REASON: "NOT_JSON", c.TARGET: "dead", c.EPOCH: 4},
        {c.OUTCOME: "KEPT", c.REASON: "IN_USE", c.TARGET: ""},
    ]
    blank = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: 1, c.AT_MS: NOW_MS, c.EPOCH: 3, c.REFRESHED: False}
    rows: Any = Tasks(pa.Table.from_pylist([blank | kind for kind in kinds], schema=schemas.RECEIPT))
    table.append(rows, 1)

    summary = table.summary(1)

    assert summary.outcomes == {
        ("DELETED", "UNREFERENCED"): 3,
        ("RETRY", "IN_USE"): 1,
        ("RETRY", "TOO_YOUNG"): 1,
        ("DEAD_LETTER", "NOT_JSON"): 1,
        ("KEPT", "IN_USE"): 1,
    }
    assert summary.copies == {"retry": 2, "dead": 1}
    assert summary.epochs == {3, 4}
    assert (summary.total, summary.deleted_bytes, summary.has_refreshed) == (7, 14, True)
    assert table.deleted_by_owner(1) == {("a", "t/a"): 2, ("a", "t/b"): 1}


def test_of_two_concurrent_commits_one_succeeds(state: str) -> None:
    first, second = Receipts(NO_SPARK, state), Receipts(NO_SPARK, state)

    def stalls(batches: Any) -> Any:
        _append(second, 1)
        yield from batches

    with pytest.raises(FencedError):
        _append(first, 1, stalls)
    assert Receipts(NO_SPARK, state).summary(1).total == 1


def test_a_run_that_read_before_another_commit_can_not_replace_it(store: Store, server: S3Server) -> None:
    """On S3 only: the put itself is refused, since both runs have read that there is no such commit."""
    if store.server is None:
        pytest.skip("on a disk a link creates the name of the commit, and is refused in the same way")
    first, second = Receipts(NO_SPARK, store.state), Receipts(NO_SPARK, store.state)
    raced: list[bool] = []

    def is_commit(environ: dict[str, Any]) -> bool:
        if environ["REQUEST_METHOD"] != "PUT" or not environ["PATH_INFO"].endswith(f"{1:020}.json") or raced:
            return False
        raced.append(True)
        _append(second, 1)
        return False

    server.answer("never", match=is_commit)
    try:
        with pytest.raises(FencedError):
            _append(first, 1)
    finally:
        server.heal()
    assert raced
    assert Receipts(NO_SPARK, store.state).summary(1).total == 1


def test_a_commit_with_a_lost_answer_is_recognized_as_our_own(store: Store, server: S3Server) -> None:
    if store.server is None:
        pytest.skip("a disk loses no answer")
    table = Receipts(NO_SPARK, store.state)
    _append(table, 1)
    lost: list[bool] = []

    def is_commit(environ: dict[str, Any]) -> bool:
        if environ["REQUEST_METHOD"] != "PUT" or not environ["PATH_INFO"].endswith(f"{2:020}.json") or lost:
            return False
        lost.append(True)
        bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
        content = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        server.fill(bucket, {key: content})
        return True

    server.answer("SlowDown", match=is_commit)
    try:
        _append(table, 2)
    finally:
        server.heal()
    assert lost
    assert table.newest_chunk == Receipts(NO_SPARK, store.state).newest_chunk == 2
    assert table.summary(2).total == 1


def test_receipts_are_merged_and_expire(store: Store) -> None:
    table = Receipts(NO_SPARK, store.state)
    for chunk in range(1, 6):
        _append(table, chunk, **{c.TOPIC_NAME: "persistent://t/n/x"})
    receipts.expire(store.state, NOW_MS + 3, now_ms=NOW_MS + 100)
    receipts.compact(store.state)
    table.sync()
    _append(table, 6)
    assert sorted(row[c.CHUNK] for row in receipts.rows(store.state)) == [3, 4, 5, 6]
    assert [row[c.TOPIC_NAME] for row in receipts.rows(store.state, ds.field(c.TOPIC_NAME) == "persistent://t/n/x")]
    assert Receipts(NO_SPARK, store.state).newest_chunk == 6


def test_the_newest_receipts_are_returned_and_all_are_counted(store: Store) -> None:
    table = Receipts(NO_SPARK, store.state)
    for chunk in range(1, 5):
        outcome = {c.OUTCOME: "RETRY" if chunk % 2 else "DELETED", c.REASON: "R", c.TOPIC_NAME: "persistent://t/n/x"}
        _append(table, chunk, **{c.LEDGER_ID: chunk, c.AT_MS: NOW_MS - chunk}, **outcome)
    receipt = {**_row(3), c.OUTCOME: "DEAD_LETTER", c.REASON: "WRITTEN_OFF", c.AT_MS: 1}
    written = [{name: receipt.get(name) for name in schemas.RECEIPT.names}]
    SettlementFolder(store.state).write_off(NOW_MS, [written])
    receipts.compact(store.state)  # writes the files again, with another type of strings
    _append(table, 5, **{c.OUTCOME: "RETRY", c.REASON: "R"})

    every = list(receipts_of(store.settings))
    for most in (1, 3, 100):
        counted, newest = newest_of(store.settings, most)
        assert (counted.total(), newest) == (len(every), every[-most:])
        some = newest_of(store.settings, most, ReceiptFilter(outcome="RETRY"))
        assert some == (Counter({("RETRY", "R"): 3}), [row for row in every if row[c.OUTCOME] == "RETRY"][-most:])
    assert newest_of(store.settings, 3, ReceiptFilter(ledger=99)) == (Counter(), [])


def test_new_receipts_are_followed_in_the_order_of_their_chunks(store: Store) -> None:
    table = Receipts(NO_SPARK, store.state)
    _append(table, 1, **{c.LEDGER_ID: 1})
    after = receipts.newest_chunk(store.state)
    committed = iter(([], [2, 3], [], [4]))

    def sleep(_seconds: float) -> None:
        for chunk in next(committed):
            _append(table, chunk, **{c.LEDGER_ID: chunk, c.REASON: "ODD" if chunk % 2 else "EVEN"})

    rows = followed(store.settings, ReceiptFilter(), after, sleep=sleep)
    assert [next(rows)[c.LEDGER_ID] for _ in range(3)] == [2, 3, 4]
    committed = iter(([5], [6]))
    assert next(followed(store.settings, ReceiptFilter(reason="EVEN"), 4, sleep=sleep))[c.LEDGER_ID] == 6
    assert [row[c.LEDGER_ID] for row in receipts_of(store.settings, ReceiptFilter(last_chunk=after))] == [1]


def test_an_interrupted_task_leaves_no_readable_rows(store: Store) -> None:
    table = Receipts(NO_SPARK, store.state)

    def breaks_off(batches: Any) -> Any:
        yield from batches
        raise KeyError("broke off")

    with pytest.raises(KeyError):
        _append(table, 1, breaks_off)
    _append(table, 1)
    receipts.compact(store.state)
    assert table.summary(1).total == 1
    assert sum(key.startswith("receipts/part-") for key in store.files()) == 1


def test_only_the_newest_run_keeps_waiting_retries(state: str) -> None:
    first = Waiting(NO_SPARK, state)
    first.take_over(lambda: True, lambda rows: rows)
    first.append(_messages({1: 10, 2: 600_000}))
    assert (first.next_ms(), first.count(), _entries(outstanding(state))) == (10, 2, [1, 2])

    second = Waiting(NO_SPARK, state)
    second._start_generation(lambda: True)
    with pytest.raises(FencedError):
        first.append(_messages({3: 10}))
    assert _entries(outstanding(state)) == [1, 2]


def test_the_journal_is_read_back_and_expires_by_days(store: Store) -> None:
    clock = ManualClock(NOW_MS)

    ParquetJournal(store.state, "requests", 4, clock).write([entry(5), entry(6)])
    clock.advance(2 * DAY_MS)
    ParquetJournal(store.state, "requests", 5, clock).write([entry(7)])

    assert [(row["ledger_id"], row["data"]) for row in journal.entries(store.state)] == [
        (5, b"\x00znode\xff"), (6, b"\x00znode\xff"), (7, b"\x00znode\xff")
    ]  # fmt: skip
    assert journal.started(store.state, "requests", 4, since_ms=0).total() == 2
    assert journal.expire(store.state, now_ms=clock.now_ms(), keep_days=1) == 1
    assert [row["ledger_id"] for row in journal.entries(store.state)] == [7]


def test_a_journal_that_can_not_be_written_is_an_error(store: Store, server: S3Server) -> None:
    if store.server is None:
        pytest.skip("tests/unit/state/test_journal.py has the disk")
    server.answer("AccessDenied", status="403 Forbidden", times=1000)
    try:
        with pytest.raises(UnavailableError, match="nothing is deleted"):
            ParquetJournal(store.state, "requests", 4, ManualClock(NOW_MS)).write([entry(5)])
    finally:
        server.heal()
    assert list(journal.entries(store.state)) == []


def _row(entry: int) -> dict[str, Any]:
    position = dict(zip(c.POSITION, (SOURCE, 7, entry, -1), strict=True))
    return {**position, c.MESSAGE_KEY: "k", c.PAYLOAD: b"\x00\xff", c.MESSAGE_PROPERTIES: [("a", "b")]}


def _add_and_fail(writer: PlanWriter) -> None:
    writer.add([_row(0)])
    raise KeyError


def test_plans_and_write_offs_are_complete_or_absent(store: Store) -> None:
    folder = SettlementFolder(store.state)
    topic = "persistent://pulsar/system/d"
    with pytest.raises(KeyError), folder.plan(NOW_MS, topic, {}) as broken:
        _add_and_fail(broken)
    assert (folder.unfinished(), store.files()) == ([], [])

    with folder.plan(NOW_MS, topic, {f"{topic}-partition-0": (5, -1)}) as writer:
        writer.add([_row(0), _row(1)])
    assert folder.unfinished() == [writer.plan]
    assert list(folder.rows(writer.plan)) == [_row(0), _row(1)]
    assert folder.settled().of((SOURCE, 7, 1, -1)) == REPLAYING
    folder.finish(writer.plan, {0: "9:0:0", 1: "9:1:0"})
    receipt = {**dict(zip(c.POSITION, (SOURCE, 7, 3, -1), strict=True)), c.OUTCOME: "DEAD_LETTER", c.AT_MS: NOW_MS}
    assert folder.write_off(NOW_MS, [[receipt]]) == 1

    assert folder.settled().of((SOURCE, 7, 1, -1)) == REPLAYED
    assert folder.settled().of((SOURCE, 7, 3, -1)) == WRITTEN_OFF
    assert [row[c.OUTCOME] for row in receipts_of(store.settings)] == ["DEAD_LETTER"]
    assert folder.expire(NOW_MS + DAY_MS) == 2
    assert store.files() == []


def test_notes_and_accounts_are_overwritten_and_deleted(store: Store) -> None:
    hold.note(store.state, "paused", now_ms=NOW_MS)
    hold.note(store.state, "held", now_ms=NOW_MS + 1)
    parked_queries.note(store.state, {"requests": ParkedQuery(topic="t", why="why", since_ms=NOW_MS)})
    UnreadMemory(store.state).remember({"p": {7: 1}}, {})
    assert hold.noted(store.state) == ("held", NOW_MS + 1)
    assert parked_queries.noted(store.state) == {"requests": ParkedQuery(topic="t", why="why", since_ms=NOW_MS)}
    assert UnreadMemory(store.state).recall() == {"p": {7: 1}}
    hold.note(store.state, "", now_ms=NOW_MS)
    parked_queries.note(store.state, {})
    assert hold.noted(store.state) == ("", 0)
    assert [key for key in store.files() if key in ("held.json", "lanes.json") or "unfinished" in key] == []


def test_the_state_records_its_cluster(store: Store) -> None:
    here = ClusterIdentity(
        instance_id="instance",
        ledgers_root="/ledgers",
        layout="hierarchical",
        pulsar_cluster="pulsar",
        service_name="main",
    )
    assert not identity.compare(here, store.state)
    identity.hold(here, store.state)
    assert identity.compare(here, store.state)
    assert json.loads(folder_of(store.state).read("cluster.json") or b"")["instance_id"] == "instance"


def test_no_location_or_error_contains_a_secret(store: Store, server: S3Server) -> None:
    if store.server is None:
        pytest.skip("a disk needs no credentials")
    assert SECRET not in store.state + below(store.state, "receipts") + repr(store.settings)
    server.answer("AccessDenied", status="403 Forbidden", times=1000)
    try:
        with pytest.raises(UnavailableError) as refused:
            Receipts(NO_SPARK, store.state)
    finally:
        server.heal()
    assert SECRET not in str(refused.value)
    assert "?" not in str(refused.value).partition(":")[0]


def test_only_s3_has_no_folders(store: Store) -> None:
    folder_of(store.state).write("below/a.json", b"1")
    assert (store.server is None) is not isinstance(folder_of(store.state).filesystem, pafs.S3FileSystem)
    assert store.files() == ["below/a.json"]


def test_the_watchers_state_is_rewritten_and_read_by_the_next_run(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.state.watched._COMMITS_BEFORE_FOLD", 2)
    watched = Watched(state)
    watched.save({"/a": b"1", "/b": b"2"}, [("/c", b"request")], at_ms=1)
    watched.save({"/a": None}, notes={"made": b"note"}, at_ms=2)
    assert watched.fold_if_due(at_ms=3)
    watched.save({"/b": b"3"}, at_ms=4)
    again = Watched(state)
    assert (again.nodes, again.notes, [*again.requests]) == ({"/b": b"3"}, {"made": b"note"}, [0])
    with pytest.raises(FencedError):
        watched.save({"/b": b"4"}, at_ms=5)
