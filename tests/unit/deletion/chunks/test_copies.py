"""Sending copies to RETRY and DLQ: none that is already stored, and each in a form that brokers store."""

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streaming.config.load import load
from streaming.deletion.chunks.outbox import (
    MAX_CHUNK,
    _partition,
    _Publisher,
    chunk_of,
    sequence_id,
)
from streaming.deletion.service import bounds_of
from streaming.errors import ConfigError, ReaperError
from streaming.ports import Copy
from udfs import columns as c
from udfs.requests.retry import BASE64_KEY, COPY_ID, CUT_BYTES, CUT_FROM, MAX_SHOWN_BYTES, REAL_TOPIC, REASON
from udfs.units import MAX_CHUNK_ROWS, MAX_ROWS_PER_CHUNK

SETTINGS = load(None).pulsar
PUBLISHER = _Publisher(settings=SETTINGS, table_id="T", producer_prefix="p", stored={})
LARGEST_LONG = (1 << 63) - 1


def row_of(**given: Any) -> dict[str, Any]:
    """The columns of a receipt that a copy is created from."""
    return {
        c.CHUNK: 3,
        c.MESSAGE_KEY: b"k",
        c.PAYLOAD: b"p",
        c.MESSAGE_PROPERTIES: {"a": "b"},
        c.DELAY_MS: 7,
    } | given


@pytest.mark.parametrize(
    ("chunk", "place", "number"),
    [
        pytest.param(1, 0, 1 << 20, id="the first row of the first chunk"),
        pytest.param(1, MAX_ROWS_PER_CHUNK - 1, (1 << 21) - 1, id="the last row that a chunk may have"),
        pytest.param(2, 0, 1 << 21, id="the first row of the second chunk"),
        pytest.param(MAX_CHUNK, 0, LARGEST_LONG - (1 << 20) + 1, id="the last chunk"),
        pytest.param(MAX_CHUNK, MAX_ROWS_PER_CHUNK - 1, LARGEST_LONG, id="the last number of all"),
    ],
)
def test_a_sequence_id_contains_chunk_and_index_and_ascends_with_both(chunk: int, place: int, number: int) -> None:
    assert sequence_id(chunk, place) == number
    assert chunk_of(number) == chunk


@pytest.mark.parametrize(
    ("chunk", "place"),
    [
        pytest.param(0, 0, id="the Python client ignores sequence id 0"),
        pytest.param(-1, 0, id="no chunk"),
        pytest.param(MAX_CHUNK + 1, 0, id="beyond the last chunk"),
        pytest.param(1, -1, id="no place"),
        pytest.param(1, MAX_ROWS_PER_CHUNK, id="would be the next chunk's first"),
    ],
)
def test_an_index_that_would_give_another_rows_sequence_id_is_refused(chunk: int, place: int) -> None:
    with pytest.raises(ReaperError, match=rf"chunk {chunk}, row {place} does not fit.*lower service.chunk_rows"):
        sequence_id(chunk, place)


@pytest.mark.parametrize(
    "last_rows",
    [
        pytest.param([1_199_999], id="one source"),
        pytest.param([MAX_ROWS_PER_CHUNK - 1], id="one row too many for one chunk"),
        pytest.param([1_048_574], id="exactly one chunk"),
        pytest.param([104_857] * 10, id="ten sources"),
        pytest.param([2_500] * 1_000, id="a thousand sources"),
        pytest.param([5_000_000, 3, 700_000], id="unequal sources"),
    ],
)
def test_every_index_of_the_largest_chunk_fits_into_a_sequence_id(last_rows: list[int]) -> None:
    bounds = [0, *bounds_of(last_rows, MAX_CHUNK_ROWS), max(last_rows) + 1]
    for first, end in pairwise(bounds):
        rows = sum(max(0, min(end, last + 1) - first) for last in last_rows)
        assert chunk_of(sequence_id(1, rows - 1)) == 1


