"""`ledger-reaper snapshots undo`: restore the index that the last repair of a topic replaced.

1. The current index goes to the journal first, so that another undo restores it.
2. An index that would leave the topic worse off than before the repair is not restored: more of its segments are lost
   by now, it was written during a replay, or it belongs to another topic.
3. An interrupted undo reports whether it published the old index, and what that replaced.
"""

from dataclasses import dataclass

from streaming.errors import ConfigError, SafetyError
from streaming.snapshots.repair.repair_journal import Act
from streaming.snapshots.repair.topic_session import Sent, Session, interruption
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.repair_rules import is_half


@dataclass(frozen=True, slots=True)
class RepairUndo:
    """Undoes the last repair of one topic."""

    session: Session

    def undo(self) -> tuple[str, str]:
        """Restore the index; returns the journal's names of it and of the current index.

        Raises ConfigError if the journal has no repair, and SafetyError if the undo is refused, also if more segments
        of the old index are lost by now than when it was replaced. So the topic is at most as broken as before the
        repair.
        """
        session = self.session
        seen = session.latest()
        name, old, lost = self._replaced_last(seen.data)
        # the guard may have passed the segments of the old index while no index named them, and a trim would take them
        session.hold(self._checked(old, lost))
        session.unload()
        now = session.latest()
        if now.position != seen.position:
            raise SafetyError(
                f"{session.topic}: its index was written during the undo; disconnect its clients, and try again"
            )
        self._checked(old, lost)
        # a broker that replays a topic writes indexes of its own within a second after the repair's, and another undo
        # must be able to restore the current one
        kept = session.record(now, old, Act.UNDO)
        with interruption(session.topic, "undo", _left(session.topic, name, kept, "is or may be published")):
            # allowed: the replaced index is in the journal, no index was written since the topic was unloaded, no more
            # segments of the old index are lost than when it was replaced, and the guard keeps the others
            position = session.publish(old)
            session.journal.mark_sent(kept)
        with interruption(session.topic, "undo", _left(session.topic, name, kept, "is published")):
            session.unload()  # a client may have had it loaded from the replaced index in the meantime
            self._refuse_overwritten(position)
        return name, kept

    def _checked(self, old: bytes, lost: int) -> Index:
        """Decode and check an old index. Raises SafetyError if it must not be restored.

        lost: how many of its segments were lost when it was replaced.
        """
        topic = self.session.topic
        try:
            index = decode_index(old)
        except FormatError as error:
            raise SafetyError(f"{topic}: the journal's index can't be decoded ({error}) or restored") from error
        if index.topic != topic:
            raise SafetyError(f"{topic}: the journal's index belongs to {index.topic}, so it is not restored")
        if is_half(index):
            raise SafetyError(
                f"{topic}: the old index was written during a replay, and the next load would seal every id twice. "
                "Nothing was sent"
            )
        now = self.session.lost_in(index)
        if now > lost:
            raise SafetyError(
                f"{topic}: {now} segments that the topic needs and the old index names can't be read by now, and "
                f"{lost} when it was replaced: the topic would not load with it. Nothing was sent"
            )
        return index

    def _replaced_last(self, now: bytes) -> tuple[str, bytes, int]:
        """Return what the last repair or undo replaced, ignoring runs that ended before they sent anything.

        Returns the entry's name, the index, and how many of its segments were lost when it was replaced (0 if the entry
        of an older version does not contain that). now: the current index.
        """
        topic, journal = self.session.topic, self.session.journal
        for entry in journal.of(topic):
            if entry.is_again and not entry.begins:
                continue  # a broker's index that was replaced during a repair is not the index before that repair
            sent = self.session.publication_of(entry, now)
            if sent is Sent.UNKNOWN:  # if it was published, the earlier entries replaced older indexes
                raise SafetyError(
                    f"{topic}: whether the index of {entry.name} in {journal.folder.location} was published is not "
                    "known, because the topic of indexes no longer has messages of that time. Nothing was sent. If you "
                    "know that it was not published, move that file away and run the command again"
                )
            if sent is Sent.NO:
                continue
            if entry.is_again:  # and the earlier entries replaced older indexes, so no undo restores those either
                raise ConfigError(
                    f"the journal {journal.folder.location} holds no repair of {topic} that can be undone: the last "
                    f"one ({entry.name}) replaced an index that was written during a replay"
                )
            if entry.replaced != now:
                return entry.name, entry.replaced, entry.lost
            if not entry.is_undo:
                raise SafetyError(f"{topic}: the index that the repair replaced is in place already")
        raise ConfigError(f"the journal {journal.folder.location} holds no repair of {topic}")

    def _refuse_overwritten(self, position: Position) -> None:
        index = self.session.latest_index()
        if index is None or index.position != position:
            raise SafetyError(
                f"{self.session.topic}: the index was restored, and a broker that had the topic loaded wrote its own "
                "index over it: disconnect its clients, and try again"
            )


def _left(topic: str, name: str, kept: str, how: str) -> str:
    return (
        f"The index in {name} {how} for {topic}, and the index before the undo is {kept} in the journal, which another "
        "undo restores. Disconnect the topic's clients and unload it, as a broker may have the other index in memory"
    )
