"""`pause` and `resume`: one hold at a time, a required reason, and no pause that is replaced by accident."""

from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.check.now import holds_of
from streaming.cli import control
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.coordination.pause import Pause
from streaming.errors import ConfigError, SafetyError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path

SETTINGS = load(None)
ROOT, NAME = SETTINGS.zookeeper.own_root, SETTINGS.service.name


class Held:
    """A service that a pause, a limit and a held tenant hold at once."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.store = MemoryStore(MemoryTree(self.clock))
        Pause(self.store, ROOT).set("broker upgrade")
        Breaker(self.store, breaker_path(ROOT, NAME)).trip("60 deletes in an hour")
        TenantHolds(self.store, tenant_holds_path(ROOT, NAME)).hold({"shop": "9 of 9 topics are gone"})

    def holds(self) -> list[str]:
        return [each.what for each in holds_of(SETTINGS, self.store)]


@pytest.fixture
def held() -> Held:
    return Held()


def test_resume_ends_the_pause_and_nothing_else(held: Held) -> None:
    assert control.resume(SETTINGS, held.store).startswith("ended the pause: broker upgrade (by ")
    assert held.holds() == ["limit reached", "tenant shop held"]
    assert control.resume(SETTINGS, held.store) == "was not paused"
    assert held.holds() == ["limit reached", "tenant shop held"]


def test_a_limit_is_released_by_its_own_option_and_nothing_else_is(held: Held) -> None:
    assert control.resume_limit(SETTINGS, held.store) == "released; a limit held the service: 60 deletes in an hour"
    assert held.holds() == ["paused", "tenant shop held"]
    assert control.resume_limit(SETTINGS, held.store) == "no limit holds the service"


def test_a_tenant_is_released_by_its_own_option_and_nothing_else_is(held: Held) -> None:
    control.resume_tenant(SETTINGS, held.store, "shop")
    assert held.holds() == ["paused", "limit reached"]


@pytest.mark.parametrize("why", ["", "  "])
def test_a_pause_needs_a_reason(why: str) -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="--why"):
        control.pause(SETTINGS, store, why)
    assert Pause(store, ROOT).reason() == ""


def test_a_pause_that_another_operator_set_is_replaced_only_by_force(held: Held) -> None:
    with pytest.raises(SafetyError, match="paused already: broker upgrade"):
        control.pause(SETTINGS, held.store, "restore")
    message = control.pause(SETTINGS, held.store, "restore", force=True)
    assert message.startswith("paused: restore (by ")
    assert "it replaces the pause: broker upgrade (by " in message


def test_an_expired_pause_needs_no_force() -> None:
    zookeepers = ManualClock(1_000)  # the agreed clock is the earlier of the two
    store = MemoryStore(MemoryTree(zookeepers))
    control.pause(SETTINGS, store, "an hour", for_ms=3_600_000)
    with pytest.raises(SafetyError):
        control.pause(SETTINGS, store, "another")
    zookeepers.advance(3_600_000)
    assert control.pause(SETTINGS, store, "another").startswith("paused: another")


def test_the_command_releases_one_hold_at_a_time(tmp_path: Path) -> None:
    from streaming.cli.main import app

    config = tmp_path / "config.toml"
    config.touch()
    with pytest.raises(ConfigError, match="once for each"):
        app(["resume", "--limit", "--tenant", "shop", "--config", str(config)], standalone_mode=False)
    with pytest.raises(ConfigError, match="longer than 0"):
        app(["pause", "--for", "0h", "--config", str(config)], standalone_mode=False)
