"""Topics for which a server did not answer: each waits by itself, longer each time, and delays no other topic.

A failed topic comes after all others until the broker answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from streaming.phase_one.watcher.marks.agenda import Agenda
from udfs.units import HOUR_MS

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 15_000, HOUR_MS
_SEVERAL = 5


@dataclass(slots=True)
class _Wait:
    pause_ms: int
    again_ms: int
    loaded_until_ms: int  # until when the newest sign that the topic is loaded is valid


class Failing:
    """Topics that wait. Not thread-safe."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}
        self._again = Agenda()

    def failed(self, topic: str, loaded_until_ms: int, now_ms: int) -> int:
        """Let a topic wait, longer than the last time, and return until when.

        Args:
            topic: the topic.
            loaded_until_ms: until when the newest sign that it is loaded is valid; 0: no new sign.
            now_ms: the time, in ms since 1970.
        """
        # a broker may answer 5xx for a topic for ever, and a tenant can have many such topics
        pause_ms = FIRST_PAUSE_MS
        if (wait := self._waits.get(topic)) is not None:
            pause_ms = min(2 * wait.pause_ms, LONGEST_PAUSE_MS)
            loaded_until_ms = max(loaded_until_ms, wait.loaded_until_ms)
        self._waits[topic] = _Wait(pause_ms, now_ms + pause_ms, loaded_until_ms)
        self._again.put(topic, now_ms + pause_ms)
        return now_ms + pause_ms

    def sign(self, topic: str, loaded_until_ms: int) -> bool:
        """Take a sign, valid until loaded_until_ms, that a topic is loaded; False if the topic does not wait here."""
        wait = self._waits.get(topic)
        if wait is None:
            return False
        wait.loaded_until_ms = loaded_until_ms
        self._again.put(topic, wait.again_ms)
        return True

    def next(self, now_ms: int) -> str | None:
        """Return a topic that has waited long enough and has a valid sign. It stays here."""
        while (topic := self._again.next(now_ms)) is not None:
            if self._waits[topic].loaded_until_ms >= now_ms:
                return topic
            self._again.drop(topic)
        return None

    def drop(self, topic: str) -> None:
        """Forget a topic, if it is here: the broker has answered, or the topic is not loaded."""
        self._waits.pop(topic, None)
        self._again.drop(topic)

    def forget_old(self, now_ms: int) -> None:
        """Forget topics without a sign for long after their wait."""
        for topic in [topic for topic, wait in self._waits.items() if wait.again_ms + 2 * LONGEST_PAUSE_MS < now_ms]:
            self.drop(topic)

    def __iter__(self) -> Iterator[str]:
        """Iterate over all topics."""
        return iter(self._waits)


class FailureStreak:
    """Failures of different topics in a row: the first five suggest an outage, then ten, twenty, …"""

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._outage_at = _SEVERAL

    def failed(self, topic: str) -> bool:
        """Count a failure, and return whether everything should pause now."""
        self._topics.add(topic)
        if len(self._topics) < self._outage_at:
            return False
        # doubled, so that many topics that fail by themselves rarely cause a pause; an outage still causes pauses,
        # again and again
        self._outage_at *= 2
        return True

    def answered(self) -> None:
        """Start from zero after an answer."""
        self._topics, self._outage_at = set(), _SEVERAL
