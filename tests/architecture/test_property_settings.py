"""Property tests judge the code, not what else goes on in the process or how busy the machine is."""

import random
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def other_thread_draws() -> Iterator[None]:
    stop = Event()

    def draw() -> None:
        while not stop.wait(0.0005):
            random.random()

    thread = Thread(target=draw)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("other_thread_draws")
@settings(suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_client_thread_that_backs_off_at_random_fails_no_property(data: st.DataObject) -> None:
    for _ in range(20):
        assert 0 <= data.draw(st.integers(0, 9)) <= 9
