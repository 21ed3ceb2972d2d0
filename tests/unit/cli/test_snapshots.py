import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming.cli.snapshots import app
from streaming.errors import ConfigError, ReaperError, RefusedError, SafetyError, UnavailableError
from streaming.snapshots.removal import candidates as trimmable
from streaming.snapshots.removal.trim import Trimmed, Trims
from streaming.snapshots.repair import wiring as repairs
from streaming.snapshots.repair.repair_result import RepairResult
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import Remedy
from udfs.snapshots.values import ReadValue

TOPIC = "persistent://t/ns/orders"


@dataclass
class Done:
    """Repairs that return this result."""

    not_verified: str
    not_written: str

    def repair(self, topic: str, remedy: Remedy) -> RepairResult:
        return RepairResult(
            topic=topic,
            journal="1.json",
            aborted=3,
            known=0,
            expected=0,
            delivered=2,
            not_verified=self.not_verified,
            loads=1,
            not_written=self.not_written,
            remedy=remedy,
        )


def _run(
    monkeypatch: pytest.MonkeyPatch, path: Path, not_verified: str, *options: str, not_written: str = ""
) -> tuple[int, str]:
    @contextmanager
    def repairs_for(_settings: Any, say: Any) -> Iterator[Done]:
        say("it waits")
        yield Done(not_verified, not_written)

    monkeypatch.setattr(repairs, "repairs_for", repairs_for)
    config = path / "config.toml"
    config.write_text(f'[state]\ndir = "{path}"\n')
    result = CliRunner().invoke(app, ["repair", "--yes", "--topic", TOPIC, *options, "--config", str(config)])
    error = result.exception
    assert result.stderr.startswith("it waits\n")
    return (error.exit_code if isinstance(error, ReaperError) else result.exit_code), f"{result.stdout}{error or ''}"


def test_a_verified_repair_succeeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, output = _run(monkeypatch, tmp_path, "", "--json")
    assert (code, json.loads(output)["is_verified"]) == (0, True)


def test_an_unverified_repair_names_the_messages_and_ends_with_4(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, output = _run(monkeypatch, tmp_path, "no old ids are known")
    assert code == 4
    assert "is loaded again" in output
    assert "not verified: no old ids are known" in output
    assert "snapshots undo --topic" in output
    code, output = _run(monkeypatch, tmp_path, "no old ids are known", "--json")
    found = json.loads(output.splitlines()[0])
    assert (code, found["is_verified"], found["not_verified"]) == (4, False, "no old ids are known")


def test_a_repair_after_which_the_broker_writes_nothing_reports_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacks = "its broker has sealed 2 segments, and 1 of them are not in its index"
    code, output = _run(monkeypatch, tmp_path, "", not_written=lacks)
    assert code == 0
    assert f"Its broker has not written its own snapshot yet: {lacks}" in output
    code, output = _run(monkeypatch, tmp_path, "", "--json", not_written=lacks)
    assert (code, json.loads(output)["not_written"]) == (0, lacks)


FAILS: dict[str, ReaperError] = {
    "a": SafetyError("a is not trimmed: it has no ids"),
    "b": UnavailableError("no broker answers"),
    "d": RefusedError("no right"),
}


def _trim(monkeypatch: pytest.MonkeyPatch, path: Path, *topics: str) -> tuple[int, str]:
    @contextmanager
    def repairs_for(_settings: Any) -> Iterator[None]:
        yield None

    def trim(_self: Trims, topic: str) -> Trimmed:
        if topic in FAILS:
            raise FAILS[topic]
        return Trimmed(topic, 2, 0)

    monkeypatch.setattr(repairs, "repairs_for", repairs_for)
    monkeypatch.setattr(trimmable, "topics_with_deleted_ledgers", lambda _settings: list(topics))
    monkeypatch.setattr(Trims, "trim", trim)
    config = path / "config.toml"
    config.write_text(f'[state]\ndir = "{path}"\n')
    result = CliRunner().invoke(app, ["trim", "--yes", "--config", str(config)])
    error = result.exception
    return (error.exit_code if isinstance(error, ReaperError) else result.exit_code), f"{result.output}{error or ''}"


def test_if_a_topic_cannot_be_trimmed_the_others_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, output = _trim(monkeypatch, tmp_path, "a", "b", "c", "d", "e")
    assert [line.split()[-1] for line in output.splitlines() if "has dropped" in line] == ["c", "e"]
    assert "b was not trimmed: no broker answers" in output
    assert output.endswith("2 of 5 topics were not trimmed, run the command again: b, d")
    assert code == UnavailableError.exit_code


def test_a_topic_without_ids_to_trim_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, output = _trim(monkeypatch, tmp_path, "a", "c")
    assert code == 0
    assert "it has no ids" in output


@pytest.mark.parametrize("command", ["repair", "undo"])
@pytest.mark.parametrize("options", [(), ("--topic", TOPIC, "--namespace", "t/ns")], ids=["neither", "both"])
def test_a_repair_is_of_a_topic_or_of_a_namespace(command: str, options: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}"\n')
    result = CliRunner().invoke(app, [command, "--yes", *options, "--config", str(config)])
    assert isinstance(result.exception, ConfigError)


class _Blocked:
    """A namespace with one message that no broker can decode, and one that brokers of another version may decode."""

    def __init__(self, *, is_unknown_foreign: bool = False) -> None:
        found = ReadValue(
            kind=SnapshotKind.INDEX,
            key="odd",
            topic="",
            position=(7, 1),
            publish_ms=0,
            size_bytes=2,
            detail="the key is no key",
        )
        self.left = [found]
        self.in_doubt = [replace(found, key="newer", position=(7, 2), detail="version 1 is not known")]
        if is_unknown_foreign:
            self.left, self.in_doubt = [*self.left, *self.in_doubt], []
        self.removed: list[ReadValue] = []

    def messages(self, namespace: str) -> list[ReadValue]:
        return list(self.left)

    def doubtful(self, namespace: str) -> list[ReadValue]:
        return list(self.in_doubt)

    def remove(self, namespace: str, shown: list[ReadValue]) -> None:
        self.removed += shown
        self.left.clear()


def _repaired(
    blocked: _Blocked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str
) -> tuple[int, str, str]:
    """Return the exit code, the output and the error's text of `repair --namespace`."""

    def opened(_settings: object, *, is_unknown_foreign: bool) -> nullcontext[_Blocked]:
        assert is_unknown_foreign is ("--unknown-schemas" in options)
        return nullcontext(blocked)

    monkeypatch.setattr(repairs, "blocking_for", opened)
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}"\n')
    result = CliRunner().invoke(app, ["repair", *options, "--namespace", "t/ns", "--config", str(config)])
    error = result.exception
    code = error.exit_code if isinstance(error, ReaperError) else result.exit_code
    return code, result.output, str(error or "")


