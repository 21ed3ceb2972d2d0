"""The list of existing lanes: bulk reads, and nothing that is no lane."""

import json
from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.ports import Unreadable
from streaming.topics import existing
from streaming.topics.existing import existing_lanes, lane_partitions, matching_topics, require_listed

LANE = "__ledger_deletion"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(MemoryTree(ManualClock()))


def _settings(tmp_path: Path, lanes: str, pattern: str = "") -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[topics]\nlanes = "{lanes}"\nrequests_pattern = "{pattern}"\ntrusted_tenants = ["pulsar", "trusted"]\n'
    )
    return load(file)


def _create(store: MemoryStore, namespace: str, name: str = LANE, data: bytes = b'{"partitions":1}') -> None:
    store.create(f"/admin/partitioned-topics/{namespace}/persistent/{name}", data, parents=True)


def test_the_lanes_of_tenants_are_those_in_their_namespace_of_that_name(tmp_path: Path, store: MemoryStore) -> None:
    for namespace in ("a/ledger-deletion", "b/ledger-deletion", "b/other", "trusted/ledger-deletion"):
        _create(store, namespace)
    _create(store, "c/ledger-deletion", "another")
    lanes, refused = existing_lanes(store, _settings(tmp_path, "tenant"))
    assert lanes == {f"persistent://{tenant}/ledger-deletion/{LANE}": 1 for tenant in "ab"}
    assert refused == {}


def test_the_lanes_of_namespaces_are_those_of_all_namespaces(tmp_path: Path, store: MemoryStore) -> None:
    for namespace in ("a/x", "a/y", "trusted/x"):
        _create(store, namespace, data=b'{"partitions":3}')
    lanes, _refused = existing_lanes(store, _settings(tmp_path, "namespace"))
    assert lanes == {f"persistent://a/{name}/{LANE}": 3 for name in "xy"}


@pytest.mark.parametrize(("lanes", "count"), [("one", 0), ("tenant", 0), ("namespace", 2)])
def test_the_partitions_of_lanes_are_named(tmp_path: Path, store: MemoryStore, lanes: str, count: int) -> None:
    _create(store, "a/x", data=b'{"partitions":2}')
    names = [f"persistent://a/x/{LANE}-partition-{number}" for number in range(count)]
    assert lane_partitions(store, _settings(tmp_path, lanes)) == names


def test_a_tenant_with_too_many_partitions_keeps_no_other_from_being_read(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing, "MOST_OF_TENANT", 5)
    for namespace in ("a/x", "a/y", "a/z", "b/x"):
        _create(store, namespace, data=b'{"partitions":2}')
    lanes, refused = existing_lanes(store, _settings(tmp_path, "namespace"))
    assert {*lanes, *refused} == {f"persistent://{name}/{LANE}" for name in ("a/x", "a/y", "a/z", "b/x")}
    assert len(refused) == 1
    assert f"persistent://b/x/{LANE}" in lanes


def test_any_number_of_lanes_takes_two_bulk_reads(tmp_path: Path, store: MemoryStore) -> None:
    for number in range(30):
        _create(store, f"tenant{number}/ledger-deletion")
    steps: list[str] = []
    lanes, _refused = existing_lanes(
        _Counting(store, steps),  # type: ignore[arg-type]
        _settings(tmp_path, "tenant"),
    )
    assert len(lanes) == 30
    assert len(steps) == 2


class _Counting:
    def __init__(self, store: MemoryStore, steps: list[str]) -> None:
        self._store, self._steps = store, steps

    def children_many(self, paths: list[str]) -> object:
        self._steps.append("children")
        return self._store.children_many(paths)

    def read_many(self, paths: list[str]) -> object:
        self._steps.append("read")
        return self._store.read_many(paths)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"partitions":1,"deleted":true}', id="it is being deleted"),
        pytest.param(b'{"partitions":0}', id="no partitions"),
        pytest.param(b"[]", id="an unknown form"),
        pytest.param(b"\xff", id="no JSON"),
        pytest.param(json.dumps({"partitions": None}).encode(), id="no number"),
    ],
)
def test_a_lane_without_usable_metadata_does_not_count(tmp_path: Path, store: MemoryStore, data: bytes) -> None:
    _create(store, "a/ledger-deletion", data=data)
    assert existing_lanes(store, _settings(tmp_path, "tenant")) == ({}, {})


@pytest.mark.parametrize(("partitions", "is_read"), [(64, True), (65, False)])
def test_a_lane_of_very_many_partitions_is_refused(
    tmp_path: Path, store: MemoryStore, partitions: int, is_read: bool
) -> None:
    _create(store, "a/ledger-deletion", data=b'{"partitions":%d}' % partitions)
    lanes, refused = existing_lanes(store, _settings(tmp_path, "tenant"))
    assert bool(lanes) is is_read
    assert bool(refused) is not is_read


def test_a_list_that_can_t_be_read_completely_is_an_error_and_no_shorter_list(tmp_path: Path) -> None:
    store = MemoryStore(MemoryTree(ManualClock()))
    _create(store, "a/ledger-deletion")
    unreadable = _Unreadable(store)
    with pytest.raises(UnavailableError):
        existing_lanes(unreadable, _settings(tmp_path, "tenant"))  # type: ignore[arg-type]


