"""Counts waiting requests, by position.

The subscription's backlog is no substitute: the connector's cursor trails its reads by at least an entry.

1. Requests after the newest committed batch wait, including those of a batch under way.
2. Before the first batch of a partition, all messages that its subscription has not acknowledged wait.
3. An entry may contain a producer's whole batch. We read up to 1,000 entries of a partition to count their
   messages; if there are more, we extrapolate from the first 1,000.
4. Messages read from RETRY that are not due yet wait too, and so does a retry whose receipt is committed and whose copy
   is not in RETRY yet.
5. In a lane, or a topic that matches the pattern, messages that the subscription has not acknowledged wait. Each such
   partition costs two requests, so at most MOST_LANES of those that may have messages are asked, each tenant's first
   before any tenant's second.

The sum is an upper bound: requests that move, and unread copies of the newest chunk in RETRY, may count twice. It is an
estimate only if a partition has over 1,000 unread entries of several messages each (point 3), and too low if lanes were
not counted (point 5).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streaming.config.settings import Settings
from streaming.errors import ReaperError, RefusedError
from streaming.ports import Pulsar, StoredMessage
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.state import receipts, waiting
from streaming.topics.setup import watch_topic
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import base_topic
from udfs.requests.lanes import fair_by_tenant
from udfs.requests.retry import ORIGIN_MESSAGE_ID

# Partitions of lanes. Each costs a request: the admin API has no call for several topics with exact counts. The stats
# of a whole broker (`broker-stats/topics`) are up to a minute old, so they would show 0 while a request waits, and omit
# topics that are not loaded.
MOST_LANES = 200
_MOST_FAILURES = 3
_ENTRIES_READ = 1000  # of a partition; an entry has up to 128 KiB if its producer batches


class Unread(NamedTuple):
    """The messages of a topic that no committed batch has read."""

    messages: int = 0
    oldest_ms: int | None = None  # when the oldest was published; None: there are none


def backlog_of(
    settings: Settings,
    pulsar: Pulsar,
    count_retries: Callable[[], int] | None = None,
    *,
    lanes: Collection[str] = (),
) -> dict[str, Any]:
    """Count the requests without a final receipt.

    Returns {"messages": total, "topics": {topic: messages}, "lanes_not_counted": number of partitions}.

    Args:
        settings: of the service.
        pulsar: reads topics and their positions.
        count_retries: counts the retries that are not due yet; by default the rows of the waiting table.
        lanes: partitions of lanes that may have unread messages.

    Raises UnavailableError.
    """
    retries = 0

    def count() -> None:
        nonlocal retries
        retries = count_retries() if count_retries else sum(1 for _ in waiting.outstanding(settings.state_dir))
        retries += _unpublished(settings.state_dir)

    # before the retries: a request that moves in between counts twice, and is not omitted
    in_lanes = unread_in_lanes(settings, pulsar, lanes)
    counts = {topic: unread.messages for topic, unread in unread_of(settings, pulsar, meanwhile=count).items()}
    counts[settings.topics.retry] += retries
    counts |= {topic: unread.messages for topic, unread in in_lanes.topics.items()}
    return {"messages": sum(counts.values()), "topics": counts, "lanes_not_counted": in_lanes.not_counted}


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
    queries = queries_of(settings, watch_topic(pulsar.admin, settings))
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


class UnreadInLanes(NamedTuple):
    """The unread messages of lanes."""

    topics: dict[str, Unread]  # without those that have none
    not_counted: int  # partitions that were not asked, because there are too many, or that could not be read


def unread_in_lanes(
    settings: Settings, pulsar: Pulsar, lanes: Collection[str], *, most_entries: int = _ENTRIES_READ
) -> UnreadInLanes:
    """Count the unread messages of partitions of lanes; any of them may be deleted now. Raises nothing.

    Args:
        settings: of the service.
        pulsar: reads topics and their positions.
        lanes: partitions of lanes that may have unread messages.
        most_entries: of a partition, that are read.
    """
    topics: dict[str, Unread] = {}
    asked = fair_by_tenant(lanes)[:MOST_LANES]
    not_counted = len(lanes) - len(asked)
    failures = 0
    for number, partition in enumerate(asked):
        if failures >= _MOST_FAILURES:  # each may take as long as a timeout
            not_counted += len(asked) - number
            break
        try:
            stats = pulsar.admin.internal_stats(partition)
            after = stats.mark_deleted(settings.topics.subscription)
            entries = stats.entries_after(after)
            found = pulsar.reader.read({partition: stats.last}, after={partition: after}) if entries else ()
            unread = _counted(found, entries, most_entries) if entries else Unread()
        except ReaperError as error:  # a tenant's broken or deleted lane must not hide the other topics
            not_counted += 1
            failures += not isinstance(error, RefusedError)
            continue
        if unread.messages:
            topic = base_topic(partition)
            topics[topic] = _sum((topics.get(topic, Unread()), unread))
    return UnreadInLanes(topics, not_counted)


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
    return _sum(partitions)


def _sum(partitions: Sequence[Unread]) -> Unread:
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
