"""A compacted topic is read to an end that is counted, and whoever is sent less than that is told so."""

from dataclasses import dataclass
from typing import Any

import pytest

from streaming.adapters.pulsar import compacted
from streaming.adapters.pulsar.compacted import read_compacted, read_stored
from streaming.adapters.pulsar.http import Body
from streaming.errors import UnavailableError
from tests.pulsar_fields import entry, single
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from udfs.formats.internal_stats import InternalStats, Position

TOPIC = "persistent://t/ns/__transaction_buffer_snapshot_segments"
HORIZON = (8, 1)
LEDGERS = ((8, 3), (9, 2))


@dataclass
class Admin:
    """What the broker says of the topic."""

    stats: InternalStats

    def internal_stats(self, partition: str) -> InternalStats:
        return self.stats

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        raise AssertionError


def _stats(entries: int, horizon: Position = HORIZON, ledgers: Any = LEDGERS) -> InternalStats:
    return InternalStats(ledgers, {"__compaction": horizon}, 0, compacted=(70, entries) if entries else (-1, 0))


def _keyed(key: str) -> bytes:
    return entry(b"v", partition_key=key)


def _read(sent: dict[Position, bytes | None], stats: InternalStats) -> list[tuple[Position, bytes | None]]:
    with serving(Partition(sent, None)) as partition:
        return [(at, found.content.key) for at, found in read_compacted(settings_for(partition), Admin(stats), TOPIC)]


# what the broker sends: two entries of the compacted ledger, of ledgers that are trimmed, then what lies behind
SENT: dict[Position, bytes | None] = {
    (3, 0): _keyed("a"),
    (8, 1): _keyed("b"),
    (8, 2): _keyed("a"),
    (9, 0): _keyed("c"),
    (9, 1): _keyed("d"),
}


def test_a_compacted_reader_gets_the_compacted_ledger_and_what_lies_behind_its_horizon() -> None:
    keys = [(3, 0), (8, 1), (8, 2), (9, 0), (9, 1)]
    assert [at for at, _key in _read(SENT, _stats(2))] == keys


def test_where_nothing_lies_behind_the_horizon_the_entries_are_counted() -> None:
    sent = {at: data for at, data in SENT.items() if at <= HORIZON}
    assert len(_read(sent, _stats(2, ledgers=((8, 2), (9, 0))))) == 2


@pytest.mark.parametrize("stats", [_stats(0, ledgers=()), _stats(0, ledgers=((9, 0),))], ids=["none", "empty"])
def test_an_empty_topic_is_not_even_subscribed_to(stats: InternalStats) -> None:
    assert _read({}, stats) == []


def test_a_topic_that_was_never_compacted_is_read_to_its_last_entry() -> None:
    assert len(_read(SENT, _stats(0, (-1, -1), ((3, 1), (8, 3), (9, 2))))) == 5


@pytest.mark.parametrize(
    ("missing", "stats"),
    [
        pytest.param((9, 1), _stats(2), id="the last entry"),
        pytest.param((8, 1), _stats(2, ledgers=((8, 2), (9, 0))), id="one of the compacted ledger"),
    ],
)
def test_whoever_is_sent_less_than_there_is_says_so(
    missing: Position, stats: InternalStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted, "_PATIENCE_SECONDS", 0.2)
    sent = {at: data for at, data in SENT.items() if at != missing and (at <= HORIZON or stats.entries_after(HORIZON))}
    with pytest.raises(UnavailableError, match="sends nothing more"):
        _read(sent, stats)


def test_tombstones_and_schema_versions_are_told() -> None:
    batch = single(b"v", partition_key="a") + single(b"", partition_key="b", null_value=1)
    sent: dict[Position, bytes | None] = {
        (9, 0): entry(b"", partition_key="a", null_value=1),
        (9, 1): entry(batch, num_messages_in_batch=2, schema_version=bytes(8)),
    }
    with serving(Partition(sent, None)) as partition:
        settings = settings_for(partition)
        admin = Admin(InternalStats(((9, 2),), {}, 0))
        found = [each.content for _at, each in read_compacted(settings, admin, TOPIC)]
    assert [(each.key, each.is_null, each.schema_version) for each in found] == [
        (b"a", True, b""),
        (b"a", False, bytes(8)),
        (b"b", True, bytes(8)),
    ]


def test_stored_entries_come_with_their_places_and_what_nobody_is_sent_is_told() -> None:
    sent: dict[Position, bytes | None] = {(9, 0): _keyed("a"), (9, 1): None, (9, 2): _keyed("b")}
    with serving(Partition(sent, (9, 2))) as partition:
        settings = settings_for(partition)
        admin = Admin(InternalStats(((9, 3),), {}, 0))
        found = list(read_stored(settings, admin, TOPIC))
        behind = list(read_stored(settings, admin, TOPIC, (9, 1)))
    assert [(at, each.why is None) for at, each in found] == [((9, 0), True), ((9, 1), False), ((9, 2), True)]
    assert [at for at, _each in behind] == [(9, 2)]
