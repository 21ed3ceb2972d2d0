"""The search for znodes that contain topics and schemas."""

from streaming.adapters.memory.store import MemoryStore
from streaming.audit.walk.owner_listing import at_once, find_namespaces
from tests.builders import CURSOR, SCHEMA, TOPIC, put

TOPIC_PATH = f"/managed-ledgers/{TOPIC}"


def test_topics_of_both_name_forms_and_schemas_are_found(store: MemoryStore) -> None:
    put(store.tree, f"{TOPIC_PATH}/{CURSOR}")
    put(store.tree, "/managed-ledgers/old/us-west/ns/persistent/t")
    put(store.tree, f"/schemas/{SCHEMA}")

    found = find_namespaces(store)

    assert found.paths == (
        "/managed-ledgers/public/default/persistent",
        "/managed-ledgers/old/us-west/ns/persistent",
        "/schemas/public/default",
    )
    assert found.problems == ()


def test_segments_are_found_below_their_topics(store: MemoryStore) -> None:
    put(store.tree, "/managed-ledgers/t/ns/segment/orders/0000-7fff-0/sub")
    put(store.tree, "/managed-ledgers/t/ns/segment/orders/8000-ffff-1")
    put(store.tree, "/managed-ledgers/t/ns/segment/persistent/0000-ffff-0")
    put(store.tree, "/managed-ledgers/t/ns/persistent/orders")

    assert find_namespaces(store).paths == (
        "/managed-ledgers/t/ns/persistent",
        "/managed-ledgers/t/ns/segment/orders",
        "/managed-ledgers/t/ns/segment/persistent",
    )


def test_v1_topics_in_a_namespace_called_segment_are_found_once(store: MemoryStore) -> None:
    put(store.tree, "/managed-ledgers/t/cluster/segment/persistent/orders")

    assert find_namespaces(store).paths == ("/managed-ledgers/t/cluster/segment/persistent",)


def test_an_unreadable_namespace_is_reported(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH)
    store.unreadable.add("/managed-ledgers/public/default")

    assert [path for path, _detail in find_namespaces(store).problems] == ["/managed-ledgers/public/default"]


def test_scalable_topics_are_listed_many_at_a_time_and_namespaces_one_at_a_time() -> None:
    scalable = [f"/managed-ledgers/t/ns/segment/x{number}" for number in range(501)]
    others = ["/managed-ledgers/t/c/segment/persistent", "/managed-ledgers/t/segment/persistent", "/schemas/segment/ns"]
    assert at_once([others[0], *scalable, *others[1:]]) == [
        scalable[:500],
        scalable[500:],
        *([path] for path in others),
    ]
