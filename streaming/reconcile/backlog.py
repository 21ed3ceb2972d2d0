"""How many requests wait, counted by position: the connector's cursor trails what it has read by one entry at least.

1. Worked off is what the newest committed batch read, so a batch under way still waits.
2. Before the first batch of a partition, all that its subscription protects waits.
3. An entry may hold a producer's whole batch. Few entries are read to count their messages; of many, the first
   are read and the rest is counted as if it were like them.
4. What was read from RETRY and is not due yet waits too.
"""

from collections.abc import Mapping
from typing import Any

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.read import read
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.state import waiting
from streaming.topics.matching import matched_topics
from udfs.formats.internal_stats import Position, entries_after, mark_delete_of

_ENTRIES_READ = 1000  # of a partition; an entry has up to 128 KiB where its producer batches


def backlog_of(settings: Settings) -> dict[str, Any]:
    """Messages in no committed batch yet: {"messages": total, "topics": {topic: messages}}. Raises UnavailableError."""
    counted: dict[str, int] = {}
    with admin_for(settings) as admin:
        for query in queries_of(settings, matched_topics(admin, settings)):
            done = committed_positions(location_of(settings, query.name))
            for topic in query.topics:
                counted[topic] = _waiting(settings, admin, topic, done)
    counted[settings.topics.retry] += sum(1 for _ in waiting.outstanding(settings.state.dir))
    return {"messages": sum(counted.values()), "topics": counted}


def _waiting(settings: Settings, admin: PulsarAdmin, topic: str, done: Mapping[str, Position]) -> int:
    if admin.partitions(topic) is None:
        return 0
    messages = 0
    for partition, newest in admin.last_positions(topic).items():
        stats = admin.internal_stats(partition)
        try:
            after = done.get(partition) or mark_delete_of(stats, settings.topics.subscription)
            entries = entries_after(stats, after)
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"internalStats of {partition} are of a form not known: {error!r}") from error
        if entries:
            messages += _messages(settings, partition, entries, after, newest)
    return messages


def _messages(settings: Settings, partition: str, entries: int, after: Position, newest: Position) -> int:
    seen = 0
    messages = 0
    last: Position = (-1, -1)
    for message in read(settings.pulsar, {partition: newest}, after={partition: after}):
        here = (message.ledger_id, message.entry_id)
        seen += here != last
        if seen > _ENTRIES_READ:
            return max(entries, messages * entries // _ENTRIES_READ)
        messages += 1
        last = here
    return messages
