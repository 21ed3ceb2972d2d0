"""Checks whether a partition's broker reports the last message; otherwise Pulsar's readers can't find the end."""

from typing import Protocol

from streaming.adapters.pulsar.readers.frames import opened
from streaming.config.sections import PulsarSettings
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position

_TIMEOUT_SECONDS = 3.0


class LastMessageAdmin(Protocol):
    """The calls of PulsarAdmin that concern a partition's last message."""

    def reports_last_message(self, partition: str, patience_seconds: float) -> bool:
        """Whether the broker reports the partition's last message in time. Raises UnavailableError."""
        ...

    def internal_stats(self, partition: str) -> InternalStats:
        """Return the internalStats of the partition's broker. Raises UnavailableError."""
        ...


def reports_last_message(settings: PulsarSettings, admin: LastMessageAdmin, partition: str) -> bool:
    """Ask the broker for the last message through a reader and through the admin API, as the connector does.

    Raises UnavailableError, RefusedError.
    """
    # both, because the two answers differ after an open transaction
    if last_message(settings, partition) is None:
        return False
    if admin.reports_last_message(partition, _TIMEOUT_SECONDS):
        return True
    admin.internal_stats(partition)  # raises an error if no broker answers at all
    return False


def last_message(settings: PulsarSettings, partition: str) -> Position | None:
    """Return the position of the last entry that the broker would send to a reader; None if it does not report it.

    Raises UnavailableError, RefusedError.
    """
    with opened(settings, partition, BEFORE_ALL, creates=False) as reader:
        return reader.last
