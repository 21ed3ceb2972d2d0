"""`ledger-reaper check`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from streaming.cli.options import Config, Json, settings_of
from streaming.terminal import say_json, say_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.check.preflight import Line


def check(config: Config, json_lines: Json = False) -> None:
    """Test everything that the service needs, and name a remedy for each problem.

    The exit code is 0 if there is no problem, otherwise 2, 3 or 4 for the worst problem. The command creates nothing.
    """
    from streaming.check.preflight import Status, check_without_files, worst
    from streaming.check.preflight import check as check_clients
    from streaming.check.questions import missing_files
    from streaming.clients import command_clients
    from streaming.snapshots.guard.check_line import guard_line

    marks = {Status.OK: "ok      ", Status.NOTE: "note    ", Status.PROBLEM: "PROBLEM "}
    settings = settings_of(config)

    def all_lines() -> "Iterator[Line]":
        if missing := missing_files(settings):
            yield from check_without_files(settings, missing)
            return
        with command_clients(settings) as clients:
            yield from check_clients(settings, clients)
            yield guard_line(settings, clients)

    lines = []
    for line in all_lines():
        lines.append(line)
        if json_lines:
            say_json(asdict(line))
            continue
        say_lines(f"{marks[line.status]} {line.what}: {line.says}")
        if line.do:
            say_lines(f"         -> {line.do}")
    if code := worst(lines):
        raise typer.Exit(code)
