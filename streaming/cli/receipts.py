"""`ledger-reaper receipts`: shows the results of requests, as JSON rows for programs or as a table for operators."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from streaming.arrow import load_datasets
from streaming.cli.options import Config, Json, OneLedger, completes, one_of, settings_of, state_fault, utc
from streaming.terminal import Terminal, cell, say, say_json
from udfs import columns as c
from udfs.records import Outcome

_TABLE_ROWS = 200
_PIPE_WIDTH = 160  # columns of the table if the output is not a terminal
_WIDE = 110  # columns that a terminal needs to show the component too


def receipts(
    config: Config,
    json_lines: Json = False,
    ledger: OneLedger = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic, for example shop/prod/carts")] = None,
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", help=f"Only this outcome: {', '.join(Outcome)}", autocompletion=completes(Outcome)),
    ] = None,
) -> None:
    """Show the results of requests: the newest as a table, or with --json all of them, the oldest first."""
    load_datasets()
    from streaming.state.notes import parked_queries
    from streaming.state.notes.hold import noted
    from streaming.state.outcomes import newest_of, receipts_of

    outcome = one_of(outcome, Outcome, "--outcome") if outcome is not None else None
    settings = settings_of(config)
    if fault := state_fault(settings, config):
        raise fault
    if json_lines:
        for row in receipts_of(settings, ledger=ledger, topic=topic, outcome=outcome):
            say_json(row)
    else:
        is_filtered = (ledger, topic, outcome) != (None, None, None)
        counted, newest = newest_of(settings, _TABLE_ROWS, ledger=ledger, topic=topic, outcome=outcome)
        _print_table(counted, newest, nothing=_nothing(settings.state.dir, is_filtered=is_filtered))
    why, since_ms = noted(settings.state_dir)
    if why:
        say(f"The service deletes nothing; it has been held since {utc(since_ms)} UTC: {why}", err=True)
    for query in parked_queries.noted(settings.state_dir).values():
        how = "read without the connector" if query.is_read else "parked (its requests wait)"
        say(f"{query.topic} has been {how} since {utc(query.since_ms)} UTC: {query.why}", err=True)


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
    table = Table(
        box=box.SIMPLE_HEAD, title=f"Receipts (the newest {len(newest)} of {counted.total()})", title_justify="left"
    )
    is_wide = console.width >= _WIDE
    for name in ("time (UTC)", "ledger", "outcome", "reason", "try", *(["component"] if is_wide else [])):
        table.add_column(name, justify="right" if name in ("ledger", "try") else "left", no_wrap=True)
    table.add_column("topic", overflow="fold")
    for row in newest:
        table.add_row(
            cell(utc(row[c.AT_MS])),
            cell(row[c.LEDGER_ID] if row[c.LEDGER_ID] is not None else "-"),
            *map(cell, (row[c.OUTCOME], row[c.REASON], row[c.ATTEMPT])),
            *([cell(row[c.COMPONENT] or "-")] if is_wide else []),
            cell((row[c.TOPIC_NAME] or "-").removeprefix("persistent://")),
        )
    console.print(table)
    for (outcome, reason), n in sorted(counted.items()):
        console.print(cell(f"{n:>9}  {outcome:<13} {reason}"))
