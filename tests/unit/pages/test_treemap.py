"""The areas of a treemap match their bytes."""

import pytest

from streaming.pages.treemap import Rectangle, squares, treemap
from tests.unit.pages.markup import elements, percents

PLACE = Rectangle(0, 0, 400, 300)


@pytest.mark.parametrize("sizes", [[1], [5, 3, 1, 1], [n * n for n in range(60)], [10**15, 1]])
def test_areas_are_as_large_as_the_bytes_and_fill_the_place(sizes: list[int]) -> None:
    parts = dict(squares(sizes, PLACE))
    for number, part in parts.items():
        assert part.width * part.height == pytest.approx(400 * 300 * sizes[number] / sum(sizes), rel=1e-6, abs=1e-6)
        assert -1e-6 <= part.x <= part.x + part.width <= 400 + 1e-3
        assert -1e-6 <= part.y <= part.y + part.height <= 300 + 1e-3
    assert sum(part.width * part.height for part in parts.values()) == pytest.approx(400 * 300, rel=1e-6)


def _titles(drawn: str) -> list[str]:
    return [area.attrib["title"] for area in elements(drawn, "div") if "title" in area.attrib]


def test_an_area_names_itself_and_the_areas_around_it_in_a_tooltip() -> None:
    drawn = treemap({("shop", "prod", "carts"): 3072, ("shop", "prod", "clicks"): 1024, ("", "", ""): 2048})
    assert _titles(drawn) == [
        "shop: 4.0 KiB",
        "shop/prod: 4.0 KiB",
        "shop/prod/carts: 3.0 KiB",
        "shop/prod/clicks: 1.0 KiB",
        "(no tenant): 2.0 KiB",
        "(no tenant)/(no namespace): 2.0 KiB",
        "(no tenant)/(no namespace)/(no topic): 2.0 KiB",
    ]


def test_the_parts_of_an_area_fill_it() -> None:
    drawn = treemap({(f"t{n % 3}", f"n{n % 2}", f"topic-{n}"): 1000 - n for n in range(30)})
    for inside in [*elements(drawn, "div", "map"), *elements(drawn, "div", "inside")]:
        sides = [percents(area) for area in inside]
        assert sum(side["width"] * side["height"] for side in sides) == pytest.approx(100 * 100, rel=0.01)


@pytest.mark.parametrize(
    ("topics", "what"),
    [
        ({("t", "n", f"x{n}"): 1 for n in range(10_000)}, "topics"),
        ({("t", f"x{n}", "p"): 1 for n in range(10_000)}, "namespaces"),
        ({(f"x{n}", "n", "p"): 1 for n in range(10_000)}, "tenants"),
    ],
)
def test_the_smallest_parts_of_each_level_share_an_area(topics: dict[tuple[str, str, str], int], what: str) -> None:
    titles = _titles(treemap(topics))
    assert any(title.endswith(f"(9,940 smaller {what}): 9.7 KiB") for title in titles)
    assert len(titles) < 200


@pytest.mark.parametrize("topics", [{}, {("a", "b", "c"): 0}])
def test_an_empty_treemap_is_a_sentence(topics: dict[tuple[str, str, str], int]) -> None:
    assert 'class="nothing"' in treemap(topics)
