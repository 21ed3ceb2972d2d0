"""Dead letters that nobody works off: we keep them for state.dead_letters_days, then give them up.

The topic drops a letter when our subscription has passed it and its retention is over. We forget what was done about
letters only after the letters themselves: else a person could replay a letter that has been replayed.
"""

from collections.abc import Iterator

from streaming.config.settings import Settings
from streaming.ports import Pulsar
from streaming.state.settlements import SettlementFolder

_DAY_S = 24 * 3600


def expire(settings: Settings, pulsar: Pulsar, now_ms: int) -> int:
    """Give up what is older than state.dead_letters_days; returns how many replays and write-offs were forgotten.

    Raises UnavailableError, RefusedError.
    """
    seconds = settings.state.dead_letters_days * _DAY_S
    pulsar.admin.expire_messages(settings.topics.dead_letter, settings.topics.subscription, older_than_seconds=seconds)
    before_ms = min([now_ms - seconds * 1000, *_oldest_ms(settings, pulsar)])
    return SettlementFolder(settings.state_dir).expire(before_ms)


def _oldest_ms(settings: Settings, pulsar: Pulsar) -> Iterator[int]:
    """When the oldest letter that is still stored was published, for each partition that has one."""
    for partition, last in pulsar.admin.last_positions(settings.topics.dead_letter).items():
        first = next(pulsar.reader.read({partition: last}), None)
        if first is not None:
            yield first.publish_ms
