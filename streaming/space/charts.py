"""The charts of space.html as inline SVG: a waterfall, a treemap, and lines over time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from streaming.audit.report import plots
from streaming.audit.report.descriptions import size_text

COLOURS = ("c1", "c2", "c3", "c4", "c5", "use", "tier")
STYLE = """
.leaf{fill-opacity:.3;stroke:var(--paper);stroke-width:1.5}
.step{fill-opacity:.75}
.line{fill:none;stroke-width:2.2}
.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}.line.c4{stroke:var(--c4)}
.line.c5{stroke:var(--c5)}.line.use{stroke:var(--use)}.line.tier{stroke:var(--tier)}
pre{margin:4px 0 0;padding:6px 10px;background:var(--bg);border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:13px}
dt{font-weight:600;margin-top:12px}dd{margin:2px 0 0}
"""
_WIDTH, _LABEL, _VALUE, _ROW = 860, 270, 90, 26
_TREE_HEIGHT, _HEAD, _GAP = 440, 17, 2
_LEFT, _TOP, _BOTTOM, _HEIGHT = 74, 18, 46, 240  # those of plots.axis
_CHARACTER = 6.6  # width of a letter of 12 px
_LEAVES = 200
_POINTS = 200


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


def waterfall(steps: Sequence[Step]) -> str:
    """Draw steps below each other; a step starts where the step above it ends."""
    longest = max((max(step.start, step.end) for step in steps), default=0)
    if longest <= 0:
        return plots.nothing("No bytes to show.")
    scale = (_WIDTH - _LABEL - _VALUE) / longest
    drawn = []
    for number, step in enumerate(steps):
        y, left, right = number * _ROW, min(step.start, step.end) * scale, max(step.start, step.end) * scale
        sign = "" if step.is_sum else "-" if step.end < step.start else "+"
        size = f"{sign}{size_text(abs(step.end - step.start))}"
        drawn.append(
            f'<text class="label" text-anchor="end" x="{_LABEL - 10}" y="{y + 17}">{escape(step.label)}</text>'
            f'<rect class="{step.css} step" x="{_LABEL + left:.1f}" y="{y + 4}" width="{max(right - left, 1.0):.1f}" '
            f'height="{_ROW - 8}"><title>{escape(step.label)}: {size}</title></rect>'
            f'<text class="value" x="{_LABEL + right + 6:.1f}" y="{y + 17}">{size}</text>'
        )
    return plots.svg(len(steps) * _ROW + 4, drawn)


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle in a drawing."""

    x: float
    y: float
    width: float
    height: float

    def inside(self, head: float) -> "Rectangle":
        """Return the rectangle below a heading, with a gap around it."""
        height = max(self.height - head - _GAP, 0.0)
        return Rectangle(self.x + _GAP, self.y + head, max(self.width - 2 * _GAP, 0.0), height)


