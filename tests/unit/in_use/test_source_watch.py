"""The baseline is learnt from receipts, survives a restart, and shrinks only if an operator accepts it."""

import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streaming import schemas
from streaming.in_use.baseline import ALL, Accepted, Baseline, all_of, is_accepted, summary
from streaming.in_use.source_watch import SourceWatch
from streaming.state.delta.delta_tables import complete, opened, table_path
from streaming.state.receipts import TABLE, certificates, rows
from tests.builders import NOW_MS, OTHER_TOPIC, TOPIC, gone, list_znode, view
from tests.world import Bench
from udfs import columns as c
from udfs.owners.completeness import certificate
from udfs.owners.mass_loss import Doubts
from udfs.paths import managed_ledger_path
from udfs.records import Counts
from udfs.verdicts.judge import Policy

STRICT = Policy(
    min_age_ms=1, above_newest_quarantine_ms=1, absence_interval_ms=1, max_shrink=0.8, shrink_applies_above=100
)
KEY, OTHER = f"data:{TOPIC}", f"data:{OTHER_TOPIC}"


def sources_text(listed: int, remembered: int, *, was: str = "") -> str:
    return f"zookeeper={listed}@1 broker={remembered} at={NOW_MS}{was}"


def receipt(chunk: int, **fields: Any) -> dict[str, Any]:
    return dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk, c.AT_MS: NOW_MS + chunk} | fields


def write(state: Path, *receipts: Mapping[str, Any], schema: pa.Schema = schemas.RECEIPT) -> None:
    table = pa.Table.from_pylist([{n: row[n] for n in schema.names} for row in receipts], schema=schema)
    write_deltalake(table_path(str(state), TABLE), table, mode="append")


class Scene:
    """A bench, a state directory, and what an operator accepted."""

    def __init__(self, state: Path) -> None:
        self.bench = Bench()
        self.state = state
        self.accepted: dict[str, int] = {}
        self.lines: list[str] = []

    def watch(self) -> SourceWatch:
        watch = SourceWatch(Baseline(STRICT), lambda: self.accepted, str(self.state), self.lines.append)
        watch.recall(now_ms=NOW_MS)
        return watch

    def baseline(self) -> Counts | None:
        return self.watch().before({}, [KEY])[0].get(KEY)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_before_the_first_receipt_there_is_no_baseline(scene: Scene) -> None:
    assert scene.baseline() is None


def test_a_chunks_counts_are_logged_in_one_line_and_become_the_baseline(scene: Scene) -> None:
    watch = scene.watch()
    write(scene.state, receipt(1, reference_key=KEY, sources=sources_text(500, 480)))
    watch.after(1)
    assert watch.before({}, [KEY, OTHER]) == ({KEY: Counts(500, 480)}, Doubts())
    assert scene.lines == [
        "chunk 1: sources of 1 owner: ZooKeeper named 500 ids, brokers 480, 0 could not be read, 0 shrank"
    ]


@pytest.mark.parametrize(
    ("now", "baseline"),
    [
        pytest.param(sources_text(100, 480), Counts(100, 480), id="the smallest count that is learnt"),
        pytest.param(sources_text(99, 480), Counts(500, 480), id="far less"),
        pytest.param("? no answer", Counts(500, 480), id="an unreadable owner"),
        pytest.param("zookeeper=- broker=- at=1", Counts(500, 480), id="an owner that is gone"),
    ],
)
def test_counts_that_shrank_too_far_are_not_learnt(scene: Scene, now: str, baseline: Counts) -> None:
    watch = scene.watch()
    watch.baseline.learn([(KEY, sources_text(500, 480)), (KEY, now)])
    assert watch.before({}, [KEY])[0] == {KEY: baseline}


def test_a_restart_restores_the_baseline(scene: Scene) -> None:
    write(scene.state, receipt(1, reference_key=KEY, sources=sources_text(500, 480)))
    write(scene.state, receipt(2, reference_key=KEY, sources=sources_text(3, 3, was=" was=500/480")))
    write(scene.state, receipt(3, reference_key=KEY, sources="? broker: 503 at=1"))
    assert scene.baseline() == Counts(500, 480)


