"""The last audit of snapshots counts within the filters, and the question before a publication names the orphans."""

from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.certificate import Certificate
from streaming.audit.output import FINDINGS, Output
from streaming.audit.result import AuditResult, remember
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import SafetyError
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_command

pytestmark = pytest.mark.spark

RESULT = AuditResult(
    audit_id="1",
    instance_id="id",
    started_ms=0,
    ended_ms=1,
    certificate=Certificate(zxid_start=1, zxid_end=2, listed={}, unreadable=()),
    totals={"messages": 4},
    in_use=(),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "{tmp_path}"\n')
    return load(file)


@pytest.fixture
def place(spark: SparkSession, settings: Settings) -> Output:
    """A place with the findings of an audit of everything."""
    rows = [
        (found, reason, space, f"persistent://{space}/t", "kind", key, 1, number, 10, 0, "")
        for number, (found, reason, space, key) in enumerate(
            [
                ("DANGER", "NO_GUARD", "shop/prod", "k"),
                ("DANGER", "NO_GUARD", "shops/prod", "k"),
                ("ORPHAN", "OWNER_GONE", "shop/prod", "k"),
                ("ORPHAN", "OWNER_GONE", "shop/prod", ""),  # a namespace's, which can't be requested
            ]
        )
    ]
    place = snapshot_command.output_of(settings, None)
    found = spark.createDataFrame(rows, from_arrow_schema(s.FINDING))
    place.save(found, FINDINGS)
    remember(place, RESULT, FindingFilters())
    return place


@pytest.mark.parametrize(
    ("filters", "faults"),
    [
        (FindingFilters(), ("snapshots: 2 findings of MISSING or DANGER",)),
        (FindingFilters(tenant="shop"), ("snapshots: 1 finding of MISSING or DANGER",)),
        (FindingFilters(namespace="shop/test"), ()),
    ],
)
def test_the_last_audit_counts_what_the_filters_choose(
    spark: SparkSession, settings: Settings, place: Output, filters: FindingFilters, faults: tuple[str, ...]
) -> None:
    section = snapshot_command.further(settings, AuditOptions(recheck_seconds=0, filters=filters), last=True)(
        spark, Event()
    )
    assert section.faults == faults
    assert ("NO_GUARD" in section.html) is bool(faults)
    assert ("shops/prod" in section.html) is filters.are_empty


def test_the_question_names_how_many_removals_would_be_requested(
    spark: SparkSession, settings: Settings, place: Output
) -> None:
    asked: list[str] = []

    def no(orphans: str) -> None:
        asked.append(orphans)
        raise SafetyError("no")

    for publish in (False, True):
        request = snapshot_command.SnapshotRequest(options=AuditOptions(recheck_seconds=0), publish=publish, confirm=no)
        audit = snapshot_command.SnapshotCommand(
            spark=spark, settings=settings, request=request, place=place, stop=Event()
        )
        if publish:
            with pytest.raises(SafetyError):
                audit.ask(RESULT)
        else:
            audit.ask(RESULT)
    assert asked == ["1 orphan"]
