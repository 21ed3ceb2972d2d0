"""Held tenants stand in ZooKeeper, so that they are held after a restart too, until a person resumes."""

from collections.abc import Sequence
from typing import cast

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.cli import control
from streaming.config.load import load
from streaming.errors import UnavailableError
from streaming.in_use.baseline import Accepted, accepted_path, all_of
from streaming.limits.tenants import TenantHolds, tenant_holds_path

SETTINGS = load(None)
PATH = tenant_holds_path(SETTINGS.zookeeper.own_root, SETTINGS.service.name)


@pytest.fixture
def holds() -> TenantHolds:
    return TenantHolds(MemoryStore(), PATH)


def accepted(holds: TenantHolds) -> dict[str, int]:
    return Accepted(holds.store, accepted_path(SETTINGS.zookeeper.own_root, SETTINGS.service.name)).read()


def test_nobody_is_held_at_first_and_asking_writes_nothing(holds: TenantHolds) -> None:
    assert holds.read() == {}
    assert holds.store.read_many([PATH]) == [None]


def test_tenants_are_held_one_after_the_other_and_by_a_later_run(holds: TenantHolds) -> None:
    assert holds.hold({"shop": "161 of 200"}) == {"shop": "161 of 200"}
    assert holds.hold({"bank": "all"}) == {"shop": "161 of 200", "bank": "all"}
    assert TenantHolds(holds.store, PATH).read() == {"shop": "161 of 200", "bank": "all"}


def test_one_tenant_is_released_and_its_owners_are_taken_as_they_are(holds: TenantHolds) -> None:
    holds.hold({"shop": "161 of 200", "bank": "all"})
    said = control.resume_tenant(SETTINGS, holds.store, "shop")
    assert said == "released tenant shop, which was held: 161 of 200"
    assert holds.read() == {"bank": "all"}
    assert accepted(holds).keys() == {all_of("shop")}
    assert control.resume_tenant(SETTINGS, holds.store, "shop") == "tenant shop is not held"


def test_a_tenant_that_is_held_while_another_is_released_stays_held() -> None:
    tree = MemoryTree()
    service, operator = TenantHolds(MemoryStore(tree), PATH), TenantHolds(MemoryStore(tree), PATH)
    service.hold({"shop": "161 of 200"})
    store = cast("MemoryStore", operator.store)

    def hold_another(operation: str, _paths: Sequence[str]) -> None:
        if operation == "set_data":
            service.hold({"bank": "all"})

    store.faults.before(hold_another)
    operator.release("shop")
    assert service.read() == {"bank": "all"}


@pytest.mark.parametrize("said", [b"[1]", b"junk", b"\xff"])
def test_a_znode_that_can_not_be_parsed_lets_nothing_be_deleted_until_a_person_resumes(
    holds: TenantHolds, said: bytes
) -> None:
    holds.hold({"shop": "161 of 200"})
    holds.store.set_data(PATH, said)
    with pytest.raises(UnavailableError, match="resume --tenant"):
        holds.read()
    with pytest.raises(UnavailableError):
        holds.hold({"bank": "all"})
    assert "could not be parsed" in control.resume_tenant(SETTINGS, holds.store, "shop")
    assert holds.read() == {}
