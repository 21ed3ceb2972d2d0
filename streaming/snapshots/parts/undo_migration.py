"""`ledger-reaper snapshots undo --migrated`: let the form count again that a topic's last migration replaced.

1. The journal has what was there before the migration. put_back publishes what has no value by now, and keeps the rest.
2. Parts count before an index, and an index before a single snapshot (udfs/snapshots/migration.py). So what the
   migration wrote gets tombstones where it counts before the old form, once the old form was read and has every aborted
   id that a broker would not find again. What counts after the old form stays: the topic's broker may read it.
3. Whatever can't be restored is refused before anything is removed. An undo that was cut short is run again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from streaming.adapters.pulsar.snapshot_topics import system_topic
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

    def in_words(self) -> str:
        """Return one line for people."""
        return f"{self.key}: removed from {self.kind}, since it would count before what was put back"


@dataclass(frozen=True, slots=True)
class MigrationUndo:
    """Undoes the last migration of one topic at a time."""

    migrations: Migrations
    put_backs: Restores

    def undo(self, topic: str) -> Iterator[Restored | Removed]:
        """Publish what is missing of the old form, then remove what counts before it; yields each message.

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
        yield from self.put_backs.restore(topic, _journaled(topic, old), _REMEDY)
        yield from self._take_away(topic, kind, keys)
        self.migrations.journal.mark_done(entry)

    def _take_away(self, topic: str, kind: SnapshotKind, old: Keys) -> Iterator[Removed]:
        """Remove what counts before the old form, and check that the old form counts."""
        stored = self.migrations.stored(topic)
        self._refuse_loss(topic, kind, stored)
        new = {each: set(keys) - set(old.get(each, ())) for each, keys in stored.keys.items()}
        messages = list(migration.retired(topic, kind, new))
        for each, of_kind in groupby(messages, key=lambda message: message.kind):
            with self.migrations.sender(system_topic(namespace_of(topic), each)) as opened:
                for message in of_kind:
                    self.migrations.refuse_loaded(topic)
                    # allowed: no broker has the topic, and the old form was read and has all that this message has,
                    # or the broker finds it again
                    opened.send(message.key, None)
                    yield Removed(message.kind, message.key)
        counting = self.migrations.form(topic, self.migrations.stored(topic))
        if counting.kind is not kind:
            raise SafetyError(f"{topic}: what was put back does not count yet. Run the same command again")
        if any(message.kind is SnapshotKind.SEGMENT for message in messages):
            self.migrations.compact(namespace_of(topic))

    def _refuse_loss(self, topic: str, kind: SnapshotKind, stored: Stored) -> None:
        """Refuse to remove a form that counts before the old one unless that has all its ids, and is as new."""
        preferred = [each for each in (SnapshotKind.PARTS, SnapshotKind.INDEX) if each in migration.PREFERRED[kind]]
        remedy = f"`ledger-reaper snapshots migrate --to {NAMES[kind]} {topic}` writes that form again, with all ids"
        try:
            *above, old = (
                self.migrations.form(topic, migration.without_preferred(stored, each)) for each in (*preferred, kind)
            )
        except SafetyError as error:
            raise SafetyError(f"{error}. Nothing was removed: {remedy}") from error
        if old.kind is not kind:
            raise SafetyError(f"{topic}: what was put back can't be read yet. Nothing was removed: try again")
        for form in above:
            lost = migration.missing(migration.before(form, old.max_read), old.aborts)
            is_newer = form.kind is SnapshotKind.INDEX and form.max_read > old.max_read
            if form.kind is not kind and (lost or is_newer):
                what = f"{lost} aborted ids that it does not have" if lost else "a later maxReadPosition"
                raise SafetyError(
                    f"{topic}: its broker has written snapshots since the migration. What counts before the old form "
                    f"has {what}, so nothing was removed. {remedy}"
                )


def _journaled(topic: str, old: Mapping[SnapshotKind, Mapping[str, bytes]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages as Restores reads a journal."""
    for kind, values in old.items():
        for key, value in values.items():
            yield {
                "reference_key": f"data:{managed_ledger_name(topic)}",
                "topic": system_topic(namespace_of(topic), kind),
                "key": key,
                "at_ms": 0,
                "value": value,
            }
