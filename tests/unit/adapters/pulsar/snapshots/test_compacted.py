"""A compacted topic is read to its counted end, and an incomplete read is an error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers import span_reader
from streaming.adapters.pulsar.snapshots import compacted
from streaming.adapters.pulsar.snapshots.compacted import read_compacted, read_stored
from streaming.errors import UnavailableError
from tests.pulsar_fields import entry, single
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from udfs.formats.internal_stats import Ensembles, InternalStats, Position

TOPIC = "persistent://t/ns/__transaction_buffer_snapshot_segments"
HORIZON = (8, 1)
LEDGERS = ((8, 3), (9, 2))


@dataclass
class Admin:
    """The admin API of a topic."""

    stats: InternalStats
    shown: Mapping[Position, Body] = field(default_factory=dict)  # entries that it returns by position
    later: InternalStats | None = None  # the stats after the first call

    def internal_stats(self, partition: str) -> InternalStats:
        now, self.stats = self.stats, self.later or self.stats
        return now

    def ensembles(self, partition: str) -> Mapping[int, Ensembles]:
        return {}

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
        return [(at, message.content.key) for at, message in read_compacted(settings_for(partition), admin, TOPIC)]


# two entries of the compacted ledger, whose own ledgers are trimmed, then the entries after the horizon
SENT: dict[Position, bytes | None] = {
    (3, 0): _keyed("a"),
    (8, 1): _keyed("b"),
    (8, 2): _keyed("a"),
    (9, 0): _keyed("c"),
    (9, 1): _keyed("d"),
}


def test_a_compacted_reader_gets_the_compacted_ledger_and_the_entries_after_its_horizon() -> None:
    keys = [(3, 0), (8, 1), (8, 2), (9, 0), (9, 1)]
    assert [at for at, _key in _read(SENT, _stats(2))] == keys


def test_without_entries_after_the_horizon_the_compacted_ledger_is_counted() -> None:
    sent = {at: data for at, data in SENT.items() if at <= HORIZON}
    assert len(_read(sent, _stats(2, ledgers=((8, 2), (9, 0))))) == 2


@pytest.mark.parametrize("stats", [_stats(0, ledgers=()), _stats(0, ledgers=((9, 0),))], ids=["none", "empty"])
def test_an_empty_topic_is_not_subscribed_to(stats: InternalStats) -> None:
    assert _read({}, stats) == []


def test_a_topic_that_was_never_compacted_is_read_to_its_last_entry() -> None:
    assert len(_read(SENT, _stats(0, (-1, -1), ((3, 1), (8, 3), (9, 2))))) == 5


MARKER = Body(200, {"x-pulsar-marker-type": "10"}, b"", True)
PLAIN = Body(200, {"x-pulsar-partition-key": "late"}, b"v", True)
UNSHOWN = Body(500, {}, b"", True)


@pytest.mark.parametrize("last", [(9, 0), None], ids=["the last is known", "the last is unknown"])
@pytest.mark.parametrize(
    ("shown", "keys"),
    [
        pytest.param(MARKER, [b"a", b"b", b"a", b"c"], id="a marker"),
        pytest.param(PLAIN, [b"a", b"b", b"a", b"c", b"late"], id="a message that the reader was not sent"),
        pytest.param(UNSHOWN, [b"a", b"b", b"a", b"c", None], id="an entry that cannot be decoded"),
    ],
)
def test_a_topic_may_end_with_an_entry_that_is_sent_to_no_reader(
    shown: Body, keys: list[bytes | None], last: Position | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(span_reader, "_READER_TIMEOUT_SECONDS", 0.2)
    others = dict.fromkeys([(8, 2), (9, 0)], PLAIN)  # the broker returns other entries, so it is no outage
    read = _read({**SENT, (9, 1): None}, _stats(2), {**others, (9, 1): shown}, last)
    assert [key for _at, key in read] == keys


def test_a_topic_may_have_only_markers_after_the_horizon() -> None:
    sent = {at: data for at, data in SENT.items() if at <= HORIZON}
    shown = dict.fromkeys([(8, 2), (9, 0), (9, 1)], MARKER)
    assert [key for _at, key in _read(sent, _stats(2), shown, (8, 1))] == [b"a", b"b"]


def test_a_compaction_during_the_read_is_an_error() -> None:
    later = InternalStats(ledgers=LEDGERS, cursors={"__compaction": (9, 1)}, pending_adds=0, compacted=(71, 3))
    with pytest.raises(UnavailableError, match="was compacted during the read"):
        _read({**SENT, (9, 1): None}, _stats(2), {(9, 1): MARKER}, (9, 0), later)


@pytest.mark.parametrize(
    ("missing", "stats"),
    [
        pytest.param((9, 1), _stats(2), id="the last entry"),
        pytest.param((8, 1), _stats(2, ledgers=((8, 2), (9, 0))), id="an entry of the compacted ledger"),
    ],
)
def test_a_missing_entry_is_an_error(missing: Position, stats: InternalStats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(span_reader, "_READER_TIMEOUT_SECONDS", 0.2)
    sent = {at: data for at, data in SENT.items() if at != missing and (at <= HORIZON or stats.entries_after(HORIZON))}
    with pytest.raises(UnavailableError, match=r"sends nothing more|returns no entry"):
        _read(sent, stats)


def test_tombstones_and_schema_versions_are_read() -> None:
    batch = single(b"v", partition_key="a") + single(b"", partition_key="b", null_value=1)
    sent: dict[Position, bytes | None] = {
        (9, 0): entry(b"", partition_key="a", null_value=1),
        (9, 1): entry(batch, num_messages_in_batch=2, schema_version=bytes(8)),
    }
    with serving(Partition(sent, None)) as partition:
        settings = settings_for(partition)
        admin = Admin(InternalStats(ledgers=((9, 2),), cursors={}, pending_adds=0))
        contents = [message.content for _at, message in read_compacted(settings, admin, TOPIC)]
    assert [(content.key, content.is_null, content.schema_version) for content in contents] == [
        (b"a", True, b""),
        (b"a", False, bytes(8)),
        (b"b", True, bytes(8)),
    ]


def test_stored_entries_have_their_positions_and_unsent_entries_are_named() -> None:
    sent: dict[Position, bytes | None] = {(9, 0): _keyed("a"), (9, 1): None, (9, 2): _keyed("b")}
    with serving(Partition(sent, (9, 2))) as partition:
        settings = settings_for(partition)
        admin = Admin(InternalStats(ledgers=((9, 3),), cursors={}, pending_adds=0))
        stored = list(read_stored(settings, admin, TOPIC))
        after = list(read_stored(settings, admin, TOPIC, (9, 1)))
    assert [(at, message.why is None) for at, message in stored] == [((9, 0), True), ((9, 1), False), ((9, 2), True)]
    assert [at for at, _message in after] == [(9, 2)]
