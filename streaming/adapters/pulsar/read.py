"""Reading a topic from a position to what was its end, without a subscription of ours: nothing is acknowledged.

A reader's own subscription goes with its connection; messages arrive in the order of the partition's log.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pulsar

from streaming.adapters.pulsar.publish import client
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import StoredMessage
from udfs.formats.internal_stats import Position

_CHECK_SECONDS = 10
_WINDOW = 50  # messages fetched ahead; a sender gets 5 MiB of each in for a few kilobytes, compressed


class PulsarReader:
    """MessageReader over Pulsar's binary protocol; each call connects for itself."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings

    def read(
        self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
    ) -> Iterator[StoredMessage]:
        """Read each partition in `last` up to that position, as the port says. Raises UnavailableError."""
        return read(self._settings, last, after=after)


def read(
    settings: PulsarSettings, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
) -> Iterator[StoredMessage]:
    """Read each partition in `last` up to that position, inclusive; `after`: begin behind it, else at the earliest.

    What was trimmed is passed over. Raises UnavailableError when the broker stops answering.
    """
    with client(settings) as opened:
        for partition, end in last.items():
            begin = (after or {}).get(partition)
            # asked beyond the end, a reader says that there is a message, and none comes
            if end[1] >= 0 and (begin is None or begin < end):
                yield from _read_partition(opened, settings, partition, end, begin)


def numbered(messages: Iterable[StoredMessage], name: str, of: str) -> Iterator[tuple[int, StoredMessage]]:
    """Of messages that carry `<of>/<number>` in the property of that name, the number and the message."""
    for message in messages:
        what, _, number = message.properties.get(name, "").rpartition("/")
        if what == of and number.isdecimal():
            yield int(number), message


def check_service(settings: PulsarSettings, partition: str) -> None:
    """Return when a reader can be opened on the partition. Raises UnavailableError, RefusedError."""
    patient = settings.model_copy(update={"timeout_seconds": min(settings.timeout_seconds, _CHECK_SECONDS)})
    with client(patient) as opened:
        try:
            opened.create_reader(partition, pulsar.MessageId.latest).close()
        except (pulsar.AuthenticationError, pulsar.AuthorizationError) as error:
            raise RefusedError(f"{settings.service_url} does not let us read {partition}: {error}") from error
        except pulsar.PulsarException as error:
            raise UnavailableError(f"{settings.service_url} does not answer: {error}") from error


def _read_partition(
    opened: Any, settings: PulsarSettings, partition: str, end: Position, after: Position | None
) -> Iterator[StoredMessage]:
    start = pulsar.MessageId.earliest if after is None else pulsar.MessageId(-1, after[0], after[1], -1)
    try:
        reader = opened.create_reader(partition, start, receiver_queue_size=_WINDOW)
        try:
            while reader.has_message_available():
                message = _stored(partition, reader.read_next(settings.timeout_seconds * 1000))
                if (message.ledger_id, message.entry_id) > end:
                    return
                yield message
        finally:
            reader.close()
    except pulsar.PulsarException as error:
        raise UnavailableError(f"{partition} can't be read: {error}; run `ledger-reaper check`") from error


def _stored(partition: str, message: Any) -> StoredMessage:
    where = message.message_id()
    return StoredMessage(
        partition,
        where.ledger_id(),
        where.entry_id(),
        where.batch_index(),
        message.publish_timestamp(),
        message.partition_key(),
        message.data(),
        message.properties(),
    )
