"""`ledger-reaper undo` and `check`, and where the operator's commands join the command line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli import dlq as cli_dlq
from streaming.clock import SystemClock
from streaming.config.amounts import seconds_of
from streaming.config.load import load
from streaming.errors import ConfigError, RefusedError, SafetyError

Config = Annotated[Path, typer.Option("--config", help="Configuration file (TOML)", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines")]


def register(app: typer.Typer) -> None:
    """Add dlq, undo, check and accept."""
    app.add_typer(cli_dlq.app, name="dlq")
    app.command()(undo)
    app.command()(check)
    app.command()(accept)


def undo(  # noqa: PLR0913  one parameter an option: that is what typer reads
    config: Config,
    *,
    ledger: Annotated[int | None, typer.Option("--ledger", help="This ledger")] = None,
    topic: Annotated[str, typer.Option("--topic", help="All of this topic's (any form of its name)")] = "",
    since: Annotated[str, typer.Option("--since", help="All that went in the last so long, e.g. 2h")] = "",
    objects: Annotated[
        bool, typer.Option("--objects", help="Tiered storage's objects, in buckets with versions")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing")] = False,
    json_lines: Json = False,
) -> None:
    """Put deleted ledgers' metadata back, and look whether the bookies still have their data.

    With --objects: show the objects of offloaded ledgers again, where the bucket keeps versions.

    Exit 4 where the one ledger asked for exists, 2 where the journal does not have it, 1 where any could not be
    put back, or its data are gone.
    """
    from streaming.cli.undo_text import SHOWN, advice, advice_on_objects, line
    from streaming.clients import command_clients
    from streaming.undo.ledgers import Undone, UndoReport, UndoSelection
    from streaming.undo.ledgers import undo as undo_deletes
    from streaming.undo.objects import undo_objects

    since_ms = SystemClock().now_ms() - seconds_of(since, "--since") * 1000 if since else 0
    wanted = UndoSelection(ledger, topic, since_ms)
    if wanted.is_nothing:
        raise ConfigError("nothing chosen: give --ledger, --topic or --since; several mean what all of them mean")
    settings = load(config)
    with command_clients(settings) as clients:
        report = (
            UndoReport(undo_objects(settings, wanted, dry_run=dry_run))
            if objects
            else undo_deletes(settings, clients.store, clients.pulsar.admin, wanted, dry_run=dry_run)
        )
    for each in report.results if json_lines else report.results[:SHOWN]:
        typer.echo(json.dumps(asdict(each)) if json_lines else line(each))
    typer.echo(advice_on_objects(report) if objects else advice(report), err=True)
    if report.count(Undone.FAILED):
        raise RefusedError(f"{report.count(Undone.FAILED)} of {len(report.results)} could not be put back")
    if report.count(Undone.TOO_LATE):
        raise RefusedError(f"{report.count(Undone.TOO_LATE)} of {len(report.results)} came too late: the data are gone")
    if ledger is not None and report.count(Undone.EXISTS) and not objects:
        raise SafetyError(f"ledger {ledger} exists: an existing ledger's metadata is never overwritten")


def check(config: Config, json_lines: Json = False) -> None:
    """Look at everything the service needs, and say what to do. Exit 0, or 2, 3, 4 for the worst that was found."""
    from streaming.check.preflight import Status, worst
    from streaming.check.preflight import check as look
    from streaming.clients import command_clients

    marks = {Status.OK: "ok      ", Status.NOTE: "note    ", Status.PROBLEM: "PROBLEM "}
    lines = []
    settings = load(config)
    with command_clients(settings) as clients:
        for line in look(settings, clients):
            lines.append(line)
            if json_lines:
                typer.echo(json.dumps(asdict(line)))
                continue
            typer.echo(f"{marks[line.status]} {line.what}: {line.says}")
            if line.do:
                typer.echo(f"         -> {line.do}")
    if code := worst(lines):
        raise typer.Exit(code)


def accept(
    config: Config,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="This topic (any form of its name)")] = None,
    *,
    all_owners: Annotated[bool, typer.Option("--all", help="Every owner")] = False,
    gaps: Annotated[bool, typer.Option("--gaps", help="Ledgers that vanished with unread messages")] = False,
) -> None:
    """Say that what an owner names now is right, though it is far less than before (reason SOURCE_SHRANK).

    With --gaps: say that messages which went unread are seen to (sent again, or not needed); ends their alarm.
    """
    from streaming.cli.control import accept as accept_owners
    from streaming.cli.control import accept_vanished
    from streaming.clients import command_clients

    if bool(topic) + all_owners + gaps != 1:
        raise ConfigError("say which: --topic T (several times, if need be), --all, or --gaps")
    settings = load(config)
    with command_clients(settings) as clients:
        typer.echo(
            accept_vanished(settings, clients.pulsar) if gaps else accept_owners(settings, clients.store, topic or [])
        )
