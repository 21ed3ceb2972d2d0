"""`space` on the terminal."""

import io
from dataclasses import replace
from typing import Any

import pytest

from streaming.space.output import space_tables
from streaming.space.output.space_tables import Shown
from streaming.space.output.space_texts import CAUSE_TEXT, Price
from streaming.terminal import Terminal
from tests.unit.space.reports import BOOKIES, CARTS_0, EMPTY, LOGS, MIB, REPORT, UNKNOWN, share
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import Growth
from udfs.space.space_report import SpaceReport, Subscription
from udfs.space.view import Filters, View, selected

LONG = f"persistent://shop/prod/{'x' * 300}"


def printed(report: SpaceReport = REPORT, by: View = View.CAUSE, **how: Any) -> str:
    out = io.StringIO()
    filters = how.pop("filters", Filters())
    space_tables.show(
        Terminal(file=out, width=80), Shown(report=selected(report, filters), filters=filters, by=by, **how)
    )
    return out.getvalue()


def test_the_first_lines_go_from_one_copy_to_the_disks() -> None:
    lines = printed().splitlines()
    assert lines[1].split()[:4] == ["one", "copy", "~137.0", "MiB"]
    assert "~274.0 MiB  all copies" in lines[2]
    assert "2.00 times one copy" in lines[2]
    text = "\n".join(lines)
    assert (
        "128.0 MiB  all copies, in finished entry logs of 1 of 3 bookies; 2.0 MiB less than ledgers store there" in text
    )
    assert "700.0 MiB  used in the file systems of 1 of 3 bookies; 570.0 MiB more than ledgers store there" in text


def test_one_copy_is_explained_wherever_it_is_shown() -> None:
    for by in (View.CAUSE, View.TENANT, View.NAMESPACE, View.TOPIC):
        assert "One copy is what producers wrote" in printed(by=by).replace("\n", " ")
    assert "(bytes of one copy" in printed(by=View.SUBSCRIPTION)
    assert "Bookies (all copies" in printed(by=View.BOOKIE)


def test_a_cut_table_still_adds_up() -> None:
    text = printed(by=View.TOPIC, top=1)
    rows = text.split("By topic\n")[1].splitlines()
    assert [row.split()[2] + row.split()[-1] for row in rows[1:4]] == [
        f"90.0{CARTS_0}",
        "~184.0more)",
        "~274.0total",
    ]


def test_with_filters_the_bookies_disks_are_not_compared() -> None:
    text = printed(filters=Filters(tenant="shop"))
    assert "Only tenant shop" in text
    assert "ledgers store there" not in text
    assert LOGS not in text


@pytest.mark.parametrize("by", View)
@pytest.mark.parametrize(
    "name", ["[red]<img>", "\x1b[2J", "a\nb", "\u202egpj", "it's `x`", "$(id)", "%s{}", "\ud800"], ids=ascii
)
def test_names_can_do_nothing_to_the_terminal(by: View, name: str) -> None:
    topic = f"persistent://{name}/{name}/{name}"
    shares = [
        share(cause, topic, namespace=f"{name}/{name}", subscription=name)
        for cause in Cause
        if cause is not Cause.NOT_COLLECTED
    ]
    subscription = Subscription(topic=topic, name=name, backlog=MIB, frees=MIB, last_active_ms=1)
    bookie = replace(BOOKIES[0], bookie_id=name, faults=(name,))
    unknown = (replace(UNKNOWN, what=name, detail=name),)
    report = replace(
        REPORT, cluster=name, shares=tuple(shares), subscriptions=(subscription,), bookies=(bookie,), unknown=unknown
    )
    text = printed(report, by)
    assert all(line.isprintable() for line in text.split("\n"))
    assert [line for line in text.split("\n") if line in ("b", "b/b", "b/a")] == [], "no line of a name's own"


def test_long_names_are_never_cut_or_folded() -> None:
    report = replace(REPORT, shares=(share(Cause.BACKLOG, LONG, subscription="s"),))
    for by in (View.TOPIC, View.CAUSE):
        assert any(line.endswith(LONG) for line in printed(report, by).splitlines())


def test_unknown_facts_have_bounds() -> None:
    text = printed(replace(REPORT, unknown=(UNKNOWN, *[replace(UNKNOWN, at_least=None, at_most=None)] * 11)))
    assert "Not known (12)" in text
    assert "/managed-ledgers/a/b/persistent/c: no right (0 B to 3.0 MiB)" in text
    assert "(size not known)" in text
    assert "2 more; --json lists all" in text
    assert "Not known" not in printed()


def test_bookies_that_could_not_be_asked_are_named() -> None:
    text = printed()
    assert "bk-1:3181: it registers no HTTP server (httpServerEnabled), so only its metrics were read" in text
    faulty = replace(REPORT, bookies=(replace(BOOKIES[1], faults=("no metrics are served at http://bk-1:8000",)),))
    assert "bk-1:3181: no metrics are served at http://bk-1:8000" in printed(faulty)
    assert "bk-2:3181: /metrics: refused" in text
    down = replace(REPORT, bookies=tuple(replace(each, is_registered=False) for each in BOOKIES[1:2]))
    assert "ledgers name it, and it is down" in printed(down)
    assert "none of 1 bookie reported its disks" in printed(down)
    assert "none of 0 bookies" in printed(EMPTY)


def test_read_only_bookies_are_named_first() -> None:
    full = replace(REPORT, bookies=(replace(BOOKIES[0], is_read_only=True), *BOOKIES[1:]))
    for view in (View.CAUSE, View.BOOKIE):
        text = printed(full, view)
        assert f"read-only 1 of {len(BOOKIES)} bookies (such as bk-0:3181) take no new entries" in " ".join(
            text.split()
        )
        assert "bk-0:3181: read-only: it takes no new entries" in text
        assert "read-only" not in printed(REPORT, view)


def test_the_next_garbage_collection_has_a_bound() -> None:
    text = printed(by=View.BOOKIE)
    assert "bk-0:3181: next garbage collection within 15 min (gcWaitTime), or within twice that after a start" in text
    assert "less than 50% live (last 1 d 0 h ago)" in text
    assert "~7 ledgers" in text
    never = replace(REPORT, bookies=(replace(BOOKIES[0], minor_threshold=0.0),))
    assert "no minor compaction" in printed(never, View.BOOKIE)


def test_subscriptions_have_backlog_activity_and_connection() -> None:
    text = printed(by=View.SUBSCRIPTION)
    row = next(line for line in text.splitlines() if "carts-partition-0  billing" in line)
    assert row.split()[:9] == ["45.0", "MiB", "11.1", "%", "40.0", "MiB", "9", "d", "0"]
    assert "broker's own" in text
    assert "not known" in text
    assert f"Idle longest: {CARTS_0}  billing, last active 9 d 0 h ago" in printed()


def test_money_is_shown_with_a_price_only() -> None:
    assert "a month" not in printed()
    assert "28.73 EUR" in printed(price=Price(100, 0, "EUR"))


def test_growth_has_its_sign() -> None:
    growth = Growth(0, 86_400.0, ((Cause.BACKLOG, MIB, 3 * MIB), (Cause.CURSORS, MIB, 0)))
    text = printed(growth=growth)
    assert "Growth in 1 d 0 h" in text
    assert "+2.0 MiB" in text
    assert "-1.0 MiB" in text


def test_every_cause_has_words() -> None:
    assert set(CAUSE_TEXT) == set(Cause)
    assert len(set(CAUSE_TEXT.values())) == len(Cause)
