"""Opens the snapshot topics for a sweep, and replaces them in a dry run."""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.adapters.pulsar.snapshots.snapshot_store import SnapshotStore
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.clients import admin_for, admin_settings
from streaming.config.settings import Settings
from streaming.sweep.snapshots.snapshot_jobs import Snapshots
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.keys import SnapshotKind, segment_key_of
from udfs.snapshots.values import ReadValue


@contextmanager
def snapshots_for(settings: Settings) -> Iterator[SnapshotStore]:
    """Open the snapshot topics of the cluster for the length of a with block."""
    with (
        admin_for(settings) as admin,
        closing(SnapshotAdmin(admin_settings(settings))) as more,
        SnapshotStore(settings.pulsar, SnapshotTopics(settings.pulsar, admin, more)) as store,
    ):
        yield store


class DryRunSnapshots:
    """Snapshot topics in a dry run: messages are only remembered, and read back as if they had been sent."""

    def __init__(self, topics: Snapshots) -> None:
        self._topics = topics
        self._sent: dict[tuple[str, SnapshotKind], list[ReadValue]] = {}
        self._compacted: dict[tuple[str, SnapshotKind], set[str]] = {}

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Ask the cluster."""
        return self._topics.kinds(namespace)

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        """Ask the cluster."""
        return self._topics.last(namespace, kind)

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield messages of the cluster, then those that were remembered."""
        gone = self._compacted.get((namespace, kind), set())
        for read in self._topics.compacted(namespace, kind, with_bytes_of):
            if read.key not in gone and not (gone and read.is_null):
                yield read
        for read in self._sent.get((namespace, kind), ()):
            if not (read.is_null and read.key in gone):
                yield read

    def stored(
        self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL, with_bytes_of: Collection[str] = ()
    ) -> Iterator[ReadValue]:
        """Return the remembered messages: a dry run changes nothing that it might have to restore."""
        del after, with_bytes_of
        return iter(self._sent.get((namespace, kind), ()))

    def is_guarded(self, namespace: str) -> bool:
        """Ask the cluster."""
        return self._topics.is_guarded(namespace)

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Remember the message; nothing is sent."""
        sent = self._sent.setdefault((namespace, kind), [])
        position = ((1 << 62), len(sent))
        segment = segment_key_of(key)
        topic = segment.topic if segment else key
        sent.append(
            ReadValue(
                kind=kind,
                key=key,
                topic=topic,
                position=position,
                publish_ms=0,
                size_bytes=len(value or b""),
                is_null=value is None,
            )
        )
        return position

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Remember the compaction: keys with a remembered tombstone are no longer read."""
        sent = self._sent.get((namespace, kind), ())
        self._compacted[namespace, kind] = {read.key for read in sent if read.is_null}
        return True
