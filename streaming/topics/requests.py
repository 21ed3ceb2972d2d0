"""Publishes requests: validates each before it is sent, and sends all requests of an owner to the same partition."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from streaming.adapters.pulsar.publish import OutgoingRequest, send_to_topics
from streaming.config.settings import Settings
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import TopicAdmin
from streaming.terminal import count_of
from streaming.topics.routing import LANE_ERRORS, RequestTopics, request_topics
from udfs.owners.references import key_of
from udfs.paths import tenant_of
from udfs.records import PendingDelete, Rejection
from udfs.requests.request_format import decode

MOST_SHOWN = 20  # lanes whose requests are missing


@dataclass(slots=True)
class Unsent:
    """Requests of a tenant that may not be in its lane."""

    requests: int
    why: str
    exit_code: int  # of the command


@dataclass(slots=True)
class PublishReport:
    """Result of publishing lines."""

    published: int = 0
    topics: set[str] = field(default_factory=set)  # that the requests were published to
    invalid: list[tuple[int, str]] = field(default_factory=list)  # (line number from 1, why it was not published)
    unsent: dict[str, Unsent] = field(default_factory=dict)  # by lane

    def note_unsent(self, lane: str, requests: int, why: str, exit_code: int) -> None:
        """Count requests that could not be sent to a lane."""
        unsent = self.unsent.setdefault(lane, Unsent(0, why, exit_code))
        unsent.requests += requests

    def unsent_texts(self) -> list[str]:
        """Return a text for each tenant's lane whose requests are missing, at most MOST_SHOWN."""
        return unsent_texts({lane: (unsent.requests, unsent.why) for lane, unsent in self.unsent.items()})

    @property
    def exit_code(self) -> int:
        """The exit code for the missing requests; 0: none is missing."""
        return max((unsent.exit_code for unsent in self.unsent.values()), default=0)


def unsent_texts(by_lane: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return a text for each lane with (number of requests, why); the texts of more than MOST_SHOWN are one."""
    texts = [
        f"{count_of(requests, 'request')} of tenant {tenant_of(lane)} not sent to {lane}: {why}"
        for lane, (requests, why) in list(by_lane.items())[:MOST_SHOWN]
    ]
    more = len(by_lane) - MOST_SHOWN
    return [*texts, f"… and to {count_of(more, 'more lane')}"] if more > 0 else texts


def publish_lines(
    settings: Settings, admin: TopicAdmin, lines: Iterable[bytes], *, unchecked: bool = False
) -> PublishReport:
    """Publish one request per non-empty line to its topic, creating missing topics.

    Requests of a tenant whose lane can't be used are in the report, and not published. Raises UnavailableError if the
    shared topic did not acknowledge all, ConfigError or RefusedError if it can't be used.
    """
    topics = request_topics(settings, admin)
    report = PublishReport()
    messages = messages_of(lines, report, settings.service.max_request_bytes, unchecked=unchecked)
    for topic, sent in send_to_topics(settings.pulsar, _routed(messages, topics, report)).items():
        why = sent.why or _lost(topics, topic)
        if not why:
            report.published += sent.requests
            report.topics.add(topic)
        elif settings.topics.is_lane(topic):
            report.note_unsent(topic, sent.requests + sent.given_up, why, UnavailableError.exit_code)
        else:
            raise UnavailableError(why)
    return report


def _routed(
    messages: Iterable[tuple[str, OutgoingRequest]], topics: RequestTopics, report: PublishReport
) -> Iterator[tuple[str, OutgoingRequest]]:
    for owner, message in messages:
        try:
            # otherwise the broker would create an unpartitioned topic for the message
            yield topics.topic_for(owner) if owner else topics.shared(), message
        except LANE_ERRORS as error:
            report.note_unsent(error.lane, 1, error.why, error.exit_code)


def _lost(topics: RequestTopics, topic: str) -> str:
    try:
        topics.check_sent(topic)
    except (UnavailableError, RefusedError) as error:
        return str(error)
    return ""


def owner_key(request: PendingDelete) -> bytes:
    """Return the message key, which keeps an owner's requests in the same partition, and so in the same task."""
    return key_of(request).encode()


def messages_of(
    lines: Iterable[bytes], report: PublishReport, most_bytes: int, *, unchecked: bool = False
) -> Iterator[tuple[str, OutgoingRequest]]:
    """Yield (owner, message) for each non-empty line.

    A line that is no valid request goes into the report instead; with `unchecked`, it is published like the others, to
    the shared topic (owner "").
    """
    for number, line in enumerate(lines, start=1):
        payload = line.rstrip(b"\r\n")
        if not payload.strip():
            continue
        request = decode(payload, most_bytes)
        if isinstance(request, PendingDelete):
            yield request.managed_ledger, OutgoingRequest(owner_key(request), payload)
        elif unchecked:
            yield "", OutgoingRequest(None, payload)
        elif isinstance(request, Rejection):
            report.invalid.append((number, f"{request.reason}: {request.detail}"))
