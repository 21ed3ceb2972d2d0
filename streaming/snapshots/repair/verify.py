"""Verification of a repaired topic: it is read as a client does, and the result states how far that proves anything."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.snapshots.repair.topic_load import silent
from streaming.snapshots.repair.topic_session import TopicLoader
from udfs.snapshots.repair_rules import KnownIds, Remedy

_SAY_ENTRIES = 100_000
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Verification:
    """Reads one topic at a time."""

    topics: SnapshotTopics
    loader: TopicLoader
    say: Callable[[str], object] = silent  # receives progress messages

    def read(self, topic: str, known: Collection[tuple[int, int]]) -> tuple[int, str]:
        """Return how many entries a reader gets, and why that is not the whole topic; "" if it is.

        known: ids of aborted transactions. Raises SafetyError at a message of such a transaction.
        """
        count = 0
        self.say(f"{topic} is loaded; reading it once, as a client does")
        try:
            hidden = self._hidden(topic)
            for transaction in self.loader.delivered(topic):
                count += 1
                if transaction is not None and transaction in known:
                    raise SafetyError(
                        f"{topic}: a reader got a message of aborted transaction {transaction}: keep consumers away, "
                        f"and restore the old index with `ledger-reaper snapshots undo --topic {topic}`"
                    )
                if count % _SAY_ENTRIES == 0:
                    self.say(f"{topic}: {count} entries read")
        except (UnavailableError, RefusedError) as error:
            return count, f"no reader reached the topic's end: {error}"
        return count, hidden

    def _hidden(self, topic: str) -> str:
        """Explain what a reader that starts now may not get; "" if it gets everything.

        The last entry is requested first: later messages are out of scope.
        """
        # requested first: later messages are out of scope
        last = self.topics.admin.internal_stats(topic).last
        buffer = self.topics.more.buffer(topic)
        if buffer is None:
            raise UnavailableError("its broker does not have it loaded any more")
        # A reader gets nothing after the first open transaction, and its end is before that transaction. So the end
        # that a broker reports to a reader may be long before the topic's last entry, and proves nothing about the
        # entries in between.
        if buffer.max_read >= last:
            return ""
        return (
            f"the topic was read up to {buffer.max_read[0]}:{buffer.max_read[1]}, and is not verified beyond: an open "
            f"transaction there hides the later entries, up to {last[0]}:{last[1]}. Run the repair again once that "
            "transaction has ended"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """The result of a repair; the fields of --json."""

    topic: str
    journal: str  # the entry that contains the old index
    aborted: int  # ids that the broker has now
    known: int  # ids that were known from the old snapshot
    expected: int  # known ids that the broker must have
    delivered: int  # entries that a reader got afterwards; none of them belonged to a known id
    not_verified: str = ""  # why the result is not proven; "": all old ids are known and the reader reached the end
    loads: int = 1  # how often the topic was loaded
    not_written: str = ""  # what the broker's index is missing; "": a broker could load it
    remedy: Remedy = Remedy.REPLAY
    went_on: bool = False  # the run resumed an interrupted repair

    def describe(self) -> str:
        """Return one line for the terminal."""
        reader = f"a reader gets {self.delivered} entries" + ("" if self.not_verified else ", none of them aborted")
        return (
            f"{self.topic} is loaded again and has {self.aborted} aborted ids (its old snapshot had {self.known}); "
            f"{reader}. The old index is {self.journal} in the journal" + self._unwritten()
        )

    def _unwritten(self) -> str:
        if not self.not_written:
            return ""
        again = (
            "the whole topic again"
            if self.remedy is Remedy.REPLAY
            else "the topic after the last segment of the repair's index again"
        )
        return (
            f". Its broker has not written its own snapshot yet: {self.not_written}. That is a fault of Pulsar's "
            "(apache/pulsar#26565), and loses nothing: the broker resumes as messages come, and until then it reads "
            f"{again} at each load"
        )


def ignorance(ids: KnownIds, *, is_whole: bool) -> str:
    """Explain why the known old ids are incomplete; "" if they are complete.

    is_whole: whether the replaced index was complete, not written during a replay.
    """
    if not is_whole:
        return "the replaced index was written during a replay, so not all old ids are known"
    if not ids.known:
        return "no old ids are known"
    if ids.unknown:
        more = f" and {len(ids.unknown) - _NAMED} more" if len(ids.unknown) > _NAMED else ""
        return f"the ids of segments {', '.join(map(str, ids.unknown[:_NAMED]))}{more} are not known"
    return ""
