"""The search for znodes that contain topics and schemas."""

from streaming.adapters.memory.store import MemoryStore
from streaming.audit.walk.owner_listing import find_namespaces
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


def test_an_unreadable_namespace_is_reported(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH)
    store.unreadable.add("/managed-ledgers/public/default")

    assert [path for path, _detail in find_namespaces(store).problems] == ["/managed-ledgers/public/default"]
