"""Parked lanes: why each is parked, when it is tried again, and the thread that works it off by another way.

A lane is one query with its topic. Where its query fails, the lane is parked, and the others go on.
1. At once a rescue works off by another way what the query could not, in a thread of the lane's own. Then the query may
   begin again.
2. A query that fails again, and whose rescues find nothing new, is begun again after pauses that grow (SOON_S).
3. Where the rescue fails too, an outage perhaps, the query is begun again after longer pauses (PAUSES_S).
4. Where the connector could not even plan a batch, the query rests, and rescues look for new messages every LOOK_S.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from streaming.errors import FencedError, StopRequestedError, UnavailableError
from streaming.queries.names import Query
from streaming.spark.failures import error_of, one_line
from streaming.state.parked_queries import ParkedQuery
from udfs.formats.internal_stats import Position

log = logging.getLogger("ledger-reaper")

SOON_S = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0)
PAUSES_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LOOK_S = 5.0
_OUTAGE_S = 60.0  # the longest pause where a service is away: it may come back at any moment


@dataclass(frozen=True, slots=True)
class FallbackResult:
    """The result of a fallback read.

    has_news: it found messages that had no receipt, or committed a batch. may_start: the query is worth beginning.
    reached: partition -> up to where all messages have receipts though no batch is committed.
    """

    has_news: bool
    may_start: bool = True
    reached: Mapping[str, Position] = field(default_factory=dict)


Rescue = Callable[[Query], FallbackResult]
"""Works off by another way what a query could not. Raises anything."""


class _Next(Enum):
    RESCUE = auto()
    BEGIN = auto()
    PROOF = auto()  # the query runs; as soon as it has got on, the lane is parked no more


@dataclass(slots=True)
class _Lane:
    why: Exception
    since_ms: int
    again_s: float
    failures: int = 0
    is_read: bool = False
    next: _Next = _Next.RESCUE
    reached: Mapping[str, Position] = field(default_factory=dict)
    thread: threading.Thread | None = None
    result: FallbackResult | Exception | None = None


class ParkedQueries:
    """The parked ones. For one thread, but for what rescues do.

    show: is told of each change, by the query's name; None: the lane is parked no more. most_failures: with more in a
    row a lane is given up; None: never.
    """

    def __init__(
        self,
        rescue: Rescue,
        show: Callable[[str, ParkedQuery | None], None],
        *,
        most_failures: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._rescue = rescue
        self._show = show
        self._most_failures = most_failures
        self._monotonic = monotonic
        self._now_ms = now_ms
        self._parked: dict[Query, _Lane] = {}

    def __contains__(self, query: Query) -> bool:
        """Whether the lane is parked."""
        return query in self._parked

    def rests(self, query: Query) -> bool:
        """Whether the lane is parked, and its query does not run."""
        return query in self._parked and self._parked[query].next is not _Next.PROOF

    @property
    def given_up(self) -> dict[Query, Exception]:
        """Queries that failed too often to be tried again, and why they failed last."""
        return {query: lane.why for query, lane in self._parked.items() if self._is_given_up(lane)}

    @property
    def reached(self) -> dict[str, Position]:
        """Partition -> up to where all messages have receipts though no batch is committed."""
        return {partition: at for lane in self._parked.values() for partition, at in lane.reached.items()}

    def park(self, query: Query, why: Exception) -> None:
        """The query has ended with this."""
        now_s = self._monotonic()
        lane = self._parked.setdefault(query, _Lane(why, self._now_ms(), now_s))
        lane.why, lane.next = why, _Next.RESCUE
        lane.failures += 1
        lane.again_s = now_s + (_of(SOON_S, lane.failures - 1) if lane.is_read else 0.0)
        self._tell(query, lane)

    def step(self, query: Query) -> bool | Exception:
        """Do what is due for a lane that rests.

        Returns True where its query is to begin now, and an exception where that must end the service.
        """
        lane = self._parked[query]
        if lane.thread is not None:
            if lane.thread.is_alive():
                return False
            lane.thread, result = None, lane.result
            if isinstance(result, StopRequestedError):
                return False
            if isinstance(result, FencedError):  # a checkpoint's fault concerns this query alone
                return result
            self._take(query, lane, result)
        if self._monotonic() < lane.again_s or self._is_given_up(lane):
            return False
        if lane.next is _Next.BEGIN:
            lane.next = _Next.PROOF
            return True
        lane.thread = threading.Thread(target=self._run, args=(query, lane), name=f"rescue-{query.name}", daemon=True)
        lane.thread.start()
        return False

    def recover(self, query: Query) -> bool:
        """The query has got on; False where the lane was not parked."""
        return self.forget(query)

    def forget(self, query: Query) -> bool:
        """The lane is parked no more; False where it was not."""
        if self._parked.pop(query, None) is None:
            return False
        self._show(query.name, None)
        return True

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the rescues that run; False where one still does."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        threads = [lane.thread for lane in self._parked.values() if lane.thread is not None]
        for thread in threads:
            thread.join(None if until_s is None else max(until_s - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in threads)

    def _run(self, query: Query, lane: _Lane) -> None:
        try:
            lane.result = self._rescue(query)
        except Exception as error:
            lane.result = error

    def _take(self, query: Query, lane: _Lane, result: FallbackResult | Exception | None) -> None:
        now_s = self._monotonic()
        if isinstance(result, FallbackResult):
            lane.is_read, lane.reached = True, result.reached
            if result.has_news:
                lane.failures = 0
            lane.next = _Next.BEGIN if result.may_start else _Next.RESCUE
            lane.again_s = now_s if result.may_start else now_s + LOOK_S
        else:
            lane.why = error_of(query.name, result) if result is not None else lane.why
            lane.is_read, lane.next = False, _Next.BEGIN
            lane.failures += 1
            pause_s = _of(PAUSES_S, lane.failures - 2)
            lane.again_s = now_s + (min(pause_s, _OUTAGE_S) if isinstance(lane.why, UnavailableError) else pause_s)
            log.error("%s is not read by another way either: %s", query.topics[0], one_line(lane.why))
        self._tell(query, lane)

    def _is_given_up(self, lane: _Lane) -> bool:
        return self._most_failures is not None and lane.failures > self._most_failures

    def _tell(self, query: Query, lane: _Lane) -> None:
        said = ParkedQuery(
            topic=query.topics[0],
            why=one_line(lane.why),
            since_ms=lane.since_ms,
            failures=lane.failures,
            is_read=lane.is_read,
        )
        self._show(query.name, said)


def _of(pauses_s: tuple[float, ...], number: int) -> float:
    return pauses_s[min(max(number, 0), len(pauses_s) - 1)]
