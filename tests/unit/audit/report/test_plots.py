"""The report's plots: bars and points match their numbers."""

from xml.etree import ElementTree

import pytest

from streaming.audit.report import plots


def _widths(svg: str) -> list[float]:
    tree = ElementTree.fromstring(svg)
    return [float(rect.attrib["width"]) for rect in tree.iter("rect")]


def test_bars_are_as_long_as_their_bytes() -> None:
    svg = plots.stacked_bars({"a": {"x": 100, "y": 100}, "b": {"x": 50}}, {"x": "c1", "y": "c2"})

    first, second, third = _widths(svg)
    assert first == second == pytest.approx(2 * third, rel=0.01)


def test_more_bars_than_fit_are_counted() -> None:
    svg = plots.stacked_bars({f"ns{n}": {"x": n + 1} for n in range(25)}, {"x": "c1"})

    assert len(_widths(svg)) == 20
    assert "5 more with fewer bytes" in svg


def test_columns_show_counts_if_there_are_no_bytes() -> None:
    tree = ElementTree.fromstring(plots.columns([("new", 4, 0), ("old", 2, 0)], "bad"))

    new, old = [float(rect.attrib["height"]) for rect in tree.iter("rect")]
    assert new == pytest.approx(2 * old)


def test_a_trend_needs_two_audits() -> None:
    points = [plots.Point("mon", 10), plots.Point("tue", 20)]

    assert "<svg" not in plots.line(points[:1], "bad")
    assert len(list(ElementTree.fromstring(plots.line(points, "bad")).iter("circle"))) == 2


@pytest.mark.parametrize("plot", [plots.stacked_bars({}, {}), plots.columns([("a", 0, 0)], "bad"), plots.line([], "x")])
def test_an_empty_plot_is_a_sentence(plot: str) -> None:
    assert 'class="nothing"' in plot
