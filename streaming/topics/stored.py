"""Finds which of a sender's numbered messages a partition contains, so that an interrupted sender can resume.

A sender gives each of its messages a number, in a property, and sends under a producer name that the broker grants to
one producer at a time. Call this only while the producer name is ours: then nothing is added to the result.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from streaming.adapters.pulsar.readers.read import numbered, read
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import StoredMessage, TopicAdmin
from udfs.formats.internal_stats import Position

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """The numbers of a sender's stored messages, about 60 bytes each."""

    numbers: frozenset[int]
    trimmed_below: int = 0  # messages with lower numbers were sent earlier, and may have been stored and trimmed since

    def __contains__(self, number: int) -> bool:
        """Whether the message is, or may have been, stored."""
        return number in self.numbers or number < self.trimmed_below


NONE_STORED = StoredNumbers(frozenset())


def stored_numbers(settings: Settings, partition: str, after: Position, name: str, of: str) -> StoredNumbers:
    """Return the numbers of the messages after a position with the property `name` = `<of>/<number>`.

    All of them, not only the highest: if a broker is away for longer than a client waits, a message can be lost
    although later messages are stored. Raises UnavailableError, RefusedError.
    """
    # The broker's deduplication is no substitute: brokers disable it on topics of pulsar/system, whatever the topic's
    # policy is, and elsewhere forget a producer that was away for hours.
    numbers = frozenset(number for number, _message in stored(settings, partition, after, name, of))
    with admin_for(settings) as admin:  # after the read, so that no message is trimmed between the two
        ledgers = {ledger_id for ledger_id, _entries in admin.internal_stats(partition).ledgers}
    # brokers trim whole ledgers from the oldest, so while this ledger is there, nothing after it was trimmed
    return StoredNumbers(numbers, 0 if after[0] in ledgers else min(numbers, default=0))


def stored(
    settings: Settings, partition: str, after: Position, name: str, of: str
) -> Iterator[tuple[int, StoredMessage]]:
    """Yield the number of each message after a position with the property `name` = `<of>/<number>`, and the message.

    Raises UnavailableError, RefusedError.
    """
    with admin_for(settings) as admin:
        _settle(admin, partition, settings.pulsar.timeout_seconds)
        last = admin.last_positions(partition)
    start = {partition: after} if after[1] >= 0 else None
    yield from numbered(read(settings.pulsar, last, after=start), name, of)


def _settle(admin: TopicAdmin, partition: str, timeout_seconds: float) -> None:
    """Wait until the bookies have stored everything that an earlier run sent to the broker."""
    deadline = time.monotonic() + timeout_seconds
    while admin.internal_stats(partition).pending_adds:
        if time.monotonic() > deadline:
            raise UnavailableError(f"a producer writes to {partition} all the time; try again when it is quieter")
        time.sleep(_POLL_SECONDS)
