"""Implements TopicProperties with the admin API: the owner broker writes the topic's znode, with its own version check.

The owner broker loads the topic if necessary. Brokers have no such call for V1 names (tenant/cluster/ns), and answer
404 (seen on 4.0.8).
"""

from collections.abc import Mapping
from http import HTTPStatus

from streaming.adapters.pulsar.http import Answer, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.errors import ForbiddenError, RefusedError


class PulsarTopicProperties:
    """TopicProperties over HTTP. The caller closes it."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)

    def update(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write these properties and keep the others. Raises RefusedError, UnavailableError (they may be written)."""
        # The caller names a partition: for the name of a partitioned topic, a broker would write the properties to its
        # PartitionedTopicMetadata instead.
        answer = self._http.ask("PUT", f"{topic_path(topic)}/properties", body=dict(properties))
        if not answer.ok:
            raise refusal(answer, f"write properties of {topic}")

    def remove(self, topic: str, key: str) -> bool:
        """Remove a property; return False if the topic no longer exists. Raises UnavailableError, RefusedError."""
        answer = self._http.ask("DELETE", f"{topic_path(topic)}/properties", params={"key": key})
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        if not answer.ok:
            raise refusal(answer, f"remove a property of {topic}")
        return True

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


SUPERUSER = "the rights of a superuser"  # brokers return policies, settings and internalStats to no other role


def refusal(answer: Answer, what: str, *, right: str = "permission to change the topic") -> RefusedError:
    """Return the error for a broker's refusal to do `what`; ForbiddenError if the role does not have the right."""
    text = f"Pulsar did not {what}: {answer.status} {answer.reason}"
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        # brokers answer 401 both to a wrong token and to a role without the right
        return ForbiddenError(
            f"{text}; give this service's role {right}, or renew its credentials if they are wrong or have expired"
        )
    return RefusedError(f"{text}; check the name (of a partition, if the topic is partitioned)")
