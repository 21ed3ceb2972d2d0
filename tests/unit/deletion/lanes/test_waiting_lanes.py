"""Lanes take turns by tenant, whatever number of lanes a tenant has."""

from streaming.deletion.lanes.waiting_lanes import WaitingLanes


def _lane(tenant: str, namespace: str) -> str:
    return f"persistent://{tenant}/{namespace}/__ledger_deletion-partition-0"


def _waiting(*lanes: str) -> WaitingLanes:
    waiting = WaitingLanes()
    for lane in lanes:
        waiting.add(lane)
    return waiting


def test_each_tenants_first_lane_comes_before_any_tenants_second() -> None:
    many = [_lane("many", f"ns{number}") for number in range(4)]
    waiting = _waiting(*many, _lane("a", "x"), _lane("b", "x"))
    assert waiting.take(4) == [many[0], _lane("a", "x"), _lane("b", "x"), many[1]]
    assert waiting.take(9) == many[2:]
    assert len(waiting) == 0
    assert waiting.take(1) == []


def test_a_tenant_that_was_just_served_comes_last() -> None:
    waiting = _waiting(_lane("a", "x"), _lane("b", "x"), _lane("a", "y"))
    waiting.move_to_end("a")
    waiting.move_to_end("unknown")
    assert waiting.take(2) == [_lane("b", "x"), _lane("a", "x")]


def test_a_lane_waits_once_and_can_leave() -> None:
    waiting = _waiting(_lane("a", "x"), _lane("a", "x"), _lane("a", "y"))
    waiting.discard(_lane("a", "x"))
    waiting.discard(_lane("c", "x"))
    assert _lane("a", "y") in waiting
    assert _lane("a", "x") not in waiting
    assert waiting.take(5) == [_lane("a", "y")]
