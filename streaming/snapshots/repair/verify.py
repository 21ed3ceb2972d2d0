"""Reads a topic that was repaired as a client does, and says how far that goes.

A reader is given nothing behind the first transaction that is open, and its end stands before that. So the end that a
broker names to a reader may be long before the topic's last entry, and says nothing of what lies in between.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics
from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.snapshots.repair.first_index import silent
from streaming.snapshots.repair.session import TopicLoader

_SAY_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads one topic at a time. say: is told in words how far that is."""

    topics: SnapshotTopics
    loader: TopicLoader
    say: Callable[[str], object] = silent

    def read(self, topic: str, known: Collection[tuple[int, int]]) -> tuple[int, str]:
        """Return how many entries a reader gets, and why that is not all; "" where it is.

        known: ids of aborted transactions. Raises SafetyError at a message of one of them.
        """
        count = 0
        self.say(f"{topic} is loaded, and is read once as a client does")
        try:
            hidden = self._hidden(topic)
            for transaction in self.loader.delivered(topic):
                count += 1
                if transaction is not None and transaction in known:
                    raise SafetyError(
                        f"{topic}: a reader got a message of aborted transaction {transaction}: keep consumers away, "
                        f"and `ledger-reaper snapshots undo --topic {topic}`"
                    )
                if count % _SAY_ENTRIES == 0:
                    self.say(f"{topic}: {count} entries were read")
        except (UnavailableError, RefusedError) as error:
            return count, f"no reader came to the topic's end: {error}"
        return count, hidden

    def _hidden(self, topic: str) -> str:
        """Say what a reader that begins now may not be given; "" where it is all that there is.

        The last entry is asked for first: what comes behind it meanwhile is no matter of the repair's.
        """
        last = self.topics.admin.internal_stats(topic).last
        buffer = self.topics.more.buffer(topic)
        if buffer is None:
            raise UnavailableError("its broker does not have it loaded any more")
        if buffer.max_read >= last:
            return ""
        return (
            f"the topic was read up to {buffer.max_read[0]}:{buffer.max_read[1]}, and is not verified beyond: a "
            f"transaction is open there, which hides what comes behind, up to {last[0]}:{last[1]}. Run the repair "
            "again once that transaction has ended"
        )
