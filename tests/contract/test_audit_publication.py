"""A publication of an audit that was interrupted sends exactly the requests that its topic does not have."""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from streaming.audit import audit_columns as a
from streaming.audit.publication.asked import REQUEST_TOPIC
from streaming.audit.publication.publication_plan import OpenPlan, PublicationPlan
from streaming.audit.publication.send import AUDIT_ID, send
from streaming.audit.tables import Tables
from streaming.config.load import load
from streaming.errors import UnavailableError
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from tests.contract.publish_broker import PublishBroker
from tests.pulsar_fields import entry, key_value, single
from tests.unit.audit.frames import finding, findings_of
from udfs import columns as c
from udfs.formats.entry import contents_of, parse_entry
from udfs.formats.internal_stats import Position
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

TOPIC = load(None).topics.requests[0]
PARTITION = f"{TOPIC}-partition-0"
NAME = "audit-1-x"
OWNER = "public/default/persistent/t"


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    opened = Tables(tmp_path, Event())
    yield opened
    opened.close()


def _plan(requests: int, after: Position) -> PublicationPlan:
    return PublicationPlan(name=NAME, audit_id="1", at_ms=1, requests=requests, size_bytes=1, after={PARTITION: after})


def _send(broker: PublishBroker, tables: Tables, plan: PublicationPlan, *, is_fresh: bool, admin_url: str = "") -> None:
    settings = load(None)
    pulsar = settings.pulsar.model_copy(
        update={"service_url": broker.url, "timeout_seconds": 3, "admin_url": admin_url or settings.pulsar.admin_url}
    )
    settings = settings.model_copy(update={"pulsar": pulsar})
    of_topic = {a.MANAGED_LEDGER: OWNER, c.REFERENCE_KEY: f"data:{OWNER}"}
    rows = (finding(ledger_id, **of_topic) for ledger_id in range(1, plan.requests + 1))
    orphans = findings_of(tables, *rows).select(f"SELECT *, '{TOPIC}' AS {REQUEST_TOPIC} FROM rows")
    opened = OpenPlan(plan, {TOPIC: (PARTITION,)}, {})
    send(settings, tables.keep(orphans), opened, is_fresh=is_fresh, per_second=0)


def _requested(entries: Collection[bytes]) -> list[int]:
    requests = [decode(content.payload) for data in entries for _, content in contents_of(parse_entry(data))]
    return [request.ledger_id for request in requests if isinstance(request, PendingDelete)]


def _stub_positions(admin: HttpStub, entries: int) -> None:
    path = f"/admin/v2/{PARTITION.replace('://', '/')}"
    stats = {"ledgers": [{"ledgerId": 5, "entries": 0}], "currentLedgerEntries": entries}
    admin.answer_with(f"{path}/partitions", _json(partitions=0))
    admin.answer_with(f"{path}/lastMessageId", _json(ledgerId=5, entryId=entries - 1))
    admin.answer_with(f"{path}/internalStats", _json(**stats, cursors={}, pendingAddEntriesCount=0))


def _json(**fields: Any) -> CannedAnswer:
    return CannedAnswer(200, json.dumps(fields).encode())


def _resume(tables: Tables, count: int, stored: list[bytes], after: Position = (5, -1)) -> list[int]:
    """Resume a publication whose partition has these entries in ledger 5; return the ids of the requested ledgers."""
    with http_stub() as admin:
        _stub_positions(admin, len(stored))
        broker = PublishBroker(entries={PARTITION: {(5, number): data for number, data in enumerate(stored)}})
        try:
            _send(broker, tables, _plan(count, after), is_fresh=False, admin_url=admin.url)
        finally:
            broker.close()
    return _requested([data for _, data in broker.sent])


def _properties(number: int, name: str = NAME) -> list[bytes]:
    return [key_value(AUDIT_ID, f"{name}/{number}")]


@pytest.mark.parametrize(
    ("after", "requested"),
    [
        pytest.param((5, -1), [1, 3, 7], id="the first entries are still there"),
        # the numbers are 0 to 6
        pytest.param((4, 9), [3, 7], id="the first entries may have been stored and trimmed"),
    ],
)
def test_requests_that_are_missing_between_stored_requests_are_sent(
    tables: Tables, after: Position, requested: list[int]
) -> None:
    batch = b"".join(single(b"{}", properties=_properties(number)) for number in (4, 5))
    stored = [
        entry(b"{}", properties=_properties(1)),
        entry(b"{}", properties=_properties(3)),
        entry(batch, num_messages_in_batch=2),
        entry(b"{}", properties=_properties(6, "audit-1-another")),
    ]
    assert _resume(tables, 7, stored, after) == requested


@pytest.mark.parametrize("count", [600, 3_000], ids=["an entry each", "in batches"])
def test_a_publication_during_which_the_broker_stalls_is_not_reported_as_sent_and_loses_nothing(
    tables: Tables, count: int
) -> None:
    stored: list[bool] = []
    began_s = time.monotonic()

    def stall(_number: int) -> bool:
        """Store and answer nothing until the client has given up its first sends."""
        stored.append(time.monotonic() - began_s > 3.5)
        return stored[-1]

    broker = PublishBroker(on_send=stall)
    with pytest.raises(UnavailableError, match=r"TimeOut|Timeout"):
        _send(broker, tables, _plan(count, (5, -1)), is_fresh=True)
    broker.close()
    kept = [data for (_, data), is_stored in zip(broker.sent, stored, strict=True) if is_stored]
    requested = Counter([*_requested(kept), *_resume(tables, count, [*kept, entry(b"no request")])])
    assert requested == Counter(range(1, count + 1))
