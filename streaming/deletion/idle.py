"""Whether any request waits. Positions tell, not Pulsar's backlog counts: the connector's cursor is always behind."""

from collections.abc import Callable, Mapping

from streaming.config.settings import Settings
from streaming.deletion.retries import DueLoop
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import NOTHING_READ, committed_positions, location_of
from streaming.queries.names import Query
from streaming.queries.running import RunningQueries
from streaming.schemas import RETRY
from udfs.formats.internal_stats import Position


def is_idle(settings: Settings, admin: TopicAdmin, queries: RunningQueries, due: DueLoop) -> bool:
    """Return True if no query works, every message of every partition has been processed, and no retry waits.

    Parked queries that are given up are left out: their messages stay where they are.
    """
    return _is_quiet(settings, admin, queries, due, due.is_empty)


def only_retries_wait(settings: Settings, admin: TopicAdmin, queries: RunningQueries, due: DueLoop) -> bool:
    """The same, but for retries that are not due yet."""
    return _is_quiet(settings, admin, queries, due, due.is_asleep)


def _is_quiet(
    settings: Settings, admin: TopicAdmin, queries: RunningQueries, due: DueLoop, is_at_rest: Callable[[], bool]
) -> bool:
    passes = due.passes
    lanes = queries.parked
    running = {query: stream for query, stream in queries.running.items() if query not in lanes.given_up}
    works = (stream.status["isTriggerActive"] for query, stream in running.items() if not lanes.rests(query))
    if any(works) or not is_at_rest():
        return False
    # RETRY is looked at last: a batch of requests is committed after its copies for RETRY were sent
    retry_last = sorted(running, key=lambda query: query.name == RETRY)
    if not all(_is_worked_off(settings, admin, query, lanes.reached) for query in retry_last):
        return False
    return is_at_rest() and due.passes == passes  # a pass meanwhile may have sent to RETRY again


def stuck(settings: Settings, admin: TopicAdmin, queries: RunningQueries) -> dict[Query, Exception]:
    """Return the lanes that are given up though messages wait there, and why each failed last."""
    lanes = queries.parked
    return {
        query: why for query, why in lanes.given_up.items() if not _is_worked_off(settings, admin, query, lanes.reached)
    }


def _is_worked_off(settings: Settings, admin: TopicAdmin, query: Query, reached: Mapping[str, Position]) -> bool:
    done = committed_positions(location_of(settings, query.name))
    for topic in query.topics:
        newest_of = admin.last_positions(topic) if admin.partitions(topic) else {}  # nothing waits in what is gone
        for partition, newest in newest_of.items():
            worked_off = max(done.get(partition, NOTHING_READ), reached.get(partition, NOTHING_READ))
            if newest[1] >= 0 and worked_off < newest:
                return False
    return True
