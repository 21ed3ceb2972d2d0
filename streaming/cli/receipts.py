"""What the operator asks afterwards: receipts and backlog, as rows for machines and as tables for people."""

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from udfs import columns as c

_TABLE_ROWS = 200
_PIPE_WIDTH = 160  # columns, where nobody folds lines
_WIDE = 110  # columns, from which on there is room for the component


def print_receipts(rows: Iterable[dict[str, Any]]) -> None:
    """A table of the newest, and how many there are of each outcome and reason."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    newest: list[dict[str, Any]] = []
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counted[row[c.OUTCOME], row[c.REASON]] += 1
        newest = [*newest[-_TABLE_ROWS + 1 :], row]
    if not newest:
        console.print("No receipts yet: nothing was worked off, or state.dir is not the service's.")
        return
    table = Table(
        box=box.SIMPLE_HEAD, title=f"Receipts (the newest {len(newest)} of {counted.total()})", title_justify="left"
    )
    is_wide = console.width >= _WIDE
    for name in ("time", "ledger", "outcome", "reason", "try", *(["component"] if is_wide else [])):
        table.add_column(name, justify="right" if name in ("ledger", "try") else "left", no_wrap=True)
    table.add_column("topic", overflow="fold")
    for row in newest:
        table.add_row(
            datetime.fromtimestamp(row[c.AT_MS] / 1000, UTC).strftime("%m-%d %H:%M:%S"),
            str(row[c.LEDGER_ID] if row[c.LEDGER_ID] is not None else "-"),
            row[c.OUTCOME],
            row[c.REASON],
            str(row[c.ATTEMPT]),
            *([row[c.COMPONENT] or "-"] if is_wide else []),
            (row[c.TOPIC_NAME] or "-").removeprefix("persistent://"),
        )
    console.print(table)
    for (outcome, reason), n in sorted(counted.items()):
        console.print(f"{n:>9}  {outcome:<13} {reason}")


def print_backlog(counted: dict[str, Any]) -> None:
    """One line a topic."""
    console = Console()
    for topic, messages in counted["topics"].items():
        console.print(f"{messages:>12}  {topic}")
    console.print(f"{counted['messages']:>12}  in all")
