"""Which of a sender's numbered messages a partition holds: what an interrupted sender asks before it goes on.

A sender gives its messages ascending numbers, in a property, and sends those of a partition in that order, under a
producer name that the broker gives to one producer at a time. So what got stored is a prefix, and the last number tells
all. Ask only while that name is ours. The broker's deduplication can't stand in for this: brokers switch it off on
topics of pulsar/system, whatever the topic's policy says, and elsewhere forget a producer that was away for hours.
"""

import time
from collections.abc import Iterator

from streaming.adapters.pulsar.read import numbered, read
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import StoredMessage, TopicAdmin
from udfs.formats.internal_stats import Position

_POLL_SECONDS = 0.2


def last_stored(settings: Settings, partition: str, after: Position, name: str, of: str) -> int:
    """Return the highest number of the messages behind a position that carry `<of>/<number>`; -1: none.

    name: of the property. Raises UnavailableError, RefusedError.
    """
    return max((number for number, _message in stored(settings, partition, after, name, of)), default=-1)


def stored(
    settings: Settings, partition: str, after: Position, name: str, of: str
) -> Iterator[tuple[int, StoredMessage]]:
    """Yield the number and the message of each one behind a position that carries `<of>/<number>`. Raises the same."""
    with admin_for(settings) as admin:
        _settle(admin, partition, settings.pulsar.timeout_seconds)
        last = admin.last_positions(partition)
    behind = {partition: after} if after[1] >= 0 else None
    yield from numbered(read(settings.pulsar, last, after=behind), name, of)


def _settle(admin: TopicAdmin, partition: str, timeout_seconds: float) -> None:
    """Wait until the bookies hold everything that an earlier run handed to the broker."""
    deadline = time.monotonic() + timeout_seconds
    while admin.internal_stats(partition).pending_adds:
        if time.monotonic() > deadline:
            raise UnavailableError(f"somebody writes to {partition} all the time; try again when it is quieter")
        time.sleep(_POLL_SECONDS)
