"""How large a copy may be: brokers and topics may be configured to take less than Pulsar's 5 MiB (maxMessageSize)."""

from streaming.adapters.pulsar.frames import largest_message
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError
from udfs.retry import LEAST_MESSAGE_BYTES


def require_room_for_copies(settings: PulsarSettings, partition: str) -> int:
    """Return how many bytes the partition's broker takes in a message. Raises ConfigError where no copy may fit.

    Raises UnavailableError, RefusedError.
    """
    largest = largest_message(settings, partition)
    if largest < LEAST_MESSAGE_BYTES:
        raise ConfigError(
            f"the broker of {partition} takes messages of {largest} bytes at most (maxMessageSize), and copies "
            f"that this service publishes there need {LEAST_MESSAGE_BYTES}: raise maxMessageSize of the brokers"
        )
    return largest
