"""How dead letters end that nobody works off: kept for a year, then given up; their receipts have said so all along.

The topic lets go of a letter when our subscription on it has passed it and its retention is over. What was done about
letters is forgotten only after the letters: a replay that was forgotten could be done again.
"""

from collections.abc import Iterator

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.read import read
from streaming.config.settings import Settings
from streaming.state.settlements import SettlementFolder

_DAY_S = 24 * 3600


def expire(settings: Settings, admin: PulsarAdmin, now_ms: int) -> int:
    """Give up what is older than state.dead_letters_days; returns how many replays and write-offs were forgotten.

    Raises UnavailableError, RefusedError.
    """
    seconds = settings.state.dead_letters_days * _DAY_S
    admin.expire_messages(settings.topics.dead_letter, settings.topics.subscription, older_than_seconds=seconds)
    before_ms = min([now_ms - seconds * 1000, *_oldest_ms(settings, admin)])
    return SettlementFolder(settings.state.dir).expire(before_ms)


def _oldest_ms(settings: Settings, admin: PulsarAdmin) -> Iterator[int]:
    """When the oldest letter that is still stored was published, by partition."""
    for partition, last in admin.last_positions(settings.topics.dead_letter).items():
        first = next(read(settings.pulsar, {partition: last}), None)
        if first is not None:
            yield first.publish_ms
