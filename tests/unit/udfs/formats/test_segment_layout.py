"""A layout is read as brokers write it; anything else is an error, never a layout without the segment."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import layout_znode
from udfs.formats.errors import FormatError
from udfs.formats.segment_layout import Segment, parse_layout
from udfs.paths import SegmentName


def test_active_and_sealed_segments_are_read() -> None:
    layout = parse_layout(layout_znode(1, 2, sealed=[0], next_id=3))
    assert (layout.epoch, layout.next_segment_id) == (0, 3)
    assert layout.segments == {
        0: Segment(0, 0x7FFF, is_active=False),
        1: Segment(0x8000, 0xFFFF, is_active=True),
        2: Segment(0, 0x7FFF, is_active=True),
    }


def test_a_legacy_segment_stands_for_a_persistent_topic() -> None:
    topic = "persistent://public/default/orders-partition-0"
    (segment,) = parse_layout(layout_znode(sealed=[0], legacyTopicName=topic, legacy=True)).segments.values()
    assert segment.legacy_topic == "persistent://public/default/orders-partition-0"
    assert not segment.is_active


def _recorded(segment_id: int, state: str, hashes: tuple[int, int], more: str, flags: tuple[bool, bool, bool]) -> str:
    """A segment in the very order and spelling of 5.0.0-M1."""
    active = state == "ACTIVE"
    root, legacy, leaf = (json.dumps(flag) for flag in flags)
    return (
        f'"{segment_id}":{{"segmentId":{segment_id},"hashRange":{{"start":{hashes[0]},"end":{hashes[1]}}},'
        f'"state":"{state}",{more}"active":{json.dumps(active)},"root":{root},"legacy":{legacy},"leaf":{leaf},'
        f'"sealed":{json.dumps(not active)}}}'
    )


def test_layouts_that_5_0_0_m1_wrote_after_a_split_and_a_migration_are_read() -> None:
    times = '"createdAtMs":1795873827554,"sealedAtMs":'
    sealed = _recorded(
        0,
        "SEALED",
        (0, 32767),
        f'"parentIds":[],"childIds":[2,3],"createdAtEpoch":0,"sealedAtEpoch":1,{times}1795873828187,',
        (True, False, False),
    )
    active = _recorded(
        2,
        "ACTIVE",
        (0, 16383),
        f'"parentIds":[0],"childIds":[],"createdAtEpoch":1,"sealedAtEpoch":-1,{times}-1,',
        (False, False, True),
    )
    legacy = _recorded(
        1,
        "SEALED",
        (0, 65535),
        f'"parentIds":[],"childIds":[2],"createdAtEpoch":0,"sealedAtEpoch":0,{times}1795873829111,'
        '"legacyTopicName":"persistent://public/segprobe/m-partition-1",',
        (True, True, False),
    )
    written = f'{{"epoch":1,"nextSegmentId":4,"segments":{{{sealed},{legacy},{active}}},"properties":{{}}}}'
    assert parse_layout(written.encode()).segments == {
        0: Segment(0, 0x7FFF, is_active=False),
        1: Segment(0, 0xFFFF, is_active=False, legacy_topic="persistent://public/segprobe/m-partition-1"),
        2: Segment(0, 0x3FFF, is_active=True),
    }


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_topic_that_a_5_0_1_broker_is_deleting_still_has_its_segments(is_deleted: bool) -> None:
    layout = parse_layout(_changed(["deleted"], is_deleted))
    assert layout == parse_layout(layout_znode(0))
    assert layout.names(SegmentName("public/default/orders", 0, 0x7FFF, 0))


def test_an_empty_layout_names_no_segment() -> None:
    assert parse_layout(b'{"epoch":3,"nextSegmentId":7,"segments":{}}').segments == {}


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        pytest.param(SegmentName("public/default/orders", 0, 0x7FFF, 0), True, id="named"),
        pytest.param(SegmentName("public/default/orders", 0, 0x7FFF, 2), False, id="another id"),
    ],
)
def test_a_segment_is_named_by_its_id(name: SegmentName, is_named: bool) -> None:
    assert parse_layout(layout_znode(0, 1)).names(name) is is_named


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(SegmentName("public/default/orders", 0, 0xFFFF, 0), {}, id="other hashes"),
        pytest.param(
            SegmentName("public/default/orders", 0, 0x7FFF, 0),
            {"legacyTopicName": "persistent://public/default/orders", "legacy": True},
            id="a persistent topic",
        ),
    ],
)
def test_an_id_of_another_segment_is_an_error(name: SegmentName, changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="another segment"):
        parse_layout(layout_znode(0, **changes)).names(name)


def _changed(path: list[str], value: object) -> bytes:
    layout: Any = json.loads(layout_znode(0))
    place = layout
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(layout).encode()


_IN_SEGMENT = ["segments", "0"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{", id="half a JSON"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"[" * 100_000, id="nested too deep"),
        pytest.param(b'{"epoch":0,"epoch":0,"nextSegmentId":0,"segments":{}}', id="a field twice"),
        pytest.param(b'{"epoch":NaN,"nextSegmentId":0,"segments":{}}', id="NaN"),
        pytest.param(_changed(["merged"], True), id="an unknown field"),
        pytest.param(_changed(["deleted"], "false"), id="deleted in quotes"),
        pytest.param(_changed(["epoch"], ...), id="no epoch"),
        pytest.param(_changed(["epoch"], -1), id="a negative epoch"),
        pytest.param(_changed(["nextSegmentId"], "1"), id="the next id in quotes"),
        pytest.param(_changed(["nextSegmentId"], True), id="the next id is a bool"),
        pytest.param(_changed(["nextSegmentId"], 0), id="an id that is not assigned yet"),
        pytest.param(_changed(["segments"], None), id="null segments"),
        pytest.param(_changed(["segments"], []), id="segments in a list"),
        pytest.param(_changed(_IN_SEGMENT, None), id="a null segment"),
        pytest.param(_changed(["segments", "7"], json.loads(layout_znode(0))["segments"]["0"]), id="another key"),
        pytest.param(_changed([*_IN_SEGMENT, "owner"], "x"), id="an unknown field of a segment"),
        pytest.param(_changed([*_IN_SEGMENT, "state"], "DELETED"), id="an unknown state"),
        pytest.param(_changed([*_IN_SEGMENT, "state"], ...), id="no state"),
        pytest.param(_changed([*_IN_SEGMENT, "state"], "SEALED"), id="a sealed segment that is active"),
        pytest.param(_changed([*_IN_SEGMENT, "legacy"], True), id="a legacy segment without a topic"),
        pytest.param(_changed([*_IN_SEGMENT, "legacyTopicName"], 7), id="a topic that is no string"),
        pytest.param(_changed([*_IN_SEGMENT, "legacyTopicName"], "persistent://t/n/x"), id="not marked as legacy"),
        pytest.param(_changed([*_IN_SEGMENT, "hashRange"], "0000-ffff"), id="hashes as text"),
        pytest.param(_changed([*_IN_SEGMENT, "hashRange"], {"start": 5, "end": 4}), id="hashes in the wrong order"),
        pytest.param(_changed([*_IN_SEGMENT, "hashRange"], {"start": 0, "end": 0x10000}), id="a hash of 17 bits"),
        pytest.param(_changed([*_IN_SEGMENT, "hashRange"], {"start": 0}), id="no last hash"),
        pytest.param(_changed([*_IN_SEGMENT, "segmentId"], 1), id="another id than its key"),
    ],
)
def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_layout(data)


@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_layout_or_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_layout(data)
