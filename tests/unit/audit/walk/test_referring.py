"""The search in ZooKeeper for owners that refer to a ledger, and `explain` for a missing ledger."""

from collections.abc import Sequence

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.audit.explain import Explained, as_fields, with_referring
from streaming.audit.walk.referring import referring_to
from streaming.ports import Unreadable, Znode
from streaming.sweep.pace import Pace
from tests.builders import CURSOR, ROOT, SCHEMA, TOPIC, cursor_znode, list_znode, locator_znode, put
from udfs.records import Outcome, Reason, Verdict

TOPIC_PATH = f"/managed-ledgers/{TOPIC}"
UNPACED = Pace(0)
PATH = f"{ROOT}/00/0000/L0005"


def gone(ledger_id: int = 5) -> Explained:
    return Explained(
        ledger_id=ledger_id,
        path=PATH,
        facts=None,
        claim=None,
        reference=None,
        verdict=Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND),
        now_ms=0,
    )


def test_a_topic_a_cursor_and_a_schema_are_found_by_their_ledger(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH, list_znode(4, 5))
    put(store.tree, f"{TOPIC_PATH}/{CURSOR}", cursor_znode(6))
    put(store.tree, "/managed-ledgers/old/us-west/ns/persistent/t", list_znode(5))
    put(store.tree, f"/schemas/{SCHEMA}", locator_znode(7))

    assert referring_to(store, 5, UNPACED).owners == [
        ("MANAGED_LEDGER", TOPIC),
        ("MANAGED_LEDGER", "old/us-west/ns/persistent/t"),
    ]
    assert [component for component, _owner in referring_to(store, 6, UNPACED).owners] == ["MANAGED_CURSOR"]
    assert [component for component, _owner in referring_to(store, 7, UNPACED).owners] == ["SCHEMA_STORAGE"]
    assert referring_to(store, 8, UNPACED).owners == []


class _Paid(Pace):
    """Counts the znodes that were waited for and not read yet."""

    def __init__(self) -> None:
        super().__init__(0)
        self.left = 0

    def wait_for(self, deletes: int) -> None:
        self.left += deletes


class _Counting(MemoryStore):
    """A store whose every read must have been waited for."""

    def __init__(self, tree: MemoryTree, paid: _Paid) -> None:
        super().__init__(tree)
        self.paid, self.reads = paid, 0

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        self._count(len(paths))
        return super().read_many(paths)

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        self._count(len(paths))
        return super().children_many(paths)

    def _count(self, znodes: int) -> None:
        assert self.paid.left >= znodes, "read without waiting"
        self.paid.left -= znodes
        self.reads += znodes


def test_every_read_or_listed_znode_is_waited_for_first(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH, list_znode(4))
    put(store.tree, f"{TOPIC_PATH}/{CURSOR}", cursor_znode(6))
    put(store.tree, f"/schemas/{SCHEMA}", locator_znode(7))
    counting = _Counting(store.tree, _Paid())
    assert [component for component, _owner in referring_to(counting, 6, counting.paid).owners] == ["MANAGED_CURSOR"]
    assert counting.reads > len((TOPIC_PATH, CURSOR, SCHEMA))
    assert counting.paid.left == 0


def test_unreadable_paths_may_refer_to_the_ledger_too(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH, b"junk")
    assert TOPIC_PATH in referring_to(store, 5, UNPACED).unreadable


def test_a_ledger_that_its_topic_needs_and_that_does_not_exist_is_explained_as_missing(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH, list_znode(5))
    fields = as_fields(with_referring(gone(), store, UNPACED))
    assert fields["referred_to_by"] == [
        {"component": "MANAGED_LEDGER", "topic": f"persistent://{TOPIC.replace('/persistent', '')}"}
    ]
    assert fields["not_read"] == []
    assert as_fields(with_referring(gone(8), store, UNPACED))["referred_to_by"] == []


def test_a_ledger_that_was_created_during_the_search_is_not_missing(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH, list_znode(5))
    put(store.tree, PATH)
    assert with_referring(gone(), store, UNPACED).referring is None
