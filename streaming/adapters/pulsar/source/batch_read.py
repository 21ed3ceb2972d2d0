"""Reads the entries of a batch in a task of the Spark source "pulsar-frames"."""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.readers.control_entries import ControlEntries, EntryAdmin
from streaming.adapters.pulsar.readers.entries import AdminAnswer, read_entries
from streaming.adapters.pulsar.readers.span_reader import SpanEntry
from streaming.adapters.pulsar.source.options import OnGap, SourceOptions
from streaming.adapters.pulsar.source.schema import record_batches
from streaming.adapters.pulsar.source.stream import PartitionBatch
from streaming.errors import RefusedError, SafetyError, UnavailableError
from udfs.entry_ranges import EntrySpan, without
from udfs.formats.entry_answer import entry_of
from udfs.formats.internal_stats import InternalStats
from udfs.paths import base_topic
from udfs.pulsar_source.offsets import shown
from udfs.pulsar_source.source_rows import (
    SourceRow,
    is_taken_back,
    row_of_gap,
    row_of_trimmed,
    row_of_withheld,
    rows_of,
    rows_of_parsed,
)
from udfs.undelivered import NotShown

_OTHER_TOPICS = 4  # their entries show whether the broker returns any entry at the moment


class BatchAdmin(EntryAdmin, Protocol):
    """The calls of PulsarAdmin that a batch needs."""

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions; None if the topic, or partition, does not exist.

        Raises UnavailableError, RefusedError.
        """
        ...


def read_batch(options: SourceOptions, batch: PartitionBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch of one partition. Raises UnavailableError, RefusedError, SafetyError."""
    with PulsarAdmin(PulsarAdminSettings.of(options.pulsar)) as admin:
        yield from record_batches(batch.partition, batch_rows(options, admin, batch))


def batch_rows(options: SourceOptions, admin: BatchAdmin, batch: PartitionBatch) -> Iterator[SourceRow]:
    """Yield the rows of a batch in order of their positions; a few entries are in memory at a time."""
    others = [topic for topic in options.topics if topic != base_topic(batch.partition)][:_OTHER_TOPICS]
    firsts = [name for topic in others for name in (f"{topic}-partition-0", topic)]
    lost, entries = batch_entries(options, admin, batch, ControlEntries(admin, batch.partition, firsts))
    yield from lost
    for entry, answer in entries:
        for row in _rows(entry.position, entry.data, answer):
            if options.reads_uncommitted or not is_taken_back(row):
                yield row


def batch_entries(
    options: SourceOptions, admin: BatchAdmin, batch: PartitionBatch, controls: ControlEntries
) -> tuple[list[SourceRow], Iterator[tuple[SpanEntry, AdminAnswer | None]]]:
    """Return rows about the entries of a batch that Pulsar deleted, and the other entries as read_entries yields them.

    Raises UnavailableError; RefusedError, also if the partition does not exist; SafetyError if entries were deleted and
    onDataLoss is "fail".
    """
    lost = [] if batch.gap is None else [row_of_gap(batch.gap)]
    if not batch.spans:
        return lost, iter(())
    stored, trimmed = _divided(batch, _stats(admin, batch.partition))
    lost += map(row_of_trimmed, trimmed)
    if trimmed and options.on_gap is OnGap.FAIL:
        raise SafetyError(
            f'{batch.partition}: {lost[-1].detail}; to continue without them, set onDataLoss to "{OnGap.ROW}"'
        )
    return lost, read_entries(options.pulsar, admin, batch.partition, stored, controls)


def _stats(admin: BatchAdmin, partition: str) -> InternalStats:
    try:
        return admin.internal_stats(partition)
    except RefusedError as error:
        if admin.partitions(partition) is not None:
            raise
        # Rows about the loss would depend on the moment: the topic may be created again before the batch is repeated.
        # No SafetyError: that would stop the service, whose other topics continue.
        raise RefusedError(
            f"{partition} was deleted before a batch that was planned with its entries was read; to continue, create "
            f"{base_topic(partition)} again, with as many partitions: the loss of these entries is then reported"
        ) from error


def _rows(position: tuple[int, int], data: bytes | None, answer: AdminAnswer | None) -> Iterator[SourceRow]:
    if isinstance(answer, NotShown):
        yield row_of_withheld(position, answer)
    elif answer is not None:
        yield from rows_of_parsed(position, *entry_of(answer.headers, answer.data))
    elif data is not None:
        yield from rows_of(position, data)


def _divided(batch: PartitionBatch, stats: InternalStats) -> tuple[list[EntrySpan], list[EntrySpan]]:
    """Divide the batch's entries into those that are stored and those that were deleted.

    Raises UnavailableError if the broker does not know entries that are newer than those that it has deleted.
    """
    listed = [EntrySpan(ledger, 0, entries - 1) for ledger, entries in stats.ledgers if entries]
    missing = list(without(batch.spans, listed))
    ledgers = {ledger for ledger, _entries in stats.ledgers}
    for span in missing:
        if span.ledger in ledgers or span.ledger > max(ledgers, default=-1):
            raise UnavailableError(
                f"{batch.partition}: the broker does not list {shown((span.ledger, span.first))}, which it listed "
                "when the batch was planned; does it still serve the topic? If the cluster was replaced, start the "
                "query with a new checkpoint"
            )
    return list(without(batch.spans, missing)), missing
