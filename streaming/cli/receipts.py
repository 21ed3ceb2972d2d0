"""`ledger-reaper receipts`: shows the results of requests, as JSON rows for programs or as a table for operators."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from streaming.arrow import load_datasets
from streaming.cli.options import (
    Config,
    Json,
    OneLedger,
    completes,
    require_namespace,
    settings_of,
    state_fault,
    utc,
)
from streaming.clock import SystemClock
from streaming.config.amounts import one_of, time_of
from streaming.terminal import Terminal, cell, new_table, say, say_json
from udfs import columns as c
from udfs.records import Outcome, Reason

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_TABLE_ROWS = 200
_PIPE_WIDTH = 160  # columns of the table if the output is not a terminal
_WIDE = 110  # columns that a terminal needs to show the component too


def receipts(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    json_lines: Json = False,
    ledger: OneLedger = None,
    topic: Annotated[str, typer.Option("--topic", help="Only this topic, for example shop/prod/carts")] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="Only topics of this tenant")] = "",
    outcome: Annotated[
        str,
        typer.Option("--outcome", help=f"Only this outcome: {', '.join(Outcome)}", autocompletion=completes(Outcome)),
    ] = "",
    reason: Annotated[
        str, typer.Option("--reason", help="Only this reason (docs/reasons.md)", autocompletion=completes(Reason))
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="Only receipts of this time or later: 2h (ago), 2026-11-28T17:05 (UTC)")
    ] = "",
    until: Annotated[str, typer.Option("--until", help="Only receipts before this time")] = "",
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, show_default="200; with --json all", help="At most this many, the newest"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print receipts as the service commits them, until Ctrl-C")
    ] = False,
) -> None:
    """Show the results of requests: the newest as a table, or with --json all of them, the oldest first."""
    load_datasets()
    from streaming.state.outcomes import ReceiptFilter, followed, newest_of, receipts_of
    from streaming.state.receipts import newest_chunk

    now_ms = SystemClock().now_ms()
    require_namespace("", tenant)
    wanted = ReceiptFilter(
        ledger=ledger,
        topic=topic,
        tenant=tenant,
        outcome=outcome and one_of(outcome, Outcome, "--outcome"),
        reason=reason and one_of(reason, Reason, "--reason", page="docs/reasons.md"),
        since_ms=time_of(since, "--since", now_ms) if since else 0,
        until_ms=time_of(until, "--until", now_ms) if until else 0,
    )
    settings = settings_of(config)
    if fault := state_fault(settings, config):
        raise fault
    last = newest_chunk(settings.state_dir) if follow else None
    before = replace(wanted, last_chunk=last)
    if follow and limit is None:
        pass  # only new receipts
    elif json_lines:
        for row in receipts_of(settings, before) if limit is None else newest_of(settings, limit, before)[1]:
            say_json(row)
    else:
        counted, newest = newest_of(settings, limit or _TABLE_ROWS, before)
        _print_table(counted, newest, nothing=_nothing(settings.state.dir, is_filtered=not wanted.is_empty))
    _say_what_waits(settings)
    for row in followed(settings, wanted, last) if last is not None else ():
        say_json(row) if json_lines else say(_line(row))


def _say_what_waits(settings: "Settings") -> None:
    """Print why the service deletes nothing now, and the topics that the connector can't read, if any."""
    from streaming.state.notes import parked_queries
    from streaming.state.notes.hold import noted

    why, since_ms = noted(settings.state_dir)
    if why:
        say(f"The service deletes nothing; it has been held since {utc(since_ms)} UTC: {why}", err=True)
    for query in parked_queries.noted(settings.state_dir).values():
        say(query.shown(utc(query.since_ms)), err=True)


def _line(row: dict[str, Any]) -> str:
    ledger = "-" if row[c.LEDGER_ID] is None else row[c.LEDGER_ID]
    return f"{utc(row[c.AT_MS])}  {ledger:>12}  {row[c.OUTCOME]:<13} {row[c.REASON]:<24} {_topic(row)}"


def _topic(row: dict[str, Any]) -> str:
    return (row[c.TOPIC_NAME] or "-").removeprefix("persistent://")


def _nothing(state_dir: str, *, is_filtered: bool) -> str:
    if is_filtered:
        return "No receipt matches."
    return f"No receipts yet: the service whose state is in {state_dir} has not finished any request."


def _print_table(counted: Counter[tuple[str, str]], newest: Sequence[dict[str, Any]], *, nothing: str) -> None:
    """Print the newest receipts, and how many there are of each outcome and reason."""
    console = Terminal(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    if not newest:
        console.print(cell(nothing), soft_wrap=True)
        return
    is_wide = console.width >= _WIDE
    whole = ("time (UTC)", "ledger", "outcome", "reason", "try", *(["component"] if is_wide else []))
    console.print(Text(f"Receipts (the newest {len(newest)} of {counted.total()})", "bold"))
    shown = new_table("", *whole, "topic", numbers=("ledger", "try"), whole=whole)
    for row in newest:
        shown.add_row(
            cell(utc(row[c.AT_MS])),
            cell(row[c.LEDGER_ID] if row[c.LEDGER_ID] is not None else "-"),
            *map(cell, (row[c.OUTCOME], row[c.REASON], row[c.ATTEMPT])),
            *([cell(row[c.COMPONENT] or "-")] if is_wide else []),
            cell(_topic(row)),
        )
    console.print(shown)
    console.print()
    for (outcome, reason), n in sorted(counted.items()):
        console.print(cell(f"{n:>9}  {outcome:<13} {reason}"))
