"""The port TrimFacts by the admin API of Pulsar 4.0.8.

1. Only one kind of call says whether a topic is loaded and does not load it: the stats of transaction buffers. Brokers
   without transactions answer it with 503, and then nobody can say. internalStats loads the topic.
2. Retention is asked for as it was set, for the topic, then for the namespace, then for the brokers. Asked for what is
   "applied", a broker may wait for itself for 30 s.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from streaming.adapters.pulsar.http import Answer, FailedAnswerError, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.adapters.pulsar.properties import refusal
from streaming.errors import UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, parse_internal_stats
from udfs.paths import base_topic, namespace_of
from udfs.phase_one.ahead import Retention

# how the reason of a broker without transactions begins; topics can have any name, and reasons quote names
_NO_TRANSACTIONS = "This Broker is not configured with transactionCoordinatorEnabled"
_MINUTES, _MEGABYTES = "retentionTimeInMinutes", "retentionSizeInMB"
_DEFAULT_MINUTES, _DEFAULT_MEGABYTES = "defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB"
# what a broker says of a topic's own policy where it has no such policies at all
_NO_TOPIC_POLICIES = HTTPStatus.METHOD_NOT_ALLOWED


class PulsarTrimFacts:
    """TrimFacts over HTTP, for one thread. The caller closes it."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)
        self._has_transactions = True
        self._default: Retention | None = None

    def is_loaded(self, topic: str) -> bool | None:
        """Whether a broker has the topic loaded; None: brokers have no transactions, or we may not ask."""
        if not self._has_transactions:
            return None
        path = topic_path(topic).replace("v2/persistent/", "v3/transactions/transactionBufferStats/", 1)
        try:
            answer = self._http.get(path, segmentStats="false", lowWaterMarks="false")
        except FailedAnswerError as error:
            if not error.reason.startswith(_NO_TRANSACTIONS):
                raise
            self._has_transactions = False
            return None
        return {int(HTTPStatus.OK): True, int(HTTPStatus.NOT_FOUND): False}.get(answer.status)

    def retention(self, topic: str) -> Retention:
        """Return what was set for the topic, else for its namespace, else for the brokers."""
        base = base_topic(topic)  # a partition has no policies of its own
        own = self._http.get(f"{topic_path(base)}/retention")
        if not own.ok and own.status != _NO_TOPIC_POLICIES:
            raise refusal(own, f"read the retention of {base}")
        if own.ok and (found := _retention(own)):
            return found
        namespace = namespace_of(topic)
        shared = self._http.get(f"v2/namespaces/{namespace}/retention")
        if not shared.ok:
            raise refusal(shared, f"read the retention of {namespace}")
        return _retention(shared) or self._of_brokers()

    def internal_stats(self, topic: str) -> InternalStats:
        """Return internalStats. A form that is not known is an UnavailableError."""
        answer = self._http.get(f"{topic_path(topic)}/internalStats")
        if not answer.ok:
            raise refusal(answer, f"read internalStats of {topic}")
        try:
            return parse_internal_stats(answer.body)
        except FormatError as error:
            raise UnavailableError(f"{topic}: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _of_brokers(self) -> Retention:
        """Return the default of the broker that answers; none where we may not ask. It is asked for once."""
        if self._default is None:
            answer = self._http.get("v2/brokers/configuration/runtime")
            found = answer.body if answer.ok and isinstance(answer.body, dict) else {}
            self._default = Retention(_number(found, _DEFAULT_MINUTES), _number(found, _DEFAULT_MEGABYTES))
        return self._default


def _retention(answer: Answer) -> Retention | None:
    """Read an answer; None where nothing is set. Raises UnavailableError for a form that is not known."""
    if answer.body is None:
        return None
    try:
        return Retention(int(answer.body[_MINUTES]), int(answer.body[_MEGABYTES]))
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"a retention of a form not known: {error!r}") from error


def _number(found: Mapping[str, Any], name: str) -> int:
    try:
        return int(found.get(name, 0))
    except (TypeError, ValueError):
        return 0
