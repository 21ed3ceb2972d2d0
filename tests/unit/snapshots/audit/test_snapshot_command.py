from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.certificate import Certificate
from streaming.audit.command import Section
from streaming.audit.result import AuditResult, remember
from streaming.audit.stages import Engine
from streaming.audit.stopping import StoppedError
from streaming.audit.tables import Tables
from streaming.audit.workers import Workers
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, StopRequestedError, UnavailableError
from streaming.snapshots.audit import snapshot_command
from streaming.snapshots.audit.advice import NOT_LOADED
from udfs.snapshots.topic_findings import SnapshotClass


def _section(monkeypatch: pytest.MonkeyPatch, folder: Path, error: Exception, stop: Event | None = None) -> Section:
    def fails(*_each: Any, only_loaded: bool) -> None:
        assert only_loaded  # `audit` loads no topic
        raise error

    monkeypatch.setattr(snapshot_command, "audited", fails)
    file = folder / "config.toml"
    file.write_text(f'[state]\ndir = "{folder}"\n')
    section = snapshot_command.further(load(file), AuditOptions(recheck_seconds=0))
    return section(Engine(tables=cast("Tables", None), workers=cast("Workers", None), stop=stop or Event()))


@pytest.mark.parametrize("error", [UnavailableError("no broker"), ValueError("no broker"), OSError("no broker")])
def test_an_audit_of_ledgers_comes_to_its_end_whatever_happens_to_that_of_snapshots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    section = _section(monkeypatch, tmp_path, error)
    assert "no broker" in section.html
    (fault,) = section.faults
    assert "snapshots were not audited: " in fault
    assert "no broker" in fault


def test_no_removal_is_requested_that_the_service_would_refuse(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "{tmp_path}"\n[safety]\nallowed_components = ["MANAGED_LEDGER"]\n')
    request = snapshot_command.SnapshotRequest(options=AuditOptions(recheck_seconds=0), out=None, publish=True)
    with pytest.raises(ConfigError, match=r"safety\.allowed_components does not name TRANSACTION_SNAPSHOT"):
        snapshot_command.audit(load(file), request)


def test_a_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StopRequestedError):
        _section(monkeypatch, tmp_path, StopRequestedError())


@pytest.mark.parametrize("error", [StoppedError(), ValueError("INTERRUPT Error: Interrupted!")])
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
    return AuditResult(
        audit_id="1",
        instance_id="id",
        started_ms=0,
        ended_ms=1,
        certificate=Certificate(zxid_start=1, zxid_end=2, listed={}, unreadable=unreadable),
        totals=totals,
        in_use=(),
    )


BLIND = ("persistent://t/ns/x", "silence")
SHORT = pytest.mark.parametrize(
    ("result", "why"),
    [
        pytest.param(_result(1), "1 finding of MISSING or DANGER", id="a danger"),
        pytest.param(_result(2), "2 findings of MISSING or DANGER", id="dangers"),
        pytest.param(
            _result(0, BLIND), "the audit is incomplete: 1 fault. The first: persistent://t/ns/x: silence", id="a gap"
        ),
    ],
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "{tmp_path}"\n')
    return load(file)


def _finds(monkeypatch: pytest.MonkeyPatch, result: AuditResult) -> None:
    monkeypatch.setattr(snapshot_command, "audited", lambda *_each, **_options: (result, []))


@SHORT
@pytest.mark.parametrize("verify_only", [False, True])
def test_every_audit_ends_with_4_where_a_finding_is_grave_or_something_was_not_read(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, result: AuditResult, why: str, *, verify_only: bool
) -> None:
    _finds(monkeypatch, result)
    with pytest.raises(SafetyError) as raised:
        snapshot_command.audit(
            settings, snapshot_command.SnapshotRequest(options=AuditOptions(recheck_seconds=0, verify_only=verify_only))
        )
    assert str(raised.value) == f"{why}; see {settings.state_dir}/snapshots/report.html"


@pytest.mark.parametrize("verify_only", [False, True])
def test_an_audit_that_read_all_and_found_nothing_grave_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, *, verify_only: bool
) -> None:
    _finds(monkeypatch, _result(0))
    snapshot_command.audit(
        settings, snapshot_command.SnapshotRequest(options=AuditOptions(recheck_seconds=0, verify_only=verify_only))
    )


@SHORT
def test_the_audit_of_ledgers_gets_the_same_faults(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, settings: Settings, result: AuditResult, why: str
) -> None:
    _finds(monkeypatch, result)
    assert snapshot_command.further(settings, AuditOptions(recheck_seconds=0))(engine).faults == (f"snapshots: {why}",)


def test_the_audit_of_ledgers_says_how_many_namespaces_it_left_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    result = _result(0)
    _finds(monkeypatch, replace(result, certificate=replace(result.certificate, listed={NOT_LOADED: 2})))
    section = snapshot_command.further(settings, AuditOptions(recheck_seconds=0))(engine)
    assert section.faults == ()
    assert section.left_out == 2
    command = "ledger-reaper snapshots audit"
    for said, code in ((caplog.text, f"`{command}`"), (section.html, f"<code>{command}</code>")):
        assert "2 namespaces" in said
        assert f"{code} loads and reads them" in said
    _finds(monkeypatch, result)
    assert "left out" not in snapshot_command.further(settings, AuditOptions(recheck_seconds=0))(engine).html


def test_the_last_audit_of_ledgers_has_no_faults_of_snapshots_that_were_never_audited(
    engine: Engine, settings: Settings
) -> None:
    assert snapshot_command.further(settings, AuditOptions(recheck_seconds=0), last=True)(engine) == Section()


@pytest.mark.parametrize(
    ("covered", "chosen", "is_covered"),
    [
        ({}, {"tenant": "shop"}, True),
        ({"tenant": "shop"}, {"namespace": "shop/prod"}, True),
        ({"tenant": "shop"}, {}, False),
        ({"tenant": "shop"}, {"namespace": "shops/prod"}, False),
        ({"namespace": "shop/prod"}, {"tenant": "shop"}, False),
    ],
)
def test_the_last_audit_of_snapshots_counts_only_where_it_covered_what_is_chosen(
    engine: Engine, settings: Settings, covered: dict[str, str], chosen: dict[str, str], *, is_covered: bool
) -> None:
    remember(snapshot_command.output_of(settings, None), _result(0), FindingFilters(**covered))  # type: ignore[arg-type]
    options = AuditOptions(recheck_seconds=0, filters=FindingFilters(**chosen))  # type: ignore[arg-type]
    (fault,) = snapshot_command.further(settings, options, last=True)(engine).faults
    # there are no findings to load: where they would be loaded, it fails for that
    assert ("covered" in fault) is not is_covered
