"""A compacted topic is read to an end that is counted, and whoever is sent less than that is told so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from streaming.adapters.pulsar import compacted, entries
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
    """What the broker says of the topic. later: what it says once the reader has got nothing more.

    shown: entries that it shows where they are asked for by their position.
    """

    stats: InternalStats
    shown: Mapping[Position, Body] = field(default_factory=dict)
    later: InternalStats | None = None

    def internal_stats(self, partition: str) -> InternalStats:
        now, self.stats = self.stats, self.later or self.stats
        return now

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        return self.shown.get(position)


def _stats(entries: int, horizon: Position = HORIZON, ledgers: Any = LEDGERS) -> InternalStats:
    return InternalStats(
        ledgers=ledgers,
        cursors={"__compaction": horizon},
        pending_adds=0,
        compacted=(70, entries) if entries else (-1, 0),
    )


def _keyed(key: str) -> bytes:
    return entry(b"v", partition_key=key)


def _read(
    sent: dict[Position, bytes | None],
    stats: InternalStats,
    shown: Mapping[Position, Body] | None = None,
    last: Position | None = None,
    later: InternalStats | None = None,
) -> list[tuple[Position, bytes | None]]:
    admin = Admin(stats, shown or {}, later)
    with serving(Partition(sent, last)) as partition:
        return [(at, found.content.key) for at, found in read_compacted(settings_for(partition), admin, TOPIC)]


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


MARKER = Body(200, {"x-pulsar-marker-type": "10"}, b"", True)
PLAIN = Body(200, {"x-pulsar-partition-key": "late"}, b"v", True)
UNSHOWN = Body(500, {}, b"", True)


@pytest.mark.parametrize("last", [(9, 0), None], ids=["the broker says where its end is", "it does not"])
@pytest.mark.parametrize(
    ("shown", "keys"),
    [
        pytest.param(MARKER, [b"a", b"b", b"a", b"c"], id="a marker"),
        pytest.param(PLAIN, [b"a", b"b", b"a", b"c", b"late"], id="a message that the reader was not sent"),
        pytest.param(UNSHOWN, [b"a", b"b", b"a", b"c", None], id="an entry that cannot be decoded"),
    ],
)
def test_a_topic_ends_where_the_broker_sends_its_last_entry_to_nobody(
    shown: Body, keys: list[bytes | None], last: Position | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(entries, "_PATIENCE_SECONDS", 0.2)
    others = dict.fromkeys([(8, 2), (9, 0)], PLAIN)  # the broker shows other entries, so that it is no outage
    read = _read({**SENT, (9, 1): None}, _stats(2), {**others, (9, 1): shown}, last)
    assert [key for _at, key in read] == keys


def test_only_markers_behind_the_horizon_are_an_end_too() -> None:
    sent = {at: data for at, data in SENT.items() if at <= HORIZON}
    shown = dict.fromkeys([(8, 2), (9, 0), (9, 1)], MARKER)
    assert [key for _at, key in _read(sent, _stats(2), shown, (8, 1))] == [b"a", b"b"]


def test_an_end_that_a_compaction_moved_meanwhile_is_none() -> None:
    later = InternalStats(ledgers=LEDGERS, cursors={"__compaction": (9, 1)}, pending_adds=0, compacted=(71, 3))
    with pytest.raises(UnavailableError, match="was compacted while it was read"):
        _read({**SENT, (9, 1): None}, _stats(2), {(9, 1): MARKER}, (9, 0), later)


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
    monkeypatch.setattr(entries, "_PATIENCE_SECONDS", 0.2)
    sent = {at: data for at, data in SENT.items() if at != missing and (at <= HORIZON or stats.entries_after(HORIZON))}
    with pytest.raises(UnavailableError, match=r"sends nothing more|shows no entry"):
        _read(sent, stats)


def test_tombstones_and_schema_versions_are_told() -> None:
    batch = single(b"v", partition_key="a") + single(b"", partition_key="b", null_value=1)
    sent: dict[Position, bytes | None] = {
        (9, 0): entry(b"", partition_key="a", null_value=1),
        (9, 1): entry(batch, num_messages_in_batch=2, schema_version=bytes(8)),
    }
    with serving(Partition(sent, None)) as partition:
        settings = settings_for(partition)
        admin = Admin(InternalStats(ledgers=((9, 2),), cursors={}, pending_adds=0))
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
        admin = Admin(InternalStats(ledgers=((9, 3),), cursors={}, pending_adds=0))
        found = list(read_stored(settings, admin, TOPIC))
        behind = list(read_stored(settings, admin, TOPIC, (9, 1)))
    assert [(at, each.why is None) for at, each in found] == [((9, 0), True), ((9, 1), False), ((9, 2), True)]
    assert [at for at, _each in behind] == [(9, 2)]
