"""An owner's references are read completely or not at all."""

from collections.abc import Sequence

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.errors import UnavailableError
from streaming.in_use.loader import _MOST_BYTES, InUseLoader
from streaming.ports import Unreadable, Znode
from tests.builders import (
    CURSOR,
    LAYOUT_PATH,
    MINUTE_MS,
    OTHER_TOPIC,
    SCHEMA,
    SEGMENT,
    TOPIC,
    cursor_znode,
    layout_znode,
    list_znode,
    locator_znode,
    view,
)
from tests.world import Bench
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import BrokerView, Presence

DATA, OTHER_DATA = f"data:{TOPIC}", f"data:{OTHER_TOPIC}"
BUCKETS = f"buckets:{TOPIC}"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.owner(managed_ledger_path(TOPIC), list_znode(1, 2))
    bench.broker.topics[TOPIC] = view(2)
    return bench


class TestLoader:
    def test_reads_all_keys_together(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(6))
        bench.owner(schema_path(SCHEMA), locator_znode(3))
        operations: list[str] = []
        bench.store.faults.before(lambda operation, _paths: operations.append(operation))
        keys = [DATA, OTHER_DATA, f"cursor:{TOPIC}/{CURSOR}", f"schema:{SCHEMA}"]
        loaded = bench.loader().load(keys)
        assert list(loaded) == keys
        assert [list(loaded[key].in_use) for key in keys] == [[1, 2], [], [6], [3]]
        assert operations == ["read_many"]

    def test_asks_the_broker_once_per_topic(self, bench: Bench) -> None:
        bench.loader().load([DATA, f"cursor:{TOPIC}/{CURSOR}", f"compacted:{TOPIC}"])
        assert bench.broker.asked == [TOPIC]

    def test_brokers_list_a_namespace_only_for_absent_topics_and_for_compacted_ledgers(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(6))
        bench.loader().load([DATA, f"buckets:{TOPIC}", f"cursor:{TOPIC}/{CURSOR}", OTHER_DATA])
        assert bench.broker.listed == [OTHER_TOPIC]
        bench.broker.listed.clear()
        bench.loader().load([DATA, f"compacted:{TOPIC}"])
        assert bench.broker.listed == [TOPIC], "another key of the topic does not save the listing"

    def test_an_unreadable_znode_does_not_prove_that_its_topic_exists(self, bench: Bench) -> None:
        bench.store.unreadable.add(managed_ledger_path(TOPIC))
        bench.loader().load([DATA])
        assert bench.broker.listed == [TOPIC]

    def test_asks_for_a_schema_only_if_its_locator_is_absent(self, bench: Bench) -> None:
        bench.owner(schema_path(SCHEMA), locator_znode(3))
        bench.loader().load([f"schema:{SCHEMA}", "schema:public/default/none"])
        assert bench.broker.asked == ["public/default/none"]

    @pytest.mark.parametrize("presence", [Presence.PRESENT, Presence.UNREADABLE], ids=["knows it", "does not answer"])
    def test_a_schema_without_locator_is_gone_only_if_its_broker_confirms_it(
        self, bench: Bench, presence: Presence
    ) -> None:
        key = f"schema:{SCHEMA}"
        assert bench.loader().load([key])[key].presence is Presence.GONE
        bench.broker.schemas[SCHEMA] = view(presence=presence)
        assert bench.loader().load([key])[key].presence is Presence.UNREADABLE

    def test_dates_a_reference_before_its_reads(self, bench: Bench) -> None:
        before_ms = bench.clock.now_ms()
        bench.store.faults.before(lambda _operation, _paths: bench.age(MINUTE_MS))
        assert bench.loader().load([DATA])[DATA].read_at_ms == before_ms

    def test_reads_every_cursor_for_buckets(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(6, buckets=[21]))
        bench.owner(cursor_path(TOPIC, "audit"), cursor_znode(7, buckets=[22]))
        loaded = bench.loader().load([BUCKETS])[BUCKETS]
        assert list(loaded.in_use) == [21, 22]
        assert len(loaded.checks) == 3

    def test_cursors_that_can_not_be_listed_make_buckets_unreadable(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(6, buckets=[21]))

        def refuse_listing(operation: str, _paths: object) -> None:
            bench.store.unreadable = {managed_ledger_path(TOPIC)} if operation == "children_many" else set()

        bench.store.faults.before(refuse_listing)
        buckets = bench.loader().load([BUCKETS])[BUCKETS]
        assert buckets.presence is Presence.UNREADABLE
        assert buckets.detail.endswith("its cursors could not be listed")

    def test_a_topic_that_appears_between_two_reads_is_unreadable(self, bench: Bench) -> None:
        path = managed_ledger_path(OTHER_TOPIC)

        def appear(operation: str, _paths: object) -> None:
            if operation == "read_many":
                bench.owner(path, list_znode(1))
                bench.owner(f"{path}/{CURSOR}", cursor_znode(6, buckets=[21]))

        bench.store.faults.before(appear)
        key = f"buckets:{OTHER_TOPIC}"
        assert bench.loader().load([key])[key].presence is Presence.UNREADABLE

    def test_buckets_of_a_gone_topic_are_gone_with_it(self, bench: Bench) -> None:
        key = f"buckets:{OTHER_TOPIC}"
        assert bench.loader().load([key])[key].presence is Presence.GONE

    @pytest.mark.parametrize("key", [DATA, f"compacted:{TOPIC}", BUCKETS])
    def test_an_unreadable_owner_affects_no_other(self, bench: Bench, key: str) -> None:
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(7))
        bench.store.unreadable.add(managed_ledger_path(TOPIC))
        loaded = bench.loader().load([key, OTHER_DATA])
        assert loaded[key].presence is Presence.UNREADABLE
        assert list(loaded[OTHER_DATA].in_use) == [7]

    def test_without_a_broker_an_absent_owner_stays_unreadable(self, bench: Bench) -> None:
        loaded = bench.loader(ask_broker=False).load([DATA, OTHER_DATA])
        assert loaded[DATA].presence is Presence.PRESENT
        assert loaded[OTHER_DATA].presence is Presence.UNREADABLE

    def test_juicefs_6479_one_failed_read_never_counts_as_nothing_found(self, bench: Bench) -> None:
        bench.store.faults.away = True
        with pytest.raises(UnavailableError):
            bench.loader().load([DATA, OTHER_DATA])

    def test_no_keys_ask_nothing(self, bench: Bench) -> None:
        assert bench.loader().load([]) == {}
        assert bench.broker.asked == []


