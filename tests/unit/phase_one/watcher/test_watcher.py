"""Ledgers that an owner no longer names are requested once, however the watcher found them and wherever it crashed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from streaming.errors import StopRequestedError
from streaming.phase_one.watcher import scan
from streaming.phase_one.watcher import watcher as watcher_module
from streaming.phase_one.watcher.watcher import Watcher
from streaming.ports import Znode
from streaming.state import watched
from streaming.state.delta.commits import commit
from tests.builders import CURSOR, SCHEMA, TOPIC, UUID, cursor_znode, data_request, list_znode, locator_znode, put
from tests.unit.phase_one.watcher.watching import AT, CrashedError, World
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    OffloadState,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.paths import cursor_path, managed_ledger_name, managed_ledger_path, schema_path
from udfs.records import LedgerComponent, LedgerType
from udfs.requests.request_format import decode

LONG_NAME = "a" * 4_000
OTHER = managed_ledger_path("public/default/persistent/payments")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_first_start_takes_what_there_is_as_it_is(world: World) -> None:
    world.list(1, 2, 3)
    world.ledger(99)
    watcher = world.start()
    world.turns(watcher, 300)
    assert world.topic.requests == []
    assert set(world.parts.watched.nodes) == {AT}


def test_a_long_scan_shows_that_the_watcher_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    world.list(1)
    world.list(2, at=OTHER)
    watcher = world.start()
    monkeypatch.setattr(world.parts.metrics, "beat", lambda: beats.append(1))
    watcher.turn()
    assert beats


def test_a_ledger_that_a_list_drops_is_requested_after_the_delay(world: World) -> None:
    world.list(1, 2, 3)
    watcher = world.start()
    watcher.turn()
    world.list(2, 3)
    world.turns(watcher, 60)
    assert world.topic.requests == [], "most brokers delete it by themselves"
    assert list(world.parts.watched.requests), "but it is durable"
    world.turns(watcher, 30)
    assert world.topic.requests == [data_request(1)]
    world.turns(watcher, 300)
    assert world.topic.ids == [1], "once"


def test_every_kind_of_owner_is_watched(world: World) -> None:
    world.list(1, 2)
    put(world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(10))
    put(world.tree, cursor_path(TOPIC, "other"), cursor_znode(11))
    put(world.tree, schema_path(SCHEMA), locator_znode(20, 21))
    world.list(30, at=OTHER)
    watcher = world.start()
    watcher.turn()
    put(world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(12))
    world.tree.remove(cursor_path(TOPIC, "other"))
    put(world.tree, schema_path(SCHEMA), locator_znode(21))
    world.tree.remove(OTHER)
    world.list(2, 3)
    world.turns(watcher, 120)
    assert sorted((each.component, each.ledger_id) for each in world.topic.requests) == [
        (LedgerComponent.MANAGED_CURSOR, 10),
        (LedgerComponent.MANAGED_CURSOR, 11),
        (LedgerComponent.MANAGED_LEDGER, 1),
        (LedgerComponent.MANAGED_LEDGER, 30),
        (LedgerComponent.SCHEMA_STORAGE, 20),
    ]


def test_a_hint_is_enough_to_find_a_change_within_a_turn(world: World) -> None:
    world.list(1)
    watcher = world.start()
    watcher.turn()
    for number in range(1, 5):
        world.list(number, number + 1)
        world.clock.advance(1000)
        watcher.turn()
    assert watcher.scans == 1
    world.list(6)
    watcher.turn()
    assert sorted(each.number for each in world.parts.watched.requests.values()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("has_watches", [False, True])
def test_a_change_without_a_hint_is_found_by_the_next_full_scan(world: World, *, has_watches: bool) -> None:
    world.list(1, 2)
    world.hints.is_reachable = has_watches
    watcher = world.start()
    watcher.turn()
    world.hints._is_set = False  # the server forgot the watches
    world.list(2)
    world.hints._is_set = has_watches
    world.turns(watcher, 180)
    assert world.topic.ids == [1]


def test_lost_watches_cause_a_full_scan_at_once(world: World) -> None:
    world.list(1, 2)
    watcher = world.start()
    watcher.turn()
    world.clock.advance(10_000)
    world.hints.drop()
    world.list(2)
    watcher.turn()
    assert watcher.scans == 2
    world.hints.drop()
    watcher.turn()
    assert watcher.scans == 2, "but not again and again"


def test_changes_while_the_watcher_was_away_are_found_by_comparison(world: World) -> None:
    world.list(1, 2)
    put(world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(10))
    world.turns(world.start(), 70)
    world.list(3, 4)
    world.tree.remove(cursor_path(TOPIC, CURSOR))
    world.clock.advance(3_600_000)
    world.turns(world.start(), 120)
    assert world.topic.ids == [1, 2, 10]


def test_a_ledger_that_any_list_names_when_its_time_has_come_is_not_asked_for(world: World) -> None:
    world.list(1, 2, 3)
    world.list(30, at=OTHER)
    watcher = world.start()
    watcher.turn()
    world.list(3)
    watcher.turn()
    world.list(30, 1, at=OTHER)
    world.turns(watcher, 120)
    assert world.topic.ids == [2]
    assert world.parts.watched.requests == {}


@pytest.mark.parametrize("spoil", ["unreadable", "no list"])
def test_a_znode_that_can_not_be_understood_names_what_it_named(world: World, spoil: str) -> None:
    world.list(1, 2)
    watcher = world.start()
    watcher.turn()
    if spoil == "unreadable":
        world.store.unreadable.add(AT)
    world.tree.write(AT, b"\xff\xff\xff")
    world.turns(watcher, 120)
    assert world.topic.requests == []
    assert watcher.note().unreadable == 1
    world.store.unreadable.clear()
    world.list(2)
    world.turns(watcher, 120)
    assert world.topic.ids == [1]
    assert watcher.note().unreadable == 0


@pytest.mark.parametrize("unlisted", ["/managed-ledgers", AT.rpartition("/")[0], AT])
def test_an_unlistable_owner_is_not_gone(world: World, unlisted: str) -> None:
    world.list(1, 2)
    put(world.tree, cursor_path(TOPIC, CURSOR), cursor_znode(10))
    watcher = world.start()
    watcher.turn()
    world.store.unreadable.add(unlisted)
    world.turns(watcher, 180)
    assert world.topic.requests == []
    world.store.unreadable.clear()
    world.turns(watcher, 70)
    assert watcher.note().unreadable == 0


def test_a_topic_created_again_under_its_name_has_lost_its_old_ledgers(world: World) -> None:
    world.list(1, 2)
    watcher = world.start()
    watcher.turn()
    world.hints.is_reachable = False
    world.clock.advance(1)
    world.tree.remove(AT)
    world.list(5)
    world.turns(watcher, 180)
    assert world.topic.ids == [1, 2]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_while_the_topic_is_away_requests_wait_and_it_watches_on(
    world: World, caplog: pytest.LogCaptureFixture, *, is_restarted: bool
) -> None:
    world.list(1, 2)
    watcher = world.start()
    watcher.turn()
    world.list(2)
    world.topic.is_away = True
    world.turns(watcher, 120)
    world.list(3)
    world.turns(watcher, 120)
    world.topic.is_away = False
    if is_restarted:
        watcher = world.start()
    world.turns(watcher, 120)
    assert world.topic.ids == [1, 2]
    assert caplog.text.count("wait in its state") == 1


def test_a_stop_ends_a_scan_before_its_next_read(world: World) -> None:
    world.list(1)
    watcher = world.start()
    world.stop.set()
    with pytest.raises(StopRequestedError):
        watcher.turn()


def _scene(world: World) -> None:
    world.list(1, 2, 3)
    world.list(30, 31, at=OTHER)
    watcher = world.start()
    world.turns(watcher, 70)
    world.list(3)
    world.turns(watcher, 20)
    world.list(31, 32, at=OTHER)
    world.turns(watcher, 140)


def _with_effects(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "commit", lambda *args, **kwargs: world.crash.effect(lambda: commit(*args, **kwargs)))
    monkeypatch.setattr(watched, "_COMMITS_BEFORE_FOLD", 4)


def test_a_crash_at_any_effect_loses_no_request_and_makes_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = World(tmp_path / "whole")
    with monkeypatch.context() as patch:
        _with_effects(whole, patch)
        _scene(whole)
    assert whole.topic.ids == [1, 2, 30]
    assert whole.crash.effects >= 12
    for at in range(1, whole.crash.effects + 1):
        for is_after in (False, True):
            world = World(tmp_path / f"{at}-{is_after}")
            world.crash.at, world.crash.is_after = at, is_after
            with monkeypatch.context() as patch:
                _with_effects(world, patch)
                with pytest.raises(CrashedError):
                    _scene(world)
                watcher: Watcher = world.start()
                # what the crash kept from happening in the scene
                world.list(3)
                world.list(31, 32, at=OTHER)
                world.turns(watcher, 200)
            found = world.topic.ids
            assert len(found) == len(set(found)), f"twice, after a crash at effect {at}"
            # the second effect is the commit of what there was at the first start
            assert found == ([1, 2, 30] if (at, is_after) >= (2, True) else found[:0]), f"after a crash at effect {at}"


BUCKET = "#pulsar.internal.delayed.bucket_1_2"


def test_a_cursor_that_names_others_ledgers_as_its_buckets_does_not_prevent_their_requests(world: World) -> None:
    world.list(1, 2, 3)
    watcher = world.start()
    watcher.turn()
    hostile = cursor_path("rival/ns/persistent/his", CURSOR)
    put(
        world.tree,
        hostile,
        serialize_cursor(
            ManagedCursorInfo(
                cursors_ledger_id=-1, mark_delete_ledger_id=0, mark_delete_entry_id=0, cursor_properties={BUCKET: "1"}
            )
        ),
    )
    world.list(2, 3)
    world.turns(watcher, 200)
    assert [each.ledger_id for each in world.topic.requests] == [1]


def test_a_cursor_that_names_anothers_ledger_as_compacted_does_not_prevent_its_request(world: World) -> None:
    world.list(1, 2, 3)
    watcher = world.start()
    watcher.turn()
    hostile = cursor_path("rival/ns/persistent/his", "__compaction")
    put(world.tree, hostile, cursor_znode(-1, properties={"CompactedTopicLedger": 1}))
    world.list(2, 3)
    world.turns(watcher, 200)
    assert [each.ledger_id for each in world.topic.requests] == [1]


@pytest.mark.parametrize("bucket", ["9" * 19, "9" * 25, "9" * 5000, "-1", "x", ""])
def test_a_bucket_that_is_no_ledger_stops_nothing_and_spoils_its_own_cursor_only(world: World, bucket: str) -> None:
    world.list(1, 2, 3)
    hostile = cursor_path("rival/ns/persistent/his", CURSOR)
    put(
        world.tree,
        hostile,
        serialize_cursor(
            ManagedCursorInfo(
                cursors_ledger_id=-1,
                mark_delete_ledger_id=0,
                mark_delete_entry_id=0,
                cursor_properties={BUCKET: bucket},
            )
        ),
    )
    watcher = world.start()
    watcher.turn()
    world.list(2, 3)
    world.turns(watcher, 200)
    assert [each.ledger_id for each in world.topic.requests] == [1]
    assert watcher.note().unreadable == 1


def test_a_request_that_cannot_be_parsed_again_does_not_stop_later_requests(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    huge = OffloadState(uuid=UUID, complete=True, driver_name="S3", driver_properties={"bucket": "b" * 70_000})
    upload = ManagedLedgerInfo(
        (
            LedgerInfo(ledger_id=1, entries=10, offload=huge),
            LedgerInfo(ledger_id=2, entries=10),
            LedgerInfo(ledger_id=3),
        )
    )
    put(world.tree, AT, serialize_managed_ledger(upload))
    watcher = world.start()
    watcher.turn()
    world.list(3)
    world.turns(watcher, 200)
    assert sorted((each.ledger_id, each.ledger_type) for each in world.topic.requests) == [
        (1, LedgerType.LEDGER),
        (2, LedgerType.LEDGER),
    ]
    assert "can't be requested" in caplog.text


def test_a_deleted_znode_that_was_never_parsed_is_forgotten(world: World) -> None:
    world.list(1)
    watcher = world.start()
    watcher.turn()
    put(world.tree, f"{AT}/bad", b"no cursor")
    world.turns(watcher, 70)
    assert watcher.note().unreadable == 1
    world.tree.remove(f"{AT}/bad")
    world.hints.drop()
    world.turns(watcher, 130)
    assert watcher.note().unreadable == 0


def test_a_tenant_with_too_many_requests_waits_for_itself_and_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched, "_MOST_WAITING_BYTES_OF_TENANT", 6_000)
    his = managed_ledger_path("rival/ns/persistent/his")
    world.list(*range(1, 51))
    world.list(*range(100, 200), at=his)
    watcher = world.start()
    watcher.turn()
    world.tree.remove(his)
    world.list(*range(2, 51))
    most = 0
    for _ in range(600):
        world.turns(watcher, 10)
        most = max(most, len(world.parts.watched.requests))
        if len(world.topic.ids) == 101:
            break
    assert world.topic.ids == [1, *range(100, 200)], "each of them once"
    assert most < 15, "so few waited at once"
    assert world.parts.metrics.registry.get_sample_value("ledger_reaper_watcher_requests_delayed_total")
    assert caplog.text.count("of tenant rival or of all tenants, is used up") == 1
    assert his not in world.parts.watched.nodes


def test_a_subscription_that_comes_and_goes_with_thousands_of_buckets_takes_bounded_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_MOST_WAITING_BYTES_OF_TENANT", 100_000)
    world.list(1, 2)
    hostile = cursor_path("rival/ns/persistent/his", CURSOR)
    many = {f"#pulsar.internal.delayed.bucket_{each}": str(each) for each in range(10_000, 11_000)}
    watcher = world.start()
    watcher.turn()
    for _ in range(10):
        put(
            world.tree,
            hostile,
            serialize_cursor(
                ManagedCursorInfo(
                    cursors_ledger_id=-1, mark_delete_ledger_id=0, mark_delete_entry_id=0, cursor_properties=many
                )
            ),
        )
        watcher.turn()
        world.tree.remove(hostile)
        watcher.turn()
    assert sum(each.cost for each in world.parts.watched.requests.values()) <= 100_000
    world.list(2)
    watcher.turn()
    assert 1 in {decode(each.payload).ledger_id for each in world.parts.watched.requests.values()}  # type: ignore[union-attr]


def test_a_scan_holds_no_more_at_once_than_its_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_BYTES_AT_ONCE", 1_000)
    seen: list[int] = []
    monkeypatch.setattr(scan, "_OWNERS_PER_READ", 5)
    for each in range(100):
        put(world.tree, cursor_path(TOPIC, f"c{each}"), cursor_znode(each))
    world.list(1)
    watcher = world.start()
    see = Watcher._compare

    def counted(self: Watcher, nodes: Mapping[str, scan.Node], now_ms: int) -> None:
        seen.append(sum(len(node.data) for node in nodes.values() if isinstance(node, Znode)))
        see(self, nodes, now_ms)

    monkeypatch.setattr(Watcher, "_compare", counted)
    watcher.turn()
    assert max(seen) < 1_500
    seen.clear()
    for each in range(100):
        put(world.tree, cursor_path(TOPIC, f"c{each}"), cursor_znode(each + 1000))
    watcher.turn()
    assert 0 < max(seen) < 1_500, "of hints, too"


@pytest.mark.parametrize(
    "name",
    ["new\nline\ttab", "nul\x00", "persistent", LONG_NAME, "~ ü+%2F"],
    ids=["control characters", "NUL", "persistent", "long", "escapes"],
)
def test_every_name_that_a_broker_takes_is_watched(world: World, name: str) -> None:
    topic = f"persistent://evil/h/{name}"
    put(world.tree, managed_ledger_path(topic), list_znode(1, 2))
    watcher = world.start()
    watcher.turn()
    put(world.tree, managed_ledger_path(topic), list_znode(2))
    world.turns(watcher, 300)
    assert world.topic.requests == [data_request(1, managed_ledger_name(topic))]
    assert watcher.note().unwatched == 0


def test_owners_that_no_request_could_name_are_named_and_make_nothing_unreadable(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A name of more than 4,096 characters, and a topic whose path is also that of another topic's cursor."""
    namespace = "/managed-ledgers/evil/h/persistent"
    long, unclear = f"{namespace}/{'a' * 4_096}", f"{namespace}/persistent/topic-or-cursor"
    put(world.tree, long, list_znode(1))
    put(world.tree, f"{namespace}/persistent", b"")
    put(world.tree, unclear, list_znode(2))
    watcher = world.start()
    watcher.turn()
    note = watcher.note()
    assert (note.unwatched, note.unreadable) == (2, 0)
    assert note.unwatched_names == (long[:200], unclear)
    assert unclear in caplog.text
    assert world.parts.metrics.registry.get_sample_value("ledger_reaper_watcher_unwatched_names") == 2
    caplog.clear()
    world.turns(watcher, 300)
    assert "can't be watched" not in caplog.text, "once"


