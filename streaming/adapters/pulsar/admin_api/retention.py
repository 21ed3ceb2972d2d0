"""Reads the retention of a topic: the topic's own policy, else its namespace's, else the brokers' default."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from streaming.adapters.pulsar.admin_api.properties import SUPERUSER, refusal
from streaming.adapters.pulsar.http import Answer, PulsarHttp, policies_path, topic_path
from streaming.errors import UnavailableError
from udfs.paths import base_topic, is_v1, namespace_of
from udfs.phase_one.trim_forecast import Retention
from udfs.space.space_report import RecoverySettings

_MINUTES, _MEGABYTES = "retentionTimeInMinutes", "retentionSizeInMB"
_DEFAULT_MINUTES, _DEFAULT_MEGABYTES = "defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB"
_RECOVERY = ("autoSkipNonRecoverableData", "managedLedgerForceRecovery", "schemaLedgerForceRecovery")
_FLAGS = {"true": True, "false": False}
# the answer of a broker that does not support policies of topics
_NO_TOPIC_POLICIES = HTTPStatus.METHOD_NOT_ALLOWED


class Retentions:
    """Reads the retention of topics. The caller closes the connections."""

    def __init__(self, http: PulsarHttp) -> None:
        self._http = http
        self._default: Retention | None = None

    def of(self, topic: str) -> Retention:
        """Return the retention in force; no retention if we may not read the brokers' default.

        Raises UnavailableError, RefusedError.
        """
        return self.of_topic(topic) or self.of_namespace(namespace_of(topic)) or self._of_brokers()

    def of_topic(self, topic: str) -> Retention | None:
        """Return the topic's own policy; None: it has none. Raises UnavailableError, RefusedError."""
        base = base_topic(topic)  # a partition has no policies of its own
        if is_v1(namespace_of(base)):
            # Brokers have no call that sets a policy of a V1 name: they answer 404. A 4.0.8 broker accepts a request
            # with %2F in the topic's name, but stores the policy without the cluster, and so never applies it.
            return None
        # We do not request the policy in force (applied=true): before it answers that, a 4.0.8 broker that has not read
        # the namespace's policies recently may wait 30 s for itself.
        own = self._http.get(f"{topic_path(base)}/retention")
        if not own.ok and own.status != _NO_TOPIC_POLICIES:
            raise refusal(own, f"read the retention of {base}", right=SUPERUSER)
        return _retention(own) if own.ok else None

    def of_namespace(self, namespace: str) -> Retention | None:
        """Return the policy of a namespace; None: it has none. Raises UnavailableError, RefusedError."""
        shared = self._http.get(f"{policies_path(namespace)}/retention")
        if not shared.ok:
            raise refusal(shared, f"read the retention of {namespace}", right=SUPERUSER)
        return _retention(shared)

    def of_brokers(self) -> Retention:
        """Return the default of the broker that answers. Raises UnavailableError, RefusedError."""
        configuration = self._configuration()
        try:
            return Retention(int(configuration[_DEFAULT_MINUTES]), int(configuration[_DEFAULT_MEGABYTES]))
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"a broker's configuration has no default retention: {error!r}") from error

    def recovery(self) -> RecoverySettings:
        """Return the settings of the broker that answers. Raises UnavailableError, RefusedError."""
        configuration = self._configuration()
        if not isinstance(configuration, dict):
            raise UnavailableError("a broker's configuration is in an unknown format")
        skips, ledgers, schemas = (_FLAGS.get(str(configuration.get(name))) for name in _RECOVERY)
        return RecoverySettings(skips, ledgers, schemas)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _configuration(self) -> Any:
        answer = self._http.get("v2/brokers/configuration/runtime")
        if not answer.ok:
            raise refusal(answer, "return a broker's configuration", right=SUPERUSER)
        return answer.body

    def _of_brokers(self) -> Retention:
        """Return the default of the broker that answers; zero without permission to read it. It is read once."""
        if self._default is None:
            answer = self._http.get("v2/brokers/configuration/runtime")
            config = answer.body if answer.ok and isinstance(answer.body, dict) else {}
            self._default = Retention(_number(config, _DEFAULT_MINUTES), _number(config, _DEFAULT_MEGABYTES))
        return self._default


def _retention(answer: Answer) -> Retention | None:
    """Parse an answer; None if no retention is set. Raises UnavailableError for an unknown format."""
    if answer.body is None:
        return None
    try:
        return Retention(int(answer.body[_MINUTES]), int(answer.body[_MEGABYTES]))
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"the broker returned a retention in an unknown format: {error!r}") from error


def _number(config: Mapping[str, Any], name: str) -> int:
    try:
        return int(config.get(name, 0))
    except (TypeError, ValueError):
        return 0
