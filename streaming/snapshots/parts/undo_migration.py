"""`ledger-reaper snapshots undo --migrated`: make the form that a topic's last migration replaced count again.

1. The journal has the snapshots from before the migration. Restores (restore.py) publishes the values of keys that have
   none by now, and keeps the rest.
2. Parts count before an index, and an index before a single snapshot (udfs/snapshots/migration.py). So messages of the
   migration that count before the old form get tombstones. Before that, the old form is read, and must have every
   aborted id that a broker would not find again by replay.
3. If the old form can't be restored, the undo is refused before anything is removed. An interrupted undo is run again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.errors import ConfigError, SafetyError
from streaming.snapshots.parts.migrate import NAMES, Migrations
from streaming.snapshots.repair.restore import Restored, Restores
from udfs.paths import managed_ledger_name, namespace_of
from udfs.snapshots import migration
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.migration import Keys, Stored

_REMEDY = "The form that the migration wrote stays as it is, and counts"


@dataclass(frozen=True, slots=True)
class Removed:
    """A message of the migration's form that got a tombstone."""

    kind: SnapshotKind
    key: str

    def describe(self) -> str:
        """Return one line for the terminal."""
        return f"{self.key}: removed from {self.kind}, since it would count before the restored form"


@dataclass(frozen=True, slots=True)
class MigrationUndo:
    """Undoes the last migration of one topic at a time."""

    migrations: Migrations
    restores: Restores

    def undo(self, topic: str) -> Iterator[Restored | Removed]:
        """Publish missing messages of the old form, then remove messages that count before it; yields each message.

        Raises ConfigError if the journal has no migration of the topic, SafetyError if the old form can't be restored,
        UnavailableError, RefusedError: run it again.
        """
        entry, old = self.migrations.replaced(topic)
        keys = {each: tuple(values) for each, values in old.items()}
        kind = migration.kind_of(keys, topic)
        if kind is None:
            raise ConfigError(f"the journal holds no migration of {topic}")
        self.migrations.refuse_loaded(topic)
        stored = self.migrations.stored(topic)
        if migration.kind_of(migration.without_preferred(stored, kind).keys, topic) is kind:
            self._refuse_loss(topic, kind, stored)  # before anything is sent
        yield from self.restores.restore(topic, _journaled(topic, old), _REMEDY)
        yield from self._remove_preferred(topic, kind, keys)
        self.migrations.journal.mark_done(entry)

    def _remove_preferred(self, topic: str, kind: SnapshotKind, old: Keys) -> Iterator[Removed]:
        """Remove the messages that count before the old form, and check that the old form counts."""
        stored = self.migrations.stored(topic)
        self._refuse_loss(topic, kind, stored)
        new = {form_kind: set(keys) - set(old.get(form_kind, ())) for form_kind, keys in stored.keys.items()}
        # messages that count after the old form stay: the topic's broker may read them
        messages = list(migration.retired(topic, kind, new))
        for form_kind, of_kind in groupby(messages, key=lambda message: message.kind):
            with self.migrations.sender(system_topic(namespace_of(topic), form_kind)) as sender:
                for message in of_kind:
                    self.migrations.refuse_loaded(topic)
                    # allowed: no broker has the topic, and the old form was read and has all ids of this message,
                    # or the broker finds them again
                    sender.send(message.key, None)
                    yield Removed(message.kind, message.key)
        counting = self.migrations.form(topic, self.migrations.stored(topic))
        if counting.kind is not kind:
            raise SafetyError(f"{topic}: the restored form does not count yet. Run the same command again")
        if any(message.kind is SnapshotKind.SEGMENT for message in messages):
            self.migrations.compact(namespace_of(topic))

    def _refuse_loss(self, topic: str, kind: SnapshotKind, stored: Stored) -> None:
        """Refuse to remove a form that counts before the old form, if that could lose ids.

        The old form must have all ids of the other form up to the old form's maxReadPosition. If the other form is an
        index, its maxReadPosition must not be after that of the old form.
        """
        preferred = [each for each in (SnapshotKind.PARTS, SnapshotKind.INDEX) if each in migration.PREFERRED[kind]]
        remedy = f"`ledger-reaper snapshots migrate --to {NAMES[kind]} {topic}` writes that form again, with all ids"
        try:
            *above, old = (
                self.migrations.form(topic, migration.without_preferred(stored, each)) for each in (*preferred, kind)
            )
        except SafetyError as error:
            raise SafetyError(f"{error}. Nothing was removed: {remedy}") from error
        if old.kind is not kind:
            raise SafetyError(f"{topic}: the restored form can't be read yet. Nothing was removed: try again")
        for form in above:
            lost = migration.missing(migration.before(form, old.max_read), old.aborts)
            is_newer = form.kind is SnapshotKind.INDEX and form.max_read > old.max_read
            if form.kind is not kind and (lost or is_newer):
                what = f"{lost} aborted ids that it does not have" if lost else "a later maxReadPosition"
                raise SafetyError(
                    f"{topic}: its broker has written snapshots since the migration. The form that counts before the "
                    f"old form has {what}, so nothing was removed. {remedy}"
                )


def _journaled(topic: str, old: Mapping[SnapshotKind, Mapping[str, bytes]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages as rows of the snapshots' journal, for Restores."""
    for kind, values in old.items():
        for key, value in values.items():
            yield {
                "reference_key": f"data:{managed_ledger_name(topic)}",
                "topic": system_topic(namespace_of(topic), kind),
                "key": key,
                "at_ms": 0,
                "value": value,
            }