@pytest.mark.parametrize(
    ("path", "data"),
    [
        pytest.param(f"/managed-ledgers/evil/h/persistent/x/{'a' * 4_097}", cursor_znode(6), id="a cursor"),
        pytest.param(f"/managed-ledgers/evil/c/h/persistent/{'a' * 4_096}", list_znode(6), id="a topic with a V1 name"),
        pytest.param(f"/schemas/evil/h/{'a' * 4_096}", locator_znode(6), id="a schema"),
        pytest.param("/managed-ledgers/evil/c/persistent/persistent/x", list_znode(6), id="a V1 namespace: persistent"),
        pytest.param("/managed-ledgers/evil/h/persistent/x/a%2", cursor_znode(6), id="a cursor that is not encoded"),
    ],
)
def test_each_kind_of_owner_that_no_request_could_name_is_in_log_metric_and_check(
    world: World, caplog: pytest.LogCaptureFixture, path: str, data: bytes
) -> None:
    """A cursor was watched all the same, and its ledger could not be requested once it had vanished."""
    put(world.tree, path, data)
    watcher = world.start()
    watcher.turn()

    assert path[:200] in caplog.text
    assert watcher.note().unwatched_names == (path[:200],)
    assert watcher.note().unreadable == 0
    assert world.parts.metrics.registry.get_sample_value("ledger_reaper_watcher_unwatched_names") == 1
