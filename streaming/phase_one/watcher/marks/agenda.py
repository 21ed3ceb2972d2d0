"""Topics by due time."""

import heapq
from collections.abc import Iterator

_STALE_AT_MOST = 1_000  # replaced entries in the heap, in addition to the number of topics


class Agenda:
    """A heap of topics. Not thread-safe."""

    def __init__(self) -> None:
        self._at_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, topic: str, at_ms: int) -> None:
        """Set the time of a topic; it replaces an earlier time."""
        if self._at_ms.get(topic) == at_ms:
            return
        self._at_ms[topic] = at_ms
        heapq.heappush(self._heap, (at_ms, topic))
        if len(self._heap) > 2 * len(self._at_ms) + _STALE_AT_MOST:
            self._heap = [(at, name) for name, at in self._at_ms.items()]
            heapq.heapify(self._heap)

    def drop(self, topic: str) -> None:
        """Forget a topic, if it has a time."""
        self._at_ms.pop(topic, None)

    def next(self, now_ms: int) -> str | None:
        """Return the topic with the earliest time if that time has come. The topic keeps its time."""
        while self._heap and self._at_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap and self._heap[0][0] <= now_ms else None

    def __contains__(self, topic: str) -> bool:
        """Whether the topic has a time."""
        return topic in self._at_ms

    def __iter__(self) -> Iterator[str]:
        """Iterate over all topics."""
        return iter(self._at_ms)
