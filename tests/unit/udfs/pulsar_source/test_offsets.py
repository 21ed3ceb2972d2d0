"""Offsets as Spark stores them."""

import json
from typing import Any

import pytest

from udfs.entry_ranges import EntrySpan
from udfs.formats.errors import FormatError
from udfs.pulsar_source.offsets import Gap, PartitionOffset, from_json, position_in, to_json

OFFSET = {
    "persistent://t/ns/a-partition-0": PartitionOffset(
        at=(9, 5),
        seen=(12, 3),
        after=(7, -1),
        spans=(EntrySpan(7, 0, 19), EntrySpan(9, 0, 5)),
        gap=Gap((4, 1), (7, -1), is_certain=True),
    ),
    "persistent://t/ns/b": PartitionOffset(at=(-1, -1)),
}


def test_an_offset_survives_json() -> None:
    assert from_json(json.loads(json.dumps(to_json(OFFSET)))) == OFFSET


def test_an_operator_can_read_an_offset() -> None:
    assert to_json(OFFSET)["partitions"]["persistent://t/ns/a-partition-0"] == {
        "at": "9:5",
        "seen": "12:3",
        "after": "7:-1",
        "spans": "7:0-19 9:0-5",
        "gap": {"after": "4:1", "before": "7:-1", "is_certain": True},
    }


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({}, id="no version"),
        pytest.param({"version": 2, "partitions": {}}, id="a newer version"),
        pytest.param({"version": 1}, id="no partitions"),
        pytest.param({"version": 1, "partitions": {"a": {"at": "9:5", "seen": "9:5"}}}, id="a missing field"),
        pytest.param({"version": 1, "partitions": {"a": "9:5"}}, id="no object"),
        pytest.param(
            {"version": 1, "partitions": {"a": {"at": "9:5", "seen": "9:5", "after": "9:5", "spans": "9:0"}}},
            id="a span without an end",
        ),
    ],
)
def test_an_offset_of_another_form_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        from_json(stored)


@pytest.mark.parametrize("text", ["", "9", "9:", "9:5:1", "9:5 ", "\u0661:5", "9" * 20 + ":1"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        position_in(text)
