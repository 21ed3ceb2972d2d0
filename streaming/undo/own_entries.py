"""Control entries, which certainly exist: a bookie must read them before we believe that it can't read another entry.

A bookie answers 500 both if a ledger has no such entry and if the bookie can't read any ledger, for example because
BookKeeper requires a password.
"""

from itertools import islice

from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import TopicAdmin

_AT_MOST = 8  # of several topics and partitions, because a ledger may be in tiered storage, or be trimmed right now
_OF_A_PARTITION = 2
_ENTRIES = 2  # while a ledger is being written, its last entry may not be readable


def control_entries(settings: Settings, admin: TopicAdmin) -> list[tuple[int, int]]:
    """Return (ledger, 0) for some ledgers of our own topics; none if no broker reports any."""
    topics = settings.topics
    entries: list[tuple[int, int]] = []
    for topic in (*topics.deduplicated, *topics.requests):
        for partition in _partitions(admin, topic):
            if len(entries) >= _AT_MOST:
                return entries[:_AT_MOST]
            entries += islice(_of(admin, partition), _OF_A_PARTITION)
    return entries[:_AT_MOST]


def _partitions(admin: TopicAdmin, topic: str) -> list[str]:
    try:
        return sorted(admin.last_positions(topic)) if admin.partitions(topic) is not None else []
    except ReaperError:
        return []


def _of(admin: TopicAdmin, partition: str) -> list[tuple[int, int]]:
    # newest first, because the oldest ledgers may be in tiered storage only
    try:
        ledgers = admin.internal_stats(partition).ledgers
    except ReaperError:
        return []
    return [(ledger, 0) for ledger, entries in sorted(ledgers, reverse=True) if entries >= _ENTRIES]
