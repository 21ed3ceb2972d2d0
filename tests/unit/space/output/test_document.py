"""The JSON of `space`: one document, version 1."""

import json
from dataclasses import replace
from typing import Any

import pytest

from streaming.space.output.document import document
from streaming.space.output.space_tables import Shown
from streaming.space.output.space_texts import Price
from tests.unit.space.reports import AT_MS, EMPTY, REPORT, UNKNOWN
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import Growth
from udfs.space.space_report import SpaceReport
from udfs.space.view import Filters, View, selected

FIELDS = {
    *("version", "at_ms", "seconds", "cluster", "zookeeper", "complete", "filters", "ledgers", "topics", "totals"),
    "currency",
    *("causes", "by", "rows", "rows_left_out", "disks", "bookies", "fixes", "growth", "unknown"),
}
AMOUNT = {
    *("ledgers", "one_copy", "one_copy_in_bookkeeper", "one_copy_tiered", "one_copy_missing"),
    *("stored", "exact", "price_per_month"),
}


def fields_of(report: SpaceReport, by: View = View.CAUSE, **how: Any) -> dict[str, Any]:
    shown = Shown(report=report, filters=how.pop("filters", Filters()), by=by, **how)
    fields: dict[str, Any] = json.loads(json.dumps(document(shown)))
    return fields


@pytest.mark.parametrize("by", View)
@pytest.mark.parametrize("report", [REPORT, EMPTY])
def test_every_document_has_the_same_fields(by: View, report: SpaceReport) -> None:
    fields = fields_of(report, by)
    assert set(fields) == FIELDS
    assert (fields["version"], fields["by"], set(fields["totals"])) == (1, str(by), AMOUNT)


@pytest.mark.parametrize("by", [View.CAUSE, View.TENANT, View.NAMESPACE, View.TOPIC])
@pytest.mark.parametrize("filters", [Filters(), Filters(tenant="shop"), Filters(namespace="ops/prod")])
def test_rows_add_up_to_the_totals(by: View, filters: Filters) -> None:
    fields = fields_of(selected(REPORT, filters), by, filters=filters, price=Price(0.1, 0.02, "EUR"))
    for name in AMOUNT - {"exact", "price_per_month"}:
        assert sum(row[name] for row in fields["rows"]) == fields["totals"][name]
    costs = sum(row["price_per_month"] for row in fields["rows"])
    assert costs == pytest.approx(fields["totals"]["price_per_month"], abs=1e-3)
    assert {str(by)} | AMOUNT <= set(fields["rows"][0])


def test_causes_are_those_of_the_contract_with_a_meaning() -> None:
    causes = {row["cause"]: row["meaning"] for row in fields_of(REPORT)["causes"]}
    assert set(causes) <= set(map(str, Cause))
    assert all(causes.values())


def test_top_cuts_rows_and_counts_the_others() -> None:
    fields = fields_of(REPORT, View.TOPIC, top=2)
    assert (len(fields["rows"]), fields["rows_left_out"]) == (2, 3)
    assert fields["totals"] == fields_of(REPORT, View.TOPIC)["totals"]


def test_subscriptions_and_bookies_have_every_fact() -> None:
    first = fields_of(REPORT, View.SUBSCRIPTION)["rows"][0]
    assert (first["subscription"], first["connected"], first["frees"]) == (
        "billing",
        False,
        first["backlog"] - 5 * 2**20,
    )
    assert first["stored_as_slowest"] == 90 * 2**20
    bookie = fields_of(REPORT, View.BOOKIE)["rows"][0]
    assert (bookie["bookie"], bookie["uncollected_ledgers"], bookie["registered"]) == ("bk-0:3181", 7, True)
    assert bookie["read_only"] is None


def test_unknown_facts_and_growth_are_included() -> None:
    fields = fields_of(replace(REPORT, unknown=(UNKNOWN,)), growth=Growth(AT_MS - 1000, 1.0, ((Cause.BACKLOG, 1, 3),)))
    assert fields["complete"] is False
    assert fields["unknown"] == [
        {"what": UNKNOWN.what, "detail": "no right", "at_least": 0, "at_most": UNKNOWN.at_most}
    ]
    assert fields["growth"] == {
        "since_ms": AT_MS - 1000,
        "causes": [{"cause": "backlog", "stored_then": 1, "stored_now": 3}],
    }


def test_without_a_price_the_cost_is_null() -> None:
    assert fields_of(REPORT)["totals"]["price_per_month"] is None
    priced = fields_of(REPORT, price=Price(0, 0.5, "USD"))["totals"]
    assert priced["price_per_month"] == pytest.approx(priced["one_copy_tiered"] / 1e9 * 0.5, abs=1e-4)
