"""Whether any request waits. Positions tell, not Pulsar's backlog counts: the connector's cursor is always behind."""

from collections.abc import Callable, Mapping

from pyspark.sql.streaming.query import StreamingQuery

from streaming.config.settings import Settings
from streaming.deletion.retries import DueLoop
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import NOTHING_READ, committed_positions, location_of
from streaming.queries.names import Query
from streaming.schemas import RETRY


def is_idle(settings: Settings, admin: TopicAdmin, running: Mapping[Query, StreamingQuery], due: DueLoop) -> bool:
    """Whether no query works, every message of every partition is in a committed batch, and no retry waits."""
    return _is_quiet(settings, admin, running, due, due.is_empty)


def only_retries_wait(
    settings: Settings, admin: TopicAdmin, running: Mapping[Query, StreamingQuery], due: DueLoop
) -> bool:
    """The same, but for retries that are not due yet."""
    return _is_quiet(settings, admin, running, due, due.is_asleep)


def _is_quiet(
    settings: Settings,
    admin: TopicAdmin,
    running: Mapping[Query, StreamingQuery],
    due: DueLoop,
    is_at_rest: Callable[[], bool],
) -> bool:
    passes = due.passes
    if any(each.status["isTriggerActive"] for each in running.values()) or not is_at_rest():
        return False
    # RETRY is looked at last: a batch of requests is committed after its copies for RETRY were sent
    retry_last = sorted(running, key=lambda query: query.name == RETRY)
    if not all(_is_worked_off(settings, admin, query) for query in retry_last):
        return False
    return is_at_rest() and due.passes == passes  # a pass meanwhile may have sent to RETRY again


def _is_worked_off(settings: Settings, admin: TopicAdmin, query: Query) -> bool:
    done = committed_positions(location_of(settings, query.name))
    for topic in query.topics:
        newest_of = admin.last_positions(topic) if admin.partitions(topic) else {}  # nothing waits in what is gone
        for partition, newest in newest_of.items():
            if newest[1] >= 0 and done.get(partition, NOTHING_READ) < newest:
                return False
    return True
