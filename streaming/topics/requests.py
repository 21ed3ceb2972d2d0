"""Publishes requests: validates each before it is sent, and sends all requests of an owner to the same partition."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from streaming.adapters.pulsar.publish import OutgoingRequest, send_all
from streaming.config.settings import Settings
from streaming.ports import TopicAdmin
from streaming.topics.setup import ensure_request_topic
from udfs.owners.references import key_of
from udfs.records import PendingDelete, Rejection
from udfs.requests.request_format import decode


@dataclass(slots=True)
class PublishReport:
    """Result of publishing lines."""

    published: int = 0
    invalid: list[tuple[int, str]] = field(default_factory=list)  # (line number from 1, why it was not published)


def publish_lines(
    settings: Settings, admin: TopicAdmin, lines: Iterable[bytes], *, unchecked: bool = False
) -> PublishReport:
    """Publish one request per non-empty line, creating the topic if it is missing.

    Raises UnavailableError if any was not acknowledged, ConfigError or RefusedError if the topic can't be used.
    """
    topic = settings.topics.requests[0]
    ensure_request_topic(admin, settings, topic)  # else the broker would create an unpartitioned topic for the message
    report = PublishReport()
    messages = messages_of(lines, report, settings.service.max_request_bytes, unchecked=unchecked)
    report.published = send_all(settings.pulsar, topic, messages)
    return report


def owner_key(request: PendingDelete) -> bytes:
    """Return the message key, which keeps an owner's requests in the same partition, and so in the same task."""
    return key_of(request).encode()


def messages_of(
    lines: Iterable[bytes], report: PublishReport, most_bytes: int, *, unchecked: bool = False
) -> Iterator[OutgoingRequest]:
    """Yield a message for each non-empty line.

    A line that is no valid request goes into the report instead; with `unchecked`, it is published like the others.
    """
    for number, line in enumerate(lines, start=1):
        payload = line.rstrip(b"\r\n")
        if not payload.strip():
            continue
        request = decode(payload, most_bytes)
        if isinstance(request, PendingDelete):
            yield OutgoingRequest(owner_key(request), payload)
        elif unchecked:
            yield OutgoingRequest(None, payload)
        elif isinstance(request, Rejection):
            report.invalid.append((number, f"{request.reason}: {request.detail}"))
