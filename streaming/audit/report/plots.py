"""The report's plots as inline SVG, which need no external script, font or image.

Colours and fonts come from the page's CSS classes; each mark has a tooltip with its numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from streaming.audit.report.descriptions import size_text

_WIDTH = 860
_ROW = 30
_LABEL = 250
_VALUE = 120
_MAX_ROWS = 20
_HEIGHT = 240
_LEFT, _BOTTOM, _TOP = 74, 46, 18
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the trend: an audit's label in the tooltip, and its bytes."""

    label: str
    size_bytes: int


def stacked_bars(rows: Mapping[str, Mapping[str, int]], classes: Mapping[str, str]) -> str:
    """Draw a bar for each label, longest first, from parts in bytes; `classes` maps parts to CSS classes, in order."""
    totals = sorted(((sum(parts.values()), label) for label, parts in rows.items()), reverse=True)
    shown = [(label, rows[label]) for total, label in totals[:_MAX_ROWS] if total > 0]
    if not shown:
        return nothing("No bytes to show.")
    longest = max(sum(parts.values()) for _label, parts in shown)
    scale = (_WIDTH - _LABEL - _VALUE) / longest
    drawn = [_bar(label, parts, classes, (number, scale)) for number, (label, parts) in enumerate(shown)]
    rest = len(totals) - len(shown)
    note = f"{rest} more with fewer bytes" if rest and len(shown) == _MAX_ROWS else ""
    height = len(shown) * _ROW + (22 if note else 4)
    if note:
        drawn.append(f'<text class="dim" x="{_LABEL}" y="{height - 6}">{note}</text>')
    return svg(height, drawn)


def columns(bars: Sequence[tuple[str, int, int]], css: str) -> str:
    """Draw a histogram: (label, count, bytes) for each column, as high as its bytes (its count if no bar has bytes)."""
    if not any(count for _label, count, _size in bars):
        return nothing("Nothing to show.")
    by_bytes = any(size for _label, _count, size in bars)
    values = [size if by_bytes else count for _label, count, size in bars]
    drawn = axis(max(values), is_bytes=by_bytes)
    step = (_WIDTH - _LEFT - 10) / len(bars)
    for number, ((label, count, size), value) in enumerate(zip(bars, values, strict=True)):
        height = (_HEIGHT - _TOP - _BOTTOM) * value / max(values)
        x, y = _LEFT + number * step, _HEIGHT - _BOTTOM - height
        if count:
            drawn.append(
                f'<rect class="{css}" x="{x + step * 0.14:.1f}" y="{min(y, _HEIGHT - _BOTTOM - 1.5):.1f}" '
                f'width="{step * 0.72:.1f}" height="{max(height, 1.5):.1f}" rx="2">'
                f"<title>{escape(label)}: {count:,} orphans, {size_text(size)}</title></rect>"
            )
            drawn.append(_centred(x + step / 2, y - 5, f"{count:,}", "value"))
        drawn.append(_centred(x + step / 2, _HEIGHT - _BOTTOM + 18, label, "label"))
    return svg(_HEIGHT, drawn)


def line(points: Sequence[Point], css: str) -> str:
    """Draw a trend, oldest point first."""
    if len(points) < 2:
        return nothing("The trend starts with the second audit.")
    highest = max(1, *(point.size_bytes for point in points))
    width, height = _WIDTH - _LEFT - 30, _HEIGHT - _TOP - _BOTTOM
    points_xy = [
        (_LEFT + 10 + width * number / (len(points) - 1), _HEIGHT - _BOTTOM - height * point.size_bytes / highest)
        for number, point in enumerate(points)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points_xy)
    floor = _HEIGHT - _BOTTOM
    drawn = axis(highest, is_bytes=True)
    drawn.append(
        f'<polygon class="{css} area" points="{points_xy[0][0]:.1f},{floor} {path} {points_xy[-1][0]:.1f},{floor}"/>'
    )
    drawn.append(f'<polyline class="{css} stroke" points="{path}"/>')
    for (x, y), point in zip(points_xy, points, strict=True):
        text = f"{escape(point.label)}: {size_text(point.size_bytes)}"
        drawn.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{text}</title></circle>')
    drawn.append(f'<text class="label" x="{points_xy[0][0]:.1f}" y="{floor + 18}">{escape(points[0].label)}</text>')
    drawn.append(
        f'<text class="label" text-anchor="end" x="{points_xy[-1][0] + 8:.1f}" y="{floor + 18}">'
        f"{escape(points[-1].label)}</text>"
    )
    return svg(_HEIGHT, drawn)


def legend(classes: Mapping[str, str]) -> str:
    """Draw the legend of the colours."""
    items = "".join(
        f'<span class="key"><svg width="12" height="12"><rect class="{css}" width="12" height="12" rx="2"/></svg>'
        f"{escape(part)}</span>"
        for part, css in classes.items()
    )
    return f'<p class="legend">{items}</p>'


def _bar(label: str, parts: Mapping[str, int], classes: Mapping[str, str], row: tuple[int, float]) -> str:
    number, scale = row
    y, x = number * _ROW, float(_LABEL)
    shown = label if len(label) <= 36 else f"{label[:17]}…{label[-18:]}"
    drawn = [
        f'<text class="label" text-anchor="end" x="{_LABEL - 10}" y="{y + 19}">{escape(shown)}'
        f"<title>{escape(label)}</title></text>"
    ]
    for part, css in classes.items():
        size = parts.get(part, 0)
        if size:
            width = max(size * scale, 1.0)
            drawn.append(
                f'<rect class="{css}" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}">'
                f"<title>{escape(label)}, {escape(part)}: {size_text(size)}</title></rect>"
            )
            x += width
    drawn.append(f'<text class="value" x="{x + 8:.1f}" y="{y + 19}">{size_text(sum(parts.values()))}</text>')
    return "".join(drawn)


def axis(highest: float, *, is_bytes: bool) -> list[str]:
    """Draw the lines and labels of the vertical axis."""
    drawn = []
    for tick in range(_TICKS + 1):
        value = highest * tick / _TICKS
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * tick / _TICKS
        text = size_text(value) if is_bytes else f"{value:,.0f}"
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="dim" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{text}</text>')
    return drawn


def _centred(x: float, y: float, text: str, css: str) -> str:
    return f'<text class="{css}" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def svg(height: int, drawn: Sequence[str]) -> str:
    """Return a plot of the full width from its marks."""
    drawing = f'<svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(drawn)}</svg>'
    return f'<div class="scroll">{drawing}</div>'  # a narrow screen scrolls, because a shrunk plot would be unreadable


def nothing(text: str) -> str:
    """Return a sentence instead of an empty plot."""
    return f'<p class="nothing">{escape(text)}</p>'
