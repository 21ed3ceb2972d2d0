"""`ledger-reaper request --wait`: publishes each line of the input as a request, and returns the final receipts."""

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import closing

from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.phase_one.receipts_by_message import Receipt, await_receipts
from streaming.phase_one.services import Services
from streaming.topics.requests import PublishReport, messages_of
from streaming.topics.routing import LANE_ERRORS, RequestTopics
from streaming.topics.senders import RequestSenders


def publish_and_wait(
    settings: Settings,
    services: Services,
    lines: Iterable[bytes],
    timeout_seconds: float,
    *,
    unchecked: bool = False,
) -> tuple[PublishReport, list[Receipt]]:
    """Publish a request for each non-empty line, and return the final receipts, in the order of the lines.

    Missing topics are created. Invalid lines, and requests of a tenant whose lane can't be used, are in the report, and
    have no receipt. Raises UnavailableError if a request to the shared topic was not acknowledged, or a request has no
    final receipt in time.
    """
    report = PublishReport()
    # a receipt proves that the service has read a request, so no topic needs a check after sending
    topics = RequestTopics(settings, services.ensure_topic, lambda _topic: None)
    since_ms = services.now_ms()
    pending: list[tuple[str, Future[str]]] = []
    with closing(RequestSenders(topics, services.open_sender)) as senders:
        for owner, message in messages_of(lines, report, settings.service.max_request_bytes, unchecked=unchecked):
            topic = settings.topics.route(owner)
            lane = topic if settings.topics.is_lane(topic) else ""
            try:
                pending.append((lane, senders.send(owner, message.key, message.payload)))
            except LANE_ERRORS as error:
                report.note_unsent(error.lane, 1, error.why, error.exit_code)
        ids = _stored(pending, report)
    report.published = len(ids)
    receipts = await_receipts(services.receipts, ids, since_ms, timeout_seconds)
    return report, [receipts[message_id] for message_id in ids]


def _stored(pending: list[tuple[str, "Future[str]"]], report: PublishReport) -> list[str]:
    """Return the message ids of the stored requests; failures of a lane go into the report."""
    ids = []
    for lane, message_id in pending:
        try:
            ids.append(message_id.result())
        except UnavailableError as error:
            if not lane:
                raise
            report.note_unsent(lane, 1, str(error), error.exit_code)
    return ids
