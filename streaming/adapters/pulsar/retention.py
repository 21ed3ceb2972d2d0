"""Retention of a topic, as it was set for the topic, then for its namespace, then for the brokers.

Asked for what is "applied", a 4.0.8 broker may wait for itself, 30 s long, where it has not read the namespace's
policies lately.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from streaming.adapters.pulsar.http import Answer, PulsarHttp, topic_path
from streaming.adapters.pulsar.properties import refusal
from streaming.errors import UnavailableError
from udfs.paths import base_topic, namespace_of
from udfs.phase_one.trim_forecast import Retention

_MINUTES, _MEGABYTES = "retentionTimeInMinutes", "retentionSizeInMB"
_DEFAULT_MINUTES, _DEFAULT_MEGABYTES = "defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB"
# what a broker answers about a topic's own policy where it has no such policies at all
_NO_TOPIC_POLICIES = HTTPStatus.METHOD_NOT_ALLOWED


class Retentions:
    """Asks for the retention of topics. It does not close the connections."""

    def __init__(self, http: PulsarHttp) -> None:
        self._http = http
        self._default: Retention | None = None

    def of(self, topic: str) -> Retention:
        """Return the retention in force. Raises UnavailableError, RefusedError."""
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
