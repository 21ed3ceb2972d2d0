"""Files of Spark's offset log, which Spark 3.5 with the connector and Spark 4.3 with "pulsar-frames" wrote."""

from pathlib import Path

import pytest

from udfs.entry_ranges import EntrySpan
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.formats.spark_offsets import StoredOffsets, Writer, parse_offsets
from udfs.pulsar_source.offsets import PartitionOffset

DATA = Path(__file__).parents[3] / "data"
CONNECTOR = (DATA / "checkpoint-v1" / "requests" / "v1" / "offsets" / "0").read_text()
FRAMES = (DATA / "checkpoint-frames" / "requests" / "v1" / "offsets" / "1").read_text()
TOPIC = "persistent://pulsar/system/kept"


def test_the_connectors_offsets_are_read() -> None:
    unread = {f"{TOPIC}-partition-{number}": BEFORE_ALL for number in range(3)}
    assert parse_offsets(CONNECTOR) == StoredOffsets(Writer.CONNECTOR, unread | {f"{TOPIC}-partition-3": (1356, 4)})
    first = (DATA / "checkpoint-v1" / "requests" / "v1" / "sources" / "0" / "0").read_text()
    assert {*parse_offsets(first, is_first=True).positions.values()} == {BEFORE_ALL}


def test_the_offsets_of_pulsar_frames_are_read() -> None:
    stored = parse_offsets(FRAMES)
    assert stored.writer is Writer.FRAMES
    assert [*stored.positions.values()] == [(4, -1), (6, 1), (8, -1), (10, 5)]
    assert stored.frames[f"{TOPIC}-partition-3"] == PartitionOffset(
        at=(10, 5), seen=(10, 5), after=(10, 4), spans=(EntrySpan(10, 5, 5),)
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty, after a power loss"),
        pytest.param("v1", id="only the version"),
        pytest.param("v1\n{}", id="without offsets"),
        pytest.param("v1\n{}\n{", id="cut short"),
        pytest.param(FRAMES[:-10], id="cut short, of pulsar-frames"),
        pytest.param(FRAMES.replace('"version": 1', '"version": 2'), id="a later version of pulsar-frames"),
        pytest.param(f"{CONNECTOR}\n{{}}", id="two sources"),
        pytest.param('v2\n{}\n{"a": [8, 1, 16, 1]}', id="another version"),
        pytest.param('v1\n{}\n{"a": [8]}', id="an offset cut short"),
        pytest.param('v1\n{}\n{"a": [8, 1]}', id="an offset without its entry"),
        pytest.param('v1\n{}\n{"a": "earliest"}', id="an offset that is text"),
        pytest.param("v1\n{}\n[1]", id="no offsets by partition"),
    ],
)
def test_a_file_with_other_contents_is_never_read_as_empty(text: str) -> None:
    with pytest.raises(FormatError):
        parse_offsets(text)
