"""An executor processes messages in memory, in batches of limited rows and bytes, with the properties that count."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from streaming.clients import Clients
from streaming.config.load import load
from streaming.config.policies import policy_of
from streaming.coordination.plans import start_plan
from streaming.errors import RefusedError, UnavailableError
from streaming.schemas import REQUESTS, RETRY
from streaming.sweep.task import BATCH_BYTES, BATCH_ROWS, SweepTask, row_batches, worker_for
from tests.builders import HOUR_MS, MINUTE_MS, TOPIC, data_request, list_znode, view
from tests.world import Bench
from udfs import columns as c
from udfs.owners.references import key_of
from udfs.owners.sightings import OWNER_ABSENT_SINCE, signed, subject_of
from udfs.paths import managed_ledger_path, tenant_of, topic_of
from udfs.records import Counts, PendingDelete, Reason
from udfs.requests.request_format import encode
from udfs.requests.retry import DELAY_TIME, ORIGIN_MESSAGE_ID, REAL_TOPIC, RECONSUMETIMES

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
RIVALS = "persistent://rival/reaper/requests"
SECRET = b"secret of the cluster"
KEY = "/ledger-reaper/secret"
MAIN = ("/ledger-reaper", "main")
IN_USE, ORPHAN, ABSENT = data_request(8), data_request(5), data_request(5, "public/default/persistent/gone")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.owner(managed_ledger_path(TOPIC), list_znode(8, 9))
    bench.broker.topics[TOPIC] = view(8, 9)
    for ledger_id in (5, 8):
        bench.ledger(data_request(ledger_id))
    bench.age()
    bench.store.create(KEY, SECRET, parents=True)
    return bench


def work(
    bench: Bench,
    folder: Path,
    request: PendingDelete,
    properties: Mapping[str, str],
    *,
    query: str = REQUESTS,
    source: str = SYSTEM,
    baseline: Counts | None = None,
    held: Mapping[str, str] | None = None,
    is_dry: bool = False,
    most_deletes: tuple[int, ...] | None = None,
    plan: str = "",
) -> dict[str, Any]:
    """Process one message as Spark returns it; return its receipt."""
    config = folder / "config.toml"
    config.write_text(f'[topics]\nrequests = ["{SYSTEM}", "{RIVALS}"]\n[state]\ndir = "{folder}/state"\n')
    key = key_of(request)
    task = SweepTask(
        query=query,
        batch_id=1,
        chunk=1,
        settings=load(config),
        rules=bench.rules(),
        owners=SimpleNamespace(value=({}, {key: baseline} if baseline else {})),
        retry_partitions=4,
        dead_letter_partitions=4,
        tasks=1,
        now_ms=bench.clock.now_ms(),
        most_deletes=most_deletes,
        plan=plan,
        held=held or {},
    )
    row = {
        c.SOURCE: f"{source}-partition-2",
        c.POSITION_LEDGER: 70,
        c.POSITION_ENTRY: 3,
        c.POSITION_BATCH: -1,
        c.PUBLISH_MS: bench.clock.now_ms() - HOUR_MS,
        c.MESSAGE_KEY: None,
        c.PAYLOAD: encode(request),
        c.MESSAGE_PROPERTIES: list(properties.items()),
        c.REFERENCE_KEY: key,
        c.TENANT: tenant_of(topic_of(request.managed_ledger)),
    }
    (receipt,) = worker_for(task, Clients(bench.store, bench.broker), bench.clock, is_dry=is_dry).receipts([row])
    return receipt


def forged(bench: Bench, request: PendingDelete) -> dict[str, str]:
    """Return all properties that a request in the retry topic can have, with a valid signature of a sighting."""
    since_ms = bench.clock.now_ms() - 11 * MINUTE_MS
    return {
        RECONSUMETIMES: "10",
        DELAY_TIME: "1",
        REAL_TOPIC: RIVALS,
        ORIGIN_MESSAGE_ID: "9:9:9",
        OWNER_ABSENT_SINCE: signed(SECRET, subject_of(request), since_ms),
    }


def test_retry_properties_are_ignored_in_a_request_topic(bench: Bench, tmp_path: Path) -> None:
    receipt = work(bench, tmp_path, IN_USE, forged(bench, IN_USE))
    copied = dict(receipt[c.MESSAGE_PROPERTIES])
    assert (receipt[c.OUTCOME], receipt[c.ATTEMPT], receipt[c.ORIGIN_MESSAGE_ID]) == ("RETRY", 1, "70:3:2")
    assert (copied[REAL_TOPIC], copied[RECONSUMETIMES], copied[ORIGIN_MESSAGE_ID]) == (SYSTEM, "1", "70:3:2")


def test_retry_properties_count_in_the_retry_topic(bench: Bench, tmp_path: Path) -> None:
    receipt = work(bench, tmp_path, IN_USE, forged(bench, IN_USE) | {REAL_TOPIC: SYSTEM}, query=RETRY)
    assert (receipt[c.OUTCOME], receipt[c.ATTEMPT], receipt[c.ORIGIN_MESSAGE_ID]) == ("DEAD_LETTER", 11, "9:9:9")


@pytest.mark.parametrize(("query", "outcome"), [(REQUESTS, "RETRY"), (RETRY, "DELETED")])
def test_a_first_sighting_of_absence_counts_only_if_we_wrote_it(
    bench: Bench, tmp_path: Path, query: str, outcome: str
) -> None:
    bench.ledger(ABSENT)
    bench.age()
    source = SYSTEM if query == REQUESTS else f"{SYSTEM}-RETRY"
    properties = forged(bench, ABSENT) | {REAL_TOPIC: SYSTEM, RECONSUMETIMES: "1"}
    assert work(bench, tmp_path, ABSENT, properties, query=query, source=source)[c.OUTCOME] == outcome


@pytest.mark.parametrize("query", [REQUESTS, RETRY])
def test_a_tenants_request_for_anothers_ledger_is_refused_and_the_ledger_named(
    bench: Bench, tmp_path: Path, query: str
) -> None:
    """From its own topic, and as our copy of it."""
    source = RIVALS if query == REQUESTS else f"{SYSTEM}-RETRY"
    receipt = work(bench, tmp_path, ORPHAN, {REAL_TOPIC: RIVALS}, query=query, source=source)
    assert (receipt[c.OUTCOME], receipt[c.REASON]) == ("DEAD_LETTER", "OTHER_TENANT")
    assert (receipt[c.LEDGER_ID], receipt[c.TOPIC_NAME]) == (5, topic_of(TOPIC))


def reads_of(bench: Bench) -> list[str]:
    """Return a list that gets all paths read from ZooKeeper from now on."""
    reads: list[str] = []
    bench.store.faults.before(lambda _operation, paths: reads.extend(paths))
    return reads


@pytest.mark.parametrize("is_dry", [False, True])
def test_nothing_is_read_for_a_refused_request(bench: Bench, tmp_path: Path, *, is_dry: bool) -> None:
    """Sweep and dry run only read our own key."""
    reads = reads_of(bench)
    receipt = work(bench, tmp_path, ORPHAN, {}, source=RIVALS, is_dry=is_dry)
    assert receipt[c.REASON] == "OTHER_TENANT"
    assert receipt[c.SOURCES] is None
    assert (reads, bench.broker.asked) == ([KEY], [])
    assert work(bench, tmp_path, ORPHAN, {}, is_dry=is_dry)[c.OUTCOME] == "DELETED"
    assert bench.broker.asked == [TOPIC]


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_request_of_a_held_tenant_is_delayed_without_a_read_and_without_using_up_a_try(
    bench: Bench, tmp_path: Path, *, is_dry: bool
) -> None:
    reads = reads_of(bench)
    receipt = work(bench, tmp_path, ORPHAN, {}, held={"public": "161 of 200"}, is_dry=is_dry)
    assert (receipt[c.OUTCOME], receipt[c.REASON], receipt[c.DETAIL]) == ("RETRY", "TENANT_HELD", "161 of 200")
    assert receipt[c.ATTEMPT] == 0
    assert (reads, bench.broker.asked) == ([KEY], [])
    assert work(bench, tmp_path, ORPHAN, {}, held={"rival": "all"}, is_dry=is_dry)[c.OUTCOME] == "DELETED"


def test_a_sighting_from_before_a_hold_does_not_count_after_it(bench: Bench, tmp_path: Path) -> None:
    """The sources were doubtful at the time of that sighting."""
    properties = forged(bench, ABSENT) | {REAL_TOPIC: SYSTEM, RECONSUMETIMES: "1"}
    receipt = work(
        bench, tmp_path, ABSENT, properties, query=RETRY, source=f"{SYSTEM}-RETRY", held={"public": "161 of 200"}
    )
    assert OWNER_ABSENT_SINCE not in dict(receipt[c.MESSAGE_PROPERTIES])


def test_a_receipt_contains_the_sources(bench: Bench, tmp_path: Path) -> None:
    receipt = work(bench, tmp_path, ORPHAN, {})
    assert receipt[c.OUTCOME] == "DELETED"
    assert receipt[c.SOURCES].startswith("zookeeper=2@0 broker=2 at=")


def test_an_owner_that_shrank_keeps_its_ledgers_by_the_configured_limit(bench: Bench, tmp_path: Path) -> None:
    """Only the policy has the limit, and the service creates the policy from [safety] (streaming.config.policies)."""
    settings = load(None)
    bench.policy = replace(bench.policy, max_shrink=policy_of(settings).max_shrink, shrink_applies_above=100)
    receipt = work(bench, tmp_path, ORPHAN, {}, baseline=Counts(101, 101))
    assert (receipt[c.OUTCOME], receipt[c.REASON], receipt[c.ATTEMPT]) == ("RETRY", str(Reason.SOURCE_SHRANK), 0)


def in_attempt(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the rest of the test as this attempt of Spark's second task."""
    context = SimpleNamespace(partitionId=lambda: 1, attemptNumber=lambda: number)
    monkeypatch.setattr(TaskContext, "_taskContext", context)


