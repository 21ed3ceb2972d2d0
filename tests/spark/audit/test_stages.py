"""What a phase wrote is counted from its files, and what it could not read is taken down."""

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
def test_what_a_phase_wrote_is_counted_from_its_files(
    spark: SparkSession, place: Output, ids: list[int | None], expected: int
) -> None:
    rows = spark.createDataFrame([(each,) for each in ids], "ledger_id bigint").repartition(2)

    kept = Stages(spark, place, ".work-1").keep("ledgers", rows)

    assert kept.count("ledger_id") == expected
    assert kept.rows.count() == len(ids)


def test_what_a_phase_could_not_read_is_taken_down_and_believed_no_more(spark: SparkSession, place: Output) -> None:
    stages, completeness = Stages(spark, place, ".work-1"), Completeness()
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
