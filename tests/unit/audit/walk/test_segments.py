"""The segments that no layout names."""

from streaming.adapters.memory.store import MemoryStore
from streaming.audit.walk.segments import unnamed_segments
from tests.builders import LAYOUT_PATH, SEGMENT, TOPIC, layout_znode, put

OTHER = "public/default/segment/orders/8000-ffff-1"
PRUNED = "public/default/segment/orders/0000-7fff-4"
DELETED = "public/default/segment/deleted/0000-ffff-0"


def test_segments_that_their_layout_does_not_name_or_that_have_no_layout_are_found(store: MemoryStore) -> None:
    put(store.tree, LAYOUT_PATH, layout_znode(0, 1, next_id=5))

    assert unnamed_segments(store, [SEGMENT, PRUNED, DELETED, OTHER, TOPIC]) == [PRUNED, DELETED]


def test_nothing_is_said_of_segments_whose_layout_can_not_be_read(store: MemoryStore) -> None:
    put(store.tree, LAYOUT_PATH, b"{}")
    assert unnamed_segments(store, [SEGMENT, PRUNED]) == []

    put(store.tree, LAYOUT_PATH, layout_znode(1))
    store.unreadable.add(LAYOUT_PATH)
    assert unnamed_segments(store, [SEGMENT, PRUNED]) == []
