"""The audit's anti-joins, filters and sums on small frames, each beside what must come out."""

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import columns as a
from streaming.audit import join
from streaming.audit.options import FindingFilters
from streaming.audit.place import Place
from streaming.audit.report.summary import matching, summarize
from streaming.audit.stages import Stages
from tests.builders import TOPIC, UUID
from udfs import columns as c
from udfs.audit import FindingClass
from udfs.records import LedgerComponent

pytestmark = pytest.mark.spark

STORE = "http://s3 offloads"
OTHER_UUID = UUID.replace("0", "f", 1)


def _rows(spark: SparkSession, schema: Any, rows: list[dict[str, Any]]) -> DataFrame:
    names = [field.name for field in schema]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], from_arrow_schema(schema))


def _listed(spark: SparkSession, *ids: int) -> DataFrame:
    return _rows(spark, a.LISTED, [*({c.LEDGER_ID: i} for i in ids), {a.PATH: "/ledgers/01", c.DETAIL: "no right"}])


def _reference(ledger_id: int, **more: Any) -> dict[str, Any]:
    row = {
        c.LEDGER_ID: ledger_id,
        a.IN_BOOKKEEPER: True,
        c.REFERENCE_KEY: f"data:{TOPIC}",
        c.COMPONENT: "MANAGED_LEDGER",
        a.MANAGED_LEDGER: TOPIC,
        a.NAMESPACE: "public/default",
        c.BYTES: 100,
    }
    return row | more


def _offload(ledger_id: int, **more: Any) -> dict[str, Any]:
    offload = {a.IN_BOOKKEEPER: False, c.UUID: UUID, a.STORE: STORE, a.IS_COMPLETE: True}
    return _reference(ledger_id, **offload) | more


def _pair(ledger_id: int, uuid: str = UUID, *, index: bool = True, size: int = 10) -> list[dict[str, Any]]:
    data = {a.STORE: STORE, c.UUID: uuid, c.LEDGER_ID: ledger_id, a.IS_INDEX: False, c.BYTES: size, a.LAST_CHANGE_MS: 5}
    return [data, data | {a.IS_INDEX: True, c.BYTES: 1, a.LAST_CHANGE_MS: 7}] if index else [data]


def _ids(rows: DataFrame) -> list[int]:
    return sorted(row[c.LEDGER_ID] for row in rows.select(c.LEDGER_ID).collect())


def test_what_no_list_keeps_in_bookkeeper_is_a_suspect(spark: SparkSession) -> None:
    references = _rows(
        spark,
        a.REFERENCE,
        [_reference(1), _reference(1), _offload(3), {a.PATH: "/managed-ledgers/x", c.DETAIL: "no right"}],
    )

    assert _ids(join.unreferenced(join.one_sided(_listed(spark, 1, 2, 3), references))) == [2, 3]


def test_a_reference_without_its_ledger_is_a_suspect_with_its_owner(spark: SparkSession) -> None:
    references = _rows(spark, a.REFERENCE, [_reference(1), _reference(9), _offload(8)])

    (row,) = join.unlisted(references, join.one_sided(_listed(spark, 1, 2), references)).collect()

    assert (row[c.LEDGER_ID], row[c.REFERENCE_KEY], row[a.IS_REFERENCE]) == (9, f"data:{TOPIC}", True)
    assert (row[c.LEDGER_TYPE], row[c.BYTES], row[a.CLASS]) == ("LEDGER", 100, None)


def test_objects_of_another_attempt_than_the_listed_one_are_suspects(spark: SparkSession) -> None:
    pairs = join.pairs_of(_rows(spark, a.OBJECT, [*_pair(1), *_pair(1, OTHER_UUID), *_pair(2)]))
    references = _rows(spark, a.REFERENCE, [_offload(1, **{a.STORE: "http://elsewhere b"})])

    found = join.unreferenced_pairs(pairs, references).collect()

    assert sorted((row[c.LEDGER_ID], row[c.UUID]) for row in found) == [(1, OTHER_UUID), (2, UUID)]
    assert {(row[c.BYTES], row[a.LAST_CHANGE_MS]) for row in found} == {(11, 7)}


@pytest.mark.parametrize(
    ("reference", "missing"),
    [
        pytest.param(_offload(5), True, id="nothing there"),
        pytest.param(_offload(2), True, id="its index is not there"),
        pytest.param(_offload(1), False, id="both objects there"),
        pytest.param(_offload(5, **{a.IS_COMPLETE: False}), False, id="offload not complete"),
        pytest.param(_offload(5, **{a.STORE: "http://elsewhere b"}), False, id="in a bucket that was not listed"),
        pytest.param(_offload(5, **{a.STORE: ""}), True, id="names no bucket: the only one is meant"),
        pytest.param(_reference(5), False, id="not offloaded"),
    ],
)
def test_a_complete_offload_without_both_objects_may_be_missing(
    spark: SparkSession, reference: dict[str, Any], missing: bool
) -> None:
    pairs = join.pairs_of(_rows(spark, a.OBJECT, [*_pair(1), *_pair(2, index=False)]))

    found = join.unlisted_objects(_rows(spark, a.REFERENCE, [reference]), pairs, [STORE], STORE)

    assert bool(found.count()) is missing


