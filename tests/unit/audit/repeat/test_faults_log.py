"""Repeated audits log what they find at ERROR only if it is new; nothing that is new is logged at INFO."""

import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Certificate
from streaming.audit.command import AuditCommand, AuditRequest, Findings, Section
from streaming.audit.output import Output
from streaming.audit.repeat.faults_log import AuditFaultsError, FaultsLog
from streaming.audit.report.summary import Amount
from streaming.audit.stages import Engine
from streaming.audit.tables import Tables
from streaming.clock import ManualClock
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from tests.unit.audit.frames import finding, findings_of
from tests.unit.audit.results import CERTIFICATE, RESULT, SUMMARY
from udfs import columns as c

LOST = replace(SUMMARY, by_class=(*SUMMARY.by_class, Amount("MISSING", "NOT_FOUND", 2, 10)))
MISSING = {a.CLASS: "MISSING", c.REASON: "NOT_FOUND", a.IS_REFERENCE: True}


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


@pytest.fixture
def faults(caplog: pytest.LogCaptureFixture) -> FaultsLog:
    caplog.set_level(logging.INFO)
    return FaultsLog(60, ManualClock(0))


def test_the_same_findings_are_an_error_once_and_then_named_with_their_time(
    faults: FaultsLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _audit in range(3):
        faults.failed(AuditFaultsError("data is missing", "x"))
    assert levels(caplog) == ["ERROR", "INFO", "INFO"]
    assert caplog.messages[1:] == ["audit: the same as since 1970-01-01 00:00:00 UTC: data is missing"] * 2


@pytest.mark.parametrize("text", ["data is missing", "other data is missing"])
def test_other_findings_are_an_error_whatever_the_text_is(
    faults: FaultsLog, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    faults.failed(AuditFaultsError("data is missing", "x"))
    faults.failed(AuditFaultsError(text, "y"))
    faults.failed(AuditFaultsError("data is missing", "x"))
    assert levels(caplog) == ["ERROR"] * 3


def test_findings_that_come_back_are_an_error_again(faults: FaultsLog, caplog: pytest.LogCaptureFixture) -> None:
    faults.failed(AuditFaultsError("data is missing", "x"))
    faults.passed()
    faults.passed()
    faults.failed(AuditFaultsError("data is missing", "x"))
    assert levels(caplog) == ["ERROR", "INFO", "ERROR"]
    assert "since 1970-01-01 00:00:00 UTC is gone" in caplog.messages[1]


def test_an_audit_that_did_not_end_is_an_error_and_leaves_the_findings_known(
    faults: FaultsLog, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (AuditFaultsError("data is missing", "x"), UnavailableError("a"), UnavailableError("a")):
        faults.failed(error)
    faults.failed(AuditFaultsError("data is missing", "x"))
    assert levels(caplog) == ["ERROR", "ERROR", "ERROR", "INFO"]


@pytest.mark.parametrize(
    ("rows", "certificate", "section", "is_same"),
    [
        pytest.param([finding(2, **MISSING), finding(1, **MISSING)], CERTIFICATE, Section(), True, id="another order"),
        pytest.param(
            [finding(1, **MISSING), finding(2, **MISSING), finding(3)], CERTIFICATE, Section(), True, id="an orphan"
        ),
        pytest.param(
            [finding(1, **MISSING), finding(3, **MISSING)], CERTIFICATE, Section(), False, id="another ledger"
        ),
        pytest.param(
            [finding(1, **MISSING), finding(2, **MISSING | {a.MANAGED_LEDGER: "a/b/persistent/c"})],
            CERTIFICATE,
            Section(),
            False,
            id="another topic",
        ),
        pytest.param(
            [finding(1, **MISSING), finding(2, **MISSING)],
            replace(CERTIFICATE, unreadable=(("/a", "x"), ("/b", "x"))),
            Section(),
            False,
            id="an unreadable path",
        ),
        pytest.param(
            [finding(1, **MISSING), finding(2, **MISSING)],
            CERTIFICATE,
            Section(faults=("snapshots: 1 finding of MISSING",), grave=("one topic",)),
            False,
            id="a snapshot",
        ),
    ],
)
def test_findings_are_the_same_only_if_each_is(
    tables: Tables, rows: list[dict[str, Any]], certificate: Certificate, section: Section, is_same: bool
) -> None:
    first = concluded(tables, [finding(1, **MISSING), finding(2, **MISSING)], CERTIFICATE, Section())
    assert (concluded(tables, rows, certificate, section) == first) is is_same


def test_the_same_number_of_snapshots_of_another_topic_is_not_the_same(tables: Tables) -> None:
    one, other = (
        concluded(tables, [], CERTIFICATE, Section(faults=("snapshots: 1 finding",), grave=(topic,))) for topic in "ab"
    )
    assert one != other


def test_requests_that_could_not_be_sent_are_new(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for unsent in ([], ["1 request of tenant a not sent"], ["1 request of tenant b not sent"]):
        monkeypatch.setattr(AuditCommand, "_publish", lambda *_, unsent=unsent: unsent)
        digests.append(concluded(tables, [finding(1, **MISSING)], CERTIFICATE, Section(), publish=True))
    assert len(set(digests)) == len(digests)


def concluded(
    tables: Tables, rows: list[dict[str, Any]], certificate: Certificate, section: Section, *, publish: bool = False
) -> str:
    request = AuditRequest(options=AuditOptions(recheck_seconds=0), config="F", repeats=True, publish=publish)
    command = AuditCommand(
        engine=cast("Engine", None), settings=cast("Settings", None), request=request, output=cast("Output", None)
    )
    result = replace(RESULT, certificate=certificate)
    with pytest.raises(AuditFaultsError) as found:
        command.conclude(
            Findings(result=result, selected=findings_of(tables, *rows), summary=LOST, report="r", further=section)
        )
    assert found.value.digest
    return found.value.digest
