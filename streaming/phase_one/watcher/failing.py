"""Topics of which a service did not answer: each waits by itself, later and later, and keeps no other waiting.

A broker may answer 5xx of one topic for ever, and a tenant can have many of these. So one that failed comes after all
others until it answers. Only several failures in a row are a sign that the fault is nobody's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from streaming.phase_one.watcher.agenda import Agenda
from udfs.units import HOUR_MS

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 15_000, HOUR_MS
_SEVERAL = 5


@dataclass(slots=True)
class _Wait:
    pause_ms: int
    again_ms: int
    loaded_until_ms: int


class Failing:
    """Topics that wait. Not thread-safe."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}
        self._again = Agenda()

    def failed(self, topic: str, loaded_until_ms: int, now_ms: int) -> int:
        """Let a topic wait, longer than the last time; return until when. loaded_until_ms: its sign, 0: no new one."""
        pause_ms = FIRST_PAUSE_MS
        if (known := self._waits.get(topic)) is not None:
            pause_ms = min(2 * known.pause_ms, LONGEST_PAUSE_MS)
            loaded_until_ms = max(loaded_until_ms, known.loaded_until_ms)
        self._waits[topic] = _Wait(pause_ms, now_ms + pause_ms, loaded_until_ms)
        self._again.put(topic, now_ms + pause_ms)
        return now_ms + pause_ms

    def sign(self, topic: str, loaded_until_ms: int) -> bool:
        """Take a sign that a topic is loaded, which holds until then; False where the topic does not wait here."""
        wait = self._waits.get(topic)
        if wait is None:
            return False
        wait.loaded_until_ms = loaded_until_ms
        self._again.put(topic, wait.again_ms)
        return True

    def next(self, now_ms: int) -> str | None:
        """Return a topic that has waited long enough, and whose sign still holds. It stays here."""
        while (topic := self._again.next(now_ms)) is not None:
            if self._waits[topic].loaded_until_ms >= now_ms:
                return topic
            self._again.drop(topic)
        return None

    def drop(self, topic: str) -> None:
        """Forget a topic, if it is there: it has answered, or is not loaded."""
        self._waits.pop(topic, None)
        self._again.drop(topic)

    def forget_old(self, now_ms: int) -> None:
        """Forget topics that gave no sign for long after they had waited."""
        for topic in [each for each, wait in self._waits.items() if wait.again_ms + 2 * LONGEST_PAUSE_MS < now_ms]:
            self.drop(topic)

    def __iter__(self) -> Iterator[str]:
        """Go through all topics."""
        return iter(self._waits)


class Row:
    """Failures of different topics in a row: the first five are a sign of an outage, then ten, twenty, …

    So an outage makes all pause again and again, and many topics that fail by themselves do so seldom.
    """

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._sign_at = _SEVERAL

    def failed(self, topic: str) -> bool:
        """Count a failure; whether all should pause now."""
        self._topics.add(topic)
        if len(self._topics) < self._sign_at:
            return False
        self._sign_at *= 2
        return True

    def answered(self) -> None:
        """Begin anew: there was an answer."""
        self._topics, self._sign_at = set(), _SEVERAL
