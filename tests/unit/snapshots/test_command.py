from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from streaming.audit.certificate import Certificate
from streaming.audit.options import AuditOptions, FindingFilters
from streaming.audit.result import AuditResult
from streaming.audit.stopping import StoppedError
from streaming.config.load import load
from streaming.errors import ConfigError, StopRequestedError, UnavailableError
from streaming.snapshots import command
from udfs.snapshots.audit import SnapshotClass


def _section(monkeypatch: pytest.MonkeyPatch, folder: Path, error: Exception, stop: Event | None = None) -> str:
    def fails(*_each: Any) -> None:
        raise error

    monkeypatch.setattr(command, "audited", fails)
    file = folder / "config.toml"
    file.write_text(f'[state]\ndir = "{folder}"\n')
    section = command.further(load(file), AuditOptions(recheck_seconds=0))
    return section(cast("SparkSession", None), stop or Event())


@pytest.mark.parametrize("error", [UnavailableError("no broker"), ValueError("no broker"), OSError("no broker")])
def test_an_audit_of_ledgers_comes_to_its_end_whatever_happens_to_that_of_snapshots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    assert "no broker" in _section(monkeypatch, tmp_path, error)


def test_no_removal_is_requested_that_the_service_would_refuse(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "{tmp_path}"\n[safety]\nallowed_components = ["MANAGED_LEDGER"]\n')
    request = command.SnapshotRequest(AuditOptions(recheck_seconds=0), None, publish=True)
    with pytest.raises(ConfigError, match=r"safety\.allowed_components does not name TRANSACTION_SNAPSHOT"):
        command.audit(load(file), request)


def test_a_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StopRequestedError):
        _section(monkeypatch, tmp_path, StopRequestedError())


@pytest.mark.parametrize("error", [StoppedError(), ValueError("Job 4 cancelled as part of cancellation of all jobs")])
def test_what_a_signal_cut_short_ends_the_audit_of_ledgers_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(type(error)):
        _section(monkeypatch, tmp_path, error, stop)


def _result(grave: int, *unreadable: tuple[str, str]) -> AuditResult:
    totals = {str(each): {"count": 0, "bytes": 0, "ids": 0} for each in SnapshotClass}
    totals["DANGER"]["count"] = grave
    return AuditResult("1", "id", 0, 1, Certificate(1, 2, {}, unreadable), totals, ())


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (_result(0), ""),
        (_result(2), "2 findings are MISSING or DANGER"),
        (_result(0, ("persistent://t/ns/x", "silence")), "the audit is incomplete: it could not read 1 parts"),
    ],
)
def test_verify_only_passes_only_where_nothing_is_grave_and_everything_was_read(result: AuditResult, why: str) -> None:
    assert command.shortcoming(result, FindingFilters()).startswith(why)
    assert bool(command.shortcoming(result, FindingFilters())) is bool(why)
