"""A chunk may read the owners of requests that the sweep admits, and no others."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from streaming import schemas
from streaming.schemas import REQUESTS, RETRY
from streaming.sweep.messages import AdmittedOwners, RowDecoder
from tests.builders import cursor_request, data_request
from udfs import columns as c
from udfs.owners.references import key_of
from udfs.paths import tenant_of, topic_of
from udfs.records import LedgerComponent, PendingDelete
from udfs.requests.admission import Admission
from udfs.requests.request_format import MAX_REQUEST_BYTES, encode
from udfs.requests.retry import REAL_TOPIC

SYSTEM, OWN = "persistent://pulsar/system/__ledger_deletion", "persistent://rival/reaper/requests"
ADMISSION = Admission(request_topics=frozenset({SYSTEM, OWN}), trusted_tenants=frozenset({"pulsar"}))
MINE, THEIRS = data_request(5, "rival/ns/persistent/mine"), data_request(5, "public/default/persistent/theirs")
COLUMNS = [
    field
    for field in schemas.MESSAGE
    if field.name in (*c.POSITION, c.PAYLOAD, c.MESSAGE_PROPERTIES, c.REFERENCE_KEY, c.TENANT)
]


def row(request: PendingDelete, source: str, entry: int, properties: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    return {
        c.SOURCE: f"{source}-partition-0",
        c.POSITION_LEDGER: 7,
        c.POSITION_ENTRY: entry,
        c.POSITION_BATCH: -1,
        c.PAYLOAD: encode(request),
        c.MESSAGE_PROPERTIES: list(properties),
        c.REFERENCE_KEY: key_of(request),
        c.TENANT: tenant_of(topic_of(request.managed_ledger)),
    }


def owners(rows: Sequence[dict[str, Any]], query: str = REQUESTS, admission: Admission = ADMISSION) -> dict[str, int]:
    batches = [pa.RecordBatch.from_pylist([each], schema=pa.schema(COLUMNS)) for each in rows]
    (found,) = AdmittedOwners(query, admission, MAX_REQUEST_BYTES)(batches)
    total, *by_owner = found.to_pylist()
    assert (total[c.REFERENCE_KEY], total[c.ASKED]) == (None, len(rows))
    return {message_row[c.REFERENCE_KEY]: message_row[c.ASKED] for message_row in by_owner}


def test_admitted_requests_are_counted_by_owner() -> None:
    rows = [row(THEIRS, SYSTEM, 1), row(MINE, OWN, 2), row(MINE, OWN, 3), row(data_request(6), OWN, 4)]
    no_request = rows[0] | {c.PAYLOAD: b"no request", c.REFERENCE_KEY: None, c.TENANT: None, c.POSITION_ENTRY: 5}
    assert owners([*rows, no_request]) == {key_of(THEIRS): 1, key_of(MINE): 2}


@pytest.mark.parametrize("query", [REQUESTS, RETRY])
@pytest.mark.parametrize("source", [SYSTEM, OWN, f"{SYSTEM}-RETRY"])
@pytest.mark.parametrize("named_topic", [None, SYSTEM, OWN, "persistent://other/ns/t"])
@pytest.mark.parametrize(
    "admission",
    [
        ADMISSION,
        Admission(
            request_topics=frozenset({SYSTEM, OWN}),
            trusted_tenants=frozenset({"pulsar"}),
            namespaces=frozenset({"public/default"}),
        ),
        Admission(
            request_topics=frozenset({SYSTEM}),
            trusted_tenants=frozenset(),
            components=frozenset({LedgerComponent.MANAGED_CURSOR}),
        ),
    ],
)
@pytest.mark.parametrize("request_", [MINE, THEIRS, cursor_request(5)], ids=["mine", "theirs", "a cursor's"])
def test_the_sweep_admits_the_same_requests(
    query: str, source: str, named_topic: str | None, admission: Admission, request_: PendingDelete
) -> None:
    message_row = row(request_, source, 1, [(REAL_TOPIC, named_topic)] if named_topic else [])
    (message,) = RowDecoder(query, admission).read([message_row])
    assert bool(owners([message_row], query, admission)) == isinstance(message.request, PendingDelete)
