"""`ledger-reaper history`, and what commands add to it."""

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming import clients
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.cli.main import app
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.coordination.identity import operator_name
from streaming.errors import UnavailableError


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """What every command of the test takes for ZooKeeper."""
    one = MemoryStore(MemoryTree(SystemClock()))
    monkeypatch.setattr(clients, "open_store", lambda _settings: one)
    monkeypatch.setattr(one, "close", lambda: None)
    return one


def call(folder: Path, *arguments: str) -> str:
    config = folder / "my.toml"
    config.write_text('[service]\nname = "blue"\n')
    result = CliRunner().invoke(app, [*arguments, "--config", str(config)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.usefixtures("store")
def test_each_action_is_listed_with_who_what_and_why(tmp_path: Path) -> None:
    assert call(tmp_path, "history") == "No operator has changed anything yet.\n"
    call(tmp_path, "pause", "--why", "broker\nupgrade")
    call(tmp_path, "resume", "--why", "done")
    call(tmp_path, "accept", "--topic", "shop/prod/carts", "--why", "INC-7")
    lines = call(tmp_path, "history").splitlines()
    assert len(lines) == 3
    assert f"  {operator_name()}  blue  pause: broker\\nupgrade (by " in lines[0]
    assert lines[0].endswith(" UTC)"), "the reason is there once"
    assert "resume: ended the pause: broker\\nupgrade (by " in lines[1]
    assert lines[2].endswith(
        "accept: accepted: shop/prod/carts as it is now; the next retry uses this list (why: INC-7)"
    )
    entries = [json.loads(line) for line in call(tmp_path, "history", "--json", "--limit", "2").splitlines()]
    assert [entry["command"] for entry in entries] == ["resume", "accept"]
    assert call(tmp_path, "history", "--since", "2099-01-01") == "No operator has changed anything since then.\n"


def test_an_action_counts_although_it_can_not_be_added(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = store.create

    def refuse(path: str, data: bytes, **how: object) -> bool:
        if "/history/" in path:
            raise UnavailableError("ZooKeeper does not answer")
        return create(path, data, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "create", refuse)
    with caplog.at_level(logging.WARNING):
        assert call(tmp_path, "pause", "--why", "upgrade").startswith("paused: upgrade")
    assert "`ledger-reaper history` will not show this command: ZooKeeper does not answer" in caplog.text


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume"], "was not paused"),
        (["resume", "--limit"], "no limit holds the service"),
        (["resume", "--tenant", "shop"], "tenant shop is not held"),
    ],
)
def test_a_command_that_changed_nothing_is_not_listed(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert call(tmp_path, *arguments) == f"{message}\n"
    assert call(tmp_path, "history") == "No operator has changed anything yet.\n"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_entries_that_can_not_be_read_are_counted_with_their_paths(
    tmp_path: Path, store: MemoryStore, form: list[str]
) -> None:
    for number in range(5):
        call(tmp_path, "accept", "--topic", f"shop/prod/{number}")
    folder = f"{load(None).zookeeper.own_root}/history"
    (names,) = store.children_many([folder])
    assert isinstance(names, list)
    store.unreadable.update(f"{folder}/{name}" for name in sorted(names)[:4])
    (tmp_path / "my.toml").write_text("")
    result = CliRunner().invoke(app, ["history", *form, "--config", str(tmp_path / "my.toml")])
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("4 further entries can't be read: /ledger-reaper/history/")
    assert result.stderr.endswith(" (too large) and 1 more\n")
