"""The port TrimFacts by the admin API of Pulsar 4.0.8.

1. Only one kind of call says whether a topic is loaded and does not load it: the stats of transaction buffers. Brokers
   without transactions answer it with 503, and then nobody can say. internalStats loads the topic.
2. Retention is asked for as it was set (retention.py).
"""

from http import HTTPStatus

from streaming.adapters.pulsar.http import FailedAnswerError, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.adapters.pulsar.properties import refusal
from streaming.adapters.pulsar.retention import Retentions
from streaming.errors import UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, parse_internal_stats
from udfs.phase_one.ahead import Retention

# how the reason of a broker without transactions begins; topics can have any name, and reasons quote names
_NO_TRANSACTIONS = "This Broker is not configured with transactionCoordinatorEnabled"


class PulsarTrimFacts:
    """TrimFacts over HTTP, for one thread. The caller closes it."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)
        self._retentions = Retentions(self._http)
        self._has_transactions = True

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
        return self._retentions.of(topic)

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
