"""In-use sets are read whole or not at all, and a cached one is never more than a hint."""

from collections.abc import Iterable

import pytest

from streaming.errors import UnavailableError
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from tests.builders import (
    CURSOR,
    MINUTE_MS,
    OTHER_TOPIC,
    SCHEMA,
    TOPIC,
    cursor_znode,
    list_znode,
    locator_znode,
    offloaded,
    view,
)
from tests.world import Bench
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import Presence, Reference

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

    def test_asks_for_a_schema_only_where_its_locator_is_absent(self, bench: Bench) -> None:
        bench.owner(schema_path(SCHEMA), locator_znode(3))
        bench.loader().load([f"schema:{SCHEMA}", "schema:public/default/none"])
        assert bench.broker.asked == ["public/default/none"]

    def test_takes_the_time_before_it_reads_so_that_an_age_is_never_understated(self, bench: Bench) -> None:
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
        assert bench.loader().load([BUCKETS])[BUCKETS].presence is Presence.UNREADABLE

    def test_a_topic_that_appears_between_listing_its_cursors_and_reading_it_is_unreadable(self, bench: Bench) -> None:
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
    def test_an_unreadable_owner_is_unreadable_and_spoils_no_other(self, bench: Bench, key: str) -> None:
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


class CountingLoader(InUseLoader):
    """The real loader; remembers what it was asked for."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.store, bench.broker, bench.clock)
        self.loaded: list[str] = []

    def load(self, keys: Iterable[str]) -> dict[str, Reference]:
        asked = list(keys)
        self.loaded += asked
        return super().load(asked)


def cache_of(bench: Bench, *, max_bytes: int = 1_000_000) -> tuple[InUseCache, CountingLoader]:
    loader = CountingLoader(bench)
    return InUseCache(loader, bench.clock, refresh_ms=10 * MINUTE_MS, max_bytes=max_bytes), loader


class TestCache:
    def test_answers_the_second_time_from_memory(self, bench: Bench) -> None:
        cache, loader = cache_of(bench)
        first = cache.references([DATA])
        bench.owner(managed_ledger_path(TOPIC), list_znode(1, 2, 3))
        assert cache.references([DATA, DATA]) == first
        assert loader.loaded == [DATA]
        assert (cache.counts.misses, cache.counts.hits, cache.counts.refreshes) == (1, 1, 0)

    @pytest.mark.parametrize(
        ("age_ms", "loads"),
        [
            pytest.param(10 * MINUTE_MS, 1, id="as old as allowed"),
            pytest.param(10 * MINUTE_MS + 1, 2, id="a millisecond older"),
        ],
    )
    def test_reads_again_what_is_older_than_the_limit(self, bench: Bench, age_ms: int, loads: int) -> None:
        cache, loader = cache_of(bench)
        cache.references([DATA])
        bench.clock.advance(age_ms)
        cache.references([DATA])
        assert len(loader.loaded) == loads
        assert cache.counts.refreshes == loads - 1

    @pytest.mark.parametrize("presence", [Presence.GONE, Presence.UNREADABLE])
    def test_never_answers_absent_or_unreadable_from_memory(self, bench: Bench, presence: Presence) -> None:
        cache, loader = cache_of(bench)
        bench.broker.topics[OTHER_TOPIC] = view(presence=presence)
        assert cache.references([OTHER_DATA])[OTHER_DATA].presence is presence
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(7))
        bench.broker.topics[OTHER_TOPIC] = view(7)
        assert list(cache.references([OTHER_DATA])[OTHER_DATA].in_use) == [7]
        assert loader.loaded == [OTHER_DATA, OTHER_DATA]

    def test_forgets_what_was_found_stale(self, bench: Bench) -> None:
        cache, loader = cache_of(bench)
        cache.references([DATA])
        cache.forget([DATA, OTHER_DATA])
        assert len(cache) == 0
        assert cache.size_bytes == 0
        cache.references([DATA])
        assert loader.loaded == [DATA, DATA]
        assert (cache.counts.stale, cache.counts.misses) == (1, 2)

    def test_drops_the_least_recently_used_above_its_bytes(self, bench: Bench) -> None:
        topics = [f"public/default/persistent/t{n}" for n in range(4)]
        keys = [f"data:{topic}" for topic in topics]
        for topic in topics:
            bench.owner(managed_ledger_path(topic), list_znode(1, 2))
            bench.broker.topics[topic] = view()
        probe, _ = cache_of(bench)
        probe.references(keys[:1])
        cache, loader = cache_of(bench, max_bytes=3 * probe.size_bytes)
        cache.references(keys[:3])
        cache.references(keys[:1])  # the first is now the most recently used
        cache.references(keys[3:])
        assert len(cache) == 3
        loader.loaded.clear()
        cache.references([keys[0], keys[2], keys[3]])
        assert loader.loaded == []
        cache.references([keys[1]])
        assert loader.loaded == [keys[1]]

    def test_leaves_out_what_does_not_fit_rather_than_cutting_it_short(self, bench: Bench) -> None:
        bench.owner(managed_ledger_path(TOPIC), list_znode(*range(10_000)))
        cache, _ = cache_of(bench, max_bytes=10_000)
        assert cache.references([DATA]) == {}
        assert cache.size_bytes == 0

    def test_a_refreshed_entry_is_counted_once(self, bench: Bench) -> None:
        cache, _ = cache_of(bench)
        cache.references([DATA])
        size = cache.size_bytes
        bench.clock.advance(11 * MINUTE_MS)
        cache.references([DATA])
        assert cache.size_bytes == size

    def test_offloads_count_into_the_size(self, bench: Bench) -> None:
        cache, _ = cache_of(bench)
        cache.references([DATA])
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(offloaded(1), 2))
        size = cache.size_bytes
        cache.references([OTHER_DATA])
        assert cache.size_bytes > 2 * size

    def test_keeps_what_it_has_when_the_store_is_away(self, bench: Bench) -> None:
        cache, _ = cache_of(bench)
        cache.references([DATA])
        bench.store.faults.away = True
        assert list(cache.references([DATA])[DATA].in_use) == [1, 2]
        with pytest.raises(UnavailableError):
            cache.references([DATA, OTHER_DATA])
        bench.store.faults.away = False
        assert set(cache.references([DATA, OTHER_DATA])) == {DATA, OTHER_DATA}
