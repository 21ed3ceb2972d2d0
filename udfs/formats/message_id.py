"""The connector's `__messageId` column: Pulsar's MessageIdData, a message's position in its topic."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from udfs.formats.errors import FormatError
from udfs.proto.message_id_pb2 import MessageIdData

_MAX_LONG = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """A message's position."""

    ledger_id: int
    entry_id: int
    partition: int = -1  # -1: the topic has no partitions
    batch_index: int = -1  # -1: the message was not sent in a batch

    def __str__(self) -> str:
        """Return the text form of Java's MessageId, as in ORIGIN_MESSAGE_ID."""
        return message_id_text(self.ledger_id, self.entry_id, self.partition, self.batch_index)


def parse_message_id(data: bytes) -> MessagePosition:
    """Parse the connector's column. Raises FormatError."""
    try:
        message = MessageIdData.FromString(data)
    except DecodeError as error:
        raise FormatError(f"message id is not a MessageIdData: {error}") from None
    # FromString does not check that required fields are present.
    if not message.IsInitialized():
        raise FormatError("message id has no ledger or no entry")
    # Java's longs are signed: a larger number is negative there, as in the id of "earliest". No message has such an id.
    if message.ledgerId > _MAX_LONG or message.entryId > _MAX_LONG:
        raise FormatError("no message has this message id")
    return MessagePosition(message.ledgerId, message.entryId, message.partition, message.batch_index)


def message_id_text(ledger_id: int, entry_id: int, partition: int = -1, batch_index: int = -1) -> str:
    """Return `ledger:entry:partition`, and `:batchIndex` after it for a message of a batch."""
    text = f"{ledger_id}:{entry_id}:{partition}"
    return text if batch_index < 0 else f"{text}:{batch_index}"


def serialize_message_id(position: MessagePosition) -> bytes:
    """Write the bytes that parse_message_id reads."""
    message = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
    if position.partition >= 0:
        message.partition = position.partition
    if position.batch_index >= 0:
        message.batch_index = position.batch_index
    return message.SerializeToString()
