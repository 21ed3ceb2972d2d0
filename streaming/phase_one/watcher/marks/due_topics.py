"""The topics that may have something to mark, in the order in which brokers are asked about them."""

from streaming.phase_one.watcher.marks.agenda import Agenda
from streaming.phase_one.watcher.marks.failing import Failing
from streaming.phase_one.watcher.marks.signs import TopicSigns

# A sign that a topic is loaded is valid for two scans, and at least two minutes.
_SCANS_VALID, _LEAST_VALID_MS = 2, 120_000


class DueTopics:
    """A topic is due by a fresh sign, at the time of a forecast, or after a failure, in this order. Not thread-safe."""

    def __init__(self, poll_seconds: int) -> None:
        self._fresh_ms = max(_LEAST_VALID_MS, _SCANS_VALID * poll_seconds * 1000)
        self._signs: dict[str, int] = {}  # topic -> until when its newest sign is valid
        self._forecasts = Agenda()  # when a topic's broker may be about to drop more ledgers
        self._failing = Failing()

    def take(self, signs: TopicSigns, now_ms: int) -> None:
        """Take the signs of a complete scan."""
        for topic in signs.closed:
            self._signs.pop(topic, None)
            self._forecasts.drop(topic)
            self._failing.drop(topic)
        self._failing.forget_old(now_ms)
        for topic in sorted(signs.loaded - signs.closed):
            if not self._failing.sign(topic, now_ms + self._fresh_ms):
                self._signs[topic] = now_ms + self._fresh_ms

    def may_have_next(self, now_ms: int) -> bool:
        """Whether next() may return a topic; signs that have expired are not excluded."""
        return bool(self._signs) or any(topics.next(now_ms) is not None for topics in (self._forecasts, self._failing))

    def next(self, now_ms: int) -> str | None:
        """Return the topic that is due first, and drop signs that have expired. The topic stays due."""
        while self._signs:
            topic = next(iter(self._signs))
            if self._signs[topic] >= now_ms:
                return topic
            del self._signs[topic]
        return self._forecasts.next(now_ms) or self._failing.next(now_ms)

    def start(self, topic: str, now_ms: int) -> int:
        """Start a try; returns until when the topic's sign is valid, 0 without a sign."""
        if topic in self._forecasts:
            self._forecasts.put(topic, now_ms + self._fresh_ms)  # the next try, whatever the outcome of this try
        return self._signs.pop(topic, 0)

    def keep_sign(self, topic: str, loaded_until_ms: int) -> None:
        """Restore the sign of a try that an outage interrupted."""
        if loaded_until_ms:
            self._signs[topic] = loaded_until_ms

    def failed(self, topic: str, loaded_until_ms: int, now_ms: int) -> None:
        """Let a topic wait after a try for which its broker did not answer."""
        self._signs.pop(topic, None)
        again_ms = self._failing.failed(topic, loaded_until_ms, now_ms)
        if topic in self._forecasts:
            self._forecasts.put(topic, again_ms)

    def answered(self, topic: str) -> None:
        """End the wait of a topic."""
        self._failing.drop(topic)

    def set_forecast(self, topic: str, next_ms: int | None) -> None:
        """Set when a topic is due again; None: at its next sign."""
        self._forecasts.drop(topic)
        if next_ms is not None:
            self._forecasts.put(topic, next_ms)
