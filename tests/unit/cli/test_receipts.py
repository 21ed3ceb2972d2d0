"""The output of `receipts`; a missing state directory is not the same as one without receipts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.errors import ConfigError, UnavailableError
from streaming.state.notes import hold
from streaming.state.notes.parked_queries import ParkedQuery, note
from streaming.state.settlements import SettlementFolder
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c

AT_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


def receipt(**fields: Any) -> dict[str, Any]:
    return {
        c.CHUNK: 0,
        c.AT_MS: AT_MS,
        c.QUERY: "dlq",
        **dict(zip(c.POSITION, ("persistent://a/b/c-partition-0", 1, 2, -1), strict=True)),
        c.ORIGIN_MESSAGE_ID: "1:2:0",
        c.OUTCOME: "DEAD_LETTER",
        c.REASON: "WRITTEN_OFF",
        c.DETAIL: "",
        c.ATTEMPT: 0,
        c.BYTES: 0,
        c.LEDGER_ID: 17,
    } | fields


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text('[state]\ndir = "state"\n')
    return file


def ask(config: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--config", str(config)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["undo", "--ledger", "17"],
        ["accept", "--gaps"],
    ],
    ids=" ".join,
)
def test_a_missing_state_directory_is_a_fault_of_the_configuration(config: Path, arguments: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        ask(config, *arguments)
    assert f"{config.parent / 'state'} does not exist" in str(refused.value)
    assert f"state.dir in {config}" in str(refused.value)


def test_an_error_is_a_line_on_stderr_and_an_exit_code(config: Path) -> None:
    command = [sys.executable, "-m", "streaming", "receipts", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("ledger-reaper: the state directory ")


def test_a_state_directory_without_receipts_has_its_own_message(config: Path) -> None:
    (config.parent / "state").mkdir()
    assert ask(config, "receipts").startswith("No receipts yet")
    assert ask(config, "receipts", "--ledger", "17") == "No receipt matches.\n"


def test_the_table_has_dates_with_the_year(config: Path) -> None:
    SettlementFolder(str(config.parent / "state")).write_off(AT_MS, [[receipt()]])
    for outcome in ("DEAD_LETTER", "dead_letter"):
        assert "2023-11-14 22:13:20 " in ask(config, "receipts", "--outcome", outcome)
    with pytest.raises(ConfigError, match="one of DELETED, "):
        ask(config, "receipts", "--outcome", "lost")


def test_receipts_are_filtered_by_time_tenant_and_reason(config: Path) -> None:
    hour = 3_600_000
    for number, (tenant, reason) in enumerate([("shop", "IN_USE"), ("shop", "DELETED"), ("shops", "IN_USE")]):
        about = {c.LEDGER_ID: number, c.AT_MS: AT_MS + number * hour, c.REASON: reason}
        about |= {c.TOPIC_NAME: f"persistent://{tenant}/prod/t", c.OUTCOME: "RETRY"}
        write_rows(config.parent / "state", "receipts", [(1, number, -1)], about=receipt(**about))

    def ledgers(*arguments: str) -> list[int]:
        return [json.loads(line)[c.LEDGER_ID] for line in ask(config, "receipts", "--json", *arguments).splitlines()]

    assert ledgers("--tenant", "shop") == [0, 1]
    assert ledgers("--reason", "in_use") == [0, 2]
    assert ledgers("--since", "2023-11-14T23:13:20") == [1, 2]
    assert ledgers("--until", "2023-11-14T23:13:20+00:00") == [0]
    assert ledgers("--since", "2023-11-15T00:13:20+01:00", "--until", "2023-11-15 00:13") == [1]
    assert ledgers("--since", "1h") == []
    assert ledgers("--limit", "2") == [1, 2]
    assert "Receipts (the newest 1 of 3)" in ask(config, "receipts", "--limit", "1")
    for wrong in (["--since", "yesterday"], ["--reason", "BORED"], ["--tenant", "shop/prod"]):
        with pytest.raises(ConfigError, match=wrong[0]):
            ledgers(*wrong)


HOSTILE = "persistent://a/b/orders[blink]-x\x1b[2J\u202e\n2026 INFO forged"


@pytest.mark.parametrize("arguments", [["receipts"], ["receipts", "--json"]], ids=" ".join)
def test_texts_of_other_programs_are_printed_unchanged(config: Path, arguments: list[str]) -> None:
    write_rows(config.parent / "state", "receipts", [(1, 2, -1)], about=receipt(**{c.TOPIC_NAME: HOSTILE}))
    hold.note(str(config.parent / "state"), f"paused: {HOSTILE}", now_ms=AT_MS)
    shown = CliRunner().invoke(app, [*arguments, "--config", str(config)]).output
    assert all(line.isprintable() for line in shown.splitlines())
    if "--json" in arguments:
        assert json.loads(shown.splitlines()[0])[c.TOPIC_NAME] == HOSTILE
    else:
        assert "a/b/orders[blink]-x\\x1b[2J\\u202e\\n2026 INFO forged" in shown
    assert "paused: persistent://a/b/orders[blink]-x\\x1b" in shown


def test_parked_topics_are_printed_with_the_receipts(config: Path) -> None:
    state = config.parent / "state"
    state.mkdir()
    waits = ParkedQuery(topic="persistent://acme/reaper/d", why="no rights", since_ms=AT_MS)
    note(str(state), {"requests-1": waits, "requests-2": replace(waits, is_read=True)})
    result = CliRunner().invoke(app, ["receipts", "--config", str(config)])
    assert (
        "persistent://acme/reaper/d has been parked (its requests wait) since 2023-11-14 22:13:20 UTC: no rights"
        in (result.stderr)
    )
    assert "persistent://acme/reaper/d has been read without the connector since" in result.stderr


@pytest.mark.parametrize("arguments", [["receipts"], ["receipts", "--json"]], ids=" ".join)
def test_receipts_are_unknown_if_the_service_has_not_run(config: Path, arguments: list[str]) -> None:
    with pytest.raises(UnavailableError, match=f"{config.parent / 'state'} does not exist"):
        ask(config, *arguments)


@pytest.mark.parametrize("arguments", [["receipts"], ["undo", "--ledger", "17"]], ids=" ".join)
def test_a_file_instead_of_the_state_directory_is_reported_as_a_file(config: Path, arguments: list[str]) -> None:
    (config.parent / "state").touch()
    with pytest.raises(ConfigError, match="state is a file, not a directory"):
        ask(config, *arguments)


@pytest.mark.parametrize("named", ["shop/prod/carts", "persistent://shop/prod/carts", "shop/prod/persistent/carts"])
def test_a_topic_is_found_with_its_partitions_by_the_names_of_tables_and_pulsar_admin(config: Path, named: str) -> None:
    topics = [
        f"persistent://shop/prod/{name}" for name in ("carts", "carts-partition-1", "carts-2", "cartsXpartition-1")
    ]
    for number, topic in enumerate(topics):
        write_rows(config.parent / "state", "receipts", [(1, number, -1)], about=receipt(**{c.TOPIC_NAME: topic}))
    shown = ask(config, "receipts", "--json", "--topic", named)
    assert sorted(json.loads(line)[c.TOPIC_NAME] for line in shown.splitlines()) == topics[:2]
