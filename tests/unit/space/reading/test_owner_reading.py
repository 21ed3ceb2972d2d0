"""Owners are read in batches whose size follows their znodes."""

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.ports import Unreadable, Znode
from streaming.space.reading import owner_reading
from streaming.space.reading.owner_reading import OwnerReading
from streaming.space.reading.unread import Unread
from streaming.sweep.pace import Pace
from tests.builders import SCHEMA, TOPIC, cursor_znode, list_znode, locator_znode, put

FOLDER = "/managed-ledgers/public/default/persistent"


def test_owners_are_read_with_their_cursors() -> None:
    store = MemoryStore()
    put(store.tree, f"/managed-ledgers/{TOPIC}", list_znode(1))
    put(store.tree, f"/managed-ledgers/{TOPIC}/billing", cursor_znode(5))
    put(store.tree, f"{FOLDER}/__change_events", list_znode(2))
    put(store.tree, f"/schemas/{SCHEMA}", locator_znode(3))
    store.unreadable.add(f"{FOLDER}/__change_events")
    reading, unread = OwnerReading(store, Pace(0)), Unread()
    (batch,) = reading.batches([FOLDER, "/schemas/public/default", f"{FOLDER}/gone"], unread)
    by_path = {topic.path: topic for topic in batch.topics}
    orders = by_path[f"/managed-ledgers/{TOPIC}"]
    assert isinstance(orders.listed, Znode)
    assert isinstance(orders.cursors, dict)
    assert list(orders.cursors) == ["billing"]
    assert isinstance(by_path[f"{FOLDER}/__change_events"].listed, Unreadable)
    assert [path for path, _node in batch.schemas] == [f"/schemas/{SCHEMA}"]
    assert reading.change_events == {"public/default": ["public/default/persistent/__change_events"]}
    assert not unread.unknown()


def test_a_folder_that_cannot_be_listed_is_unread() -> None:
    store, unread = MemoryStore(), Unread()
    put(store.tree, f"/managed-ledgers/{TOPIC}", list_znode(1))
    store.unreadable.add(FOLDER)
    assert not list(OwnerReading(store, Pace(0)).batches([FOLDER], unread))
    assert unread.is_unread([f"/managed-ledgers/{TOPIC}"])


def test_large_lists_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_reading, "_AIM_BYTES", 1_000)
    monkeypatch.setattr(owner_reading, "_FIRST_AT_ONCE", 4)
    store = MemoryStore()
    for number in range(12):
        put(store.tree, f"{FOLDER}/topic{number}", list_znode(*range(200)))
    sizes = [len(batch.topics) for batch in OwnerReading(store, Pace(0)).batches([FOLDER], Unread())]
    assert sum(sizes) == 12
    assert sizes[0] == 4
    assert max(sizes[1:]) < 4
