"""space.html: one file that loads nothing, with a table for each chart."""

import re
from dataclasses import replace

import pytest

from streaming.space.output.page import page
from streaming.space.output.space_tables import Shown
from tests.unit.pages.markup import assert_loads_nothing
from tests.unit.space.reports import AT_MS, BOOKIES, EMPTY, MIB, REPORT, UNKNOWN, share
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import growth, run_of
from udfs.space.space_report import SpaceReport, Subscription
from udfs.space.view import Filters, View


def page_of(report: SpaceReport, *earlier: SpaceReport, filters: Filters | None = None) -> str:
    runs = [run_of(each) for each in (*earlier, report)]
    shown = Shown(report=report, filters=filters or Filters(), by=View.CAUSE, growth=growth(runs[:-1], runs[-1]))
    return page(shown, runs)


BEFORE = replace(REPORT, at_ms=AT_MS - 60_000, shares=REPORT.shares[2:])


@pytest.mark.parametrize("report", [REPORT, EMPTY, replace(REPORT, unknown=(UNKNOWN,))])
def test_the_page_is_one_file_without_external_resources(report: SpaceReport) -> None:
    text = page_of(report, BEFORE)
    assert_loads_nothing(text)
    assert "prefers-color-scheme:dark" in text


def test_each_chart_has_a_table_below() -> None:
    sections = page_of(REPORT, BEFORE).split("<section>")[1:4]
    charts = [sum(each.count(f'class="{css}"') for css in ("bars", "map", "chart")) for each in sections]
    assert (charts, [each.count("<table>") for each in sections]) == ([1] * 3, [1] * 3)
    assert page_of(REPORT).count("The growth is shown from the second run") == 1


def test_the_growth_names_only_causes_that_have_changed() -> None:
    less = (replace(REPORT.shares[0], stored=0), *REPORT.shares[1:])
    changed = (
        page_of(REPORT, replace(REPORT, at_ms=AT_MS - 60_000, shares=less))
        .split("<h2>Growth")[1]
        .split("</section>")[0]
    )
    assert changed.count("<tr>") == 2  # the head, and the backlog
    unchanged = page_of(REPORT, replace(REPORT, at_ms=AT_MS - 60_000))
    assert "No cause has changed in 1 min." in unchanged


def test_names_cannot_become_markup_or_controls() -> None:
    name = "<script>x</script>\x1b&\"'\x00"
    topic = f"persistent://{name}/{name}/{name}"
    shares = tuple(
        share(cause, topic, namespace=f"{name}/{name}", subscription=name)
        for cause in Cause
        if cause is not Cause.NOT_COLLECTED
    )
    report = replace(
        REPORT,
        cluster=name,
        shares=shares,
        subscriptions=(Subscription(topic=topic, name=name, backlog=MIB, frees=MIB),),
        bookies=(replace(BOOKIES[0], bookie_id=name, faults=(name,)),),
        unknown=(replace(UNKNOWN, what=name, detail=name),),
    )
    text = page_of(report)
    assert "<script" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text.replace("\n", ""))
    assert_loads_nothing(text)


def test_an_incomplete_result_is_marked() -> None:
    text = page_of(replace(REPORT, unknown=(UNKNOWN,)))
    assert ">incomplete<" in text
    assert "0 B to 3.0 MiB" in text
    assert ">complete<" in page_of(REPORT)


def test_the_waterfall_ends_at_the_disks_if_all_bookies_reported_them_and_they_hold_few_other_files() -> None:
    assert "used on disks" not in page_of(REPORT)
    assert "used on disks" in page_of(replace(REPORT, bookies=BOOKIES[:1]))
    others = replace(BOOKIES[0], disk_total=10**12, disk_free=1)
    assert "used on disks" not in page_of(replace(REPORT, bookies=(others,)))


def test_filtered_results_have_no_growth() -> None:
    assert "runs without filters only" in page_of(REPORT, filters=Filters(tenant="shop"))
