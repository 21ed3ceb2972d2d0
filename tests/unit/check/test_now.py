"""The facts of `status`: running programs, waiting requests and holds, also if some facts can't be read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.check.now import Hold, Now, read_now
from streaming.cli.status import status_lines
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination.lock import WATCH, InstanceLock
from streaming.coordination.pause import Pause
from streaming.errors import UnavailableError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.state import waiting
from streaming.state.notes import hold, parked_queries, watcher_note
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.state.notes.watcher_note import WatcherNote
from tests.builders import NOW_MS, put
from tests.services import command_clients_of
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.units import HOUR_MS

ROOT, NAME = "/ledger-reaper", "main"


class World:
    def __init__(self, settings: Settings, state: Path) -> None:
        self.settings, self.state = settings, state
        self.tree = MemoryTree(ManualClock(NOW_MS))
        self.store = MemoryStore(self.tree)
        self.pulsar = MemoryPulsar(ManualClock(NOW_MS))

    def read_now(self) -> Now:
        clients = command_clients_of(self.store, self.pulsar)
        return read_now(self.settings, clients, NOW_MS)

    def says_of_lanes(self, *lanes: str) -> list[str]:
        clients = command_clients_of(self.store, self.pulsar)
        return list(status_lines(read_now(self.settings, clients, NOW_MS, lanes=lambda: lanes)))

    def says(self) -> list[str]:
        return list(status_lines(self.read_now()))

    @contextmanager
    def running(self, name: str = NAME) -> Iterator[None]:
        with InstanceLock(self.store, ROOT, name, on_lost=lambda: None):
            yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    file, state = tmp_path / "config.toml", tmp_path / "state"
    state.mkdir()
    file.write_text(f'[state]\ndir = "{state}"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return World(load(file), state)


def test_a_service_that_never_ran(world: World) -> None:
    assert world.says() == [
        "service     main does not run",
        "deletes     not held",
        "waiting     0 requests, retries included",
        "                  0  pulsar/system/__ledger_deletion",
        "                  0  pulsar/ledger-deletion/__ledger_deletion-RETRY",
        "last hour   no receipt",
    ]
    assert world.read_now().exit_code == 0


def test_running_programs_are_reported_with_their_process(world: World) -> None:
    with world.running(), world.running(NAME + WATCH):
        watcher_note.note(str(world.state), WatcherNote(at_ms=NOW_MS, znodes=12, waiting=3, unreadable=1))
        now = world.read_now()
        assert now.service is not None
        service, watcher = world.says()[:2]
    assert service == f"service     main runs: {now.service.text}"
    assert "runs: pid" in watcher
    assert watcher.endswith("UTC: 12 znodes known; 1 can't be read, 3 requests not sent yet")
    assert now.service.token not in json.dumps(now.as_json()), "a reader of the token could pass for the holder"
    assert world.says()[0] == "service     main does not run"


def test_every_hold_is_reported_with_the_command_that_ends_it(world: World) -> None:
    Pause(world.store, ROOT).set("maintenance")
    Breaker(world.store, breaker_path(ROOT, NAME)).trip("6 deletes in an hour")
    TenantHolds(world.store, tenant_holds_path(ROOT, NAME)).hold({"acme": "9 of 9 topics are gone"})
    hold.note(str(world.state), "paused: ZooKeeper has the newer reason", now_ms=NOW_MS)
    assert [(each.what, each.do) for each in world.read_now().holds or ()] == [
        ("paused", "ledger-reaper resume"),
        ("limit reached", "ledger-reaper resume --limit"),
        ("tenant acme held", "ledger-reaper resume --tenant acme"),
    ]
    assert "deletes     HELD, limit reached: 6 deletes in an hour -> ledger-reaper resume --limit" in world.says()


def test_a_migration_to_another_metadata_store_is_reported_as_a_hold(world: World) -> None:
    put(world.tree, MIGRATION_PATH, b'{"phase":"COPYING","targetUrl":"oxia://oxia1:6648/default"}')
    holds = world.read_now().holds
    assert holds is not None
    (held,) = holds
    assert (held.what, held.do) == ("metadata store", "")
    assert "has phase COPYING" in held.why
    assert any(line.startswith("deletes     HELD, metadata store: Pulsar's migration") for line in world.says())


def test_facts_that_only_the_service_knows_are_read_from_its_notes(world: World) -> None:
    hold.note(str(world.state), "a doubt", now_ms=NOW_MS)
    assert world.read_now().holds == [Hold("held", "a doubt (the service's last note; it may have continued since)")]


def test_parked_topics_are_reported(world: World) -> None:
    parked_queries.note(
        str(world.state),
        {
            "a": ParkedQuery(topic="persistent://a/b/c", why="no\nanswer", since_ms=NOW_MS),
            "b": ParkedQuery(topic="x", why="y", since_ms=NOW_MS, is_read=True),
        },
    )
    parked = [line for line in world.says() if line.startswith("topic")]
    assert "persistent://a/b/c has been parked (its requests wait) since" in parked[0]
    assert "no\\nanswer" in parked[0], "a sender's words make no line of their own"
    assert "has been read without the connector" in parked[1]


def test_waiting_requests_are_counted_and_retries_have_their_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = f"{world.settings.topics.requests[0]}-partition-0"
    world.pulsar.store(partition, (5, 0))
    for _ in range(3):
        world.pulsar.publish(partition)
    write_rows(world.state, "waiting", [(1, 1, -1), (1, 2, -1)], about={c.DUE_MS: 1 << 62, c.READY_MS: NOW_MS + 5_000})
    write_rows(world.state, "waiting", [(1, 3, -1)], about={c.DUE_MS: -(1 << 62), c.READY_MS: NOW_MS + 1_000})
    scan = Mock(wraps=waiting.outstanding)
    monkeypatch.setattr(waiting, "outstanding", scan)
    now = world.read_now()
    assert scan.call_count == 1, "it may be a long one"
    assert now.waiting == {world.settings.topics.requests[0]: 3, world.settings.topics.retry: 3}
    assert now.retries is not None
    assert (now.retries.waiting, now.retries.next_ms) == (3, NOW_MS + 1_000)
    assert "waiting     6 requests, retries included" in world.says()


def test_the_last_hours_receipts_are_counted_both_sides_of_the_hour(world: World) -> None:
    for at_ms, outcome in (
        (NOW_MS - HOUR_MS, "DELETED"),
        (NOW_MS - 5, "DELETED"),
        (NOW_MS - 9, "RETRY"),
        (NOW_MS - HOUR_MS - 1, "DEAD_LETTER"),
    ):
        write_rows(world.state, "receipts", [(1, 1, -1)], about={c.AT_MS: at_ms, c.OUTCOME: outcome})
    now = world.read_now()
    assert now.last_hour is not None
    assert (now.last_hour.outcomes, now.last_hour.newest_ms) == ({"DELETED": 2, "RETRY": 1}, NOW_MS - 5)
    assert world.says()[-1].startswith("last hour   2 DELETED, 1 RETRY; the newest at ")


def test_unreadable_facts_are_named_and_the_others_are_reported(world: World) -> None:
    world.pulsar.faults.away = True
    now = world.read_now()
    assert (set(now.unknown), now.exit_code) == ({"waiting"}, UnavailableError.exit_code)
    says = list(status_lines(now))
    assert "service     main does not run" in says
    assert any(line.startswith("waiting     not known: ") for line in says)
    world.store.faults.away = True
    now = world.read_now()
    assert {"service", "watcher", "holds", "waiting"} <= set(now.unknown)
    assert now.service is None
    assert "service     main not known: " in next(iter(status_lines(now))), "unknown is not the same as not running"


@pytest.mark.parametrize(
    "said", [b"[]", b'{"at_ms": "x"}', b'{"at_ms": null, "znodes": 1, "waiting": 1, "unreadable": 0}', b"{"]
)
def test_a_note_of_the_watcher_that_can_not_be_read_is_no_note(world: World, said: bytes) -> None:
    (world.state / watcher_note.FILE).write_bytes(said)
    assert world.read_now().watched is None


def test_without_a_state_directory_its_facts_are_unknown_and_the_others_are_reported(world: World) -> None:
    Pause(world.store, ROOT).set("maintenance")
    clients = command_clients_of(world.store, world.pulsar)
    now = read_now(world.settings, clients, NOW_MS, UnavailableError("the state directory does not exist"))
    assert set(now.unknown) == {"watched", "parked", "retries", "last_hour"}
    assert now.exit_code == UnavailableError.exit_code
    said = now.as_json()
    assert [said[name] for name in sorted(now.unknown)] == [None] * 4
    assert [each.what for each in now.holds or ()] == ["paused"]
    assert sum((now.waiting or {}).values()) == 0
    says = list(status_lines(now))
    assert "waiting     0 requests, without the retries that the service has read" in says
    assert "topics      not known: the state directory does not exist" in says
    assert "last hour   not known, for the same reason" in says


def test_what_waits_in_lanes_is_shown_and_lanes_that_are_not_counted(world: World) -> None:
    lane = "persistent://acme/ledger-deletion/__ledger_deletion"
    world.pulsar.store(f"{lane}-partition-0", (6, 0))
    world.pulsar.publish(f"{lane}-partition-0")
    says = world.says_of_lanes(f"{lane}-partition-0", f"{lane}-partition-1")
    assert any(line.endswith("1  acme/ledger-deletion/__ledger_deletion") for line in says)
    assert any("1 partitions of lanes are not counted" in line for line in says)
