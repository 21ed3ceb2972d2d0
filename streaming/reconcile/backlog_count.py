"""Counts waiting requests, by position.

The subscription's backlog is no substitute: the connector's cursor trails its reads by at least an entry.

1. Requests after the newest committed batch wait, including those of a batch under way.
2. Before the first batch of a partition, all messages that its subscription has not acknowledged wait.
3. An entry may contain a producer's whole batch. We read up to 1,000 entries of a partition to count their
   messages; if there are more, we extrapolate from the first 1,000.
4. Messages read from RETRY that are not due yet wait too, and so does a retry whose receipt is committed and whose copy
   is not in RETRY yet.

The sum is an upper bound: requests that move, and unread copies of the newest chunk in RETRY, may count twice. It is an
estimate only if a partition has over 1,000 unread entries of several messages each (point 3).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from streaming.config.settings import Settings
from streaming.ports import Pulsar, StoredMessage
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.state import receipts, waiting
from streaming.topics.matching import matched_topics
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.requests.retry import ORIGIN_MESSAGE_ID

_ENTRIES_READ = 1000  # of a partition; an entry has up to 128 KiB if its producer batches


class Unread(NamedTuple):
    """The messages of a topic that no committed batch has read."""

    messages: int = 0
    oldest_ms: int | None = None  # when the oldest was published; None: there are none


def backlog_of(settings: Settings, pulsar: Pulsar, count_retries: Callable[[], int] | None = None) -> dict[str, Any]:
    """Count the requests without a final receipt: {"messages": total, "topics": {topic: messages}}.

    Args:
        count_retries: counts the retries that are not due yet; by default the rows of the waiting table.

    Raises UnavailableError.
    """
    retries = 0

    def count() -> None:
        nonlocal retries
        retries = count_retries() if count_retries else sum(1 for _ in waiting.outstanding(settings.state_dir))
        retries += _unpublished(settings.state_dir)

    counts = {topic: unread.messages for topic, unread in unread_of(settings, pulsar, meanwhile=count).items()}
    counts[settings.topics.retry] += retries
    return {"messages": sum(counts.values()), "topics": counts}


def unread_of(
    settings: Settings,
    pulsar: Pulsar,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    most_entries: int = _ENTRIES_READ,
) -> dict[str, Unread]:
    """Return topic -> its unread messages, for every request topic and the retry topic. Raises UnavailableError.

    Args:
        settings: of the service.
        pulsar: reads topics and their positions.
        meanwhile: counts what was read from the topics, between the reads of their positions and of their ends.
        most_entries: of a partition, that are read; if more are unread, their messages are estimated.
    """
    queries = queries_of(settings, matched_topics(pulsar.admin, settings))
    topics = [topic for query in queries for topic in query.topics]
    # Requests move while we count, and each is in its next store before it leaves the previous store. We read first the
    # committed positions, then the retries that wait, then the newest chunk of receipts, and the ends of the topics
    # last: this order may count a moving request twice, and never omits it.
    committed: dict[str, Position] = {}
    for query in queries:
        committed |= committed_positions(location_of(settings, query.name))
    before_first = {topic: _acknowledged(settings, pulsar, topic, committed) for topic in topics}
    meanwhile()
    return {topic: _unread(pulsar, topic, committed | before_first[topic], most_entries) for topic in topics}


def _acknowledged(
    settings: Settings, pulsar: Pulsar, topic: str, committed: Mapping[str, Position]
) -> dict[str, Position]:
    """Return the subscription's acknowledged position of each partition that no committed batch has read."""
    partitions = [f"{topic}-partition-{n}" for n in range(pulsar.admin.partitions(topic) or 0)]
    return {
        partition: pulsar.admin.internal_stats(partition).mark_deleted(settings.topics.subscription)
        for partition in partitions
        if partition not in committed
    }


def _unpublished(state_dir: str) -> int:
    """Count the newest chunk's retries that are not in the waiting table.

    The copies of earlier chunks were published before the newest chunk started.
    """
    retries = Counter(receipts.newest_retries(state_dir))
    if retries:
        for row in waiting.outstanding(state_dir, c.MESSAGE_PROPERTIES):
            retries[dict(row[c.MESSAGE_PROPERTIES] or ()).get(ORIGIN_MESSAGE_ID)] -= 1
    return sum(n for n in retries.values() if n > 0)


def _unread(pulsar: Pulsar, topic: str, done: Mapping[str, Position], most_entries: int) -> Unread:
    """Count the messages of a topic after these positions, and all messages of partitions without a position."""
    if pulsar.admin.partitions(topic) is None:
        return Unread()
    partitions = []
    for partition, newest in pulsar.admin.last_positions(topic).items():
        after = done.get(partition, BEFORE_ALL)
        entries = pulsar.admin.internal_stats(partition).entries_after(after)
        if entries:
            found = pulsar.reader.read({partition: newest}, after={partition: after})
            partitions.append(_counted(found, entries, most_entries))
    oldest = [unread.oldest_ms for unread in partitions if unread.oldest_ms is not None]
    return Unread(sum(unread.messages for unread in partitions), min(oldest, default=None))


def _counted(found: Iterable[StoredMessage], entries: int, most_entries: int) -> Unread:
    """Count, or estimate, the messages of so many entries of a partition; its oldest message is the first."""
    entries_read = 0
    messages = 0
    oldest_ms = None
    last: Position = (-1, -1)
    for message in found:
        position = (message.ledger_id, message.entry_id)
        entries_read += position != last
        if entries_read > most_entries:
            return Unread(max(entries, messages * entries // most_entries), oldest_ms)
        oldest_ms = message.publish_ms if oldest_ms is None else oldest_ms
        messages += 1
        last = position
    return Unread(messages, oldest_ms)
