"""`ledger-reaper snapshots undo`: put back the index that the last repair of a topic replaced.

1. What is there now goes to the journal first, so that another undo puts that back.
2. Before the old index is sent, and after it, the guard stands before what it names. While no index named these
   segments, the guard may have moved over them, and a trim would take them.
3. An index with which the topic would be worse off than it was before the repair is not put back: one of which more
   segments are lost by now, one of half a replay, or one of another topic.
4. An undo that is cut short says whether the old index is there, and what it replaced.
"""

from dataclasses import dataclass

from streaming.errors import ConfigError, SafetyError
from streaming.snapshots.repair.journal import Act
from streaming.snapshots.repair.session import Replacing, Sent, cut_short
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.repairing import is_half


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Takes back the repair of one topic at a time."""

    replacing: Replacing

    def undo(self, topic: str) -> tuple[str, str]:
        """Put the index back; returns the journal's names of it and of what is there now.

        A broker that replays a topic seals it anew, and writes indexes of its own behind ours within a second. So what
        is there now goes to the journal first, and another undo puts that back. Raises ConfigError where the journal
        has none, and SafetyError where that is refused: also where more segments of the old index are lost by now than
        when it was replaced. So a topic is at most as broken then as it was before.
        """
        seen = self.replacing.latest(topic)
        name, old, lost = self._replaced_last(topic, seen.data)
        self.replacing.hold(topic, self._checked(topic, old, lost))
        self.replacing.unload(topic)
        now = self.replacing.latest(topic)
        if now.position != seen.position:
            raise SafetyError(f"{topic}: somebody wrote its index meanwhile; disconnect its clients, and try again")
        self._checked(topic, old, lost)
        kept = self.replacing.write_down(topic, now, old, Act.UNDO)
        with cut_short(topic, "undo", _became(topic, name, kept, "is or may be published")):
            # allowed: what is replaced is in the journal, nobody wrote an index since it was unloaded, no more
            # segments of the old one are lost than when it was replaced, and the guard keeps those that are there
            place = self.replacing.send(topic, old)
            self.replacing.journal.mark_sent(kept)
        with cut_short(topic, "undo", _became(topic, name, kept, "is published")):
            self.replacing.unload(topic)  # a client may have had it loaded from what was replaced meanwhile
            self._refuse_written_over(topic, place)
        return name, kept

    def _checked(self, topic: str, old: bytes, lost: int) -> Index:
        """Return the index that these bytes are; lost: how many of its segments were lost when it was replaced.

        Raises SafetyError where it must not be put back.
        """
        try:
            index = decode_index(old)
        except FormatError as error:
            raise SafetyError(f"{topic}: the journal's index is none ({error}), so it is not put back") from error
        if index.topic != topic:
            raise SafetyError(f"{topic}: the journal's index is that of {index.topic}, so it is not put back")
        if is_half(index):
            raise SafetyError(
                f"{topic}: the index that would be put back was written in the midst of a replay: the next load would "
                "seal every id twice. Nothing was sent"
            )
        now = self.replacing.looks.lost_in(topic, index)
        if now > lost:
            raise SafetyError(
                f"{topic}: of the index that would be put back {now} segments that the topic needs can't be read by "
                f"now, and {lost} when it was replaced: the topic would not load with it. Nothing was sent"
            )
        return index

    def _replaced_last(self, topic: str, now: bytes) -> tuple[str, bytes, int]:
        """Return what the last repair or undo replaced; one that broke off before it sent anything does not count.

        now: the index that is there. The number is that of the segments that were lost when it was replaced; an entry
        of an older version does not say it, and counts as 0.
        """
        journal = self.replacing.journal
        for entry in journal.of(topic):
            if entry.is_again and not entry.begins:
                continue  # what a broker wrote in the midst of a repair is not what that repair replaced
            sent = self.replacing.was_sent(entry, now)
            if sent is Sent.UNKNOWN:  # what lies before it may be older than what the topic was given since
                raise SafetyError(
                    f"{topic}: nobody can tell whether {entry.name} in {journal.folder.location} was published, as the "
                    "topic of indexes does not reach back to it any more. If it was not, move that file away, and try "
                    "again. Nothing was sent"
                )
            if sent is Sent.NO:
                continue
            if entry.is_again:  # and what an earlier repair replaced is older than what this one did
                raise ConfigError(
                    f"the journal {journal.folder.location} holds no repair of {topic} that can be taken back: the "
                    f"last one ({entry.name}) replaced an index that was written in the midst of a replay"
                )
            if entry.replaced != now:
                return entry.name, entry.replaced, entry.lost
            if not entry.is_undo:
                raise SafetyError(f"{topic}: the index that the repair replaced is there already")
        raise ConfigError(f"the journal {journal.folder.location} holds no repair of {topic}")

    def _refuse_written_over(self, topic: str, place: Position) -> None:
        index = self.replacing.looks.latest_index(topic)
        if index is None or index.position != place:
            raise SafetyError(
                f"{topic}: the index was put back, and a broker that had it loaded wrote an index of its own over "
                "it: disconnect its clients, and try again"
            )


def _became(topic: str, name: str, kept: str, how: str) -> str:
    return (
        f"The index that {name} holds {how} for {topic}, and what was there is {kept} in the journal, which another "
        "undo puts back. Disconnect the topic's clients and unload it, as a broker may have the other index in memory"
    )
