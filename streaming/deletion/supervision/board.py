"""Shows which queries are parked: in a metric, and in a note in state.dir for other processes."""

import threading
from dataclasses import dataclass, field

from streaming.metrics import Metrics
from streaming.state.notes import parked_queries
from streaming.state.notes.parked_queries import ParkedQuery


@dataclass(slots=True)
class Board:
    """One per service; any thread may call it."""

    state_dir: str
    metrics: Metrics
    _parked: dict[str, ParkedQuery] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """Note that no query is parked: at the start, and at an end with nothing left to read."""
        parked_queries.note(self.state_dir, {})

    def show(self, name: str, parked: ParkedQuery | None) -> None:
        """Show that a query (or the waiting retries), by name, is parked; None: it is no longer parked."""
        with self._guard:
            if parked is None:
                self._parked.pop(name, None)
            else:
                self._parked[name] = parked
            # metric and note under the same guard, so that they name the same queries
            self.metrics.parked(name, parked)
            parked_queries.note(self.state_dir, self._parked)
