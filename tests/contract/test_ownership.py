"""Ownership of topics and state directories, on the fake store and on ZooKeeper."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, cast
from uuid import uuid4

import pytest

from streaming.coordination.ownership import Ownership
from streaming.errors import SafetyError
from streaming.ports import MetadataStore
from tests.contract.conftest import Stores

A, B, C = (f"persistent://acme/reaper/d{name}" for name in ("1", "2/x%2F", "3"))


@pytest.fixture
def root() -> str:
    return f"/reaper-{uuid4().hex}"


def test_another_services_topic_is_refused_with_its_owners_name(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    main, third = Ownership(store, root, "main"), Ownership(new_store(), root, "third")
    main.claim([A, B])
    main.claim([A, B])
    with pytest.raises(SafetyError, match=r"d1 is read by service 'main' \(by .*@.*, since .*release --topic"):
        third.claim([C, A])
    assert third.owned() == [], "a refused start owns nothing"
    third.claim([C])
    assert (main.owned(), third.owned()) == ([A, B], [C])


def test_only_the_owner_releases_a_topic_and_then_another_service_may_claim_it(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    main, third = Ownership(store, root, "main"), Ownership(new_store(), root, "third")
    main.claim([A, B])
    assert third.release([A, B]) == []
    assert main.release([A, C]) == [A]
    third.claim([A])
    with pytest.raises(SafetyError, match="service 'third'"):
        main.claim([A, B])
    assert main.owned() == [B]


def test_if_two_services_start_at_once_one_owns_all_topics_and_the_other_none(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    for _ in range(20):
        both = {"main": Ownership(store, root, "main"), "third": Ownership(new_store(), root, "third")}
        at_once = Barrier(2)

        def is_refused(name: str, at_once: Barrier = at_once, both: dict[str, Ownership] = both) -> bool:
            at_once.wait()
            try:
                both[name].claim([C, B, A] if name == "main" else [A, B, C])
            except SafetyError:
                return True
            return False

        with ThreadPoolExecutor(2) as threads:
            (loser,) = [name for name, refused in zip(both, threads.map(is_refused, both), strict=True) if refused]
        assert {name: owner.owned() for name, owner in both.items()} == {
            name: [] if name == loser else [A, B, C] for name in both
        }
        for owner in both.values():
            owner.release([A, B, C])


def test_each_free_topic_is_claimed_and_those_of_other_services_are_named(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    main, third = Ownership(store, root, "main"), Ownership(new_store(), root, "third")
    third.claim([B])
    for _ in range(2):
        foreign = main.claim_each([A, B, C])
        assert foreign.keys() == {B}
        assert "it is read by service 'third'" in foreign[B]
    assert (main.owned(), third.owned()) == ([A, C], [B])


def test_a_topic_that_another_service_claims_at_the_same_time_is_not_ours(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    main, third = Ownership(store, root, "main"), Ownership(new_store(), root, "third")
    claim = main.claim

    def claim_late(topics: list[str]) -> list[str]:
        third.claim(topics)
        return claim(topics)

    main.claim = claim_late  # type: ignore[assignment, method-assign]
    assert main.claim_each([A]).keys() == {A}
    assert (main.owned(), third.owned()) == ([], [A])


def test_deleted_topics_are_released_and_topics_of_unknown_existence_stay(store: MetadataStore, root: str) -> None:
    main = Ownership(store, root, "main")
    main.claim([A, B, C])

    def partitions(topic: str) -> int | None:
        if topic == B:
            raise SafetyError("existence unknown")
        return None

    main.release_gone(partitions, besides=lambda topic: topic == C)
    assert main.owned() == [B, C]


def test_a_topic_with_an_unreadable_znode_is_foreign(store: MetadataStore, root: str) -> None:
    main = Ownership(store, root, "main")
    main.claim([A])
    (path,) = [f"{root}/topics/{name}" for name in store.children_many([f"{root}/topics"])[0] or ()]  # type: ignore[union-attr]
    store.set_data(path, b"?")
    with pytest.raises(SafetyError, match="is read by service ''"):
        main.claim([A])


def test_a_service_keeps_its_state_directory_until_an_operator_releases_it(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    main = Ownership(store, root, "main")
    assert main.state_fault(None) == "", "the first start records it"
    main.hold_state("receipts-1", "/state")
    main.hold_state("receipts-1", "/moved")
    other = Ownership(new_store(), root, "main")
    for wrong in (None, "receipts-2"):
        assert "not the state directory of service 'main', which is /state (used by" in other.state_fault(wrong)
    with pytest.raises(SafetyError, match="release --state"):
        other.hold_state("receipts-2", "/other")
    Ownership(store, root, "third").hold_state("receipts-2", "/other")
    assert other.release_state()
    assert not other.release_state()
    other.hold_state("receipts-2", "/other")


class _Overtaken:
    """A store on which another service claims a topic right before this service creates it."""

    def __init__(self, store: MetadataStore, overtake: Callable[[str], None]) -> None:
        self._store = store
        self._overtake = overtake

    def create(self, path: str, data: bytes, **options: Any) -> bool:
        self._overtake(path)
        return self._store.create(path, data, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_service_that_loses_a_topic_releases_the_topics_that_it_just_claimed(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    main = Ownership(new_store(), root, "main")

    def overtake(path: str) -> None:
        if path.endswith("3"):
            main.claim([C])

    third = Ownership(cast("MetadataStore", _Overtaken(store, overtake)), root, "third")
    with pytest.raises(SafetyError, match="d3 is read by service 'main'"):
        third.claim([A, B, C])
    assert third.owned() == []
    main.claim([A, B])
