"""The dashboard for Grafana: the file is what the code gives, and each query finds series of a real service."""

import json
import re

import pytest

from deploy.grafana import dashboard
from tests.architecture.test_alerts import SERIES, metrics_of
from tests.scrapes import Scrape, evaluated

QUERIES = list(dashboard.queries())
# panels with a query that finds nothing in the recorded scrape: its service waited for no other service, had no parked
# topic, had not yet counted its dead letters, and kept no guards
_NOT_RECORDED = {
    "Dead letters that wait",
    "Waits for services",
    "Held tenants and parked topics",
    "Since the last audit, and the last pass over the guards",
    "Since a guard moved",
    "Guards",
}


def test_the_file_has_all_panels_with_their_queries() -> None:
    board = json.loads(dashboard.FILE.read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    shown = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    assert shown == QUERIES
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= dashboard.WIDTH for panel in board["panels"])


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    asked = {metric for _title, query in QUERIES for metric in metrics_of(query)}
    assert asked - SERIES == set()


def test_every_query_finds_series_in_what_a_real_service_served() -> None:
    scrape = Scrape.recorded()
    filled_in = [
        re.sub(r'(\w+=~)"\$\w+"', r'\1".*"', query).replace("$__rate_interval", "4m") for _title, query in QUERIES
    ]
    found = evaluated([f"(count({query}) > bool 0) or vector(0)" for query in filled_in], (scrape, 6))
    without = {title for (title, _query), has_series in zip(QUERIES, found, strict=True) if not has_series}
    assert without == _NOT_RECORDED


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("a[]", 'a{cluster=~"$cluster",instance_name=~"$instance_name"}'),
        ('rate(a[b="c"][5m])', 'rate(a{b="c",cluster=~"$cluster",instance_name=~"$instance_name"}[5m])'),
    ],
)
def test_a_query_selects_the_chosen_services(query: str, expected: str) -> None:
    assert dashboard.selected(query) == expected
