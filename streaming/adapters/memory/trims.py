"""Implements TrimFacts in memory; the test chooses which topics are loaded."""

from collections.abc import Mapping
from typing import TypeVar

from streaming.adapters.memory.faults import Faults
from streaming.errors import ReaperError, RefusedError
from udfs.formats.internal_stats import InternalStats, Position
from udfs.paths import base_topic, managed_ledger_name
from udfs.phase_one.trim_forecast import Retention
from udfs.space.space_report import RecoverySettings

_Found = TypeVar("_Found", Retention, Retention | None, RecoverySettings)


class MemoryTrimFacts:
    """Implements TrimFacts; the test sets the attributes."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()  # topics that a broker has loaded
        self.kept = Retention(0, 0)  # of every topic
        self.cursors: dict[str, Mapping[str, Position]] = {}  # topic -> the positions of its cursors
        self.open_bytes = 0  # size of each topic's newest ledger
        self.faults = Faults()

    def is_loaded(self, topic: str) -> bool:
        """Whether the topic is loaded."""
        self.faults.step("is_loaded", [topic])
        return managed_ledger_name(topic) in self.loaded

    def retention(self, topic: str) -> Retention:
        """Return the retention, which is the same for all topics."""
        self.faults.step("retention", [topic])
        return self.kept

    def internal_stats(self, topic: str) -> InternalStats:
        """Load a topic that `cursors` contains, and return its stats. Raises RefusedError for other topics."""
        self.faults.step("internal_stats", [topic])
        name = managed_ledger_name(topic)
        if name not in self.cursors:
            raise RefusedError(f"there is no topic {topic}: check the name")
        self.loaded.add(name)
        newest = 1 << 40
        return InternalStats(
            ledgers=((newest, 0),), cursors=self.cursors[name], pending_adds=0, sizes={newest: self.open_bytes}
        )

    def close(self) -> None:
        """Do nothing: there is no connection."""


class MemoryRetentionPolicies:
    """Implements RetentionPolicies; the test sets the attributes. An error among them is raised."""

    def __init__(self) -> None:
        self.topics: dict[str, Retention | ReaperError] = {}  # by persistent://…
        self.namespaces: dict[str, Retention | ReaperError] = {}
        self.brokers: Retention | ReaperError = Retention(0, 0)
        self.recovering: RecoverySettings | ReaperError = RecoverySettings(False, False, False)
        self.faults = Faults()

    def of_topic(self, topic: str) -> Retention | None:
        """Return the policy of the topic or the partitioned topic."""
        self.faults.step("of_topic", [topic])
        return _raised(self.topics.get(base_topic(topic)))

    def of_namespace(self, namespace: str) -> Retention | None:
        """Return the policy of the namespace."""
        self.faults.step("of_namespace", [namespace])
        return _raised(self.namespaces.get(namespace))

    def of_brokers(self) -> Retention:
        """Return the default."""
        self.faults.step("of_brokers", [])
        return _raised(self.brokers)

    def recovery(self) -> RecoverySettings:
        """Return the settings."""
        self.faults.step("recovery", [])
        return _raised(self.recovering)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _raised(found: _Found | ReaperError) -> _Found:
    if isinstance(found, ReaperError):
        raise found
    return found
