"""TrimFacts in memory: topics that a test has loaded or not, and what their brokers keep."""

from collections.abc import Mapping

from streaming.adapters.memory.faults import Faults
from streaming.errors import RefusedError
from udfs.formats.internal_stats import InternalStats, Position
from udfs.paths import managed_ledger_name
from udfs.phase_one.trim_forecast import Retention


class MemoryTrimFacts:
    """loaded: the topics that a broker has loaded.

    cursors: topic -> where its cursors are. faults: what shall go wrong.
    """

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.kept = Retention(0, 0)
        self.cursors: dict[str, Mapping[str, Position]] = {}
        self.open_bytes = 0
        self.faults = Faults()

    def is_loaded(self, topic: str) -> bool:
        """Whether the topic is loaded."""
        self.faults.step("is_loaded", [topic])
        return managed_ledger_name(topic) in self.loaded

    def retention(self, topic: str) -> Retention:
        """Return what is kept, of any topic."""
        self.faults.step("retention", [topic])
        return self.kept

    def internal_stats(self, topic: str) -> InternalStats:
        """Return what a broker says of a topic that has cursors here, and load it."""
        self.faults.step("internal_stats", [topic])
        name = managed_ledger_name(topic)
        if name not in self.cursors:
            raise RefusedError(f"there is no topic {topic}: check the name")
        self.loaded.add(name)
        newest = 1 << 40
        return InternalStats(((newest, 0),), self.cursors[name], 0, {newest: self.open_bytes})

    def close(self) -> None:
        """Do nothing: there is no connection."""
