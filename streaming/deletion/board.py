"""Shows which lanes are parked, to whoever watches: a metric, and a note in state.dir for other processes."""

import threading
from dataclasses import dataclass, field

from streaming.metrics import Metrics
from streaming.state import parked_queries
from streaming.state.parked_queries import ParkedQuery


@dataclass(slots=True)
class Board:
    """One per service; for any thread."""

    state_dir: str
    metrics: Metrics
    _parked: dict[str, ParkedQuery] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """No lane is parked: at the start, whatever was noted before, and at an end with nothing left to read."""
        parked_queries.note(self.state_dir, {})

    def show(self, name: str, lane: ParkedQuery | None) -> None:
        """A lane is parked, or was tried again; None: it is parked no more. name: its query's, or what else it is."""
        with self._guard:
            if lane is None:
                self._parked.pop(name, None)
            else:
                self._parked[name] = lane
            self.metrics.parked(name, is_parked=lane is not None)
            parked_queries.note(self.state_dir, self._parked)
