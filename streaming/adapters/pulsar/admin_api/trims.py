"""Implements TrimFacts with the admin API of Pulsar 4.0.8."""

from collections.abc import Callable

from streaming.adapters.pulsar.admin_api.properties import SUPERUSER, refusal
from streaming.adapters.pulsar.admin_api.retention import Retentions
from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp, topic_path
from streaming.errors import UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, parse_internal_stats
from udfs.phase_one.trim_forecast import Retention


class PulsarTrimFacts:
    """TrimFacts over HTTP, for one thread. The caller closes it.

    Args:
        ask_loaded: returns whether a broker has a topic loaded; None: unknown.
    """

    def __init__(self, settings: PulsarAdminSettings, ask_loaded: Callable[[str], bool | None]) -> None:
        self._http = PulsarHttp(settings)
        self._retentions = Retentions(self._http)
        self._ask_loaded = ask_loaded

    def is_loaded(self, topic: str) -> bool:
        """Whether a broker has the topic loaded. Raises UnavailableError if a broker does not list its topics."""
        is_loaded = self._ask_loaded(topic)
        if is_loaded is None:
            raise UnavailableError(
                "not all brokers list the topics that they have loaded: they refuse that to a role without "
                f"{SUPERUSER}, or they do not answer"
            )
        return is_loaded

    def retention(self, topic: str) -> Retention:
        """Return the retention that was set for the topic, else for its namespace, else for the brokers.

        Raises UnavailableError, RefusedError.
        """
        return self._retentions.of(topic)

    def internal_stats(self, topic: str) -> InternalStats:
        """Return internalStats. Raises RefusedError, and UnavailableError also for an unknown format."""
        # this loads the topic, so the caller checks is_loaded first (loaded.py)
        answer = self._http.get(f"{topic_path(topic)}/internalStats")
        if not answer.ok:
            raise refusal(answer, f"read internalStats of {topic}", right=SUPERUSER)
        try:
            return parse_internal_stats(answer.body)
        except FormatError as error:
            raise UnavailableError(f"{topic}: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
