"""A delayed request waits in the retry topic or in the table `waiting`, has a newer receipt, or is lost."""

from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.reconcile.delayed_requests import delayed_requests, lost_requests
from tests.builders import DAY_MS, NOW_MS
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.records import Outcome
from udfs.requests.retry import ORIGIN_MESSAGE_ID


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base = load(None)
    return base.model_copy(update={"state": base.state.model_copy(update={"dir": str(tmp_path)})})


def _receipt(
    settings: Settings, origin: str, chunk: int, outcome: Outcome, *, query: str = "requests", age_ms: int = 0
) -> None:
    about = {
        c.ORIGIN_MESSAGE_ID: origin,
        c.CHUNK: chunk,
        c.OUTCOME: str(outcome),
        c.QUERY: query,
        c.AT_MS: NOW_MS - age_ms,
    }
    write_rows(Path(settings.state.dir), "receipts", [(5, chunk, -1)], about=about)


def test_requests_are_delayed_if_their_newest_receipt_is_retry_except_in_the_newest_chunks(settings: Settings) -> None:
    assert delayed_requests(settings, NOW_MS).num_rows == 0
    _receipt(settings, "waits", 1, Outcome.RETRY)
    _receipt(settings, "done", 1, Outcome.RETRY)
    _receipt(settings, "again", 1, Outcome.RETRY)
    _receipt(settings, "old", 1, Outcome.RETRY, age_ms=9 * DAY_MS)
    _receipt(settings, "done", 2, Outcome.DELETED, query="retry")
    _receipt(settings, "again", 3, Outcome.RETRY, query="retry")
    _receipt(settings, "newest", 4, Outcome.RETRY)
    found = delayed_requests(settings, NOW_MS).to_pylist()
    assert {row["origin"]: row["chunk"] for row in found} == {"waits": 1, "again": 3}


def test_a_delayed_request_that_waits_nowhere_is_lost(settings: Settings) -> None:
    partition = f"{settings.topics.retry}-partition-0"
    pulsar = MemoryPulsar()
    pulsar.store(partition, (7, 0))
    for origin in ("read", "unread"):
        pulsar.publish(partition, properties={ORIGIN_MESSAGE_ID: origin})
    for origin in ("read", "unread", "held", "worked off", "lost"):
        _receipt(settings, origin, 1, Outcome.RETRY)
    _receipt(settings, "newest", 9, Outcome.RETRY)
    held = {c.MESSAGE_PROPERTIES: [(ORIGIN_MESSAGE_ID, "held")]}
    write_rows(Path(settings.state.dir), "waiting", [(7, 9, -1)], about=held)
    waiting = delayed_requests(settings, NOW_MS)
    _receipt(settings, "worked off", 2, Outcome.DELETED, query="retry")

    unread = {partition: ((7, 0), (7, 1))}

    assert lost_requests(settings, pulsar, waiting, unread, NOW_MS) == {"read", "lost"}
    assert lost_requests(settings, pulsar, waiting, {partition: ((-1, -1), (7, 1))}, NOW_MS) == {"lost"}
    assert lost_requests(settings, pulsar, waiting, {partition: ((7, 1), (7, 1))}, NOW_MS) == {"read", "unread", "lost"}
    assert lost_requests(settings, pulsar, waiting.slice(0, 0), unread, NOW_MS) == set()
