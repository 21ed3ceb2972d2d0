"""The output of `status`, and the options it refuses."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from streaming.check.now import Finished, Hold, Now, WaitingRetries
from streaming.cli import status
from streaming.cli.main import app
from streaming.coordination.lock import Holder
from streaming.errors import ConfigError, UnavailableError
from streaming.state.notes.watcher_note import WatcherNote

AT_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
HOLDER = Holder("host-1", 4711, "2023-11-14T22:00:00Z", "secret")


def busy() -> Now:
    return Now(
        at_ms=AT_MS,
        name="main",
        service=HOLDER,
        watched=WatcherNote(at_ms=AT_MS, znodes=7, waiting=2, unreadable=0),
        holds=[Hold("paused", "maintenance", "ledger-reaper resume")],
        waiting={"persistent://a/b/c": 5, "persistent://a/b/c-RETRY": 2},
        retries=WaitingRetries(2, AT_MS + 1000),
        last_hour=Finished({"DELETED": 3}, AT_MS - 1000),
    )


def test_the_terminal_has_one_line_for_each_fact() -> None:
    assert list(status.status_lines(busy())) == [
        "service     main runs: pid 4711 on host-1 since 2023-11-14 22:00:00 UTC",
        "watcher     does not run; last full scan 2023-11-14 22:13:20 UTC: 7 znodes known, 2 requests not sent yet",
        "deletes     HELD, paused: maintenance -> ledger-reaper resume",
        "waiting     7 requests, retries included",
        "                  5  a/b/c",
        "                  2  a/b/c-RETRY",
        "retries     2 wait for their time, the next until 2023-11-14 22:13:21 UTC",
        "last hour   3 DELETED; the newest at 2023-11-14 22:13:19 UTC",
    ]


def test_an_unknown_fact_is_never_printed_as_none() -> None:
    names = ("service", "watcher", "holds", "parked", "waiting", "retries", "last_hour")
    unknown = {name: f"no answer of {name}" for name in names}
    lines = list(status.status_lines(Now(at_ms=AT_MS, name="main", unknown=unknown)))
    assert [line.partition("not known: ")[2] for line in lines] == [
        "no answer of service",
        "no answer of watcher; it has not finished its first scan yet",
        "no answer of holds",
        "no answer of parked",
        "no answer of waiting",
        "no answer of retries",
        "no answer of last_hour",
    ]


def test_a_reason_for_several_unknown_facts_is_given_once() -> None:
    unknown = dict.fromkeys(("parked", "retries", "last_hour"), "no state directory")
    lines = list(status.status_lines(Now(at_ms=AT_MS, name="main", holds=[], waiting={}, unknown=unknown)))
    assert [line for line in lines if "not known" in line] == [
        "topics      not known: no state directory",
        "retries     not known, for the same reason",
        "last hour   not known, for the same reason",
    ]


def test_json_has_every_field_and_no_secret() -> None:
    fields = json.loads(json.dumps(busy().as_json()))
    assert fields["service"] == {"host": "host-1", "pid": 4711, "since": "2023-11-14T22:00:00Z"}
    assert (fields["waiting"]["persistent://a/b/c"], fields["retries"]["next_ms"], fields["unknown"]) == (
        5,
        AT_MS + 1000,
        {},
    )
    assert "exit_code" not in fields


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--watch", "--every", "0.5"], "1 to 86400 seconds", id="too often"),
        pytest.param(["--watch", "--every", "nan"], "1 to 86400 seconds", id="no number"),
        pytest.param(["--watch", "--every", "inf"], "1 to 86400 seconds", id="never"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[state]\ndir = "state"\n')
    result = CliRunner().invoke(app, ["status", *arguments, "--config", str(file)])
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)


@pytest.mark.parametrize("json_lines", [False, True])
def test_unreadable_facts_are_reported_and_set_the_exit_code(
    capsys: pytest.CaptureFixture[str], *, json_lines: bool
) -> None:
    def look() -> Now:
        return replace(busy(), service=None, unknown={"service": "no answer"}, exit_code=UnavailableError.exit_code)

    with pytest.raises(typer.Exit) as ends:
        status.show_once(look, json_lines=json_lines)
    assert ends.value.exit_code == 3
    out = capsys.readouterr().out
    assert "no answer" in out
    assert json_lines or out.startswith("time        2023-11-14 22:13:20 UTC\n")


def test_the_exit_code_is_0_if_everything_was_read() -> None:
    status.show_once(busy, json_lines=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_watching_prints_each_read_until_a_signal(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, *, is_terminal: bool
) -> None:
    looks = 0

    def look() -> Now:
        nonlocal looks
        looks += 1
        assert looks <= 2, "it goes on after a signal"
        if looks == 2:
            os.kill(os.getpid(), number)
        return busy()

    def unheard(*_: object) -> None:
        raise AssertionError("no handler for the signal")

    before = signal.signal(number, unheard)
    try:
        status.show_repeatedly(look, 0.01, json_lines=False, is_terminal=is_terminal)
        assert signal.getsignal(number) is unheard, "the handler from before is back"
    finally:
        signal.signal(number, before)
    assert looks == 2
    assert capsys.readouterr().out.count("4711") >= (1 if is_terminal else 2)
