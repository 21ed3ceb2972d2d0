"""`audit` includes the chapter about space and the audit of snapshots in every form that reads what they need."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.audit import command
from streaming.audit.command import AuditRequest
from streaming.cli.main import app
from streaming.config.settings import Settings
from tests.unit.cli.test_confirmation import config_at

SPACE, SNAPSHOTS = "streaming.space.output.chapter", "streaming.snapshots.audit.snapshot_command"


@pytest.mark.parametrize(
    ("options", "included"),
    [
        ((), [SPACE, SNAPSHOTS]),
        (("--verify-only",), [SNAPSHOTS]),
        (("--no-space",), [SNAPSHOTS]),
        (("--last",), [SPACE, SNAPSHOTS]),
        (("--publish", "--yes"), [SPACE, SNAPSHOTS]),
        (("--watch", "6h"), [SPACE, SNAPSHOTS]),
        (("--tenant", "shop", "--json"), [SPACE, SNAPSHOTS]),
        (("--component", "transaction_snapshot"), [SPACE, SNAPSHOTS]),
        (("--component", "MANAGED_LEDGER"), [SPACE]),
    ],
)
def test_an_audit_includes_space_and_the_audit_of_snapshots_unless_the_options_leave_them_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], included: list[str]
) -> None:
    asked: list[AuditRequest] = []

    def audit(_settings: Settings, request: AuditRequest, *, watch_seconds: int) -> None:
        asked.append(request)

    monkeypatch.setattr(command, "audit", audit)
    result = CliRunner().invoke(app, ["audit", *options, "--config", str(config_at(tmp_path))])
    assert result.exit_code == 0, result.output
    [request] = asked
    assert [getattr(each, "func", each).__module__ for each in request.further] == included
