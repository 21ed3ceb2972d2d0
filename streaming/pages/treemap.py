"""A treemap: areas as large as the bytes of tenants, their namespaces, and the topics in these.

The areas are nested HTML elements: their heights are fixed, and their widths are shares of the screen's width. CSS cuts
names to their areas.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from streaming.pages.charts import COLOURS
from streaming.pages.elements import nothing
from streaming.terminal import size_text

_WIDTH, _HEIGHT = 860, 440  # px; CSS stretches the width to the screen
_HEAD, _GAP = 17, 1  # px, as in CSS
_LINE = 16  # px, of text
_SMALLEST = 500  # square px that the parts of an area have on average, at least; a single area shows the rest
_DIVIDED = (80, 50)  # px: a narrower or lower area is not divided
_MAX_AREAS = 60  # within an area

_LEVELS = ("tenant", "namespace", "topic")


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle in a drawing, in px."""

    x: float
    y: float
    width: float
    height: float

    @property
    def inside(self) -> "Rectangle":
        """The rectangle below its heading, in coordinates of its own."""
        return Rectangle(0, 0, max(self.width - 2 * _GAP, 0.0), max(self.height - _HEAD - _GAP, 0.0))

    @property
    def is_divided(self) -> bool:
        """Whether it is large enough for a heading and areas below."""
        return self.width >= _DIVIDED[0] and self.height >= _DIVIDED[1]


@dataclass(slots=True)
class _Node:
    name: str
    path: str  # with the names above, for the tooltip
    size: int = 0
    parts: "dict[str, _Node]" = field(default_factory=dict)

    def add(self, names: Sequence[str], size: int) -> None:
        self.size += size
        if names:
            name, *below = names
            path = f"{self.path}/{name}" if self.path else name
            self.parts.setdefault(name, _Node(name, path)).add(below, size)


def treemap(topics: Mapping[tuple[str, str, str], int]) -> str:
    """Draw the bytes of each (tenant, namespace, topic). Within an area, the smallest parts share a single area."""
    whole = _Node("", "")
    for names, size in topics.items():
        if size > 0:
            whole.add([name or f"(no {what})" for name, what in zip(names, _LEVELS, strict=True)], size)
    if not whole.size:
        return nothing("No bytes to show.")
    return f'<div class="map">{_parts(whole, Rectangle(0, 0, _WIDTH, _HEIGHT), 0)}</div>'


def _parts(node: _Node, area: Rectangle, level: int) -> str:
    limit = max(1, min(_MAX_AREAS, int(area.width * area.height / _SMALLEST)))
    largest = sorted(node.parts.values(), key=lambda part: (-part.size, part.name))
    shown = largest[:limit]
    if rest := largest[limit:]:
        name = f"({len(rest):,} smaller {_LEVELS[level]}s)"
        shown.append(_Node(name, f"{node.path} {name}".lstrip(), sum(part.size for part in rest)))
    drawn = []
    for number, place in squares([part.size for part in shown], area):
        # the areas inside inherit a tenant's colour
        css = "rest" if number == limit else COLOURS[number % len(COLOURS)] if level == 0 else ""
        drawn.append(_area(shown[number], place, area, level, css))
    return "".join(drawn)


def _area(node: _Node, place: Rectangle, whole: Rectangle, level: int, css: str) -> str:
    sides = {
        "left": place.x / whole.width,
        "top": place.y / whole.height,
        "width": place.width / whole.width,
        "height": place.height / whole.height,
    }
    style = ";".join(f"{side}:{100 * share:.2f}%" for side, share in sides.items())
    name, size = escape(node.name), size_text(node.size)
    if node.parts and place.is_divided:
        css = css or "part"
        drawn = f'<b>{name} {size}</b><div class="inside">{_parts(node, place.inside, level + 1)}</div>'
    else:
        css = f"{css} leaf".strip()
        lines = int((place.height - 2) / _LINE)
        drawn = "".join(f"<span>{text}</span>" for text in (name, size)[:lines])
    return f'<div class="{css}" style="{style}" title="{escape(node.path)}: {size}">{drawn}</div>'


def squares(sizes: Sequence[int], area: Rectangle) -> Iterator[tuple[int, Rectangle]]:
    """Divide a rectangle into parts as large as the sizes, nearly square; yield (index, part), the largest first."""
    left = sorted(((size, number) for number, size in enumerate(sizes) if size > 0), reverse=True)
    while left and area.width > 0 and area.height > 0:
        scale = area.width * area.height / sum(size for size, _number in left)
        short = min(area.width, area.height)
        row = left[:1]
        for each in left[1:]:
            if _worst([*row, each], scale, short) > _worst(row, scale, short):
                break
            row.append(each)
        depth = sum(size for size, _number in row) * scale / short
        along = 0.0
        for size, number in row:
            length = size * scale / depth
            if area.width >= area.height:
                yield number, Rectangle(area.x, area.y + along, depth, length)
            else:
                yield number, Rectangle(area.x + along, area.y, length, depth)
            along += length
        if area.width >= area.height:
            area = Rectangle(area.x + depth, area.y, area.width - depth, area.height)
        else:
            area = Rectangle(area.x, area.y + depth, area.width, area.height - depth)
        left = left[len(row) :]


def _worst(row: Sequence[tuple[int, int]], scale: float, short: float) -> float:
    """Return the largest ratio of the sides of these parts, if they fill a row along the short side."""
    depth = sum(size for size, _number in row) * scale / short
    lengths = [size * scale / depth for size, _number in row]
    return max(max(depth / length, length / depth) for length in lengths)