class _Unreadable:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def children_many(self, paths: list[str]) -> object:
        return self._store.children_many(paths)

    def read_many(self, paths: list[str]) -> list[object]:
        return [Unreadable("no right")] * len(paths)


PATTERN = "persistent://(acme|rival)/reaper/d.*"


def test_topics_that_match_are_listed_with_the_lanes_and_each_once(tmp_path: Path, store: MemoryStore) -> None:
    for namespace, name in (
        ("acme/reaper", "d1"),
        ("rival/reaper", "d%3A2"),
        ("acme/reaper", "x"),
        ("acme/other", "d1"),
    ):
        _create(store, namespace, name, b'{"partitions":2}')
    _create(store, "acme/west/reaper", "d1")
    _create(store, "acme/ledger-deletion")
    settings = _settings(tmp_path, "tenant", PATTERN)
    matching = ["persistent://acme/reaper/d1", "persistent://rival/reaper/d:2"]
    lanes, refused = existing_lanes(store, settings)
    assert lanes == {f"persistent://acme/ledger-deletion/{LANE}": 1, **dict.fromkeys(matching, 2)}
    assert refused == {}
    assert matching_topics(store, settings) == matching
    assert matching_topics(store, _settings(tmp_path, "tenant")) == []


@pytest.mark.parametrize(("lanes", "expected"), [("one", 2), ("namespace", 1)])
def test_a_lane_that_matches_the_pattern_is_read_once(
    tmp_path: Path, store: MemoryStore, lanes: str, expected: int
) -> None:
    for name in (LANE, "d1"):
        _create(store, "acme/reaper", name)
    settings = _settings(tmp_path, lanes, "persistent://acme/reaper/.*")
    assert len(existing_lanes(store, settings)[0]) == 2
    assert len(matching_topics(store, settings)) == expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("d-RETRY", id="of retries"),
        pytest.param("d-DLQ", id="of dead letters"),
        pytest.param("d-RECEIPT", id="of receipts"),
        pytest.param("d-partition-0", id="a partition"),
        pytest.param("d%2C2", id="a comma"),
        pytest.param("d%20", id="a blank at the end"),
        pytest.param("d%", id="no encoded name"),
    ],
)
def test_names_that_are_no_request_topics_do_not_match(tmp_path: Path, store: MemoryStore, name: str) -> None:
    _create(store, "acme/reaper", name)
    assert existing_lanes(store, _settings(tmp_path, "one", PATTERN)) == ({}, {})


def test_listed_topics_are_no_matches(tmp_path: Path, store: MemoryStore) -> None:
    _create(store, "acme/reaper", "d1")
    settings = _settings(tmp_path, "one", PATTERN)
    listed = settings.topics.model_copy(update={"requests": (*settings.topics.requests, "persistent://acme/reaper/d1")})
    assert existing_lanes(store, settings.model_copy(update={"topics": listed})) == ({}, {})


def test_any_number_of_matching_topics_takes_three_bulk_reads_below_tenants_that_can_match(
    tmp_path: Path, store: MemoryStore
) -> None:
    for number in range(30):
        _create(store, f"tenant{number}/reaper", "d1")
    _create(store, "other/reaper", "d1")
    steps: list[str] = []
    counting = _Counting(store, steps)
    lanes, _refused = existing_lanes(
        counting,  # type: ignore[arg-type]
        _settings(tmp_path, "one", "persistent://tenant.*/reaper/d.*"),
    )
    assert len(lanes) == 30
    assert steps == ["children", "children", "read"]


@pytest.mark.parametrize(("lanes", "pattern"), [("tenant", ""), ("one", "persistent://[^/]+/reaper/d")])
def test_brokers_that_keep_partitioned_topics_in_another_store_are_refused(
    tmp_path: Path, store: MemoryStore, lanes: str, pattern: str
) -> None:
    settings = _settings(tmp_path, lanes, pattern)
    with pytest.raises(ConfigError, match="configurationMetadataStoreUrl"):
        require_listed(store, settings, pause_s=0)
    require_listed(store, _settings(tmp_path, "one"), pause_s=0)
    _create(store, "pulsar/system")
    require_listed(store, settings, pause_s=0)
    with pytest.raises(UnavailableError):
        require_listed(_Unreadable(store), settings, pause_s=0)  # type: ignore[arg-type]


def test_a_topic_that_was_just_created_may_not_be_in_our_zookeeper_server_yet(
    tmp_path: Path, store: MemoryStore
) -> None:
    require_listed(_Late(store), _settings(tmp_path, "tenant"), pause_s=0)  # type: ignore[arg-type]


class _Late:
    def __init__(self, store: MemoryStore) -> None:
        self._store, self._reads = store, 0

    def read_many(self, paths: list[str]) -> object:
        self._reads += 1
        if self._reads == 3:
            _create(self._store, "pulsar/system")
        return self._store.read_many(paths)
