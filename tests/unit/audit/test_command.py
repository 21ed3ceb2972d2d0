"""An audit reports missing data and its own gaps to the operator, and filters apply to rows and totals."""

from dataclasses import replace
from typing import cast

import pytest

from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.certificate import Certificate
from streaming.audit.command import AuditCommand, AuditRequest, Findings, Section, faults_to_check, joined, totals_of
from streaming.audit.output import Output
from streaming.audit.report.summary import Amount, Summary
from streaming.audit.result import AuditResult
from streaming.audit.stages import Engine
from streaming.audit.tables import Rows
from streaming.config.settings import Settings
from streaming.errors import SafetyError
from tests.unit.audit.results import CERTIFICATE, RESULT, SUMMARY

LOST = replace(SUMMARY, by_class=(*SUMMARY.by_class, Amount("MISSING", "NOT_FOUND", 1, 10)))
BLOCKED: Certificate = replace(CERTIFICATE, unreadable=(("/managed-ledgers/shop/ns/persistent/t", "no right"),))


def test_a_complete_audit_without_missing_data_needs_no_operator() -> None:
    assert faults_to_check(RESULT, SUMMARY, FindingFilters(), "report.html") == []


def test_missing_data_and_an_incomplete_audit_need_an_operator() -> None:
    missing, incomplete = faults_to_check(replace(RESULT, certificate=BLOCKED), LOST, FindingFilters(), "report.html")
    assert missing == "data is missing: topics refer to 1 ledger or object that does not exist; see report.html"
    assert incomplete == (
        "the audit is incomplete: 1 fault. The first: /managed-ledgers/shop/ns/persistent/t: no right"
    )


def test_an_unreadable_path_outside_the_filters_is_no_fault() -> None:
    blocked = replace(RESULT, certificate=BLOCKED)
    assert faults_to_check(blocked, SUMMARY, FindingFilters(tenant="public"), "report.html") == []
    assert totals_of(blocked, SUMMARY, FindingFilters(tenant="public"), left_out=0)["complete"] is True
    assert totals_of(blocked, SUMMARY, FindingFilters(tenant="shop"), left_out=0)["complete"] is False


def test_totals_count_the_selected_rows_and_missing_data_elsewhere() -> None:
    everything = {"ORPHAN": {"count": 217, "bytes": 9}, "MISSING": {"count": 3, "bytes": 9}}
    whole = replace(RESULT, totals={"ledgers": 400, "objects": 0, "in_use": 180, **everything})
    assert totals_of(whole, LOST, FindingFilters(tenant="public"), left_out=4) == {
        "complete": True,
        "totals": {
            "ledgers": 400,
            "objects": 0,
            "in_use": 180,
            "ORPHAN": {"count": 1, "bytes": 2048},
            "MISSING": {"count": 1, "bytes": 10},
        },
        "missing_elsewhere": 2,
        "snapshot_namespaces_left_out": 4,
    }


def _concludes(result: AuditResult, summary: Summary, section: Section) -> None:
    request = AuditRequest(options=AuditOptions(recheck_seconds=0), config="F")
    command = AuditCommand(
        engine=cast("Engine", None), settings=cast("Settings", None), request=request, output=cast("Output", None)
    )
    command.conclude(
        Findings(result=result, selected=cast("Rows", None), summary=summary, report="report.html", further=section)
    )


def test_several_further_sections_become_one() -> None:
    assert joined([]) == Section()
    assert joined([Section("a", ("x",), 1), Section("b", ("y", "z"), 2)]) == Section("ab", ("x", "y", "z"), 3)


def test_an_audit_ends_with_4_for_faults_of_snapshots_too() -> None:
    _concludes(RESULT, SUMMARY, Section("a section"))
    with pytest.raises(SafetyError, match=r"^snapshots: 1 finding of MISSING or DANGER$"):
        _concludes(RESULT, SUMMARY, Section("a section", ("snapshots: 1 finding of MISSING or DANGER",)))
    with pytest.raises(SafetyError, match=r"^data is missing: .*; snapshots were not audited$"):
        _concludes(RESULT, LOST, Section(faults=("snapshots were not audited",)))
