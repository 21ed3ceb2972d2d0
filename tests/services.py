"""The service over parts in memory: a test names those that it looks at, the others are there and do nothing."""

import threading
from types import SimpleNamespace
from typing import Any, TypeVar

from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.deletion.service import LedgerDeletionService

S = TypeVar("S", bound=LedgerDeletionService)


def service_of(kind: type[S], **parts: Any) -> S:
    """Make one; parts are LedgerDeletionService's fields."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("identity", "guards", "cache", "blast_radius", "receipts", "watch", "waiting")
    )
    defaults: dict[str, Any] = {
        "spark": SimpleNamespace(sparkContext=SimpleNamespace(setJobDescription=lambda _text: None)),
        "settings": load(None),
        "metrics": SimpleNamespace(outage=lambda: None, count=lambda *_: None, cache=lambda *_: None),
        "clock": ManualClock(),
        "log": lambda _text: None,
        "stop": threading.Event(),
    }
    return kind(**nothing | defaults | parts)
