"""The rows of a phase are counted from its files, and unreadable paths are recorded."""

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from streaming.adapters.memory.store import MemoryStore
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Completeness
from streaming.audit.output import Output
from streaming.audit.phase_progress import Phases
from streaming.audit.stages import PhaseTools, Stages
from streaming.config.settings import Settings
from tests.spark.audit.frames import rows_of
from udfs import columns as c
from udfs.paths import Layout

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("ids", "expected"), [pytest.param([1, None, 3], 2, id="some without a value"), pytest.param([], 0, id="no rows")]
)
def test_the_rows_of_a_phase_are_counted_from_its_files(
    spark: SparkSession, output: Output, ids: list[int | None], expected: int
) -> None:
    rows = spark.createDataFrame([(number,) for number in ids], "ledger_id bigint").repartition(2)

    kept = Stages(spark, output, ".work-1").keep("ledgers", rows)

    assert kept.count("ledger_id") == expected
    assert kept.rows.count() == len(ids)


def test_paths_that_a_phase_could_not_read_are_recorded_and_make_the_audit_incomplete(
    spark: SparkSession, output: Output
) -> None:
    stages, completeness = Stages(spark, output, ".work-1"), Completeness()
    tools = PhaseTools(
        settings=cast(Settings, None),
        options=AuditOptions(recheck_seconds=0),
        store=MemoryStore(),
        layout=Layout.HIERARCHICAL,
        phases=cast(Phases, None),
        stages=stages,
        completeness=completeness,
    )
    unread: dict[str, Any] = {a.PATH: "/ledgers/00/0001", c.DETAIL: "no right"}
    rows = [{c.LEDGER_ID: 7}, unread, unread]

    tools.note([("/ledgers/01", "away")], stages.keep("ledgers", rows_of(spark, a.LISTED, rows)))

    assert sorted(completeness.problems) == [("/ledgers/00/0001", "no right"), ("/ledgers/01", "away")]
    assert completeness.blocked_paths == ("/ledgers/00/0001", "/ledgers/01")
    assert not completeness.certificate(1, 2).is_complete
