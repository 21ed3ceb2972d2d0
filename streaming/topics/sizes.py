"""Limits on the size of copies: a broker may be configured to accept less than Pulsar's 5 MiB (maxMessageSize)."""

from streaming.adapters.pulsar.readers.frames import largest_message
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError
from udfs.requests.retry import LEAST_MESSAGE_BYTES


def require_room_for_copies(settings: PulsarSettings, partition: str) -> int:
    """Return how many bytes the partition's broker accepts in a message. Raises ConfigError if copies may not fit.

    Raises UnavailableError, RefusedError.
    """
    largest = largest_message(settings, partition)
    if largest < LEAST_MESSAGE_BYTES:
        raise ConfigError(
            f"the broker of {partition} accepts messages of at most {largest} bytes (maxMessageSize), and copies "
            f"that this service publishes there need {LEAST_MESSAGE_BYTES}: raise maxMessageSize of the brokers"
        )
    return largest