@pytest.mark.parametrize(("options", "code", "removed"), [((), 2, 0), (("--yes",), 4, 1)])
def test_what_blocks_loading_is_named_before_it_is_removed(
    options: tuple[str, ...], code: int, removed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = _Blocked()
    done, said, _error = _repaired(blocked, monkeypatch, tmp_path, *options)
    assert done == code
    assert "__transaction_buffer_snapshot_indexes 7:1 (key 'odd': the key is no key)" in said
    assert len(blocked.removed) == removed


def test_a_repair_never_says_that_all_can_be_decoded_while_a_message_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = _Blocked()
    code, said, error = _repaired(blocked, monkeypatch, tmp_path, "--yes")
    assert (code, "1 messages removed" in said) == (4, True)
    assert "7:2 (key 'newer': version 1 is not known)" in error
    code, said, error = _repaired(blocked, monkeypatch, tmp_path, "--yes")
    assert (code, said) == (4, "")
    assert "repair --unknown-schemas --namespace t/ns" in error
    code, said, _error = _repaired(blocked, monkeypatch, tmp_path, "--yes", "--json")
    assert (code, json.loads(said)) == (4, {"namespace": "t/ns", "removed": 0, "in_doubt": 1})


def test_an_operator_who_knows_of_one_version_only_has_all_garbage_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = _Blocked(is_unknown_foreign=True)
    code, said, _error = _repaired(blocked, monkeypatch, tmp_path, "--unknown-schemas")
    assert (code, len(blocked.removed)) == (2, 0)  # no terminal, and no --yes
    code, said, _error = _repaired(blocked, monkeypatch, tmp_path, "--unknown-schemas", "--yes")
    assert (code, len(blocked.removed)) == (0, 2)
    assert "2 messages removed" in said
    code, said, _error = _repaired(blocked, monkeypatch, tmp_path, "--unknown-schemas", "--yes")
    assert (code, said) == (0, "t/ns: brokers can decode all\n")


def test_unknown_schemas_goes_with_a_namespace_only(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}"\n')
    options = ("--unknown-schemas", "--topic", "persistent://t/ns/orders")
    result = CliRunner().invoke(app, ["repair", "--yes", *options, "--config", str(config)])
    assert "--unknown-schemas would change nothing" in str(result.exception)
