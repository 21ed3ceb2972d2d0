"""Which service reads which topic, on the fake and on the real store alike."""

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


def test_a_topic_of_one_service_is_refused_to_another_which_is_named(
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


def test_a_topic_that_was_given_up_may_be_anothers_and_nobody_gives_up_what_is_not_its_own(
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


def test_of_two_services_that_start_at_once_one_has_all_and_the_other_nothing(
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
        assert {name: each.owned() for name, each in both.items()} == {
            name: [] if name == loser else [A, B, C] for name in both
        }
        for each in both.values():
            each.release([A, B, C])


def test_topics_that_are_gone_are_given_up_and_those_nobody_can_tell_about_stay(
    store: MetadataStore, root: str
) -> None:
    main = Ownership(store, root, "main")
    main.claim([A, B, C])

    def partitions(topic: str) -> int | None:
        if topic == B:
            raise SafetyError("can't tell")
        return None

    main.release_gone(partitions, besides=[C])
    assert main.owned() == [B, C]


def test_a_znode_that_says_nothing_is_somebodys(store: MetadataStore, root: str) -> None:
    main = Ownership(store, root, "main")
    main.claim([A])
    (path,) = [f"{root}/topics/{name}" for name in store.children_many([f"{root}/topics"])[0] or ()]  # type: ignore[union-attr]
    store.set_data(path, b"?")
    with pytest.raises(SafetyError, match="is read by service ''"):
        main.claim([A])


def test_a_service_keeps_its_state_directory_until_a_person_says_that_it_is_lost(
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
    """A store on which another service claims a topic right before it is created here."""

    def __init__(self, store: MetadataStore, overtake: Callable[[str], None]) -> None:
        self._store = store
        self._overtake = overtake

    def create(self, path: str, data: bytes, **options: Any) -> bool:
        self._overtake(path)
        return self._store.create(path, data, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_service_that_is_overtaken_half_way_gives_up_what_it_has_just_claimed(
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
