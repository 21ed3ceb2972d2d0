"""A cached reference is only a hint, and is never truncated."""

import tracemalloc
from array import array
from collections.abc import Iterable

import pytest

from streaming.errors import UnavailableError
from streaming.in_use.cache import InUseCache, estimated_bytes
from streaming.in_use.loader import InUseLoader
from tests.builders import (
    MINUTE_MS,
    OTHER_TOPIC,
    TOPIC,
    list_znode,
    offloaded,
    view,
)
from tests.world import Bench
from udfs.paths import managed_ledger_path
from udfs.records import Presence, Reference

DATA, OTHER_DATA = f"data:{TOPIC}", f"data:{OTHER_TOPIC}"
BUCKETS = f"buckets:{TOPIC}"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.owner(managed_ledger_path(TOPIC), list_znode(1, 2))
    bench.broker.topics[TOPIC] = view(2)
    return bench


class CountingLoader(InUseLoader):
    """The real loader; records the keys that it loads."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.store, bench.broker, bench.clock)
        self.loaded: list[str] = []

    def load(self, keys: Iterable[str]) -> dict[str, Reference]:
        asked = list(keys)
        self.loaded += asked
        return super().load(asked)


def cache_of(bench: Bench, *, max_bytes: int = 1_000_000) -> tuple[InUseCache, CountingLoader]:
    loader = CountingLoader(bench)
    return InUseCache(loader=loader, clock=bench.clock, refresh_ms=10 * MINUTE_MS, max_bytes=max_bytes), loader


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
    def test_reads_references_above_the_age_limit_again(self, bench: Bench, age_ms: int, loads: int) -> None:
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

    def test_forgets_stale_references(self, bench: Bench) -> None:
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

    def test_omits_a_reference_that_does_not_fit(self, bench: Bench) -> None:
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

    def test_answers_from_memory_while_the_store_is_unavailable(self, bench: Bench) -> None:
        cache, _ = cache_of(bench)
        cache.references([DATA])
        bench.store.faults.away = True
        assert list(cache.references([DATA])[DATA].in_use) == [1, 2]
        with pytest.raises(UnavailableError):
            cache.references([DATA, OTHER_DATA])
        bench.store.faults.away = False
        assert set(cache.references([DATA, OTHER_DATA])) == {DATA, OTHER_DATA}


@pytest.mark.parametrize(("subscriptions", "ledgers"), [(0, 1), (2, 10), (20, 10), (2, 2_000)])
def test_the_estimated_memory_of_references_includes_their_checks(subscriptions: int, ledgers: int) -> None:
    def read(number: int) -> Reference:
        path = f"/managed-ledgers/public/default/persistent/a-topic-whose-name-is-long-{number}"
        paths = [path, *(f"{path}/subscription-{n}" for n in range(subscriptions))]
        checks = tuple((path, 1_000 + at) for at, path in enumerate(paths))
        return Reference(
            key=f"data:{path}",
            presence=Presence.PRESENT,
            read_at_ms=10**12 + number,
            checks=checks,
            in_use=array("q", range(ledgers)),
        )

    tracemalloc.start()
    try:
        before, _peak = tracemalloc.get_traced_memory()
        references = {reference.key: reference for reference in map(read, range(200))}
        allocated = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 < sum(map(estimated_bytes, references.values())) / allocated < 1.5
