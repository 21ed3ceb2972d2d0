"""`undo` asks the operator only about ledgers that it can restore."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming import clients
from streaming.cli.main import app
from streaming.clients import CommandClients
from streaming.config.load import load
from streaming.coordination.operator_log import OperatorLog
from streaming.errors import ConfigError, SafetyError
from tests.builders import ROOT, exists, put
from tests.services import command_clients_of
from tests.unit.undo.test_restore_ledgers import World

OF_TOPIC = ["undo", "--topic", "public/default/orders"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Ledger 5 of a topic was deleted, and is in the journal of the state directory."""
    (tmp_path / "state").mkdir()
    world = World(tmp_path / "state")
    (tmp_path / "config.toml").write_text(f'[state]\ndir = "state"\n[zookeeper]\nledgers_root = "{ROOT}"\n')

    @contextmanager
    def command_clients(_settings: object) -> Iterator[CommandClients]:
        yield command_clients_of(world.store, world.pulsar, bookies=world.bookies)

    monkeypatch.setattr(clients, "command_clients", command_clients)
    return world


def call(folder: Path, *arguments: str) -> None:
    app([*arguments, "--config", str(folder / "config.toml")], standalone_mode=False)


@pytest.mark.parametrize(
    "arguments", [["--topic", "shop/prod/none"], ["--since", "1s", "--topic", "public/default/orders"], ["--objects"]]
)
def test_ledgers_that_the_journal_does_not_have_are_refused_before_any_question(
    world: World, tmp_path: Path, arguments: list[str]
) -> None:
    del world
    result = CliRunner().invoke(app, [*OF_TOPIC, *arguments, "--config", str(tmp_path / "config.toml")])
    assert isinstance(result.exception, ConfigError), result.output
    assert "has no such" in str(result.exception)


def test_a_script_must_answer_beforehand(world: World, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*OF_TOPIC, "--config", str(tmp_path / "config.toml")])
    assert isinstance(result.exception, ConfigError), result.output
    assert "--yes answers the question beforehand" in str(result.exception)
    assert not exists(world.store.tree, world.path)


def test_the_question_has_the_number_of_ledgers(
    world: World, tmp_path: Path, terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    os.write(terminal, b"n\n")
    with pytest.raises(SafetyError, match="nothing was done"):
        call(tmp_path, *OF_TOPIC)
    assert "Restore 1 ledger of public/default/orders? [y/N]" in capsys.readouterr().err
    assert not exists(world.store.tree, world.path)


def test_without_a_ledger_that_can_be_restored_nothing_is_asked(
    world: World, tmp_path: Path, terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    os.write(terminal, b"y\n")
    put(world.store.tree, world.path, b"another's")
    call(tmp_path, *OF_TOPIC)
    shown = capsys.readouterr()
    assert "EXISTS" in shown.out
    assert "[y/N]" not in shown.err


def test_only_an_undo_that_may_have_changed_something_is_in_the_history(world: World, tmp_path: Path) -> None:
    history = OperatorLog(world.store, load(None).zookeeper.own_root)
    put(world.store.tree, world.path, b"another's")
    call(tmp_path, *OF_TOPIC, "--yes")
    assert history.entries() == []
    world.store.tree.remove(world.path)
    call(tmp_path, *OF_TOPIC, "--yes")
    assert [entry.what for entry in history.entries()] == ["ledgers of public/default/orders: 1 PUT_BACK"]
