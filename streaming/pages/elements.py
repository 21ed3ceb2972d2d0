"""The parts of every HTML page: the document, its sections and its tables. A page loads nothing else.

We do not use Jinja2: it took nine times as long for a table of 20,000 rows, and drawings would remain Python.
"""

import re
from collections.abc import Iterable, Sequence, Set
from datetime import UTC, datetime
from html import escape

from streaming.pages.style import STYLE

_CODE = re.compile("`([^`]+)`")
_SHOWN = 25  # rows of a table; the others are folded


def document(title: str, body: str) -> str:
    """Return a whole page; body: its HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def stamp(*, is_complete: bool) -> str:
    """Return the mark beside a page's title."""
    return '<span class="stamp ok">complete</span>' if is_complete else '<span class="stamp no">incomplete</span>'


def section(title: str, content: str) -> str:
    """Return a section of a page with its title; content: its HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Set[int],
    codes: Set[int] = frozenset(),
    sentences: Set[int] = frozenset(),
) -> str:
    """Return a table; a click shows the rows after the first 25. On a narrow screen, each row is a list.

    Args:
        heads: the column titles.
        rows: the cells as text.
        numbers: columns to align right.
        codes: columns whose text must not wrap.
        sentences: columns of sentences, as of sentence().
    """
    classes = [
        ' class="n"' if number in numbers else ' class="k"' if number in codes else "" for number in range(len(heads))
    ]
    names = [escape(head) for head in heads]
    lines = [
        "".join(
            f'<td{css} data-head="{name}">{sentence(text) if number in sentences else escape(text)}</td>'
            for number, (css, name, text) in enumerate(zip(classes, names, row, strict=True))
        )
        for row in rows
    ]
    if not lines:
        return nothing("None.")
    top = (
        f"<thead><tr>{''.join(f'<th{css}>{name}</th>' for css, name in zip(classes, names, strict=True))}</tr></thead>"
    )
    shown, folded = (
        f'<div class="scroll"><table>{top}<tbody>{"".join(f"<tr>{line}</tr>" for line in part)}</tbody></table></div>'
        for part in (lines[:_SHOWN], lines[_SHOWN:])
    )
    more = len(lines) - _SHOWN
    return shown + (f"<details><summary>{more:,} more</summary>{folded}</details>" if more > 0 else "")


def sentence(text: str) -> str:
    """Return a text as HTML, with `words in backticks` as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def nothing(text: str) -> str:
    """Return a sentence instead of an empty chart or table."""
    return f'<p class="nothing">{escape(text)}</p>'


def time_text(at_ms: int) -> str:
    """Return a time of UTC to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
