"""The services that `ledger-reaper request --wait` and PIP-129's marks use."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from streaming.clients import admin_for, open_sender
from streaming.config.settings import Settings
from streaming.phase_one.receipts_by_message import NewestReceipts, newest_receipts
from streaming.ports import RequestSender
from streaming.topics.setup import ensure_request_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The functions that send requests and read their receipts."""

    ensure_topic: Callable[[str], object]  # creates or checks the request topic
    open_sender: Callable[[str], RequestSender]  # opens a producer on a request topic
    receipts: NewestReceipts
    now_ms: Callable[[], int]  # this machine's clock


def services_of(settings: Settings) -> Services:
    """Return the Pulsar cluster and state directory of the configuration. Opens nothing yet."""

    def ensure(topic: str) -> None:
        with admin_for(settings) as admin:
            ensure_request_topic(admin, settings, topic)

    return Services(
        ensure_topic=ensure,
        open_sender=partial(open_sender, settings),
        receipts=lambda ids, since_ms: newest_receipts(settings.state_dir, ids, since_ms),
        now_ms=lambda: time.time_ns() // 1_000_000,
    )
