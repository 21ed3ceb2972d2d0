"""The port TopicProperties by the admin API: the owner broker writes the topic's znode, with its own version check.

A broker that does not have the topic loaded loads it for that. A partition is asked for by its own name: for the name
of the partitioned topic, a broker would write somewhere else (PartitionedTopicMetadata). For V1 names
(tenant/cluster/ns) brokers have no such call, and answer 404 (seen: 4.0.8).
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
        """Write properties; others stay. Raises UnavailableError (they may be written), RefusedError."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/properties", body=dict(properties))
        if not answer.ok:
            raise refusal(answer, f"write properties of {topic}")

    def remove(self, topic: str, key: str) -> bool:
        """Remove one property; False where there is no such topic any more. Raises UnavailableError, RefusedError."""
        answer = self._http.ask("DELETE", f"{topic_path(topic)}/properties", params={"key": key})
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        if not answer.ok:
            raise refusal(answer, f"remove a property of {topic}")
        return True

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def refusal(answer: Answer, what: str) -> RefusedError:
    """Return the error for a broker's no to what we wanted; ForbiddenError where it says that we have no right."""
    said = f"Pulsar would not {what}: {answer.status} {answer.reason}"
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ForbiddenError(f"{said}; give the role of pulsar.token_file the right to change the topic")
    return RefusedError(f"{said}; check the name (of a partition, where the topic has some)")
