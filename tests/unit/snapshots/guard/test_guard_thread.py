"""Guards beside the service are kept at once and again, and end with the block."""

from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.audit.audit_options import FindingFilters
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.prometheus.registry import Registry
from streaming.snapshots.guard import guard_thread
from streaming.snapshots.guard.guard_thread import GuardMetrics, guarding
from streaming.snapshots.guard.guards import GuardState


def test_guards_are_kept_again_and_again_and_an_error_ends_one_run_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs, registry = list[int](), Registry()
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
    with caplog.at_level("INFO", "ledger-reaper"), guarding(settings, registry):
        assert enough.wait(10)
    assert "guard of snapshots: no broker answers" in caplog.text
    assert "t/ns: guard created" in caplog.text
    assert "GUARD NOT UPDATED: torn index" in caplog.text
    assert registry.get_sample_value("ledger_reaper_snapshot_guards") == 1
    assert registry.get_sample_value("ledger_reaper_snapshot_guard_failures") == 1
    count = len(runs)
    assert not Event().wait(0.1)
    assert len(runs) == count


def test_the_position_of_each_guard_is_shown_with_the_time_since_when() -> None:
    registry = Registry()
    metrics = GuardMetrics(registry)

    def shown(name: str, namespace: str) -> float | None:
        return registry.get_sample_value(f"ledger_reaper_snapshot_guard_{name}", {"namespace": namespace})

    metrics.show([GuardState(namespace="a", position=(5, 0), lost=2), GuardState(namespace="b", position=(7, 0))], 10.0)
    metrics.show([GuardState(namespace="a", position=(5, 3)), GuardState(namespace="b", position=(9, 0))], 20.0)
    assert [shown("ledger", "a"), shown("moved_timestamp_seconds", "a")] == [5, 10]
    assert [shown("ledger", "b"), shown("moved_timestamp_seconds", "b")] == [9, 20]
    assert registry.get_sample_value("ledger_reaper_snapshot_guard_pass_timestamp_seconds") == 20
    assert registry.get_sample_value("ledger_reaper_snapshot_guard_lost_segments") == 0
    metrics.show([GuardState(namespace="a", error="torn index")], 30.0)
    assert [shown("ledger", "a"), shown("ledger", "b")] == [None, None], "what is unknown is absent"
    assert registry.get_sample_value("ledger_reaper_snapshot_guard_failures") == 1
