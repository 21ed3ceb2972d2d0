"""The last audit of snapshots counts only filtered findings, and the question before a publication counts orphans."""

from pathlib import Path

import pytest

from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.certificate import Certificate
from streaming.audit.output import FINDINGS, Output
from streaming.audit.result import AuditResult, remember
from streaming.audit.stages import Engine
from streaming.audit.tables import Tables
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import SafetyError
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_command

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
def output(tables: Tables, settings: Settings) -> Output:
    """An output folder with the findings of a complete audit."""
    rows = [
        (kind, reason, space, f"persistent://{space}/t", "kind", key, 1, number, 10, 0, "")
        for number, (kind, reason, space, key) in enumerate(
            [
                ("DANGER", "NO_GUARD", "shop/prod", "k"),
                ("DANGER", "NO_GUARD", "shops/prod", "k"),
                ("ORPHAN", "OWNER_GONE", "shop/prod", "k"),
                ("ORPHAN", "OWNER_GONE", "shop/prod", ""),  # of a namespace, which can't be requested
            ]
        )
    ]
    output = snapshot_command.output_of(settings, None)
    findings = [dict(zip(s.FINDING.names, row, strict=True)) for row in rows]
    output.save(FINDINGS, tables.of(findings, s.FINDING))
    remember(output, RESULT, FindingFilters())
    return output


@pytest.mark.parametrize(
    ("filters", "faults"),
    [
        (FindingFilters(), ("snapshots: 2 findings of MISSING or DANGER",)),
        (FindingFilters(tenant="shop"), ("snapshots: 1 finding of MISSING or DANGER",)),
        (FindingFilters(namespace="shop/test"), ()),
    ],
)
def test_the_last_audit_counts_only_filtered_findings(
    engine: Engine, settings: Settings, output: Output, filters: FindingFilters, faults: tuple[str, ...]
) -> None:
    section = snapshot_command.further(settings, AuditOptions(recheck_seconds=0, filters=filters), last=True)(engine)
    assert section.faults == faults
    assert ("NO_GUARD" in section.html) is bool(faults)
    assert ("shops/prod" in section.html) is filters.are_empty


def test_the_question_contains_the_number_of_removals(engine: Engine, settings: Settings, output: Output) -> None:
    questions: list[str] = []

    def no(orphans: str) -> None:
        questions.append(orphans)
        raise SafetyError("no")

    for publish in (False, True):
        request = snapshot_command.SnapshotRequest(options=AuditOptions(recheck_seconds=0), publish=publish, confirm=no)
        audit = snapshot_command.SnapshotCommand(engine=engine, settings=settings, request=request, output=output)
        if publish:
            with pytest.raises(SafetyError):
                audit.ask(RESULT)
        else:
            audit.ask(RESULT)
    assert questions == ["1 orphan"]
