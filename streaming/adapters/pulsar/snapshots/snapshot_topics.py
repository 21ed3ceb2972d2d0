"""Reads a namespace's snapshot topics: each message becomes a value of its kind, or a fault."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.snapshots.compacted import read_compacted, read_stored
from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.config.sections import PulsarSettings
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.avro_schemas import origins
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import Undeliverable, UndeliveredMessage


def system_topic(namespace: str, kind: SnapshotKind) -> str:
    """Return the full name of a namespace's topic of that kind."""
    return f"persistent://{namespace}/{kind}"


class SnapshotTopics:
    """Reads the snapshot topics of namespaces. Every method raises UnavailableError, RefusedError.

    For the keys in `with_bytes_of`, compacted() and stored() also return the bytes of the values, valid or not.

    Args:
        is_unknown_foreign: schemas of unknown origin count as foreign (no broker's), because the operator knows that no
            broker of another version, which could have registered them, ever used the namespaces.
    """

    def __init__(
        self, settings: PulsarSettings, admin: PulsarAdmin, more: SnapshotAdmin, *, is_unknown_foreign: bool = False
    ) -> None:
        self._settings = settings
        self._is_unknown_foreign = is_unknown_foreign
        self.admin = admin
        self.more = more

    def present(self, namespace: str) -> set[str]:
        """Return all topics of a namespace."""
        return set(self.admin.topics(namespace))

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield the messages that a compacted reader gets. A key may come several times: its last message counts."""
        topic = system_topic(namespace, kind)
        return self._reads(namespace, kind, read_compacted(self._settings, self.admin, topic), with_bytes_of)

    def stored(
        self,
        namespace: str,
        kind: SnapshotKind,
        after: Position = BEFORE_ALL,
        with_bytes_of: Collection[str] = (),
    ) -> Iterator[ReadValue]:
        """Yield the messages after a position in the topic's own ledgers, where a broker that recovers reads them."""
        topic = system_topic(namespace, kind)
        stored = read_stored(self._settings, self.admin, topic, after)
        if kind is SnapshotKind.SEGMENT:
            stored = ((position, as_brokers_read(message)) for position, message in stored)
        return self._reads(namespace, kind, stored, with_bytes_of)

    def _reads(
        self,
        namespace: str,
        kind: SnapshotKind,
        messages: Iterator[tuple[Position, UndeliveredMessage]],
        with_bytes_of: Collection[str] = (),
    ) -> Iterator[ReadValue]:
        definitions = self.more.schemas(system_topic(namespace, kind))
        origin_of = origins(kind, definitions, is_unknown_foreign=self._is_unknown_foreign)
        for position, message in messages:
            read = read_message(kind, namespace, position, message, origin_of)
            yield replace(read, data=message.content.payload) if read.key in with_bytes_of else read


def as_brokers_read(message: UndeliveredMessage) -> UndeliveredMessage:
    """Return a segment as a broker reads it at its position: the bytes of the entry are the value.

    A broker therefore can't read a segment that is compressed or in a batch.
    """
    if message.why is not None or message.content.is_null or message.content.is_plain:
        return message
    detail = "it is compressed or in a batch, and a broker that reads it by position treats its bytes as the value"
    return replace(message, why=Undeliverable.UNREADABLE, detail=detail)
