"""How many requests wait. We count by position: the connector's cursor trails what it has read by at least one entry.

1. The newest committed batch says up to where requests are worked off, so those of a batch under way still wait.
2. Before the first batch of a partition, all that its subscription has not acknowledged waits.
3. An entry may hold a producer's whole batch. We read few entries to count their messages; of many entries we read the
   first and take the others to be like them.
4. What was read from RETRY and is not due yet waits too.
"""

from collections.abc import Mapping
from typing import Any

from streaming.config.settings import Settings
from streaming.ports import MessageReader, Pulsar
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.state import waiting
from streaming.topics.matching import matched_topics
from udfs.formats.internal_stats import Position

_ENTRIES_READ = 1000  # of a partition; an entry has up to 128 KiB where its producer batches


def backlog_of(settings: Settings, pulsar: Pulsar, retries: int | None = None) -> dict[str, Any]:
    """Messages in no committed batch yet: {"messages": total, "topics": {topic: messages}}. Raises UnavailableError.

    retries: how many were read from RETRY and are not due yet, where somebody has counted them.
    """
    counted: dict[str, int] = {}
    for query in queries_of(settings, matched_topics(pulsar.admin, settings)):
        done = committed_positions(location_of(settings, query.name))
        for topic in query.topics:
            counted[topic] = _waiting(settings, pulsar, topic, done)
    if retries is None:
        retries = sum(1 for _ in waiting.outstanding(settings.state_dir))
    counted[settings.topics.retry] += retries
    return {"messages": sum(counted.values()), "topics": counted}


def _waiting(settings: Settings, pulsar: Pulsar, topic: str, done: Mapping[str, Position]) -> int:
    if pulsar.admin.partitions(topic) is None:
        return 0
    messages = 0
    for partition, newest in pulsar.admin.last_positions(topic).items():
        stats = pulsar.admin.internal_stats(partition)
        after = done.get(partition) or stats.mark_deleted(settings.topics.subscription)
        entries = stats.entries_after(after)
        if entries:
            messages += _messages(pulsar.reader, partition, entries, after, newest)
    return messages


def _messages(reader: MessageReader, partition: str, entries: int, after: Position, newest: Position) -> int:
    """Messages in that many entries, which lie behind a position up to another."""
    seen = 0
    messages = 0
    last: Position = (-1, -1)
    for message in reader.read({partition: newest}, after={partition: after}):
        here = (message.ledger_id, message.entry_id)
        seen += here != last
        if seen > _ENTRIES_READ:
            return max(entries, messages * entries // _ENTRIES_READ)
        messages += 1
        last = here
    return messages
