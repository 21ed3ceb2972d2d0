"""Threads that send requests to brokers: a pool for each broker, which tenants share fairly.

A second `ask` for the same target waits for threads until the first one's requests have ended, at the latest by their
timeout.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCall(Generic[T]):
    """A request in flight."""

    future: "Future[T]"
    what: str  # the target, a broker as a rule
    tenant: str  # the tenant that the request is about
    until_s: float  # on the monotonic clock
    hides: bool  # a timeout of the request is not recorded against the target

    def result(self, late: T) -> T:
        """Return the answer, or `late` if none came in time; do not wait for a thread that is still blocked."""
        try:
            return self.future.result(max(0.0, self.until_s - time.monotonic()))
        except TimeoutError:
            is_running = not self.future.cancel()
            if is_running and not self.hides:
                silence.timed_out(self.what, self.tenant)
            return late


class AskingThreads:
    """A pool of threads for each target. Thread-safe.

    Args:
        concurrency: threads for each target, a broker as a rule.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lock = Lock()

    def ask(
        self, what: str, calls: Mapping[str, tuple[str, Callable[[], T]]], deadline: float, *, hides: bool = False
    ) -> dict[str, BrokerCall[T]]:
        """Make the calls in the threads of the target `what`.

        Args:
            calls: name -> (the tenant that the request is about, the call).
        """
        now_s = time.monotonic()
        queue: _FairQueue[T] = _FairQueue()
        in_flight = {}
        for name, (tenant, call) in calls.items():
            until_s = now_s + silence.at_most(what, deadline - now_s, tenant) + _GRACE_S
            in_flight[name] = BrokerCall(
                future=queue.add(tenant, call), what=what, tenant=tenant, until_s=until_s, hides=hides
            )
        with self._lock:
            if what not in self._pools:
                self._pools[what] = ThreadPoolExecutor(self._concurrency, thread_name_prefix="admin")
            for _ in range(min(self._concurrency, len(calls))):
                self._pools[what].submit(queue.work)
        return in_flight

    def end_all_but(self, used: Iterable[str]) -> None:
        """End the threads of all other targets."""
        # restarted brokers may have other addresses
        with self._lock:
            for what in self._pools.keys() - set(used):
                self._pools.pop(what).shutdown(wait=False)  # another thread may still wait for an answer

    def close(self) -> None:
        """End all threads without waiting."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class _FairQueue(Generic[T]):
    """Calls by tenant. Thread-safe. Each thread of a pool runs `work`."""

    def __init__(self) -> None:
        self._left: dict[str, deque[tuple[Future[T], Callable[[], T]]]] = {}
        self._in_flight: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, tenant: str, call: Callable[[], T]) -> Future[T]:
        """Add a call that concerns a tenant."""
        future: Future[T] = Future()
        with self._lock:
            self._left.setdefault(tenant, deque()).append((future, call))
        return future

    def work(self) -> None:
        """Make calls until none is left."""
        tenant = None
        while picked := self._next(tenant):
            tenant, future, call = picked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def _next(self, finished: str | None) -> tuple[str, Future[T], Callable[[], T]] | None:
        with self._lock:
            if finished is not None:
                self._in_flight[finished] -= 1
            if not self._left:
                return None
            # the tenant with the fewest calls in flight is next, so that a tenant whose requests hang does not take all
            # threads while other tenants' calls wait
            tenant = min(self._left, key=self._in_flight.__getitem__)
            future, call = self._left[tenant].popleft()
            if not self._left[tenant]:
                del self._left[tenant]
            self._in_flight[tenant] += 1
            return tenant, future, call
