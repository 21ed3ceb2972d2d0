"""`ledger-reaper request --wait`: publishes lines as requests, and returns what became of each."""

from collections.abc import Iterable
from contextlib import closing

from streaming.config.settings import Settings
from streaming.phase_one.client import Surroundings
from streaming.phase_one.receipts import Receipt, await_receipts
from streaming.topics.requests import PublishReport, messages_of


def publish_and_wait(
    settings: Settings,
    around: Surroundings,
    lines: Iterable[bytes],
    timeout_seconds: float,
    *,
    unchecked: bool = False,
) -> tuple[PublishReport, list[Receipt]]:
    """Publish one request per non-empty line; return their final receipts, in the order of the lines.

    The topic is created where it is missing. Invalid lines are in the report, and have no receipt. Raises
    UnavailableError where a request was not acknowledged, or has no final receipt within the time.
    """
    report = PublishReport()
    topic = settings.topics.requests[0]
    around.ensure_topic(topic)
    since_ms = around.now_ms()
    with closing(around.open_sender(topic)) as sender:
        messages = messages_of(lines, report, settings.service.max_request_bytes, unchecked=unchecked)
        under_way = [sender.send(message.key, message.payload) for message in messages]
        ids = [each.result() for each in under_way]
    report.published = len(ids)
    found = await_receipts(around.look, ids, since_ms, timeout_seconds)
    return report, [found[each] for each in ids]
