"""Which journal entries an undo takes, and what the preflight makes of rights and clocks."""

from typing import Any

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.check.questions import Notice, delete_right, judged_clock
from streaming.cli.undo import advice
from streaming.clock import ManualClock
from streaming.errors import ConfigError, RefusedError, SafetyError
from streaming.undo.ledgers import Result, Undone, UndoReport, judged, newest_of
from tests.builders import (
    DAY_MS,
    ROOT,
    bucket_custom,
    compacted_custom,
    cursor_custom,
    data_custom,
    metadata,
    put,
    schema_custom,
)
from udfs.formats.acl import CREATE, DELETE, READ, AclEntry, acl_bytes
from udfs.formats.ledger_metadata import serialize_v3


def _entry(
    ledger_id: int, custom: dict[str, bytes] | None = None, *, at_ms: int = 1, data: bytes = b""
) -> dict[str, Any]:
    body = data or serialize_v3(metadata(custom))
    return {"ledger_id": ledger_id, "path": f"{ROOT}/00/0000/L{ledger_id:04}", "at_ms": at_ms, "data": body}


def test_of_several_entries_for_a_ledger_the_newest_counts() -> None:
    entries = [_entry(5, at_ms=1), _entry(5, at_ms=3), _entry(5, at_ms=2), _entry(4, at_ms=9)]
    assert [(each["ledger_id"], each["at_ms"]) for each in newest_of(entries)] == [(4, 9), (5, 3)]


@pytest.mark.parametrize(
    ("custom", "topic", "is_meant"),
    [
        pytest.param(data_custom(), "public/default/persistent/orders", True, id="its data"),
        pytest.param(data_custom(), "persistent://public/default/orders", True, id="its data, by the full name"),
        pytest.param(
            data_custom("public/default/persistent/orders-partition-3"),
            "persistent://public/default/orders",
            True,
            id="a partition's",
        ),
        pytest.param(
            data_custom("public/default/persistent/orders2"),
            "persistent://public/default/orders",
            False,
            id="a longer name's",
        ),
        pytest.param(cursor_custom(), "persistent://public/default/orders", True, id="its cursor's"),
        pytest.param(schema_custom(), "persistent://public/default/orders", True, id="its schema"),
        pytest.param(
            schema_custom("public/default/other"), "persistent://public/default/orders", False, id="another's schema"
        ),
        pytest.param(compacted_custom(), "persistent://public/default/orders", True, id="its compacted form"),
        pytest.param(bucket_custom(), "persistent://public/default/orders", True, id="its delayed index"),
    ],
)
def test_a_topic_means_whatever_says_that_it_belongs_to_it(
    custom: dict[str, bytes], topic: str, is_meant: bool
) -> None:
    assert bool(newest_of([_entry(5, custom)], topic)) is is_meant


def test_a_topic_does_not_mean_what_can_not_be_parsed() -> None:
    assert newest_of([_entry(5, data=b"\x00garbage")], "public/default/persistent/orders") == []


def test_a_topic_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--topic"):
        newest_of([_entry(5)], "persistent://")


@pytest.mark.parametrize("ahead_ms", [-5_000, 0, 5_000])
def test_clocks_that_agree_are_well(ahead_ms: int) -> None:
    assert "differ by less" in judged_clock(ahead_ms, DAY_MS)


@pytest.mark.parametrize("ahead_ms", [-5_001, 5_001, DAY_MS - 1, -DAY_MS])
def test_clocks_that_differ_are_a_problem(ahead_ms: int) -> None:
    with pytest.raises(ConfigError):
        judged_clock(ahead_ms, DAY_MS)


def test_a_clock_that_makes_young_ledgers_old_is_a_danger() -> None:
    with pytest.raises(SafetyError):
        judged_clock(DAY_MS, DAY_MS)


def _store(*acl: AclEntry) -> MemoryStore:
    tree = MemoryTree(ManualClock())
    store = MemoryStore(tree)
    put(tree, f"{ROOT}/available")
    if acl:
        put(tree, f"{ROOT}/00")
        store.create(f"{ROOT}/00/0000", b"", acl=acl_bytes([*acl, AclEntry(READ | CREATE, "world", "anyone")]))
        put(tree, f"{ROOT}/00/0000/L0005")
    return store


@pytest.mark.parametrize(
    "entry", [AclEntry(DELETE, "world", "anyone"), AclEntry(DELETE | READ, "digest", "reaper:hash")], ids=["all", "us"]
)
def test_the_right_to_delete_is_seen_on_the_ledgers_parent(entry: AclEntry) -> None:
    known = {("world", "anyone"), ("digest", "reaper:hash")}
    assert f"{ROOT}/00/0000" in delete_right(_store(entry), ROOT, known)


@pytest.mark.parametrize(
    "entry", [AclEntry(READ, "world", "anyone"), AclEntry(DELETE, "digest", "other:hash")], ids=["read only", "another"]
)
def test_a_missing_right_to_delete_is_refused(entry: AclEntry) -> None:
    with pytest.raises(RefusedError, match="does not let us delete"):
        delete_right(_store(entry), ROOT, {("world", "anyone")})


@pytest.mark.parametrize("acl", [(), (AclEntry(DELETE, "sasl", "broker"),)], ids=["no ledger", "another scheme"])
def test_a_right_that_can_not_be_told_is_said_so(acl: tuple[AclEntry, ...]) -> None:
    with pytest.raises(Notice):
        delete_right(_store(*acl), ROOT, {("world", "anyone")})


@pytest.mark.parametrize(
    ("is_there", "status", "told"),
    [
        pytest.param(True, Undone.PUT_BACK, "read from the bookies", id="in time"),
        pytest.param(False, Undone.TOO_LATE, "no bookie can read", id="too late"),
        pytest.param(None, Undone.PUT_BACK, "no bookie answered", id="nobody knows"),
    ],
)
def test_an_undo_says_what_is_known_of_the_data(is_there: bool | None, status: Undone, told: str) -> None:
    found = judged(Result(5, f"{ROOT}/00/0000/L0005", "orders", 1, Undone.PUT_BACK, last_entry_id=9), is_there)
    assert found.status is status
    assert told in found.detail
    assert "readledger" in advice(UndoReport([found]))  # even in time: a collection that had begun may still take it
