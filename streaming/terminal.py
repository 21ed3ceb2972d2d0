"""Writes to the terminal and the log so that texts of others are only displayed, and can do nothing else.

Any client that may publish can choose names of topics, properties, payloads and the texts of errors. So:
1. A character that a terminal would not print is shown as its escape in Python (`\\x1b`, `\\u202e`).
2. Within a line, a newline is escaped like such a character; if a text has several lines, those after the first are
   indented.
3. Markup and emoji codes in a text are never interpreted.
JSON stays JSON: its own escapes do the same.
"""

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_INDENT = "    "
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024


def plain(text: object) -> str:
    """Return the text as one line that a terminal only prints."""
    # escape sequences could move the cursor or change earlier lines, a newline could forge a line of the log, and a
    # mark of writing direction could show a name as another name
    line = str(text)
    return line if line.isprintable() else "".join(map(_printable, line))


def plain_lines(text: object) -> str:
    """Return a text of several lines that a terminal only prints.

    Lines after the first start with a blank, unless they are empty.
    """
    first, *others = str(text).split("\n")
    return "\n".join([plain(first), *(_indented(plain(other.replace("\t", "  "))) for other in others)])


def say(text: object, *, err: bool = False) -> None:
    """Print one line to standard output (err: standard error)."""
    typer.echo(plain(text), err=err)


def say_open(text: object) -> None:
    """Print a question to standard error; the answer is typed on the same line."""
    typer.echo(plain(text), err=True, nl=False)


def say_lines(text: object, *, err: bool = False) -> None:
    """Print a text that may have several lines, such as an error."""
    typer.echo(plain_lines(text), err=err)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(value))


def say_json_line(line: str) -> None:
    """Print a line that is JSON already, without flushing: there may be millions. The next say_json flushes them."""
    safe = line if line.isascii() and line.isprintable() else json.dumps(json.loads(line))
    sys.stdout.write(f"{safe}\n")


def count_of(number: int, singular: str, many: str = "") -> str:
    """Return a number with its noun: "1 line", "2 lines". many: the plural, if it is not the singular with an s."""
    return f"{number:,} {singular if number == 1 else many or f'{singular}s'}"


def some_of(names: Sequence[object], most: int) -> str:
    """Return up to `most` names, and how many others there are: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def size_text(size_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    amount = float(size_bytes)
    for unit in _UNITS:
        if abs(amount) < _STEP or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _STEP
    raise AssertionError("unreachable")


def age_text(seconds: float) -> str:
    """93784 -> "1 d 2 h"."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole % 86_400 // 3600, whole % 3600 // 60
    if days >= 10:
        return f"{days} d"
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{whole} s"


def cell(text: object) -> Text:
    """Return a text without markup for a table of rich."""
    return Text(plain(text))


def new_table(title: str, *heads: str, numbers: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """Return a table without rows, in the style of all tables of this program, with which `space` prints its own.

    Args:
        title: above the table, after an empty line; "": none.
        heads: of the columns.
        numbers: the heads of columns that are aligned to the right and never folded.
        whole: the heads of further columns that are never folded.
    """
    above = f"\n{title}" if title else None
    shown = Table(title=above, title_justify="left", title_style="bold", header_style="dim", box=None)
    shown.pad_edge, shown.padding = False, (0, 2, 0, 0)
    for head in heads:
        is_number = head in numbers
        shown.add_column(
            head, justify="right" if is_number else "left", no_wrap=is_number or head in whole, overflow="fold"
        )
    return shown


class Terminal(Console):
    """rich's console, with rules 1 and 3 for everything that it prints; markup must come as Text.from_markup."""

    def __init__(self, **how: Any) -> None:
        # square brackets are rich's markup
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does; rich calls it for each part."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                yield Segment("\n".join(map(plain, segment.text.split("\n"))), segment.style)


def flush() -> bool:
    """Flush the output. Return False if that failed: then output is lost."""
    is_whole = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            is_whole = False
    return is_whole


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _indented(line: str) -> str:
    return line if not line or line[0] == " " else _INDENT + line
