"""How many requests wait. We count by position: the connector's cursor trails what it has read by at least one entry.

1. The newest committed batch says up to where requests are worked off, so those of a batch under way still wait.
2. Before the first batch of a partition, all that its subscription has not acknowledged waits.
3. An entry may hold a producer's whole batch. We read few entries to count their messages; of many entries we read the
   first and take the others to be like them.
4. What was read from RETRY and is not due yet waits too, and so does a retry whose receipt is committed and whose copy
   is not in RETRY yet.

Requests move while we count. Each is in its next place before it leaves the last one, so we read in the order that
counts a moving request twice, never not at all: first how far batches are committed, then the retries that wait, then
the newest chunk of receipts, and the ends of the topics last. The sum is an upper bound, and exact while nothing moves;
only where a partition has over 1,000 unread entries of several messages each is it an estimate (point 3).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from streaming.config.settings import Settings
from streaming.ports import MessageReader, Pulsar
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.state import receipts, waiting
from streaming.topics.matching import matched_topics
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.retry import ORIGIN_MESSAGE_ID

_ENTRIES_READ = 1000  # of a partition; an entry has up to 128 KiB where its producer batches


def backlog_of(settings: Settings, pulsar: Pulsar, count_retries: Callable[[], int] | None = None) -> dict[str, Any]:
    """Count the requests without a final receipt: {"messages": total, "topics": {topic: messages}}.

    Args:
        count_retries: counts the retries that are not due yet; by default the rows of the waiting table.

    Raises UnavailableError.
    """
    queries = queries_of(settings, matched_topics(pulsar.admin, settings))
    topics = [topic for query in queries for topic in query.topics]
    done: dict[str, Position] = {}
    for query in queries:
        done |= committed_positions(location_of(settings, query.name))
    before_first = {topic: _acknowledged(settings, pulsar, topic, done) for topic in topics}
    retries = count_retries() if count_retries else sum(1 for _ in waiting.outstanding(settings.state_dir))
    retries += _unpublished(settings.state_dir)
    counted = {topic: _waiting(pulsar, topic, done | before_first[topic]) for topic in topics}
    counted[settings.topics.retry] += retries
    return {"messages": sum(counted.values()), "topics": counted}


def _acknowledged(settings: Settings, pulsar: Pulsar, topic: str, done: Mapping[str, Position]) -> dict[str, Position]:
    """Return up to where the subscription has acknowledged each partition that no committed batch has read."""
    partitions = [f"{topic}-partition-{n}" for n in range(pulsar.admin.partitions(topic) or 0)]
    return {
        partition: pulsar.admin.internal_stats(partition).mark_deleted(settings.topics.subscription)
        for partition in partitions
        if partition not in done
    }


def _unpublished(state_dir: str) -> int:
    """Retries of the newest chunk that do not wait yet: no chunk starts before the one before it was published."""
    put_off = Counter(receipts.newest_retries(state_dir))
    if put_off:
        for row in waiting.outstanding(state_dir, c.MESSAGE_PROPERTIES):
            put_off[dict(row[c.MESSAGE_PROPERTIES] or ()).get(ORIGIN_MESSAGE_ID)] -= 1
    return sum(n for n in put_off.values() if n > 0)


def _waiting(pulsar: Pulsar, topic: str, done: Mapping[str, Position]) -> int:
    """Count the messages of a topic after these positions; of a partition that was created since, all."""
    if pulsar.admin.partitions(topic) is None:
        return 0
    messages = 0
    for partition, newest in pulsar.admin.last_positions(topic).items():
        after = done.get(partition, BEFORE_ALL)
        entries = pulsar.admin.internal_stats(partition).entries_after(after)
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