@pytest.mark.parametrize("topic", [TOPIC, ALL])
def test_an_accepted_topic_gets_a_new_baseline(scene: Scene, topic: str) -> None:
    watch = scene.watch()
    watch.baseline.learn([(KEY, sources_text(500, 480))])
    scene.accepted = {topic: NOW_MS}
    assert watch.before({}, [KEY])[0] == {}
    watch.baseline.learn([(KEY, sources_text(3, 3))])
    assert watch.before({}, [KEY])[0] == {KEY: Counts(3, 3)}


@pytest.mark.parametrize(
    ("accepted_ms", "baseline"),
    [(NOW_MS + 1, None), (NOW_MS, Counts(500, 480))],
    ids=["after the receipt", "before the receipt"],
)
def test_a_restart_ignores_receipts_from_before_an_acceptance(
    scene: Scene, accepted_ms: int, baseline: Counts | None
) -> None:
    write(scene.state, receipt(1, reference_key=KEY, sources=sources_text(500, 480)))
    scene.accepted = {TOPIC: accepted_ms}
    assert scene.baseline() == baseline


def test_accepting_a_topic_does_not_change_others(scene: Scene) -> None:
    watch = scene.watch()
    watch.baseline.learn([(KEY, sources_text(500, 480)), (OTHER, sources_text(600, 600))])
    scene.accepted = {TOPIC: NOW_MS}
    assert watch.before({}, [KEY, OTHER])[0] == {OTHER: Counts(600, 600)}


@pytest.mark.parametrize("key", [KEY, f"cursor:{TOPIC}/billing", "schema:public/default/orders", f"buckets:{TOPIC}"])
def test_a_topics_name_accepts_all_its_owners(key: str) -> None:
    assert is_accepted(key, NOW_MS, {TOPIC: NOW_MS})
    assert not is_accepted(key, NOW_MS, {OTHER_TOPIC: NOW_MS})


def test_if_most_owners_are_gone_at_once_the_sources_are_doubted(scene: Scene) -> None:
    watch = scene.watch()
    keys = [f"data:public/default/persistent/t{n}" for n in range(200)]
    watch.baseline.learn((key, sources_text(2, 2)) for key in keys)
    assert watch.before({key: gone(key) for key in keys[:160]}, keys)[1] == Doubts()
    doubts = watch.before({key: gone(key) for key in keys[:161]}, keys)[1]
    assert doubts.tenants == {
        "public": f"161 of the 200 owners known of tenant public are gone at once, for example {keys[0]}"
    }
    watch.baseline.learn((key.replace("public", "bank"), sources_text(2, 2)) for key in keys)
    both = {key.replace("public", tenant): gone(key) for key in keys[:170] for tenant in ("public", "bank")}
    assert "340 of the 400 owners known are gone at once" in watch.before(both, keys)[1].everything


def test_unknown_owners_do_not_count_as_gone(scene: Scene) -> None:
    keys = [f"data:public/default/persistent/t{n}" for n in range(200)]
    assert scene.watch().before({key: gone(key) for key in keys}, keys)[1] == Doubts()


def test_a_tenants_name_accepts_all_its_owners_and_no_others(scene: Scene) -> None:
    theirs = "schema:bank/default/orders"
    write(scene.state, receipt(1, reference_key=KEY, sources=sources_text(500, 480)))
    write(scene.state, receipt(1, reference_key=theirs, sources=sources_text(4, 4)))
    watch = scene.watch()
    scene.accepted = {all_of("public"): NOW_MS + 1}
    assert watch.before({}, [KEY, theirs])[0] == {theirs: Counts(4, 4)}
    assert scene.watch().before({}, [KEY, theirs])[0] == {theirs: Counts(4, 4)}


class Interrupted(dict[str, Any]):
    """A dictionary that runs `interruption` in another thread during iteration and after each pop."""

    interruption: Callable[[], object]

    def items(self) -> Any:
        for item in super().items():
            self.interrupt()
            yield item

    def pop(self, *args: Any) -> Any:
        popped = super().pop(*args)
        self.interrupt()
        return popped

    def interrupt(self) -> None:
        self.thread = threading.Thread(target=self.interruption)
        self.thread.start()
        self.thread.join(0.2)  # the thread may have to wait for the lock