class TestSegments:
    def test_their_layouts_are_read_together_with_them(self, bench: Bench) -> None:
        bench.owner(managed_ledger_path(SEGMENT), list_znode(1, 2))
        bench.owner(cursor_path(SEGMENT, CURSOR), cursor_znode(6))
        bench.owner(LAYOUT_PATH, layout_znode(0, 1))
        keys = [f"data:{SEGMENT}", f"cursor:{SEGMENT}/{CURSOR}", DATA]
        operations: list[str] = []
        bench.store.faults.before(lambda operation, _paths: operations.append(operation))
        loaded = bench.loader().load(keys)
        assert operations == ["read_many"]
        assert [list(loaded[key].in_use) for key in keys] == [[1, 2], [6], [1, 2]]
        assert [LAYOUT_PATH in dict(loaded[key].checks) for key in keys] == [True, True, False]

    @pytest.mark.parametrize("kind", ["data", "compacted", "buckets"])
    def test_nothing_is_known_of_them_without_their_layout(self, bench: Bench, kind: str) -> None:
        bench.owner(managed_ledger_path(SEGMENT), list_znode(1, 2))
        bench.owner(LAYOUT_PATH, layout_znode(0, 1))
        bench.store.unreadable.add(LAYOUT_PATH)
        loaded = bench.loader().load([f"{kind}:{SEGMENT}"])
        assert loaded[f"{kind}:{SEGMENT}"].presence is Presence.UNREADABLE

    @pytest.mark.parametrize(
        ("layout", "presence"),
        [
            pytest.param(layout_znode(1, 2), Presence.GONE, id="pruned"),
            pytest.param(layout_znode(0, 1), Presence.UNREADABLE, id="the layout names it"),
        ],
    )
    def test_an_absent_one_is_gone_only_if_brokers_and_layout_agree(
        self, bench: Bench, layout: bytes, presence: Presence
    ) -> None:
        bench.owner(LAYOUT_PATH, layout)
        assert bench.loader().load([f"data:{SEGMENT}"])[f"data:{SEGMENT}"].presence is presence
        bench.broker.topics[SEGMENT] = BrokerView(presence=Presence.UNREADABLE, detail="HTTP 404: Not Found")
        assert bench.loader().load([f"data:{SEGMENT}"])[f"data:{SEGMENT}"].presence is Presence.UNREADABLE

    def test_large_znodes_make_one_of_them_unreadable(self, bench: Bench) -> None:
        bench.owner(LAYOUT_PATH, layout_znode(0, 1))
        bench.owner(managed_ledger_path(SEGMENT), list_znode(1, 2))
        for number in range(150):
            bench.owner(cursor_path(SEGMENT, f"s{number}"), cursor_znode(6) + PADDING)
        key = f"buckets:{SEGMENT}"
        assert "more than 64 MiB" in bench.loader().load([key])[key].detail

    def test_their_compacted_ledger_is_unknown_while_a_broker_hides_it(self, bench: Bench) -> None:
        key = f"compacted:{SEGMENT}"
        bench.owner(managed_ledger_path(SEGMENT), list_znode(1, 2))
        bench.broker.topics[SEGMENT] = BrokerView(presence=Presence.PRESENT, is_hidden=True)
        assert bench.loader().compacted([key]) == {key: None}


