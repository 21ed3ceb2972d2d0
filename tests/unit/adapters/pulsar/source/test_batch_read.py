"""What a task of the Spark source reads, over a fake broker's socket and admin API."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.source import schema
from streaming.adapters.pulsar.source.batch_read import batch_rows
from streaming.adapters.pulsar.source.options import OnGap, SourceOptions, parse_options
from streaming.adapters.pulsar.source.stream import PartitionBatch
from streaming.errors import RefusedError, SafetyError, UnavailableError
from tests.pulsar_fields import entry, framed, key_value, single
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from tests.unit.adapters.pulsar.stored_entries import Admin, body
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position
from udfs.pulsar_source.offsets import Gap
from udfs.pulsar_source.source_rows import SourceRow

TOPIC = "persistent://t/ns/topic-partition-0"
OPTIONS = {"serviceUrl": "pulsar://127.0.0.1:1", "adminUrl": "http://127.0.0.1:1", "topics": "t/ns/topic"}
ENCRYPTED = entry(b"secret", encryption_keys=[key_value("k", b"v")])
STORED: Mapping[Position, bytes | None] = {
    (7, 0): entry(b"one"),
    (7, 1): None,
    (7, 2): ENCRYPTED,
    (9, 0): framed(b"\xff" * 9, b"x"),
    (9, 1): entry(single(b"two") + single(b"three"), num_messages_in_batch=2),
}
STATS = InternalStats(ledgers=((7, 3), (9, 2)), cursors={}, pending_adds=0)
ALL = PartitionBatch(TOPIC, (EntrySpan(7, 0, 2), EntrySpan(9, 0, 1)), None)
ABORTED = body(b"taken back", txnid_most_bits="1", txnid_least_bits="2", txn_aborted="true")


@pytest.fixture
def broker() -> Iterator[Partition]:
    with serving(Partition(STORED, (9, 1))) as partition:
        yield partition


def _options(broker: Partition, **changes: Any) -> SourceOptions:
    return replace(parse_options(OPTIONS), pulsar=settings_for(broker), **changes)


def _read(
    broker: Partition,
    batch: PartitionBatch = ALL,
    stats: InternalStats = STATS,
    withheld: Body | None = ABORTED,
    **changes: Any,
) -> list[SourceRow]:
    admin = Admin({(7, 1): withheld, (7, 2): body(b""), (9, 1): body(b"")}, stats=stats)
    return list(batch_rows(_options(broker, **changes), admin, batch))


def _kinds(rows: list[SourceRow]) -> list[tuple[int, int, int, str]]:
    return [(row.ledger_id, row.entry_id, row.batch_index, row.kind) for row in rows]


def test_a_batch_is_read_in_order_with_all_that_is_no_message(broker: Partition) -> None:
    assert _kinds(_read(broker, reads_uncommitted=True)) == [
        (7, 0, -1, "MESSAGE"),
        (7, 1, -1, "ABORTED_TRANSACTION"),
        (7, 2, -1, "ENCRYPTED"),
        (9, 0, -1, "UNREADABLE"),
        (9, 1, 0, "MESSAGE"),
        (9, 1, 1, "MESSAGE"),
    ]


def test_consumers_do_not_get_messages_of_aborted_transactions(broker: Partition) -> None:
    assert (7, 1, -1, "ABORTED_TRANSACTION") not in _kinds(_read(broker))
    assert len(_read(broker)) == 5


def test_an_entry_that_the_broker_never_returns_is_a_row(broker: Partition) -> None:
    rows = _read(broker, withheld=Body(500, {}, b"", True))
    assert _kinds(rows)[1] == (7, 1, -1, "NOT_SHOWN")


def test_entries_that_were_deleted_since_the_batch_was_planned_are_reported(broker: Partition) -> None:
    later = replace(STATS, ledgers=((9, 2),))
    assert _kinds(_read(broker, stats=later))[:2] == [(7, 0, -1, "LOST"), (9, 0, -1, "UNREADABLE")]
    with pytest.raises(SafetyError, match="entries 0 to 2 of ledger 7 were deleted"):
        _read(broker, stats=later, on_gap=OnGap.FAIL)


@pytest.mark.parametrize(
    "ledgers",
    [
        pytest.param(((7, 3), (9, 1)), id="a newest ledger with fewer entries"),
        pytest.param(((7, 3),), id="no newest ledger"),
        pytest.param((), id="no ledgers at all"),
    ],
)
def test_a_broker_that_does_not_know_the_newest_entries_proves_no_loss(
    broker: Partition, ledgers: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(UnavailableError, match="does it still serve the topic"):
        _read(broker, stats=replace(STATS, ledgers=ledgers))


def test_a_topic_that_was_deleted_after_its_batch_was_planned_is_an_error_that_names_the_remedy(
    broker: Partition,
) -> None:
    with pytest.raises(RefusedError, match=r"was deleted before .*; to continue, create persistent://t/ns/topic again"):
        list(batch_rows(_options(broker), Admin(stats=STATS, exists=False), ALL))
    with pytest.raises(RefusedError, match="Pulsar did not read internalStats"):
        list(batch_rows(_options(broker), Admin(stats=STATS, allows=False), ALL))


def test_a_gap_comes_first(broker: Partition) -> None:
    gap = Gap((4, 2), (7, -1), is_certain=True)
    rows = _read(broker, PartitionBatch(TOPIC, (EntrySpan(7, 0, 0),), gap))
    assert _kinds(rows) == [(4, 3, -1, "LOST"), (7, 0, -1, "MESSAGE")]
    assert _kinds(_read(broker, PartitionBatch(TOPIC, (), gap))) == [(4, 3, -1, "LOST")]


def test_a_replay_returns_the_same_bytes(broker: Partition) -> None:
    def serialized() -> list[bytes]:
        batches = schema.record_batches(TOPIC, _read(broker, reads_uncommitted=True))
        return [batch.serialize().to_pybytes() for batch in batches]

    assert serialized() == serialized()


def test_record_batches_are_bounded_by_rows_and_bytes(broker: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _read(broker)
    monkeypatch.setattr(schema, "MOST_ROWS", 2)
    assert [batch.num_rows for batch in schema.record_batches(TOPIC, rows)] == [2, 2, 1]
    monkeypatch.setattr(schema, "MOST_BYTES", 1)
    assert [batch.num_rows for batch in schema.record_batches(TOPIC, rows)] == [1, 1, 1, 1, 1]


def test_a_row_has_a_column_for_each_fact(broker: Partition) -> None:
    first, encrypted = (
        pa.Table.from_batches(schema.record_batches(TOPIC, _read(broker))).to_pylist()[number] for number in (0, 1)
    )
    assert (first["topic"], first["value"], first["properties"], first["kind"]) == (TOPIC, b"one", [], "MESSAGE")
    assert first["publish_time"].timestamp() == 1_700_000_000
    assert (first["event_time"], first["entry"], first["transaction"]) == (None, None, None)
    assert (encrypted["value"], encrypted["entry"]) == (b"secret", ENCRYPTED)
    assert [*first] == [column.split()[0] for column in schema.DDL.split(", ")]