def treemap(topics: Mapping[tuple[str, str, str], int]) -> str:
    """Draw areas as large as the bytes of each (tenant, namespace, topic); the smallest topics are one area."""
    largest = sorted(((size, names) for names, size in topics.items() if size > 0), reverse=True)
    if not largest:
        return plots.nothing("No bytes to show.")
    tree: defaultdict[str, defaultdict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for number, (size, (tenant, namespace, topic)) in enumerate(largest):
        group = tree[tenant][namespace]
        name = topic if number < _LEAVES else "(smaller topics)"
        group[name] = group.get(name, 0) + size
    tenants = {tenant: sum(map(_sum, namespaces.values())) for tenant, namespaces in tree.items()}
    drawn: list[str] = []
    for number, (tenant, area) in enumerate(squares(tenants, Rectangle(0, 0, _WIDTH, _TREE_HEIGHT))):
        css = COLOURS[number % len(COLOURS)]
        drawn += _area(area, tenant or "(no tenant)", tenants[tenant], "", "label")
        sizes = {namespace: _sum(each) for namespace, each in tree[tenant].items()}
        for namespace, inner in squares(sizes, area.inside(_HEAD)):
            drawn += _area(inner, namespace or "(no namespace)", sizes[namespace], "", "dim")
            for topic, leaf in squares(tree[tenant][namespace], inner.inside(_HEAD)):
                drawn += _area(leaf, topic or "(no topic)", tree[tenant][namespace][topic], f"{css} leaf", "dim")
    return plots.svg(_TREE_HEIGHT, drawn)


def _sum(sizes: Mapping[str, int]) -> int:
    return sum(sizes.values())


def _area(area: Rectangle, name: str, size: int, css: str, text_css: str) -> Iterator[str]:
    if css:
        yield (
            f'<rect class="{css}" x="{area.x:.1f}" y="{area.y:.1f}" width="{area.width:.1f}" '
            f'height="{area.height:.1f}"><title>{escape(name)}: {size_text(size)}</title></rect>'
        )
    letters = int((area.width - 8) / _CHARACTER)
    if letters >= 4 and area.height >= _HEAD:
        text = f"{name} {size_text(size)}" if len(name) + 10 <= letters else name
        shown = text if len(text) <= letters else f"{text[: letters - 1]}…"
        yield f'<text class="{text_css}" x="{area.x + 4:.1f}" y="{area.y + 13:.1f}">{escape(shown)}</text>'


def squares(sizes: Mapping[str, int], area: Rectangle) -> Iterator[tuple[str, Rectangle]]:
    """Divide a rectangle into parts as large as the sizes, nearly square, the largest first."""
    left = sorted(((size, name) for name, size in sizes.items() if size > 0), reverse=True)
    while left and area.width > 0 and area.height > 0:
        scale = area.width * area.height / sum(size for size, _name in left)
        short = min(area.width, area.height)
        row = left[:1]
        for each in left[1:]:
            if _worst([*row, each], scale, short) > _worst(row, scale, short):
                break
            row.append(each)
        depth = sum(size for size, _name in row) * scale / short
        along = 0.0
        for size, name in row:
            length = size * scale / depth
            if area.width >= area.height:
                yield name, Rectangle(area.x, area.y + along, depth, length)
            else:
                yield name, Rectangle(area.x + along, area.y, length, depth)
            along += length
        if area.width >= area.height:
            area = Rectangle(area.x + depth, area.y, area.width - depth, area.height)
        else:
            area = Rectangle(area.x, area.y + depth, area.width, area.height - depth)
        left = left[len(row) :]


def _worst(row: Sequence[tuple[int, str]], scale: float, short: float) -> float:
    """Return the largest ratio of the sides of these parts, if they fill a row along the short side."""
    depth = sum(size for size, _name in row) * scale / short
    lengths = [size * scale / depth for size, _name in row]
    return max(max(depth / length, length / depth) for length in lengths)


def lines(series: Mapping[str, Sequence[tuple[int, int]]], times: tuple[str, str]) -> str:
    """Draw (time in ms, bytes) as a line for each label, all over the same time; times: the texts of its two ends."""
    points = [point for each in series.values() for point in each]
    if not points or min(at for at, _size in points) == max(at for at, _size in points):
        return plots.nothing("The growth is shown from the second run with the same --out.")
    first, last = min(at for at, _size in points), max(at for at, _size in points)
    highest = max(1, *(size for _at, size in points))
    width, height, floor = _WIDTH - _LEFT - 30, _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM
    drawn = plots.axis(highest, is_bytes=True)
    classes = dict(zip(series, COLOURS, strict=False))
    for label, css in classes.items():
        path = " ".join(
            f"{_LEFT + width * (at - first) / (last - first):.1f},{floor - height * size / highest:.1f}"
            for at, size in series[label][-_POINTS:]
        )
        drawn.append(f'<polyline class="{css} line" points="{path}"><title>{escape(label)}</title></polyline>')
    for x, anchor, text in ((_LEFT, "start", times[0]), (_LEFT + width, "end", times[1])):
        drawn.append(f'<text class="label" text-anchor="{anchor}" x="{x}" y="{floor + 18}">{escape(text)}</text>')
    return plots.legend(classes) + plots.svg(_HEIGHT, drawn)
