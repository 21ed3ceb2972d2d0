"""How many requests wait, counted by position: the connector's cursor trails what it has read by one entry at least.

1. Worked off is what the newest committed batch read, so a batch under way still waits.
2. Before the first batch of a partition, all that its subscription protects waits.
3. An entry may hold a producer's whole batch. Few entries are read to count their messages; of many, the first
   are read and the rest is counted as if it were like them.
4. What was read from RETRY and is not due yet waits too.
"""

from collections.abc import Mapping
from typing import Any

from streaming import waiting
from streaming.adapters.clients import admin_for
from streaming.adapters.pulsar_admin import PulsarAdmin
from streaming.adapters.pulsar_read import read
from streaming.checkpoints import committed_positions, location_of
from streaming.config import Settings
from streaming.errors import UnavailableError
from streaming.matched import matched_topics
from streaming.queries import queries_of

Position = tuple[int, int]

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


def mark_delete_of(stats: Mapping[str, Any], subscription: str) -> Position:
    """Up to where the subscription has acknowledged; before everything where there is none."""
    cursor = stats["cursors"].get(subscription)
    return position_of(cursor["markDeletePosition"]) if cursor else (-1, -1)


def entries_after(stats: Mapping[str, Any], after: Position) -> int:
    """How many entries internalStats knows behind a position; (ledger, -1) is before that ledger's first."""
    ledgers = ledgers_of(stats)
    whole = sum(entries for ledger, entries in ledgers if ledger > after[0])
    rest = sum(max(0, entries - after[1] - 1) for ledger, entries in ledgers if ledger == after[0])
    return whole + rest


def ledgers_of(stats: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(ledger, entries) of internalStats, oldest first. Raises KeyError, TypeError, ValueError for other forms."""
    ledgers = [(int(ledger["ledgerId"]), int(ledger["entries"])) for ledger in stats["ledgers"]]
    if ledgers:
        # the list has no number for the ledger that is being written
        newest, entries = ledgers[-1]
        ledgers[-1] = (newest, max(entries, int(stats["currentLedgerEntries"])))
    return ledgers


def position_of(text: str) -> Position:
    """Read `ledger:entry`. Raises ValueError."""
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)
