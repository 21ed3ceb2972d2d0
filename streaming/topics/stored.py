"""Finds which of a sender's numbered messages a partition contains, so that an interrupted sender can resume.

A sender gives its messages ascending numbers, in a property, and sends the messages of a partition in that order, under
a producer name that the broker grants to one producer at a time. So the stored messages are a prefix, and the highest
number determines it. Call this only while the producer name is ours.
"""

import time
from collections.abc import Iterator

from streaming.adapters.pulsar.readers.read import numbered, read
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import StoredMessage, TopicAdmin
from udfs.formats.internal_stats import Position

_POLL_SECONDS = 0.2


def last_stored(settings: Settings, partition: str, after: Position, name: str, of: str) -> int:
    """Return the highest number of a message after a position with the property `name` = `<of>/<number>`; -1: none.

    Raises UnavailableError, RefusedError.
    """
    # The broker's deduplication is no substitute: brokers disable it on topics of pulsar/system, whatever the topic's
    # policy is, and elsewhere forget a producer that was away for hours.
    return max((number for number, _message in stored(settings, partition, after, name, of)), default=-1)


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
