"""Checks whether any request waits."""

from collections.abc import Callable, Mapping

from streaming.config.settings import Settings
from streaming.deletion.lanes.reader import LANES, LaneReader
from streaming.deletion.retries import DueLoop
from streaming.errors import UnavailableError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import NOTHING_READ, committed_positions, location_of
from streaming.queries.names import Query
from streaming.queries.running import RunningQueries
from streaming.schemas import RETRY
from udfs.formats.internal_stats import Position
from udfs.paths import base_topic


def is_idle(
    settings: Settings, admin: TopicAdmin, queries: RunningQueries, due: DueLoop, lanes: LaneReader | None = None
) -> bool:
    """Return True if no query works, every message of every partition has been processed, and no retry waits.

    Queries and lanes that are given up are left out; their messages stay in their topics.
    """
    return _are_quiet(lanes) and _is_quiet(settings, admin, queries, due, due.is_empty)


def only_retries_wait(
    settings: Settings, admin: TopicAdmin, queries: RunningQueries, due: DueLoop, lanes: LaneReader | None = None
) -> bool:
    """Return True if is_idle would, apart from retries that are not due yet."""
    return _are_quiet(lanes) and _is_quiet(settings, admin, queries, due, due.is_asleep)


def _are_quiet(lanes: LaneReader | None) -> bool:
    # checked before RETRY, which gets its copies before a lane's pass ends
    return lanes is None or lanes.is_quiet


def _is_quiet(
    settings: Settings, admin: TopicAdmin, queries: RunningQueries, due: DueLoop, is_at_rest: Callable[[], bool]
) -> bool:
    passes = due.passes
    running = {query: stream for query, stream in queries.running.items() if query not in queries.given_up}
    works = (stream.status["isTriggerActive"] for query, stream in running.items() if not queries.rests(query))
    if any(works) or not is_at_rest():
        return False
    # RETRY is checked last: a batch of requests is committed after its copies for RETRY were sent
    retry_last = sorted(running, key=lambda query: query.name == RETRY)
    if not all(_is_processed(settings, admin, query, queries.reached) for query in retry_last):
        return False
    return is_at_rest() and due.passes == passes  # a pass during these checks may have sent to RETRY again


def stuck(
    settings: Settings, admin: TopicAdmin, queries: RunningQueries, lanes: LaneReader | None = None
) -> dict[Query, Exception]:
    """Return the queries that are given up although messages wait for them, and why each failed last.

    Lanes that could not be watched are included, because nothing shows whether messages wait in them.
    """
    unwatched = {} if lanes is None else lanes.given_up
    return {Query(LANES, (base_topic(name),)): UnavailableError(why) for name, why in unwatched.items()} | {
        query: why
        for query, why in queries.given_up.items()
        if not _is_processed(settings, admin, query, queries.reached)
    }


def _is_processed(settings: Settings, admin: TopicAdmin, query: Query, reached: Mapping[str, Position]) -> bool:
    committed = committed_positions(location_of(settings, query.name))
    for topic in query.topics:
        newest_of = admin.last_positions(topic) if admin.partitions(topic) else {}  # nothing waits in a deleted topic
        for partition, newest in newest_of.items():
            # positions, because Pulsar's backlog counts never reach zero: the connector's cursor always lags
            processed = max(committed.get(partition, NOTHING_READ), reached.get(partition, NOTHING_READ))
            if newest[1] >= 0 and processed < newest:
                return False
    return True