def _finding(ledger_id: int, **more: Any) -> dict[str, Any]:
    row = {
        a.CLASS: "ORPHAN",
        c.LEDGER_ID: ledger_id,
        c.LEDGER_TYPE: "LEDGER",
        c.COMPONENT: "MANAGED_LEDGER",
        a.MANAGED_LEDGER: "public/default/persistent/a%2Fb+c",
        c.REFERENCE_KEY: "data:public/default/persistent/a%2Fb+c",
        c.BYTES: 100,
        c.REASON: "UNREFERENCED",
        a.LAST_CHANGE_MS: 1_000,
        a.SEEN_MS: 1_000 + ledger_id * 1_000,
        a.CANDIDATE: False,
        a.IS_REFERENCE: False,
    }
    return row | more


def _findings(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    nothing = _rows(spark, a.SUSPECT, [])
    return join.findings(nothing, nothing, _rows(spark, a.SUSPECT, list(rows)))


def test_a_finding_names_its_topic_as_users_write_it_and_its_age_at_the_last_look(spark: SparkSession) -> None:
    (row,) = _findings(spark, _finding(60)).collect()

    assert row[c.TOPIC_NAME] == "persistent://public/default/a/b c"
    assert (row[c.TENANT], row[a.NAMESPACE], row[a.AGE_SECONDS]) == ("public", "public/default", 60)


def test_candidates_of_the_first_look_are_no_findings_before_the_second(spark: SparkSession) -> None:
    suspects = _rows(spark, a.SUSPECT, [_finding(1, **{a.CLASS: "FOREIGN"}), _finding(2, **{a.CLASS: None})])
    first = _rows(spark, a.SUSPECT, [_finding(3, **{a.CANDIDATE: True}), _finding(4, **{a.CLASS: "OPEN"})])
    second = _rows(
        spark, a.SUSPECT, [_finding(5), _finding(6, **{a.CLASS: "IN_USE"}), _finding(7, **{a.CLASS: "GONE"})]
    )

    assert _ids(join.findings(suspects, first, second)) == [1, 4, 5]


def test_findings_are_numbered_upwards_without_doubles(spark: SparkSession) -> None:
    numbers = [row[a.NUMBER] for row in _findings(spark, *(_finding(n) for n in range(1, 60))).collect()]

    assert numbers == sorted(set(numbers))
    assert len(numbers) == 59


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        pytest.param(FindingFilters(), [1, 2, 3, 4, 5], id="none"),
        pytest.param(FindingFilters(tenant="public"), [1, 2, 3, 5], id="tenant"),
        pytest.param(FindingFilters(namespace="other/ns"), [4, 5], id="namespace"),
        pytest.param(FindingFilters(component=LedgerComponent.SCHEMA_STORAGE), [3, 5], id="component"),
        pytest.param(FindingFilters(older_than_seconds=3), [3, 4, 5], id="as old as asked for"),
        pytest.param(FindingFilters(max_bytes=250), [3, 4, 5], id="the oldest that fit"),
        pytest.param(FindingFilters(max_bytes=99), [5], id="none fits"),
    ],
)
def test_filters_narrow_everything_but_what_is_missing(
    spark: SparkSession, filters: FindingFilters, expected: list[int]
) -> None:
    rows = [
        _finding(1),
        _finding(2),
        _finding(3, **{c.COMPONENT: "SCHEMA_STORAGE"}),
        _finding(4, **{a.MANAGED_LEDGER: "other/ns/persistent/t"}),
        _finding(5, **{a.CLASS: "MISSING", a.LAST_CHANGE_MS: None}),
    ]

    assert _ids(matching(_findings(spark, *rows), filters)) == expected


def test_orphans_are_added_up_by_topic_namespace_and_age(spark: SparkSession) -> None:
    old = {a.SEEN_MS: 1_000 + 40 * 86_400 * 1_000}
    rows = [
        _finding(1),
        _finding(2, **old, **{c.COMPONENT: "SCHEMA_STORAGE"}),
        _finding(3, **{a.MANAGED_LEDGER: "other/ns/persistent/t", c.BYTES: 500}),
        _finding(4, **{a.CLASS: "MISSING", c.REASON: "NOT_FOUND"}),
        _finding(5, **{a.CLASS: "FOREIGN", a.MANAGED_LEDGER: None, c.BYTES: None}),
    ]

    summary = summarize(_findings(spark, *rows))

    assert (summary.orphans.count, summary.orphans.size_bytes) == (3, 700)
    assert [(row.topic, row.orphans, row.components) for row in summary.by_topic] == [
        ("persistent://other/ns/t", 1, "MANAGED_LEDGER"),
        ("persistent://public/default/a/b c", 2, "MANAGED_LEDGER, SCHEMA_STORAGE"),
    ]
    assert [(each.label, each.count) for each in summary.by_age if each.count] == [("< 1 h", 2), ("30-90 d", 1)]
    assert [each.ledger_id for each in summary.missing] == [4]
    assert summary.of(FindingClass.FOREIGN).count == 1


@pytest.mark.parametrize(
    ("ids", "expected"), [pytest.param([1, None, 3], 2, id="some without a value"), pytest.param([], 0, id="no rows")]
)
def test_what_a_phase_wrote_is_counted_from_its_files(
    spark: SparkSession, tmp_path: Path, ids: list[int | None], expected: int
) -> None:
    rows = spark.createDataFrame([(each,) for each in ids], "ledger_id bigint").repartition(2)

    kept = Stages(spark, Place(str(tmp_path), pafs.LocalFileSystem(), str(tmp_path)), ".work-1").keep("ledgers", rows)

    assert kept.count("ledger_id") == expected
    assert kept.rows.count() == len(ids)