def test_a_thread_learns_while_another_checks_for_a_mass_loss() -> None:
    tenants = Interrupted()
    baseline = Baseline(STRICT, _tenants=tenants)
    baseline.learn((f"data:t{n}/ns/persistent/x", sources_text(2, 2)) for n in range(2))
    new = count()
    tenants.interruption = lambda: baseline.learn([(f"data:new{next(new)}/ns/persistent/x", sources_text(2, 2))])
    assert baseline.mass_loss({}) == Doubts()
    tenants.thread.join()


def test_an_owner_keeps_a_baseline_while_it_is_learnt_again() -> None:
    owners = Interrupted({KEY: Counts(500, 480)})
    baseline = Baseline(STRICT, _tenants={"public": owners})
    seen: list[dict[str, Counts]] = []
    owners.interruption = lambda: seen.append(baseline.of([KEY]))
    baseline.learn([(KEY, sources_text(501, 481))])
    owners.thread.join()
    assert seen == [{KEY: Counts(501, 481)}]


def test_a_read_while_a_topic_is_unloaded_keeps_its_brokers_count() -> None:
    baseline = Baseline(STRICT)
    baseline.learn([(KEY, sources_text(501, 500))])
    baseline.learn([(KEY, sources_text(501, 500).replace("broker=500", "broker=-"))])
    assert baseline.of([KEY]) == {KEY: Counts(501, 500)}
    baseline.learn([(KEY, sources_text(450, 450).replace("broker=450", "broker=-"))])
    assert baseline.of([KEY]) == {KEY: Counts(450, 450)}, "the broker's count never exceeds the list's"


def test_no_tenant_displaces_the_counts_of_another() -> None:
    baseline = Baseline(STRICT, owners_at_most=10)
    bank = [f"data:bank/ns/persistent/t{n}" for n in range(3)]
    public = [f"data:public/ns/persistent/t{n}" for n in range(100)]
    baseline.learn([(key, sources_text(2, 2)) for key in (*bank, *public)])
    assert list(baseline.of([*bank, *public])) == [*bank, *public[-7:]]
    shop = [f"schema:shop/ns/t{n}" for n in range(3)]
    baseline.learn([(key, sources_text(2, 2)) for key in shop])
    assert list(baseline.of([*bank, *public, *shop])) == [*bank, *public[-4:], *shop]


def test_acceptances_are_kept_in_zookeeper_up_to_a_limit(scene: Scene) -> None:
    accepted = Accepted(scene.bench.store, "/ledger-reaper/instances/main/accepted")
    assert accepted.read() == {}
    accepted.add([TOPIC], now_ms=1)
    accepted.add([f"{TOPIC}-{n}" for n in range(1_000)], now_ms=2)
    assert len(accepted.read()) == 1_000
    assert TOPIC not in accepted.read()


def test_receipts_of_an_older_version_are_readable_and_get_the_column(scene: Scene) -> None:
    old = pa.schema([field for field in schemas.RECEIPT if field.name != c.SOURCES])
    write(scene.state, receipt(1, reference_key=KEY), schema=old)
    state = str(scene.state)
    assert list(certificates(state, None)) == []
    assert list(rows(state, columns=[c.CHUNK, c.SOURCES])) == [{c.CHUNK: 1, c.SOURCES: None}]
    table = opened(state, TABLE)
    assert table is not None
    complete(table, schemas.RECEIPT)
    write(scene.state, receipt(2, reference_key=KEY, sources=sources_text(5, 5)))
    assert {row[c.CHUNK]: row[c.SOURCES] for row in rows(state)} == {1: None, 2: sources_text(5, 5)}


def test_the_log_names_unreadable_and_shrunken_owners() -> None:
    text = summary([(KEY, "? broker: 503 at=1"), (OTHER, sources_text(3, 3, was=" was=500/480"))])
    assert "1 could not be read (data:public/default/persistent/orders: broker: 503" in text
    assert "1 shrank (data:public/default/persistent/payments): check them, then run `ledger-reaper accept`" in text


def test_a_reference_is_learnt_as_it_was_read(scene: Scene) -> None:
    scene.bench.owner(managed_ledger_path(TOPIC), list_znode(*range(300)))
    scene.bench.broker.topics[TOPIC] = view(*range(250))
    baseline = Baseline(STRICT)
    baseline.learn([(KEY, certificate(scene.bench.loader().load([KEY])[KEY]))])
    assert baseline.of([KEY]) == {KEY: Counts(300, 250)}
