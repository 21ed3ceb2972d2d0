"""Guards beside the service are kept at once and again, and end with the block."""

from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.audit.audit_options import FindingFilters
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.snapshots.guard import guard_thread
from streaming.snapshots.guard.guard_thread import guarding
from streaming.snapshots.guard.guards import GuardState


def test_guards_are_kept_again_and_again_and_an_error_ends_one_run_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    enough = Event()

    def keep(_settings: Any, _filters: FindingFilters) -> Iterator[GuardState]:
        runs.append(len(runs))
        if len(runs) == 1:
            raise UnavailableError("no broker answers")
        yield GuardState(namespace="t/ns", is_new=True, error="")
        yield GuardState(namespace="t/other", error="torn index")
        if len(runs) > 2:
            enough.set()

    monkeypatch.setattr(guard_thread, "guard_all", keep)
    settings = cast(Settings, SimpleNamespace(snapshots=SimpleNamespace(guard_every_seconds=0.01)))
    with caplog.at_level("INFO", "ledger-reaper"), guarding(settings):
        assert enough.wait(10)
    assert "guard of snapshots: no broker answers" in caplog.text
    assert "t/ns: guard created" in caplog.text
    assert "GUARD NOT UPDATED: torn index" in caplog.text
    count = len(runs)
    assert not Event().wait(0.1)
    assert len(runs) == count
