"""Marks of many ledgers take few keys and are read back as written; other properties are left alone."""

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import UUID
from udfs.paths import MAX_LEDGER_ID
from udfs.phase_one.marks import MOST_BYTES, MOST_IDS, PREFIX, MarkedTopic, Marks, properties_of, read_marks
from udfs.records import OffloadContext
from udfs.requests.request_format import MAX_REQUEST_BYTES

BUCKET = OffloadContext(uuid=UUID, driver_name="aws-s3", driver_properties={"bucket": "b", "region": "r"})


def uploads(*ids: int, context: OffloadContext = BUCKET) -> dict[tuple[int, str], OffloadContext]:
    uuids = {ledger_id: f"{ledger_id:08x}{UUID[8:]}" for ledger_id in ids}
    return {(ledger_id, uuid): replace(context, uuid=uuid) for ledger_id, uuid in uuids.items()}


@given(st.sets(st.integers(0, 300) | st.integers(0, MAX_LEDGER_ID)), st.sets(st.integers(0, 99)), st.integers(64, 300))
def test_marks_round_trip(ledgers: set[int], offloaded: set[int], most_bytes: int) -> None:
    marks = Marks(frozenset(ledgers), uploads(*offloaded))
    written = properties_of(marks, "m", most_bytes)
    assert read_marks(written).all == marks
    assert read_marks(written).unreadable == ()
    assert all(key.startswith(f"{PREFIX}m.") for key in written)


def test_a_hundred_thousand_ledgers_in_a_row_take_one_short_key() -> None:
    ((key, value),) = properties_of(Marks(frozenset(range(100_000))), "m").items()
    assert (key, value) == (f"{PREFIX}m.0", '{"v":1,"ledgers":"0-99999"}')


def test_values_stay_below_the_limit_however_scattered_the_ids_are() -> None:
    scattered = frozenset(range(0, 40_000, 2))
    written = properties_of(Marks(scattered, uploads(*range(1_000))), "m")
    assert max(map(len, written.values())) <= MOST_BYTES
    assert len(written) < 20
    assert read_marks(written).all.ledgers == scattered


def test_uploads_to_one_store_share_its_description() -> None:
    other = replace(BUCKET, driver_properties={"bucket": "c"})
    written = properties_of(Marks(uploads={**uploads(1, 2), **uploads(3, context=other)}), "m")
    assert len(written) == 2
    assert read_marks(written).all.uploads == {**uploads(1, 2), **uploads(3, context=other)}


def test_other_properties_are_no_marks() -> None:
    assert read_marks({"owner": "a team", "PULSAR.SHADOW_SOURCE": "t"}) == MarkedTopic({})


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5-9",
        "[]",
        '{"v":2,"ledgers":"5"}',
        '{"v":1}',
        '{"v":1,"ledgers":"9-5"}',
        '{"v":1,"ledgers":"5,x"}',
        '{"v":1,"ledgers":"-1"}',
        '{"v":1,"ledgers":"0-9999999999"}',
        '{"v":1,"ledgers":7}',
        '{"v":1,"ledgers":["5"]}',
        f'{{"v":1,"driver":"d","properties":{{}},"uploads":[["5","{UUID}"]]}}',
        '{"v":1,"driver":"d","properties":{},"uploads":[[5,"u"]]}',
        f'{{"v":1,"driver":"d","properties":{{}},"uploads":[[5,"{UUID}"],[6,"{UUID.upper()}x"]]}}',
        f'{{"v":1,"driver":7,"properties":{{}},"uploads":[[5,"{UUID}"]]}}',
        f'{{"v":1,"driver":"\\ud800","properties":{{}},"uploads":[[5,"{UUID}"]]}}',
        f'{{"v":1,"driver":"d","properties":{{"bucket":"\\udfff"}},"uploads":[[5,"{UUID}"]]}}',
        pytest.param(
            f'{{"v":1,"driver":"d","properties":{{"bucket":"{"b" * MAX_REQUEST_BYTES}"}},"uploads":[[5,"{UUID}"]]}}',
            id="too long for a request",
        ),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_key_that_can_not_be_read_marks_nothing_and_is_reported(value: str) -> None:
    marked = read_marks({f"{PREFIX}x.0": value, f"{PREFIX}y.0": '{"v":1,"ledgers":"5"}'})
    assert marked.all == Marks(frozenset({5}))
    assert marked.unreadable == (f"{PREFIX}x.0",)


def test_the_ledgers_read_of_a_topic_are_bounded_and_the_keys_with_the_fewest_come_first() -> None:
    """Ten properties of some 600 bytes named ten million ledgers: 1.4 GB."""
    forged = {f"{PREFIX}x.{n}": f'{{"v":1,"ledgers":"{n}000000-{n}499995"}}' for n in range(1, 11)}
    honest = properties_of(Marks(frozenset({5, 6, 8})), "y")
    tracemalloc.start()
    marked = read_marks(forged | honest)
    everything, peak_bytes = marked.all, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000_000
    assert {5, 6, 8} <= everything.ledgers
    assert len(everything.ledgers) == 499_996 + 3
    assert set(marked.unreadable) == {f"{PREFIX}x.{n}" for n in range(2, 11)}


def test_the_bound_itself_is_read_and_one_more_is_not() -> None:
    assert len(read_marks(properties_of(Marks(frozenset(range(MOST_IDS))), "m")).all.ledgers) == MOST_IDS
    two = properties_of(Marks(frozenset(range(MOST_IDS))), "m") | properties_of(Marks(frozenset({7})), "n")
    assert (read_marks(two).all.ledgers, read_marks(two).unreadable) == (frozenset({7}), (f"{PREFIX}m.0",))


def test_the_same_ledger_under_two_keys_is_marked_once() -> None:
    both = properties_of(Marks(frozenset({5, 6})), "a") | properties_of(Marks(frozenset({6, 7})), "b")
    assert read_marks(both).all.ledgers == {5, 6, 7}


def test_without_returns_the_rest() -> None:
    marks = Marks(frozenset({5, 6}), uploads(5, 6))
    left = marks.without({5}, uploads(6))
    assert left == Marks(frozenset({6}), uploads(5))
    assert not left.without({6}, uploads(5))
