"""What the operator asks afterwards: receipts and backlog, as rows for machines and as tables for people."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import reduce
from itertools import chain
from operator import and_
from typing import Any

import pyarrow.dataset as ds
from rich import box
from rich.console import Console
from rich.table import Table

from streaming import columns as c
from streaming import receipts
from streaming.config import Settings
from streaming.errors import ConfigError
from streaming.settled import Folder
from udfs.paths import managed_ledger_name, topic_of
from udfs.records import Outcome

_SHOWN = (
    c.LEDGER_ID,
    c.LEDGER_TYPE,
    c.COMPONENT,
    c.TOPIC_NAME,
    c.OUTCOME,
    c.REASON,
    c.ATTEMPT,
    c.AT_MS,
    c.ORIGIN_MESSAGE_ID,
    c.DETAIL,
    c.UUID,
    c.BYTES,
    c.SOURCES,
)
_TABLE_ROWS = 200
_PIPE_WIDTH = 160  # columns, where nobody folds lines
_WIDE = 110  # columns, from which on there is room for the component


def receipts_of(
    settings: Settings, *, ledger: int | None = None, topic: str | None = None, outcome: str | None = None
) -> Iterator[dict[str, Any]]:
    """Receipts that meet all that was asked, oldest chunk first, write-offs last.

    Raises ConfigError for an unknown outcome or name.
    """
    conditions = []
    if ledger is not None:
        conditions.append(ds.field(c.LEDGER_ID) == ledger)
    if topic is not None:
        try:
            conditions.append(ds.field(c.TOPIC_NAME) == topic_of(managed_ledger_name(topic)))
        except ValueError as error:
            raise ConfigError(f"--topic: {error}") from error
    if outcome is not None:
        if outcome not in set(Outcome):
            raise ConfigError(f"--outcome {outcome}: one of {', '.join(Outcome)}")
        conditions.append(ds.field(c.OUTCOME) == outcome)
    condition = reduce(and_, conditions) if conditions else None
    columns = [*_SHOWN, c.CHUNK]
    found = receipts.rows(settings.state.dir, condition, columns=columns)
    by_hand = Folder(settings.state.dir).written_off(condition, columns=columns)
    for row in sorted(chain(found, by_hand), key=lambda row: (row[c.CHUNK] or math.inf, row[c.AT_MS])):
        yield {name: row[name] for name in _SHOWN}


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
