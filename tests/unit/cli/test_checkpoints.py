"""`checkpoints convert`: only for a stopped service, with its own directories, and not before the operator agrees."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from streaming import clients
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.cli import checkpoints as command
from streaming.cli import control
from streaming.cli.main import app
from streaming.clients import CommandClients
from streaming.clock import ManualClock
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.operator_log import OperatorLog
from streaming.errors import ConfigError, ReaperError, SafetyError, UnavailableError
from streaming.queries import checkpoints as checkpoints_of
from streaming.queries.conversion import interrupted, plan
from streaming.state.filesystem import folder_of
from tests.builders import put
from tests.services import command_clients_of
from tests.unit.queries import test_conversion
from udfs.formats.spark_offsets import Writer

stored, settings, files = test_conversion.stored, test_conversion.settings, test_conversion.files


class World:
    """A stopped service on PySpark 4 with checkpoints of the connector."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = MemoryStore(MemoryTree(ManualClock(0)))
        self.pulsar: MemoryPulsar = stored()
        root = settings.zookeeper.ledgers_root
        put(self.store.tree, f"{root}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
        put(self.store.tree, f"{root}/INSTANCEID", b"id")
        here = identity.of_cluster(settings, self.store, self.pulsar)
        self.directories = (settings.checkpoints.dir, settings.state_dir)
        for directory in self.directories:
            identity.hold(here, directory)
        self.before = self.files()

    def files(self) -> dict[str, bytes]:
        return files(Path(self.settings.checkpoints.dir))

    def convert(self, *options: str) -> Result:
        config = str(Path(self.settings.checkpoints.dir).parent / "config.toml")
        return CliRunner().invoke(app, ["checkpoints", "convert", *options, "--config", config])

    def refused(self, error: type[ReaperError], why: str, *options: str) -> None:
        """Check that a call is refused, and changes nothing."""
        result = self.convert(*options)
        assert isinstance(result.exception, error), result.output
        assert why in str(result.exception)
        assert self.files() == self.before
        assert self.history() == []

    def history(self) -> list[str]:
        return [entry.what for entry in OperatorLog(self.store, self.settings.zookeeper.own_root).entries()]


@pytest.fixture
def world(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: False)
    world = World(settings)

    @contextmanager
    def command_clients(_settings: object) -> Iterator[CommandClients]:
        yield command_clients_of(world.store, world.pulsar)

    monkeypatch.setattr(clients, "command_clients", command_clients)
    return world


def test_checkpoints_are_converted_once(world: World) -> None:
    result = world.convert("--yes", "--why", "PySpark 4")
    assert result.exit_code == 0, result.output
    assert "requests: read up to batch 0\nretry: read up to batch 2\nconverted 2 checkpoints" in result.output
    checkpoints_of.refuse_other_writer(world.settings)
    assert len(world.history()) == 1
    converted = world.files()
    again = world.convert("--yes")
    assert "no checkpoint is of another PySpark" in again.output
    assert world.files() == converted
    assert len(world.history()) == 1


def test_a_dry_run_shows_the_conversion_and_changes_nothing(world: World) -> None:
    result = world.convert("--dry-run")
    assert "requests: read up to batch 0\nretry: read up to batch 2\nwould convert 2 checkpoints" in result.output
    assert world.files() == world.before
    assert world.history() == []


def test_the_operator_agrees_first(world: World) -> None:
    world.refused(ConfigError, "--yes answers the question beforehand")


def test_a_running_services_checkpoints_are_not_converted(world: World) -> None:
    with control.stopped(world.settings, world.store):
        world.refused(SafetyError, "already runs", "--yes")


def test_nothing_is_converted_if_the_lock_is_lost_before_the_operator_agrees(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "confirm", lambda _question, *, yes: world.store.expire_session())
    world.refused(UnavailableError, "the session with ZooKeeper has ended", "--yes")


@pytest.mark.parametrize("number", [0, 1])
def test_directories_of_another_cluster_are_refused(world: World, number: int) -> None:
    file = Path(world.directories[number], "cluster.json")
    file.write_text(file.read_text().replace('"id"', '"of another cluster"'))
    world.before = world.files()
    world.refused(SafetyError, "belongs to another cluster", "--yes")
    file.unlink()
    world.before = world.files()
    world.refused(ConfigError, "no service has used this directory", "--yes")


def test_receipts_of_another_service_are_refused(world: World) -> None:
    test_conversion.receipts(world.settings)
    identity.hold_state("other receipts", world.settings.checkpoints.dir)
    world.before = world.files()
    world.refused(SafetyError, "are not those that", "--yes")


def test_an_interrupted_conversion_is_completed(world: World) -> None:
    planned = plan(world.settings, world.pulsar, Writer.FRAMES, "1")
    root = folder_of(world.settings.checkpoints.dir)
    root.write("converting.json", json.dumps(asdict(planned)).encode())
    started = world.files()
    assert "would complete an interrupted conversion of 2" in world.convert("--dry-run").output
    assert world.files() == started
    world.pulsar = MemoryPulsar()  # the plan has all that is needed
    assert "completed the interrupted conversion of 2" in world.convert("--yes").output
    assert interrupted(world.settings) is None
    checkpoints_of.refuse_other_writer(world.settings)
