"""The layout of a scalable topic forbids deletes, and allows none."""

import pytest

from tests.builders import LAYOUT_PATH, NOW_MS, SEGMENT, TOPIC, gone, layout_znode, reference
from udfs.owners.references import ZnodeRead, owner_of
from udfs.owners.segment_witness import layout_of, with_layout
from udfs.records import Presence, Reference

KEY = f"data:{SEGMENT}"
OLD_V1 = "public/default/segment/persistent/0000-7fff-0"
ML_CHECK = ("/managed-ledgers/x", 4)


def _layout(data: bytes | None, version: int = 7) -> ZnodeRead:
    return ZnodeRead(LAYOUT_PATH, data, version if data is not None else -1)


def _present(key: str = KEY) -> Reference:
    return reference(key, checks=(ML_CHECK,))


@pytest.mark.parametrize(
    ("key", "path"),
    [
        pytest.param(KEY, LAYOUT_PATH, id="data"),
        pytest.param(f"cursor:{SEGMENT}/sub", LAYOUT_PATH, id="cursor"),
        pytest.param(f"compacted:{SEGMENT}", LAYOUT_PATH, id="compacted"),
        pytest.param(f"buckets:{SEGMENT}", LAYOUT_PATH, id="buckets"),
        pytest.param(f"data:{TOPIC}", None, id="no segment"),
        pytest.param("schema:public/default/orders", None, id="a schema belongs to no segment"),
    ],
)
def test_the_layout_is_read_for_segments_alone(key: str, path: str | None) -> None:
    assert layout_of(owner_of(key)) == path


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(layout_znode(0, 1), id="it names the segment as active"),
        pytest.param(layout_znode(1, sealed=[0]), id="it names the segment as sealed"),
        pytest.param(layout_znode(1, 2), id="it does not name it any more"),
        pytest.param(layout_znode(next_id=0), id="it has not assigned the id yet"),
    ],
)
def test_an_existing_segment_is_judged_by_its_own_list_under_the_layouts_version(data: bytes) -> None:
    seen = with_layout(_present(), _layout(data))
    assert seen.presence is Presence.PRESENT
    assert seen.in_use == _present().in_use
    assert seen.checks == (ML_CHECK, (LAYOUT_PATH, 7))


def test_an_existing_segment_without_a_layout_is_judged_by_its_own_list() -> None:
    assert with_layout(_present(), _layout(None)) == _present()


@pytest.mark.parametrize("presence", [Presence.PRESENT, Presence.GONE])
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(ZnodeRead(LAYOUT_PATH, error="no permission to read it"), id="unreadable"),
        pytest.param(_layout(b"{}"), id="unknown form"),
        pytest.param(_layout(b""), id="empty"),
        pytest.param(
            _layout(layout_znode(0, hashRange={"start": 0, "end": 0xFFFF})), id="the id belongs to another segment"
        ),
    ],
)
def test_nothing_is_known_of_a_segment_whose_layout_is_not_understood(layout: ZnodeRead, presence: Presence) -> None:
    before = _present() if presence is Presence.PRESENT else gone(KEY)
    seen = with_layout(before, layout)
    assert seen.presence is Presence.UNREADABLE
    assert seen.detail.startswith(f"{LAYOUT_PATH}: ")
    assert seen.read_at_ms == NOW_MS


@pytest.mark.parametrize(
    ("data", "presence"),
    [
        pytest.param(layout_znode(0, 1), Presence.UNREADABLE, id="active: brokers create it again"),
        pytest.param(layout_znode(1, sealed=[0]), Presence.UNREADABLE, id="sealed"),
        pytest.param(layout_znode(next_id=0), Presence.UNREADABLE, id="its id is the next: a split may have begun"),
        pytest.param(layout_znode(1, 2), Presence.GONE, id="pruned"),
        pytest.param(layout_znode(next_id=1), Presence.GONE, id="assigned before"),
        pytest.param(None, Presence.GONE, id="the scalable topic is deleted"),
    ],
)
def test_a_segment_is_gone_only_if_its_layout_does_not_name_it(data: bytes | None, presence: Presence) -> None:
    seen = with_layout(gone(KEY), _layout(data))
    assert seen.presence is presence
    if seen.presence is Presence.GONE:
        assert seen.checks == (() if data is None else ((LAYOUT_PATH, 7),))


@pytest.mark.parametrize("before", [_present(f"data:{OLD_V1}"), gone(f"data:{OLD_V1}")], ids=["present", "gone"])
@pytest.mark.parametrize("data", [None, layout_znode(0, 1), layout_znode(1, 2)], ids=["none", "with it", "without it"])
def test_a_name_that_may_be_a_v1_topics_proves_nothing(data: bytes | None, before: Reference) -> None:
    assert with_layout(before, _layout(data)).presence is Presence.UNREADABLE


def test_an_unreadable_segment_and_another_topic_stay_as_they_are() -> None:
    unreadable = reference(KEY, presence=Presence.UNREADABLE)
    assert with_layout(unreadable, _layout(layout_znode(1))) is unreadable
    topic = reference(f"data:{TOPIC}")
    assert with_layout(topic, _layout(layout_znode(1))) is topic
