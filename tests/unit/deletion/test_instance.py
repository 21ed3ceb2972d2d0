"""A session that ends under the service ends it with an error; one that ends after a stop was asked for does not."""

import threading
from collections.abc import Callable

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.deletion.instance import _alone
from streaming.errors import SafetyError, StopRequestedError, UnavailableError


def _hold(store: MemoryStore, work: Callable[[threading.Event], None]) -> None:
    stop = threading.Event()
    with _alone(store, "/reaper", "main", stop):
        work(stop)


def test_a_session_that_ends_under_the_service_is_told_at_once_and_is_no_clean_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    told: list[str] = []

    def work(stop: threading.Event) -> None:
        store.expire_session()
        assert stop.is_set()
        told.append(caplog.text)

    with pytest.raises(UnavailableError, match="session that the lock lives by is over; start again"):
        _hold(store, work)
    assert "session that the lock lives by is over" in told[0]


@pytest.mark.parametrize("ending", [MemoryStore.expire_session, MemoryStore.close])
def test_a_session_that_ends_after_a_stop_was_asked_for_is_a_clean_stop(ending: Callable[[MemoryStore], None]) -> None:
    store = MemoryStore()

    def work(stop: threading.Event) -> None:
        stop.set()
        ending(store)

    _hold(store, work)


@pytest.mark.parametrize(
    ("ends", "raised", "told"),
    [
        pytest.param(False, StopRequestedError(), StopRequestedError, id="a stop before all was begun"),
        pytest.param(True, StopRequestedError(), UnavailableError, id="a stop because the session ended"),
        pytest.param(True, SafetyError("look"), SafetyError, id="what a person has to look at comes first"),
    ],
)
def test_what_the_work_raised_comes_first_unless_it_only_stopped(
    ends: bool, raised: Exception, told: type[Exception]
) -> None:
    store = MemoryStore()

    def work(_stop: threading.Event) -> None:
        if ends:
            store.expire_session()
        raise raised

    with pytest.raises(told):
        _hold(store, work)
