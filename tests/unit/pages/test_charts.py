"""The charts match their numbers."""

from itertools import pairwise

import pytest

from streaming.pages import charts
from streaming.pages.charts import Point, Step
from tests.unit.pages.markup import elements, percents


def _bars(markup: str) -> list[tuple[float, float]]:
    return [(percents(mark)["left"], percents(mark)["width"]) for mark in elements(markup, "i") if mark.get("style")]


def test_steps_are_as_long_as_their_bytes_and_start_where_the_last_ended() -> None:
    steps = [Step("a", 0, 30, "c1"), Step("b", 30, 40, "c1"), Step("sum", 0, 40, "use"), Step("less", 40, 20, "c5")]
    drawn = charts.waterfall(steps)
    assert _bars(drawn) == [(0, 75), (75, 25), (0, 100), (50, 50)]
    assert [value.text for value in elements(drawn, "b")] == ["+30 B", "+10 B", "40 B", "-20 B"]


def test_bars_are_as_long_as_their_bytes() -> None:
    drawn = charts.stacked_bars({"b": {"x": 50}, "a": {"x": 100, "y": 100}}, {"x": "c1", "y": "c2"})
    assert _bars(drawn) == [(0, 50), (50, 50), (0, 25)]
    assert [value.text for value in elements(drawn, "b")] == ["200 B", "50 B"]


def test_more_bars_than_fit_are_counted() -> None:
    drawn = charts.stacked_bars({f"ns{n}": {"x": n + 1} for n in range(25)}, {"x": "c1"})
    assert len(_bars(drawn)) == 20
    assert "5 more with fewer bytes" in drawn


@pytest.mark.parametrize(
    ("bars", "widths"),
    [([("new", 4, 10), ("old", 2, 40), ("none", 0, 0)], [25, 100]), ([("new", 4, 0), ("old", 2, 0)], [100, 50])],
)
def test_a_histogram_shows_bytes_or_without_any_the_numbers(
    bars: list[tuple[str, int, int]], widths: list[float]
) -> None:
    assert [width for _left, width in _bars(charts.histogram(bars, "bad"))] == widths


def test_lines_share_one_scale_of_time_and_bytes() -> None:
    series = {"all": [Point(0, 10), Point(10, 20)], "part": [Point(0, 0), Point(5, 10), Point(10, 10)]}
    drawn = charts.lines(series, {"all": "use", "part": "c1"}, empty="")
    whole, part = [line.attrib["points"].split() for line in elements(drawn, "polyline")]
    assert whole == ["0.0,100.0", "1000.0,0.0"]
    assert part == ["0.0,200.0", "500.0,100.0", "1000.0,100.0"]
    assert [tick.text for tick in elements(drawn.partition('class="axis">')[2].partition("</div>")[0], "span")] == [
        "0 B",
        "5 B",
        "10 B",
        "15 B",
        "20 B",
    ]


@pytest.mark.parametrize("highest", [0, 1, 3, 1023, 1024, 1025, 7 << 20, 1000 << 30, 1023 << 40, 5 << 60])
def test_the_axis_reaches_the_highest_point(highest: int) -> None:
    drawn = charts.lines({"all": [Point(0, 0), Point(1, highest)]}, {"all": "use"}, empty="")
    (line,) = elements(drawn, "polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[0] == 200
    assert 0 <= heights[1] <= (200 if highest == 0 else 125)


def test_many_points_are_thinned_evenly_over_the_whole_time() -> None:
    drawn = charts.lines({"all": [Point(at, 1) for at in range(1000)]}, {"all": "use"}, empty="")
    (line,) = elements(drawn, "polyline")
    xs = [float(point.split(",")[0]) for point in line.attrib["points"].split()]
    assert len(xs) == 200
    assert (xs[0], xs[-1]) == (0, 1000)
    assert max(after - before for before, after in pairwise(xs)) < 7


def test_points_of_a_short_line_have_tooltips_with_their_notes() -> None:
    drawn = charts.lines({"o": [Point(0, 1), Point(60_000, 2048, " (incomplete)")]}, {"o": "bad"}, empty="")
    assert "1970-01-01 00:01: 2.0 KiB (incomplete)" in drawn
    assert "legend" not in drawn


@pytest.mark.parametrize(
    "chart",
    [
        charts.waterfall([]),
        charts.waterfall([Step("a", 0, 0, "c1")]),
        charts.stacked_bars({}, {}),
        charts.histogram([("a", 0, 0)], "bad"),
        charts.lines({}, {}, empty="none"),
        charts.lines({"all": [Point(5, 1)]}, {"all": "use"}, empty="none"),
    ],
)
def test_an_empty_chart_is_a_sentence(chart: str) -> None:
    assert 'class="nothing"' in chart


@pytest.mark.parametrize(
    "chart",
    [
        charts.waterfall([Step("<i>\"'&", 0, 5, "c1")]),
        charts.stacked_bars({"<i>\"'&": {"<i>\"'&": 5}}, {"<i>\"'&": "c1"}),
        charts.histogram([("<i>\"'&", 1, 1)], "bad"),
        charts.lines({"<i>\"'&": [Point(0, 1), Point(1, 1)], "b": []}, {"<i>\"'&": "c1", "b": "c2"}, empty=""),
    ],
)
def test_labels_cannot_become_markup(chart: str) -> None:
    assert '"&lt;i&gt;&quot;&#x27;&amp;' in chart or ">&lt;i&gt;&quot;&#x27;&amp;" in chart
    assert "<i>" not in chart
