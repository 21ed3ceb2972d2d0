"""Reads never hold the slots that chunks need, and topics with failed queries only delay each other."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import StopRequestedError
from streaming.queries.delivery.slots import RESERVED, SLOW_S, ReadSlots, Slots


class Readers:
    """Threads that read until they are ended. held: the slots that each holds at the moment."""

    def __init__(self, reading: ReadSlots) -> None:
        self.reading = reading
        self.held: dict[str, int] = {}
        self.ends: dict[str, threading.Event] = {}
        self.threads: list[threading.Thread] = []

    def begin(self, query: str, partitions: int) -> None:
        begun, end = threading.Event(), self.ends.setdefault(query, threading.Event())

        def read() -> None:
            begun.set()
            try:
                with self.reading.of(query, partitions):
                    self.held[query] = min(partitions, self.reading.most_tasks(query))
                    end.wait(10)
                    del self.held[query]
            except StopRequestedError:
                self.held[f"{query} gave up"] = 0

        self.threads.append(threading.Thread(target=read, daemon=True))
        self.threads[-1].start()
        assert begun.wait(5)

    def settle(self) -> dict[str, int]:
        """Return the held slots once each thread holds its slots, waits for them, or has ended."""
        for _ in range(1000):
            pools = (self.reading._usual, self.reading._slow)
            waiting = sum(not waiter.granted.is_set() for pool in pools for waiter in list(pool._waiting))
            may_move = any(query in self.held and end.is_set() for query, end in self.ends.items())
            may_move = may_move or (self.reading.stop.is_set() and waiting > 0)
            holding = sum(query in self.ends for query in list(self.held))
            if not may_move and waiting + holding == sum(thread.is_alive() for thread in self.threads):
                return dict(self.held)
            threading.Event().wait(0.01)
        raise AssertionError(f"nothing settles: {self.held}")

    def end(self, *queries: str) -> None:
        for query in queries:
            self.ends[query].set()

    def join(self) -> None:
        self.end(*self.ends)
        for thread in self.threads:
            thread.join(5)


@pytest.fixture
def readers() -> Any:
    made = Readers(ReadSlots(threading.Event(), lambda: 8))
    yield made
    made.join()


def test_a_read_that_hangs_leaves_slots_for_chunks_and_for_those_that_failed(readers: Readers) -> None:
    readers.begin("hangs", 16)
    readers.begin("another", 1)
    readers.begin("third", 16)
    assert readers.settle() == {"hangs": 2, "another": 1}, "of eight, two are for chunks and two for those that failed"
    readers.end("hangs")
    assert readers.settle() == {"another": 1, "third": 2}


def test_failed_topics_share_a_few_slots_and_delay_no_others(readers: Readers) -> None:
    for query in ("bad", "worse", "worst"):
        readers.reading.slow_down(query)
    readers.begin("bad", 16)
    readers.begin("worse", 16)
    readers.begin("good", 3)
    assert readers.settle() == {"bad": 1, "worse": 1, "good": 2}
    readers.begin("worst", 16)
    readers.end("bad")
    assert readers.settle() == {"worse": 1, "good": 2, "worst": 1}


def test_a_read_that_hangs_leaves_half_of_the_slots_to_others_and_learns_whether_others_wait() -> None:
    reading = ReadSlots(threading.Event(), lambda: 8)
    readers = Readers(reading)
    with reading.of("hangs", 16) as others_wait:
        assert not others_wait()
        readers.begin("good", 16)
        assert readers.settle() == {"good": 2}
        assert not others_wait()
        readers.begin("too many", 1)
        assert readers.settle() == {"good": 2}
        assert others_wait()
        readers.end("good")
        assert readers.settle() == {"too many": 1}
        assert not others_wait()
    readers.join()


def test_reads_that_fit_run_in_parallel_and_none_overtakes_a_large_read(readers: Readers) -> None:
    readers.begin("first", 1)
    readers.begin("second", 1)
    readers.begin("third", 1)
    readers.begin("large", 2)
    readers.begin("small", 1)
    assert readers.settle() == {"first": 1, "second": 1, "third": 1}
    readers.end("first")
    assert readers.settle() == {"second": 1, "third": 1, "large": 2}
    readers.end("second")
    assert readers.settle() == {"third": 1, "large": 2, "small": 1}


def test_a_failure_is_forgotten_after_a_while() -> None:
    now_s = [0.0]
    reading = ReadSlots(threading.Event(), lambda: 8, monotonic=lambda: now_s[0])
    reading.slow_down("query")
    assert reading.most_tasks("query") == 1
    now_s[0] = SLOW_S - 1
    assert reading.most_tasks("query") == 1
    now_s[0] = SLOW_S
    assert reading.most_tasks("query") == 2


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 1), (4, 1), (5, 1), (6, 1), (8, 2), (32, 14)])
def test_a_read_has_a_slot_whatever_their_number(slots: int, most: int) -> None:
    reading = ReadSlots(threading.Event(), lambda: slots)
    assert reading.most_tasks("query") == most
    with reading.of("query", 16):
        pass


@pytest.mark.parametrize(("slots", "beside"), [(4, False), (5, True)])
def test_with_too_few_slots_failed_topics_share_with_the_others(slots: int, beside: bool) -> None:
    readers = Readers(ReadSlots(threading.Event(), lambda: slots))
    readers.reading.slow_down("bad")
    readers.begin("bad", 1)
    readers.settle()
    readers.begin("good", 1)
    assert ("good" in readers.settle()) is beside, f"{RESERVED} slots are always left to chunks where that can be"
    readers.join()


def test_waiting_for_slots_ends_when_the_service_stops() -> None:
    reading = ReadSlots(threading.Event(), lambda: 8)
    readers = Readers(reading)
    for query in ("reads", "reads too"):
        readers.begin(query, 16)
    readers.settle()
    readers.begin("waits", 16)
    reading.stop.set()
    threading.Event().wait(0.5)
    assert readers.settle() == {"reads": 2, "reads too": 2, "waits gave up": 0}
    readers.join()


def test_an_error_gives_the_slots_back() -> None:
    slots = Slots(threading.Event())
    with pytest.raises(ValueError), slots.taken(2, 2, "mine"):  # noqa: PT011
        raise ValueError
    with slots.taken(2, 2, "mine"):
        pass


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=12), st.integers(1, 4))
def test_never_more_slots_than_there_are_and_all_threads_are_served(wanted: list[tuple[int, int]], most: int) -> None:
    slots, guard, inside, highest, done = Slots(threading.Event()), threading.Lock(), [0], [0], []

    def read(number: int, whose: int) -> None:
        with ExitStack() as stack:
            stack.enter_context(slots.taken(number, most, str(whose)))
            with guard:
                inside[0] += number
                highest[0] = max(highest[0], inside[0])
            threading.Event().wait(0.001)
            with guard:
                inside[0] -= number
        done.append(number)

    threads = [threading.Thread(target=read, args=each) for each in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    numbers = [number for number, _whose in wanted]
    assert sorted(done) == sorted(numbers)
    assert highest[0] <= max(most, *numbers)
