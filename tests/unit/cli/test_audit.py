"""`audit` includes the audit of snapshots in every form, unless the operator chose another component."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.audit import command
from streaming.audit.command import AuditRequest
from streaming.cli.main import app
from streaming.config.settings import Settings
from tests.unit.cli.test_confirmation import config_at


@pytest.mark.parametrize(
    ("options", "includes"),
    [
        ((), True),
        (("--verify-only",), True),
        (("--last",), True),
        (("--publish", "--yes"), True),
        (("--watch", "6h"), True),
        (("--tenant", "shop", "--json"), True),
        (("--component", "transaction_snapshot"), True),
        (("--component", "MANAGED_LEDGER"), False),
    ],
)
def test_an_audit_includes_snapshots_unless_another_component_was_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], *, includes: bool
) -> None:
    asked: list[AuditRequest] = []

    def audit(_settings: Settings, request: AuditRequest, *, watch_seconds: int) -> None:
        asked.append(request)

    monkeypatch.setattr(command, "audit", audit)
    result = CliRunner().invoke(app, ["audit", *options, "--config", str(config_at(tmp_path))])
    assert result.exit_code == 0, result.output
    assert [request.further is not None for request in asked] == [includes]
