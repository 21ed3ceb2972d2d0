"""Entries that are surely there: what a bookie must be able to read before we believe that it can't read another one.

A bookie answers alike (500) where a ledger has no such entry and where it can read no ledger at all, since BookKeeper
asks its HTTP server for a password, say. So it is asked for entries of our own topics too.
"""

from itertools import islice

from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import TopicAdmin

_AT_MOST = 8  # of different topics and partitions: one may lie in tiered storage, or be trimmed in this moment
_OF_A_PARTITION = 2
_ENTRIES = 2  # while a ledger is written, nobody can be sure to read its last entry


def control_entries(settings: Settings, admin: TopicAdmin) -> list[tuple[int, int]]:
    """Return (ledger, 0) for some ledgers of our own topics; none where no broker tells of any."""
    topics = settings.topics
    found: list[tuple[int, int]] = []
    for topic in (*topics.deduplicated, *topics.requests):
        for partition in _partitions(admin, topic):
            if len(found) >= _AT_MOST:
                return found[:_AT_MOST]
            found += islice(_of(admin, partition), _OF_A_PARTITION)
    return found[:_AT_MOST]


def _partitions(admin: TopicAdmin, topic: str) -> list[str]:
    try:
        return sorted(admin.last_positions(topic)) if admin.partitions(topic) is not None else []
    except ReaperError:
        return []


def _of(admin: TopicAdmin, partition: str) -> list[tuple[int, int]]:
    """Newest first: those are in BookKeeper, if any are."""
    try:
        ledgers = admin.internal_stats(partition).ledgers
    except ReaperError:
        return []
    return [(ledger, 0) for ledger, entries in sorted(ledgers, reverse=True) if entries >= _ENTRIES]