def test_the_configuration_refuses_larger_chunks(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[service]\nchunk_rows = {MAX_CHUNK_ROWS}\n")
    assert load(config).service.chunk_rows == MAX_CHUNK_ROWS == 838_860
    config.write_text(f"[service]\nchunk_rows = {MAX_CHUNK_ROWS + 1}\n")
    with pytest.raises(ConfigError, match=r"service\.chunk_rows"):
        load(config)


@pytest.mark.parametrize(("number", "name"), [(-1, "t"), (0, "t-partition-0"), (12, "t-partition-12")])
def test_a_topic_without_partitions_is_its_own_partition(number: int, name: str) -> None:
    assert _partition("t", number) == name


def test_stored_copies_are_not_sent_and_the_others_keep_their_indices() -> None:
    rows = [row_of(**{c.PAYLOAD: b"%d" % place, c.MESSAGE_PROPERTIES: None}) for place in range(4)]
    publisher = _Publisher(settings=SETTINGS, table_id="T", producer_prefix="p", stored={"RETRY-0": sequence_id(3, 1)})
    sent = [(copy.sequence_id, copy.payload, copy.properties) for copy in publisher._copies("RETRY-0", iter(rows))]
    assert sent == [(sequence_id(3, place), b"%d" % place, {COPY_ID: f"T/{sequence_id(3, place)}"}) for place in (2, 3)]
    assert len(list(publisher._copies("RETRY-1", iter(rows)))) == 4


def test_without_stored_copies_the_first_row_of_the_first_chunk_is_sent() -> None:
    (copy,) = PUBLISHER._copies("p", iter([row_of(**{c.CHUNK: 1})]))
    assert copy.sequence_id == 1 << 20


def test_a_copy_that_is_too_large_for_brokers_is_shortened() -> None:
    row = row_of(
        **{
            c.MESSAGE_KEY: b"k" * 300_000,
            c.PAYLOAD: bytes(8 << 20),
            c.MESSAGE_PROPERTIES: {"foreign": "x" * 5_000_000, REASON: "NOT_JSON", REAL_TOPIC: "y" * 5_000_000},
            c.DELAY_MS: 0,
        }
    )
    (copy,) = PUBLISHER._copies("p", iter([row]))
    assert copy.properties == {REASON: "NOT_JSON", CUT_FROM: str(8 << 20), COPY_ID: f"T/{copy.sequence_id}"}
    assert (copy.key, copy.payload) == (b"", bytes(CUT_BYTES))


@pytest.mark.parametrize("key", [b"\x00\xff", b"a\nb", "ä".encode(), b" k", b"k\x7f"])
def test_a_key_that_could_not_be_shown_becomes_base64(key: bytes) -> None:
    (copy,) = PUBLISHER._copies("p", iter([row_of(**{c.MESSAGE_KEY: key})]))
    assert (base64.b64decode(copy.key or b""), copy.properties[BASE64_KEY]) == (key, "true")
    (again,) = PUBLISHER._copies("p", iter([row_of(**{c.MESSAGE_KEY: copy.key})]))
    assert again.key == copy.key


@pytest.mark.parametrize("value", ["x" * MAX_SHOWN_BYTES, "\x01" * (MAX_SHOWN_BYTES // 6)])
def test_the_properties_of_a_delayed_copy_are_small_enough_to_be_shown(value: str) -> None:
    about = {"foreign": value, REAL_TOPIC: "t", REASON: "r"}
    publisher = _Publisher(settings=SETTINGS, table_id="T", producer_prefix="p", stored={}, retry_topic="RETRY")
    row = row_of(**{c.MESSAGE_PROPERTIES: about})
    (put_off,) = publisher._copies("RETRY-0", iter([row]), most_shown=publisher._most_shown("RETRY"))
    assert (put_off.key, set(put_off.properties)) == (b"", {REAL_TOPIC, REASON, COPY_ID})
    (dead,) = publisher._copies("DLQ", iter([row]), most_shown=publisher._most_shown("DLQ"))
    assert (dead.key, dead.properties.items() >= about.items()) == (b"k", True)


def test_a_copy_that_fits_goes_as_it_is() -> None:
    this = sequence_id(3, 0)
    properties = {"a": "b", COPY_ID: "of the message that it is a copy of"}
    (copy,) = PUBLISHER._copies("p", iter([row_of(**{c.PAYLOAD: bytes(1000), c.MESSAGE_PROPERTIES: properties})]))
    assert copy == Copy(
        sequence_id=this, key=b"k", payload=bytes(1000), properties={"a": "b", COPY_ID: f"T/{this}"}, delay_ms=7
    )


def test_a_copy_has_no_field_that_its_message_did_not_have() -> None:
    nothing = dict.fromkeys((c.MESSAGE_KEY, c.PAYLOAD, c.MESSAGE_PROPERTIES, c.DELAY_MS))
    (copy,) = PUBLISHER._copies("p", iter([row_of(**nothing)]))
    assert copy == Copy(
        sequence_id=sequence_id(3, 0), key=b"", payload=b"", properties={COPY_ID: f"T/{sequence_id(3, 0)}"}
    )
