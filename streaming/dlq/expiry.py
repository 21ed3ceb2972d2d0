"""Expires dead letters, settled or not, after state.dead_letters_days."""

from collections.abc import Iterator

from streaming.config.settings import Settings
from streaming.ports import Pulsar
from streaming.state.settlements import SettlementFolder

_DAY_S = 24 * 3600


def expire(settings: Settings, pulsar: Pulsar, now_ms: int) -> int:
    """Expire letters older than state.dead_letters_days; returns how many records of replays and write-offs expired.

    Raises UnavailableError, RefusedError.
    """
    seconds = settings.state.dead_letters_days * _DAY_S
    # the topic drops a letter once our subscription has passed it and its retention is over
    pulsar.admin.expire_messages(settings.topics.dead_letter, settings.topics.subscription, older_than_seconds=seconds)
    # Records outlive their letters: without its record, a letter that was replayed could be replayed again.
    before_ms = min([now_ms - seconds * 1000, *_oldest_ms(settings, pulsar)])
    return SettlementFolder(settings.state_dir).expire(before_ms)


def _oldest_ms(settings: Settings, pulsar: Pulsar) -> Iterator[int]:
    """Yield the publish time of the oldest stored letter of each partition that has one."""
    for partition, last in pulsar.admin.last_positions(settings.topics.dead_letter).items():
        first = next(pulsar.reader.read({partition: last}), None)
        if first is not None:
            yield first.publish_ms
