"""How the service keeps retries and works them off: what it asks before it writes, and what it leaves out."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.deletion.service import LedgerDeletionService
from streaming.errors import FencedError, StopRequestedError, UnavailableError
from streaming.schemas import RETRY
from tests.services import service_of


class _Rows(list[int]):
    """Entries, where the service has a DataFrame."""

    def persist(self) -> "_Rows":
        return self

    def unpersist(self) -> None:
        pass


class _Waiting:
    def __init__(self) -> None:
        self.said: list[object] = []
        self.may_have_receipts = False
        self.due = _Rows([1, 2])
        self.appends_fail = 0

    def take_over(self, still_mine: Any, _without_done: Any) -> None:
        self.said.append("take over" if still_mine() else "refused")

    def without_held(self, rows: _Rows) -> _Rows:
        return _Rows(entry for entry in rows if entry != 3)

    def append(self, rows: _Rows) -> None:
        self.said.append(list(rows))
        if self.appends_fail:
            self.appends_fail -= 1
            raise UnavailableError("the disk is away")

    def begin(self, _now_ms: int) -> _Rows:
        self.said.append("begin")
        return self.due

    def end(self) -> None:
        self.said.append("end")

    def count(self) -> int:
        return 0


class _Service(LedgerDeletionService):
    worked_off: list[list[int]]

    def _work_off(self, query: str, batch_id: int, part: Any) -> None:
        assert (query, batch_id) == (RETRY, 1)
        self.worked_off.append(list(part))


def _service(waiting: _Waiting, *, is_mine: bool = True) -> _Service:
    service = service_of(
        _Service,
        guards=SimpleNamespace(still_mine=lambda: is_mine),
        receipts=SimpleNamespace(without_done=lambda rows: _Rows(entry for entry in rows if entry != 2)),
        waiting=waiting,
        metrics=SimpleNamespace(waiting=lambda _: None, outage=lambda: None),
    )
    service.worked_off = []
    return service


def test_a_run_takes_the_table_over_before_it_reads_and_before_it_writes() -> None:
    waiting = _Waiting()
    service = _service(waiting)
    service._keep(cast("Any", _Rows([1, 2, 3])), 0)
    service._keep(cast("Any", _Rows([1, 2, 3])), 1)
    service.work_off_due()
    assert waiting.said == ["take over", [1], "take over", [1, 2, 3], "take over", "begin", "end"]


def test_a_batch_that_may_be_stored_is_looked_for_before_it_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.deletion.service._OUTAGE_WAITS_S", (0.0,))
    waiting = _Waiting()
    service = _service(waiting)
    service._keep(cast("Any", _Rows([1])), 0)
    waiting.said.clear()
    waiting.appends_fail = 1
    service._keep(cast("Any", _Rows([1, 2, 3])), 1)
    assert [each for each in waiting.said if isinstance(each, list)] == [[1, 2, 3], [1]]


def test_a_run_that_is_outdated_or_told_to_stop_writes_nothing() -> None:
    waiting = _Waiting()
    with pytest.raises(FencedError):
        _service(waiting, is_mine=False)._keep(cast("Any", _Rows([1])), 0)
    service = _service(waiting)
    service.stop.set()
    with pytest.raises(StopRequestedError):
        service._keep(cast("Any", _Rows([1])), 0)
    assert waiting.said == []


@pytest.mark.parametrize(("may_have_receipts", "expected"), [(True, [1]), (False, [1, 2])])
def test_what_earlier_runs_may_have_worked_off_is_left_out(*, may_have_receipts: bool, expected: list[int]) -> None:
    waiting = _Waiting()
    waiting.may_have_receipts = may_have_receipts
    service = _service(waiting)
    service.work_off_due()
    assert service.worked_off == [expected]
