"""The charts of all pages, which need no script, font or image: bars, a waterfall, and lines over time.

Bars are HTML, so that their texts keep their size on a narrow screen. Colours and fonts come from the page's CSS
classes; each part of a bar, and each dot of a line, has a tooltip with its numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from streaming.pages.elements import nothing, time_text
from streaming.terminal import size_text

COLOURS = ("c1", "c2", "c3", "c4", "c5", "use", "tier")
_MAX_ROWS = 20
_WIDTH, _HEIGHT = 1000, 200  # units of the lines; CSS stretches them to the screen
_POINTS = 200  # of each line
_DOTTED = 60  # a line of at most this many points also has a dot for each of them, with a tooltip
_STEP = 1024
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the waterfall."""

    label: str
    start: int
    end: int
    css: str

    @property
    def is_sum(self) -> bool:
        """Whether the row shows a sum and not a step to it."""
        return self.start == 0 and self.css == "use"


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line."""

    at_ms: int
    size_bytes: int
    note: str = ""


def waterfall(steps: Sequence[Step]) -> str:
    """Draw steps below each other; a step starts where the step above it ends."""
    longest = max((max(step.start, step.end) for step in steps), default=0)
    if longest <= 0:
        return nothing("No bytes to show.")
    drawn = []
    for step in steps:
        sign = "" if step.is_sum else "-" if step.end < step.start else "+"
        size = f"{sign}{size_text(abs(step.end - step.start))}"
        part = _part(min(step.start, step.end), max(step.start, step.end), longest, step.css, f"{step.label}: {size}")
        drawn.append(_row(step.label, part, size, "use" if step.is_sum else ""))
    return f'<div class="bars">{"".join(drawn)}</div>'


def stacked_bars(rows: Mapping[str, Mapping[str, int]], classes: Mapping[str, str]) -> str:
    """Draw a bar for each label, longest first, from parts in bytes; `classes` maps parts to CSS classes, in order."""
    totals = sorted(((sum(parts.values()), label) for label, parts in rows.items()), reverse=True)
    shown = [(label, rows[label]) for total, label in totals[:_MAX_ROWS] if total > 0]
    if not shown:
        return nothing("No bytes to show.")
    longest = sum(shown[0][1].values())
    drawn = []
    for label, parts in shown:
        marks, at = [], 0
        for part, css in classes.items():
            if size := parts.get(part, 0):
                marks.append(_part(at, at + size, longest, css, f"{label}, {part}: {size_text(size)}"))
                at += size
        drawn.append(_row(label, "".join(marks), size_text(sum(parts.values()))))
    rest = len(totals) - len(shown)
    note = f"<p class='dim'>{rest:,} more with fewer bytes</p>" if rest and len(shown) == _MAX_ROWS else ""
    return f'<div class="bars">{"".join(drawn)}</div>{note}'


def histogram(bars: Sequence[tuple[str, int, int]], css: str) -> str:
    """Draw a bar for each (label, count, bytes), as long as its bytes (its count if no bar has bytes)."""
    if not any(count for _label, count, _size in bars):
        return nothing("Nothing to show.")
    by_bytes = any(size for _label, _count, size in bars)
    longest = max(size if by_bytes else count for _label, count, size in bars)
    drawn = []
    for label, count, size in bars:
        text = f"{count:,} · {size_text(size)}" if count else "0"
        mark = _part(0, size if by_bytes else count, longest, css, f"{label}: {text}") if count else ""
        drawn.append(_row(label, mark, text))
    return f'<div class="bars">{"".join(drawn)}</div>'


def lines(series: Mapping[str, Sequence[Point]], classes: Mapping[str, str], *, empty: str) -> str:
    """Draw a line for each label, all over the same time, with a legend if there are several.

    Args:
        series: the points of each label, oldest first.
        classes: the CSS class of each label.
        empty: the sentence to show instead if the points do not have two different times.
    """
    times = [point.at_ms for points in series.values() for point in points]
    if not times or min(times) == max(times):
        return nothing(empty)
    first, last = min(times), max(times)
    ticks = _ticks(max(point.size_bytes for points in series.values() for point in points))
    drawn = [
        f'<line x1="0" x2="{_WIDTH}" y1="{y:.0f}" y2="{y:.0f}"/>'
        for y in (_HEIGHT * number / (len(ticks) - 1) for number in range(len(ticks)))
    ]
    for label, points in series.items():
        shown = [
            (_WIDTH * (point.at_ms - first) / (last - first), _HEIGHT * (1 - point.size_bytes / ticks[-1]), point)
            for point in thinned(points)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _point in shown)
        css, name = classes[label], escape(label)
        drawn.append(f'<polyline class="{css}" points="{path}"><title>{name}</title></polyline>')
        if len(shown) <= _DOTTED:
            drawn += [
                f'<path class="{css}" d="M{x:.1f},{y:.1f}h0"><title>{name}, {time_text(point.at_ms)}: '
                f"{size_text(point.size_bytes)}{escape(point.note)}</title></path>"
                for x, y, point in shown
            ]
    axis = "".join(f"<span>{size_text(tick)}</span>" for tick in ticks)
    return (
        (legend(classes) if len(series) > 1 else "")
        + f'<div class="chart"><div class="axis">{axis}</div>'
        + f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img">{"".join(drawn)}</svg>'
        + f'<div class="ends"><span>{time_text(first)}</span><span>{time_text(last)}</span></div></div>'
    )


def legend(classes: Mapping[str, str]) -> str:
    """Draw the legend of the colours."""
    items = "".join(f'<li><i class="{css}"></i>{escape(part)}</li>' for part, css in classes.items())
    return f'<ul class="legend">{items}</ul>'


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most 200 of the points, evenly, with the first and the last."""
    if len(points) <= _POINTS:
        return list(points)
    return [points[round(number * (len(points) - 1) / (_POINTS - 1))] for number in range(_POINTS)]


def _ticks(highest: int) -> list[float]:
    """Return 0 and round numbers of bytes up to `highest` or just above."""
    unit = 1
    while highest >= unit * _STEP:
        unit *= _STEP
    steps: Iterable[float] = (unit * number for number in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 256, 512))
    step = next(step for step in steps if step * _TICKS >= highest)
    ticks = [0.0]
    while ticks[-1] < highest:
        ticks.append(ticks[-1] + step)
    return ticks if len(ticks) > 1 else [0.0, step]


def _row(label: str, marks: str, value: str, css: str = "") -> str:
    name = escape(label)
    return f'<div class="row {css}"><span>{name}</span><span class="track">{marks}</span><b>{escape(value)}</b></div>'


def _part(start: int, end: int, longest: int, css: str, tooltip: str) -> str:
    left, width = 100 * start / longest, 100 * (end - start) / longest
    return f'<i class="{css}" style="left:{left:.2f}%;width:{width:.2f}%" title="{escape(tooltip)}"></i>'
