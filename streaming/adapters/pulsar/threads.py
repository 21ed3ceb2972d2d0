"""Threads that ask brokers: some for each broker, which tenants share fairly.

Of the questions of one call, one about the tenant with the fewest under way comes next. So a tenant whose questions
hang holds threads only where the call has no question about another tenant left. Another call at the same time waits
for them until they time out.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from streaming.adapters.pulsar.silence import silence

_GRACE_S = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """A question that is under way about something of this tenant. hides: that it hangs says nothing of `what`."""

    future: "Future[T]"
    what: str
    tenant: str
    until_s: float
    hides: bool

    def result(self, late: T) -> T:
        """Return the answer; `late` where there is none in time, however the broker holds the thread up."""
        try:
            return self.future.result(max(0.0, self.until_s - time.monotonic()))
        except TimeoutError:
            is_being_asked = not self.future.cancel()
            if is_being_asked and not self.hides:
                silence.timed_out(self.what, self.tenant)
            return late


class AskingThreads:
    """Thread-safe. concurrency: threads for each `what`, a broker as a rule."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lock = Lock()

    def ask(
        self, what: str, calls: Mapping[str, tuple[str, Callable[[], T]]], deadline: float, *, hides: bool = False
    ) -> dict[str, Asked[T]]:
        """Make the calls in the threads for `what`. calls: name -> the tenant that it is about, and the call."""
        now_s = time.monotonic()
        questions: _Questions[T] = _Questions()
        asked = {}
        for name, (tenant, call) in calls.items():
            until_s = now_s + silence.at_most(what, deadline - now_s, tenant) + _GRACE_S
            asked[name] = Asked(questions.add(tenant, call), what, tenant, until_s, hides)
        with self._lock:
            if what not in self._pools:
                self._pools[what] = ThreadPoolExecutor(self._concurrency, thread_name_prefix="admin")
            for _ in range(min(self._concurrency, len(calls))):
                self._pools[what].submit(questions.answer)
        return asked

    def end_all_but(self, used: Iterable[str]) -> None:
        """End the threads for all else: brokers come and go with other addresses."""
        with self._lock:
            for what in self._pools.keys() - set(used):
                self._pools.pop(what).shutdown(wait=False)  # another thread may still wait for an answer

    def close(self) -> None:
        """End them without waiting."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class _Questions(Generic[T]):
    """Thread-safe. Each thread that answers them calls `answer`."""

    def __init__(self) -> None:
        self._left: dict[str, deque[tuple[Future[T], Callable[[], T]]]] = {}
        self._under_way: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, tenant: str, question: Callable[[], T]) -> Future[T]:
        """Add a question about something of this tenant."""
        future: Future[T] = Future()
        with self._lock:
            self._left.setdefault(tenant, deque()).append((future, question))
        return future

    def answer(self) -> None:
        """Ask until none is left."""
        tenant = None
        while picked := self._next(tenant):
            tenant, future, question = picked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(question())
            except BaseException as error:
                future.set_exception(error)

    def _next(self, asked: str | None) -> tuple[str, Future[T], Callable[[], T]] | None:
        with self._lock:
            if asked is not None:
                self._under_way[asked] -= 1
            if not self._left:
                return None
            tenant = min(self._left, key=self._under_way.__getitem__)
            future, question = self._left[tenant].popleft()
            if not self._left[tenant]:
                del self._left[tenant]
            self._under_way[tenant] += 1
            return tenant, future, question