class Sizes(MemoryStore):
    """Records how many bytes each read returns."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.reads: list[int] = []

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        nodes = super().read_many(paths)
        self.reads.append(sum(len(node.data) for node in nodes if isinstance(node, Znode)))
        return nodes


LARGE = 900 * 1024
PADDING = b"\xa2\x06" + bytes([LARGE & 127 | 128, LARGE >> 7 & 127 | 128, LARGE >> 14]) + b"y" * LARGE  # field 100


def topic_name(number: int) -> str:
    return f"public/default/persistent/t{number}"


def sized(bench: Bench) -> tuple[Sizes, InUseLoader]:
    store = Sizes(bench.tree)
    return store, InUseLoader(store, bench.broker, bench.clock)


def test_znodes_of_many_owners_are_read_in_batches_of_bounded_size(bench: Bench) -> None:
    large = list_znode(1, 2) + PADDING
    keys = [f"data:{topic_name(number)}" for number in range(300)]
    for number in range(300):
        bench.owner(managed_ledger_path(topic_name(number)), large if number >= 100 else list_znode(1, 2))
        bench.broker.topics[topic_name(number)] = view(2)
    store, loader = sized(bench)
    loaded = loader.load(keys)
    assert list(loaded) == keys
    assert {(reference.presence, tuple(reference.in_use)) for reference in loaded.values()} == {
        (Presence.PRESENT, (1, 2))
    }
    assert max(store.reads) < 2 * _MOST_BYTES


def test_a_topic_with_large_cursors_is_unreadable_and_affects_no_other(bench: Bench) -> None:
    for number in range(150):
        bench.owner(cursor_path(TOPIC, f"s{number}"), cursor_znode(6) + PADDING)
    bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(5))
    bench.broker.topics[OTHER_TOPIC] = view(5)
    store, loader = sized(bench)
    loaded = loader.load([DATA, BUCKETS, OTHER_DATA])
    assert [loaded[key].presence for key in (DATA, BUCKETS, OTHER_DATA)] == [
        Presence.PRESENT,
        Presence.UNREADABLE,
        Presence.PRESENT,
    ]
    assert "more than 64 MiB" in loaded[BUCKETS].detail
    assert max(store.reads) < 2 * _MOST_BYTES


def test_small_znodes_are_read_in_large_batches(bench: Bench) -> None:
    store, loader = sized(bench)
    loader.load([f"data:{topic_name(number)}" for number in range(5_000)])
    assert len(store.reads) < 40