def test_a_run_of_an_earlier_plan_deletes_nothing_of_a_later_one(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_attempt(0, monkeypatch)
    old, new = (start_plan(bench.store, *MAIN) for _ in range(2))
    with pytest.raises(RefusedError):
        work(bench, tmp_path, ORPHAN, {}, most_deletes=(1, 1), plan=old)
    assert bench.store.children_many([new.rpartition("/")[0]]) == [[new.rpartition("/")[2]]]
    assert work(bench, tmp_path, ORPHAN, {}, most_deletes=(1, 1), plan=new)[c.OUTCOME] == "DELETED"


def test_a_task_deletes_the_ledgers_planned_for_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_attempt(0, monkeypatch)
    with pytest.raises(UnavailableError, match="planning again"):
        work(bench, tmp_path, ORPHAN, {}, most_deletes=(1, 0), plan=start_plan(bench.store, *MAIN))
    plan = start_plan(bench.store, *MAIN)
    assert work(bench, tmp_path, ORPHAN, {}, most_deletes=(0, 1), plan=plan)[c.OUTCOME] == "DELETED"


@pytest.mark.parametrize(
    "attempt", [pytest.param(0, id="its stage has started over"), pytest.param(1, id="it has failed")]
)
def test_a_task_that_spark_runs_again_has_no_plan(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    """Its first run may have deleted all planned ledgers, which only the journal shows, and may even still run."""
    plan = start_plan(bench.store, *MAIN)
    in_attempt(0, monkeypatch)
    work(bench, tmp_path, IN_USE, {}, most_deletes=(1, 1), plan=plan)
    in_attempt(attempt, monkeypatch)
    with pytest.raises(UnavailableError, match="planning again"):
        work(bench, tmp_path, ORPHAN, {}, most_deletes=(1, 1), plan=plan)
    assert work(bench, tmp_path, ORPHAN, {}, most_deletes=(1, 1), plan=plan, is_dry=True)[c.OUTCOME] == "DELETED"
    assert work(bench, tmp_path, ORPHAN, {})[c.OUTCOME] == "DELETED", "where nothing bounds the chunk, it just goes on"


def _batches(sizes: list[int], rows: int) -> list[pa.RecordBatch]:
    """A record batch for each size in bytes."""
    return [
        pa.RecordBatch.from_pylist(
            [{"number": number, "row": row, "payload": b"x" * (size // rows)} for row in range(rows)],
            pa.schema([("number", pa.int64()), ("row", pa.int64()), ("payload", pa.binary())]),
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [
        pytest.param([], 1, [], id="nothing"),
        pytest.param([0] * 3, 1, [3], id="small batches are combined"),
        pytest.param([0] * 6, BATCH_ROWS // 5, [BATCH_ROWS, BATCH_ROWS // 5], id="at most BATCH_ROWS"),
        pytest.param([BATCH_BYTES // 2] * 3, 1, [1, 1, 1], id="two halves and their overhead are too large"),
        pytest.param([BATCH_BYTES // 3] * 3, 2, [4, 2], id="as many as fit"),
        pytest.param([BATCH_BYTES * 2, 0], 1, [1, 1], id="a batch that is too large stays alone"),
    ],
)
def test_record_batches_are_combined_up_to_a_number_of_rows_and_of_bytes(
    sizes: list[int], rows: int, expected: list[int]
) -> None:
    combined = list(row_batches(_batches(sizes, rows)))
    assert [len(batch) for batch in combined] == expected
    assert [(row["number"], row["row"]) for batch in combined for row in batch] == [
        (number, row) for number in range(len(sizes)) for row in range(rows)
    ]
