"""The charts of space.html match their numbers."""

from xml.etree import ElementTree

import pytest

from streaming.space import charts
from streaming.space.charts import Rectangle, Step

PLACE = Rectangle(0, 0, 400, 300)


def _svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text[text.index('<div class="scroll">') :])


def test_steps_are_as_long_as_their_bytes_and_start_where_the_last_ended() -> None:
    steps = [Step("a", 0, 30, "c1"), Step("b", 30, 40, "c1"), Step("sum", 0, 40, "use"), Step("less", 40, 20, "c5")]
    first, second, whole, less = [
        (float(rect.attrib["x"]), float(rect.attrib["width"])) for rect in _svg(charts.waterfall(steps)).iter("rect")
    ]
    assert first[1] == pytest.approx(3 * second[1], rel=0.01)
    assert second[0] == pytest.approx(first[0] + first[1], abs=0.2)
    assert whole[1] == pytest.approx(first[1] + second[1], rel=0.01)
    assert less[0] + less[1] == pytest.approx(whole[0] + whole[1], abs=0.2)
    texts = [text.text for text in _svg(charts.waterfall(steps)).iter("text")]
    assert [text for text in texts if text and text.endswith(" B")] == ["+30 B", "+10 B", "40 B", "-20 B"]


@pytest.mark.parametrize(
    "sizes", [{"a": 1}, {"a": 5, "b": 3, "c": 1, "d": 1}, {str(n): n * n for n in range(60)}, {"a": 10**15, "b": 1}]
)
def test_areas_are_as_large_as_the_bytes_and_fill_the_place(sizes: dict[str, int]) -> None:
    parts = dict(charts.squares(sizes, PLACE))
    whole = sum(sizes.values())
    for name, part in parts.items():
        assert part.width * part.height == pytest.approx(400 * 300 * sizes[name] / whole, rel=1e-6, abs=1e-6)
        assert -1e-6 <= part.x <= part.x + part.width <= 400 + 1e-3
        assert -1e-6 <= part.y <= part.y + part.height <= 300 + 1e-3
    assert sum(part.width * part.height for part in parts.values()) == pytest.approx(400 * 300, rel=1e-6)


def test_a_treemap_names_everything_in_tooltips_and_joins_the_smallest() -> None:
    topics = {("t", "n", f"topic-{n}"): 1000 - n for n in range(300)} | {("", "", ""): 5}
    titles = [title.text or "" for title in _svg(charts.treemap(topics)).iter("title")]
    assert len([title for title in titles if title.startswith("topic-")]) == 200
    assert any(title.startswith("(smaller topics): ") for title in titles)


def test_lines_share_one_scale_of_time_and_bytes() -> None:
    drawn = charts.lines({"all": [(0, 10), (10, 20)], "part": [(0, 0), (10, 10)]}, ("then", "now"))
    first, second = [line.attrib["points"].split() for line in _svg(drawn).iter("polyline")]
    assert first[0].split(",")[1] == second[1].split(",")[1]
    assert first[0].split(",")[0] == second[0].split(",")[0]


@pytest.mark.parametrize(
    "chart",
    [
        charts.waterfall([]),
        charts.waterfall([Step("a", 0, 0, "c1")]),
        charts.treemap({}),
        charts.treemap({("a", "b", "c"): 0}),
        charts.lines({}, ("", "")),
        charts.lines({"all": [(5, 1)]}, ("", "")),
    ],
)
def test_an_empty_chart_is_a_sentence(chart: str) -> None:
    assert 'class="nothing"' in chart
