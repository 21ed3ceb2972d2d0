import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming.cli.snapshots import app
from streaming.errors import ReaperError
from streaming.snapshots import repairs
from streaming.snapshots.repair import Repaired
from udfs.snapshots.repairing import Remedy

TOPIC = "persistent://t/ns/orders"


@dataclass
class Done:
    """Repairs of which this one comes to that."""

    not_verified: str

    def repair(self, topic: str, remedy: Remedy) -> Repaired:
        return Repaired(topic, "1.json", 3, 0, 0, 2, self.not_verified, remedy)


def _run(monkeypatch: pytest.MonkeyPatch, path: Path, not_verified: str, *options: str) -> tuple[int, str]:
    @contextmanager
    def repairs_for(_settings: Any) -> Iterator[Done]:
        yield Done(not_verified)

    monkeypatch.setattr(repairs, "repairs_for", repairs_for)
    config = path / "config.toml"
    config.write_text(f'[state]\ndir = "{path}"\n')
    result = CliRunner().invoke(app, ["repair", "--yes", "--topic", TOPIC, *options, "--config", str(config)])
    error = result.exception
    return (error.exit_code if isinstance(error, ReaperError) else result.exit_code), f"{result.output}{error or ''}"


def test_a_repair_that_is_verified_ends_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, said = _run(monkeypatch, tmp_path, "", "--json")
    assert (code, json.loads(said)["is_verified"]) == (0, True)


def test_one_that_is_not_says_what_came_out_and_ends_with_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, said = _run(monkeypatch, tmp_path, "no old ids are known")
    assert code == 4
    assert "is loaded again" in said
    assert "not verified: no old ids are known" in said
    assert "snapshots undo --topic" in said
    code, said = _run(monkeypatch, tmp_path, "no old ids are known", "--json")
    found = json.loads(said.splitlines()[0])
    assert (code, found["is_verified"], found["not_verified"]) == (4, False, "no old ids are known")
