"""Claims the topics that match topics.requests_pattern, so that no two services read one."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from streaming.config.settings import Settings
from streaming.coordination.ownership import Ownership
from streaming.ports import SweepStore
from streaming.terminal import count_of, some_of
from streaming.topics.existing import Listed, existing_lanes

log = logging.getLogger("ledger-reaper")

_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class OwnedLanes:
    """Lists the lanes and matching topics that the service reads. For one thread.

    A single claim covers all lanes, but each matching topic has a claim of its own: several services may have patterns.
    """

    store: SweepStore
    settings: Settings
    ownership: Ownership
    _owned: set[str] | None = None  # matching topics; None: not read yet
    _reported: set[str] = field(default_factory=set)

    def __call__(self) -> Listed:
        """Return what existing_lanes does, and claim matching topics; topics of other services are not read."""
        lanes, refused = existing_lanes(self.store, self.settings)
        # another service may list one of our lanes, or its pattern may match it
        foreign = self.ownership.foreign(lanes.keys() - (self._owned or set()))
        if self.settings.topics.pattern is None:
            return _without(lanes, foreign), refused | foreign
        if self._owned is None:
            self._owned = set(filter(self.settings.topics.is_matched, self.ownership.owned()))
        gone = self._owned - lanes.keys() - refused.keys()
        # tenants may create and delete any number of topics, which must leave no znodes
        self.ownership.release(gone)
        self._owned -= gone
        matched = set(filter(self.settings.topics.is_matched, lanes))
        foreign |= self.ownership.claim_each(matched - self._owned - foreign.keys())
        self._owned |= matched - foreign.keys()
        self._report(matched - foreign.keys(), gone)
        return _without(lanes, foreign), refused | foreign

    def _report(self, read: Collection[str], gone: Collection[str]) -> None:
        """Log what is read from now on, and what is gone; in two lines, because there may be thousands."""
        if new := sorted({*read} - self._reported):
            topics = count_of(len(new), "topic that matches", "topics that match")
            log.info("reading %s topics.requests_pattern: %s", topics, some_of(new, _SHOWN))
        if gone:
            topics = count_of(len(gone), "topic is gone, with its", "topics are gone, with their")
            log.info("%s unread messages: %s", topics, some_of(sorted(gone), _SHOWN))
        self._reported = {*read}


def _without(lanes: Mapping[str, int], foreign: Collection[str]) -> dict[str, int]:
    return {topic: count for topic, count in lanes.items() if topic not in foreign}
