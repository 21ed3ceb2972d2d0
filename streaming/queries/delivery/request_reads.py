"""Reads the entries of a request topic's batch in a task of our Spark source, as rows of schemas.MESSAGE.

1. Every message is a row, also one that is no request. Rows are numbered in the task, which reads a partition alone.
2. The last row of a partition is the end of its read (read_end.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.adapters.pulsar.readers.control_entries import ControlEntries
from streaming.adapters.pulsar.readers.entries import AdminAnswer, messages_of
from streaming.adapters.pulsar.readers.span_reader import SpanEntry
from streaming.adapters.pulsar.source.batch_read import BatchAdmin, batch_entries
from streaming.adapters.pulsar.source.options import MOST_WAIT_SECONDS, SourceOptions, parse_options
from streaming.adapters.pulsar.source.stream import PartitionBatch
from streaming.config.settings import Settings
from streaming.queries.delivery.fallback_reads import control_partitions, record_batches
from streaming.queries.delivery.read_end import ReadEnd, end_row
from streaming.state.notes.lost_entries import Loss
from udfs import columns as c
from udfs.entry_ranges import EntrySpan, joined
from udfs.pulsar_source.source_rows import NoMessage
from udfs.spark import numbered_rows

_MOST_BYTES, _CONTROLS, _GIVES_UP = "mostrequestbytes", "controlpartitions", "givesup"
_YES = "true"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of a query that reads requests."""

    source: SourceOptions
    most_bytes: int  # service.max_request_bytes
    controls: tuple[str, ...]  # partitions whose entries show whether brokers return any entry
    gives_up: bool  # entries that brokers do not return are given up in the query's first batch (withheld.py)


def options_for(settings: Settings, topics: Sequence[str], *, gives_up: bool, waits: bool = True) -> dict[str, str]:
    """Return options for Spark, which may log them: they name the files of secrets, and contain no secret.

    waits: whether a trigger waits for messages.
    """
    pulsar = {
        key.replace("_", ""): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.pulsar.model_dump().items()
    }
    return pulsar | {
        "topics": ",".join(topics),
        "subscription": settings.topics.subscription,
        # Readers get no message after the first of an open transaction, and a sender can open one that never ends. So
        # its messages are dead letters at once (decision 15), and later messages are read.
        "isolation": "read_uncommitted",
        # a message is read when it arrives, not only at the next trigger
        "waitSeconds": str(min(settings.service.trigger_seconds, MOST_WAIT_SECONDS) if waits else 0),
        _MOST_BYTES: str(settings.service.max_request_bytes),
        _CONTROLS: ",".join(control_partitions(settings.topics)),
        _GIVES_UP: _YES if gives_up else "",
    }


def parse_request_options(options: Mapping[str, str]) -> RequestOptions:
    """Parse what options_for returned. Raises ConfigError."""
    given = {name.lower(): text for name, text in options.items()}
    most_bytes, controls, gives_up = (given.pop(name) for name in (_MOST_BYTES, _CONTROLS, _GIVES_UP))
    source = parse_options(given, permits_partitions=True)  # a tenant may choose the names of topics
    return RequestOptions(source, int(most_bytes), tuple(controls.split(",")), gives_up == _YES)


def read_requests(options: RequestOptions, batch: PartitionBatch, *, gives_up: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch of one partition. Raises UnavailableError, RefusedError."""
    with PulsarAdmin(PulsarAdminSettings.of(options.source.pulsar)) as admin:
        yield from request_batches(options, admin, batch, gives_up=gives_up)


def request_batches(
    options: RequestOptions, admin: BatchAdmin, batch: PartitionBatch, *, gives_up: bool
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of a bounded size; a few entries are in memory at a time."""
    controls = ControlEntries(admin, batch.partition, options.controls, gives_up)
    lost, entries = batch_entries(options.source, admin, batch, controls)
    losses = tuple(Loss((row.ledger_id, row.entry_id), row.kind == NoMessage.LOST, row.detail or "") for row in lost)
    yield from record_batches(_rows(batch, losses, entries, options.most_bytes))


def _rows(
    batch: PartitionBatch,
    lost: tuple[Loss, ...],
    entries: Iterator[tuple[SpanEntry, AdminAnswer | None]],
    most_bytes: int,
) -> Iterator[tuple[dict[str, Any], int]]:
    last_row = -1
    empty: list[EntrySpan] = []
    for entry, answer in entries:
        before = last_row
        messages = messages_of(entry, answer)
        for row, size in numbered_rows(batch.partition, entry.position, messages, most_bytes, before):
            last_row = row[c.ROW]
            yield row, size
        if last_row == before:
            empty.append(EntrySpan(*entry.position, entry.position[1]))
    oldest = batch.spans[0].ledger if batch.spans else None
    upto = (batch.spans[-1].ledger, batch.spans[-1].last) if batch.spans else None
    end = ReadEnd(upto, last_row=last_row, empty=tuple(joined(empty)), oldest_ledger=oldest, lost=lost)
    yield end_row(batch.partition, end), 0
