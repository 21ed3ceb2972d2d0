"""`ledger-reaper request --wait`: publishes each line of the input as a request, and returns the final receipts."""

from collections.abc import Iterable
from contextlib import closing

from streaming.config.settings import Settings
from streaming.phase_one.client import Services
from streaming.phase_one.receipts_by_message import Receipt, await_receipts
from streaming.topics.requests import PublishReport, messages_of


def publish_and_wait(
    settings: Settings,
    services: Services,
    lines: Iterable[bytes],
    timeout_seconds: float,
    *,
    unchecked: bool = False,
) -> tuple[PublishReport, list[Receipt]]:
    """Publish a request for each non-empty line, and return the final receipts, in the order of the lines.

    The topic is created if it is missing. Invalid lines are in the report, and have no receipt. Raises
    UnavailableError if a request was not acknowledged, or has no final receipt in time.
    """
    report = PublishReport()
    topic = settings.topics.requests[0]
    services.ensure_topic(topic)
    since_ms = services.now_ms()
    with closing(services.open_sender(topic)) as sender:
        messages = messages_of(lines, report, settings.service.max_request_bytes, unchecked=unchecked)
        pending = [sender.send(message.key, message.payload) for message in messages]
        ids = [message_id.result() for message_id in pending]
    report.published = len(ids)
    receipts = await_receipts(services.receipts, ids, since_ms, timeout_seconds)
    return report, [receipts[message_id] for message_id in ids]
