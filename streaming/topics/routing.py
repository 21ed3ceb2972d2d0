"""Chooses the topic of each request, and creates a lane when the first request is about to be sent to it.

1. A lane that can't be created or used concerns the requests of its tenant alone: the callers report them and send the
   others, unless topics.shared_without_lane allows the shared topic.
2. Lanes are created side by side: a broker that does not answer for a lane delays only that lane's requests.
3. The result for a lane is remembered for a minute. A lane may be deleted at any time, and most brokers then create an
   unpartitioned topic for a producer that connects, which the service does not read. So callers check the lanes that
   they sent to again, after all requests are stored (`check_sent`).
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from streaming.config.settings import Settings
from streaming.errors import ConfigError, RefusedError, UnavailableError
from streaming.ports import TopicAdmin
from streaming.topics.setup import ensure_request_topic, require_sendable
from udfs.paths import tenant_of

log = logging.getLogger("ledger-reaper")

REMEMBERED_SECONDS = 60
MOST_REMEMBERED = 10_000  # lanes, some 500 bytes each
_MOST_SILENT = 5  # tenants in a row for whose lanes Pulsar does not answer; then it answers for none


class NoLaneError(RefusedError):
    """A tenant can have no lane, so its requests can't be sent."""

    def __init__(self, lane: str, why: str) -> None:
        super().__init__(f"tenant {tenant_of(lane)} has no lane, so its requests are not sent: {why}")
        self.lane = lane
        self.why = why


class LaneUnavailableError(UnavailableError):
    """Pulsar does not answer for a tenant's lane, so its requests can't be sent now."""

    def __init__(self, lane: str, why: str) -> None:
        super().__init__(f"the lane of tenant {tenant_of(lane)} is unavailable, so its requests are not sent: {why}")
        self.lane = lane
        self.why = why


LaneError = NoLaneError | LaneUnavailableError  # other tenants' requests can be sent
LANE_ERRORS = (NoLaneError, LaneUnavailableError)


@dataclass(frozen=True, slots=True)
class _Remembered:
    until_s: float
    error: LaneError | None = None


class RequestTopics:
    """The topics to send requests to. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        ensure: Callable[[str], object],
        check: Callable[[str], object],
        now_s: Callable[[], float] = time.monotonic,
        most_remembered: int = MOST_REMEMBERED,
    ) -> None:
        """Create it; nothing is opened or created yet.

        Args:
            settings: the configuration.
            ensure: creates or checks a request topic, like ensure_request_topic.
            check: raises UnavailableError if a request that was sent to the topic may be lost, like require_sendable.
            now_s: a monotonic clock, in seconds.
            most_remembered: number of lanes whose check is remembered.
        """
        self._topics = settings.topics
        self._ensure = ensure
        self._check = check
        self._now_s = now_s
        self._most_remembered = most_remembered
        self._change = Condition()
        self._opening: set[str] = set()  # topics that a thread is creating or checking
        self._lanes: OrderedDict[str, _Remembered] = OrderedDict()
        self._silent_until_s: dict[str, float] = {}  # by tenant: Pulsar did not answer for a lane of it
        self._silent_in_a_row = 0
        self._has_shared = False

    def topic_for(self, owner: str) -> str:
        """Return the topic for requests that name a topic or managed ledger; a missing topic is created.

        Raises one of LANE_ERRORS if only this tenant's requests can't be sent, ConfigError, RefusedError or
        UnavailableError if the shared topic can't be used, or Pulsar does not answer at all.
        """
        lane = self._topics.route(owner)
        if not self._topics.is_lane(lane):
            return self.shared()
        error = self.open_lane(lane)
        if error is None:
            return lane
        if not self._topics.shared_without_lane:
            raise error
        return self.shared()

    def open_lane(self, lane: str) -> LaneError | None:
        """Create or check a lane, and return why it can't be used, if so. Raises UnavailableError like topic_for."""
        with self._one_at_a_time(lane):
            with self._change:
                known = self._known(lane)
            if known is None:
                error = self._tried(lane)
                with self._change:
                    known = self._remember(lane, error)
                if error is not None:
                    log.warning("%s", self._said(error))
            return known.error

    def shared(self) -> str:
        """Return the first of topics.requests, which is created or checked at the first call."""
        topic = self._topics.requests[0]
        with self._one_at_a_time(topic):
            if not self._has_shared:
                self._ensure(topic)
                self._has_shared = True
        return topic

    def failed(self, topic: str, error: UnavailableError) -> UnavailableError:
        """Return the error of a topic that a caller can't send to; a lane's error is remembered like others."""
        if not self._topics.is_lane(topic):
            return error
        of_lane = LaneUnavailableError(topic, str(error))
        with self._change:
            self._remember(topic, of_lane)
        return of_lane

    def check_sent(self, topic: str) -> None:
        """Raise UnavailableError if requests that were sent to the topic may be lost; call this after they are stored.

        Only lanes are checked: the operator's topics have no other owner.
        """
        if self._topics.is_lane(topic):
            with self._change:
                self._lanes.pop(topic, None)
            self._check(topic)

    @contextmanager
    def _one_at_a_time(self, topic: str) -> Iterator[None]:
        """Run the block when no other thread does for the same topic."""
        with self._change:
            self._change.wait_for(lambda: topic not in self._opening)
            self._opening.add(topic)
        try:
            yield
        finally:
            with self._change:
                self._opening.discard(topic)
                self._change.notify_all()

    def _known(self, lane: str) -> _Remembered | None:
        known = self._lanes.get(lane)
        if known is None or known.until_s <= self._now_s():
            return None
        self._lanes.move_to_end(lane)
        return known

    def _remember(self, lane: str, error: LaneError | None) -> _Remembered:
        self._lanes[lane] = known = _Remembered(self._now_s() + REMEMBERED_SECONDS, error)
        self._lanes.move_to_end(lane)
        while len(self._lanes) > self._most_remembered:
            self._lanes.popitem(last=False)
        return known

    def _said(self, error: LaneError) -> str:
        if not self._topics.shared_without_lane:
            return str(error)
        return (
            f"tenant {tenant_of(error.lane)} has no lane, so its requests use {self._topics.requests[0]}: {error.why}"
        )

    def _tried(self, lane: str) -> LaneError | None:
        tenant = tenant_of(lane)
        with self._change:
            is_silent = self._silent_until_s.get(tenant, 0) > self._now_s()
        if is_silent:
            # a tenant with thousands of lanes on a broker that hangs must not delay the others
            return LaneUnavailableError(lane, "Pulsar did not answer for another lane of this tenant")
        try:
            self._ensure(lane)
        except (ConfigError, RefusedError) as error:
            self._silent_in_a_row = 0
            return NoLaneError(lane, str(error))
        except UnavailableError as error:
            with self._change:
                now_s = self._now_s()
                later = {name: until_s for name, until_s in self._silent_until_s.items() if until_s > now_s}
                self._silent_until_s = later | {tenant: now_s + REMEMBERED_SECONDS}
                self._silent_in_a_row += 1
                is_for_all = self._silent_in_a_row >= _MOST_SILENT
            if is_for_all:
                raise
            return LaneUnavailableError(lane, str(error))
        self._silent_in_a_row = 0
        return None


def request_topics(settings: Settings, admin: TopicAdmin) -> RequestTopics:
    """Return the topics of the configuration, which are created and checked through `admin`."""
    return RequestTopics(
        settings,
        lambda topic: ensure_request_topic(admin, settings, topic),
        lambda topic: require_sendable(admin, settings, topic),
    )
