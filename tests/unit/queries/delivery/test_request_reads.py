"""What a task of the service's source reads, over a fake broker's socket and admin API."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers.admin_entries import WITHHELD
from streaming.adapters.pulsar.source.options import OnGap
from streaming.adapters.pulsar.source.stream import PartitionBatch
from streaming.config.load import load
from streaming.errors import UnavailableError
from streaming.queries.delivery.read_end import ReadEnd, end_in
from streaming.queries.delivery.request_reads import (
    RequestOptions,
    options_for,
    parse_request_options,
    request_batches,
)
from streaming.state.notes.lost_entries import Loss
from tests.pulsar_fields import entry, key_value, single
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from tests.unit.adapters.pulsar.stored_entries import Admin, body
from udfs import columns as c
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position
from udfs.pulsar_source.offsets import Gap
from udfs.units import ROW_BYTES

TOPIC = "persistent://t/ns/topic-partition-0"
MARKER = entry(b"", marker_type=10)
STORED: Mapping[Position, bytes | None] = {
    (7, 0): entry(b"one"),
    (7, 1): None,
    (7, 2): entry(b"secret", encryption_keys=[key_value("k", b"v")]),
    (7, 3): MARKER,
    (9, 0): MARKER,
    (9, 1): entry(single(b"x" * (2 * ROW_BYTES)) + single(b"three"), num_messages_in_batch=2),
}
STATS = InternalStats(ledgers=((7, 4), (9, 2)), cursors={}, pending_adds=0)
ALL = PartitionBatch(TOPIC, (EntrySpan(7, 0, 3), EntrySpan(9, 0, 1)), None)
OPEN = body(b"not yet", txnid_most_bits="1", txnid_least_bits="2", txn_uncommitted="true")


@pytest.fixture
def broker() -> Iterator[Partition]:
    with serving(Partition(STORED, (9, 1))) as partition:
        yield partition


def _options(broker: Partition) -> RequestOptions:
    options = parse_request_options(options_for(load(None), ["persistent://t/ns/topic"], gives_up=False))
    return replace(options, source=replace(options.source, pulsar=settings_for(broker)))


def _read(
    broker: Partition,
    batch: PartitionBatch = ALL,
    stats: InternalStats = STATS,
    withheld: Body | None = OPEN,
    *,
    gives_up: bool = False,
) -> tuple[list[dict[str, Any]], ReadEnd]:
    """Return the rows of the messages, and the last row, which is the end."""
    admin = Admin({(7, 1): withheld, (7, 2): body(b""), (9, 1): body(b"")}, stats=stats)
    batches = [*request_batches(_options(broker), admin, batch, gives_up=gives_up)]
    *rows, last = [row for each in batches for row in each.to_pylist()]
    assert (last[c.SOURCE], last[c.POSITION_BATCH]) == (batch.partition, None)
    assert all(row[c.POSITION_BATCH] is not None for row in rows)
    return rows, end_in(last)


def _addresses(rows: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    return [
        (
            row[c.POSITION_LEDGER],
            row[c.POSITION_ENTRY],
            row[c.POSITION_BATCH],
            (row[c.NO_REQUEST] or "").partition(":")[0],
        )
        for row in rows
    ]


def test_every_message_is_a_row_and_also_one_that_is_no_request(broker: Partition) -> None:
    rows, end = _read(broker)
    assert _addresses(rows) == [
        (7, 0, -1, ""),
        (7, 1, -1, "OPEN_TRANSACTION"),
        (7, 2, -1, "ENCRYPTED"),
        (9, 1, 0, ""),
        (9, 1, 1, ""),
    ]
    assert [row[c.PAYLOAD] for row in rows] == [b"one", b"not yet", b"secret", b"x" * (2 * ROW_BYTES), b"three"]
    assert {row[c.SOURCE] for row in rows} == {TOPIC}
    assert end == ReadEnd((9, 1), "", 6, (EntrySpan(7, 3, 3), EntrySpan(9, 0, 0)), 7)


def test_a_large_message_takes_several_row_numbers(broker: Partition) -> None:
    rows, _end = _read(broker)
    assert [row[c.ROW] for row in rows] == [0, 1, 2, 5, 6]


def test_messages_that_pulsar_deleted_are_in_the_end_and_the_others_are_rows(broker: Partition) -> None:
    batch = replace(ALL, gap=Gap((4, 2), (7, -1), is_certain=False))
    rows, end = _read(broker, batch, replace(STATS, ledgers=((9, 2),)))
    assert _addresses(rows) == [(9, 1, 0, ""), (9, 1, 1, "")]
    assert [(loss.first, loss.is_certain) for loss in end.lost] == [((4, 3), False), ((7, 0), True)]
    assert "entries 0 to 3 of ledger 7 were deleted" in end.lost[1].detail


def test_a_batch_may_contain_nothing_but_a_gap(broker: Partition) -> None:
    rows, end = _read(broker, PartitionBatch(TOPIC, (), Gap((4, 2), (7, -1), is_certain=True)))
    assert not rows
    assert end == ReadEnd(None, lost=(Loss((4, 3), True, end.lost[0].detail),))


def test_entries_that_a_broker_withholds_are_given_up_only_if_that_is_allowed(broker: Partition) -> None:
    moving = Body(503, {}, b"", True)
    with pytest.raises(UnavailableError, match=WITHHELD):
        _read(broker, withheld=moving)
    rows, _end = _read(broker, withheld=moving, gives_up=True)
    assert _addresses(rows)[1] == (7, 1, -1, "NOT_SHOWN")


def test_the_options_name_files_and_say_what_the_source_needs() -> None:
    settings = load(None)
    pulsar = settings.pulsar.model_copy(update={"token_file": "/run/token", "tls_check_hostname": False})
    settings = settings.model_copy(update={"pulsar": pulsar})
    options = options_for(settings, ["persistent://t/ns/a", "persistent://t/ns/b"], gives_up=True)
    assert all(isinstance(text, str) for text in options.values())
    parsed = parse_request_options(options)
    assert parsed.source.pulsar == pulsar
    assert parsed.source.topics == ("persistent://t/ns/a", "persistent://t/ns/b")
    assert parsed.source.subscription == settings.topics.subscription
    assert parsed.source.on_gap is OnGap.ROW
    assert parsed.source.reads_uncommitted, "an open transaction that never ends would stop the topic"
    assert (parsed.most_bytes, parsed.gives_up) == (settings.service.max_request_bytes, True)
    assert f"{settings.topics.dead_letter}-partition-0" in parsed.controls
    assert parsed.source.wait_seconds == settings.service.trigger_seconds
    without = parse_request_options(options_for(settings, ["persistent://t/ns/a"], gives_up=True, waits=False))
    assert without.source.wait_seconds == 0
