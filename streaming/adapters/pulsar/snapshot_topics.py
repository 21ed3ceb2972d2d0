"""A namespace's snapshot topics, message by message, each as a value of its kind or as a fault."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.compacted import read_compacted, read_stored
from streaming.adapters.pulsar.snapshots import SnapshotAdmin
from streaming.config.sections import PulsarSettings
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.schemas import Origin, origin_of
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import Undeliverable, UndeliveredMessage


def system_topic(namespace: str, kind: SnapshotKind) -> str:
    """Return the full name of a namespace's topic of that kind."""
    return f"persistent://{namespace}/{kind}"


class SnapshotTopics:
    """The snapshot topics of namespaces, message by message. Every method raises UnavailableError, RefusedError.

    with_bytes_of: keys of which the values' bytes are wanted too, whatever they are.
    """

    def __init__(self, settings: PulsarSettings, admin: PulsarAdmin, more: SnapshotAdmin) -> None:
        self._settings = settings
        self.admin = admin
        self.more = more

    def present(self, namespace: str) -> set[str]:
        """All topics of a namespace."""
        return set(self.admin.topics(namespace))

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield what a compacted reader gets: of a key, the last message counts."""
        topic = system_topic(namespace, kind)
        return self._reads(namespace, kind, read_compacted(self._settings, self.admin, topic), with_bytes_of)

    def stored(
        self,
        namespace: str,
        kind: SnapshotKind,
        after: Position = BEFORE_ALL,
        with_bytes_of: Collection[str] = (),
    ) -> Iterator[ReadValue]:
        """Yield what lies behind a position in the topic's own ledgers, where a broker that recovers reads it.

        A broker takes a segment's entry for the value itself: in one that is compressed, or a batch, it can't read any.
        """
        topic = system_topic(namespace, kind)
        stored = read_stored(self._settings, self.admin, topic, after)
        if kind is SnapshotKind.SEGMENT:
            stored = ((position, as_brokers_read(found)) for position, found in stored)
        return self._reads(namespace, kind, stored, with_bytes_of)

    def _reads(
        self,
        namespace: str,
        kind: SnapshotKind,
        messages: Iterator[tuple[Position, UndeliveredMessage]],
        with_bytes_of: Collection[str] = (),
    ) -> Iterator[ReadValue]:
        versions = known_versions(kind, self.more.schemas(system_topic(namespace, kind)))
        for position, found in messages:
            # a version that is not registered may have been: schemas can be deleted
            read = read_message(kind, namespace, position, found, lambda version: versions.get(version, Origin.UNKNOWN))
            yield replace(read, data=found.content.payload) if read.key in with_bytes_of else read


def as_brokers_read(found: UndeliveredMessage) -> UndeliveredMessage:
    """Return a message at its place as a broker that reads a segment there finds it."""
    if found.why is not None or found.content.is_null or found.content.is_plain:
        return found
    detail = "it is compressed or in a batch, and a broker that reads it at its place takes it for the value itself"
    return replace(found, why=Undeliverable.UNREADABLE, detail=detail)


def known_versions(kind: SnapshotKind, definitions: Mapping[int, str]) -> dict[bytes, Origin]:
    """Return schema version, as it is in a message, -> who may have registered it."""
    return {version.to_bytes(8, "big"): origin_of(kind, text) for version, text in definitions.items()}
