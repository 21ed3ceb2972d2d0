"""The dashboard for Grafana: the file is what the code gives, and each query finds series of a real service."""

import json
import re

import pytest

from deploy.grafana import dashboard
from tests.architecture.test_alerts import SERIES, metrics_of
from tests.scrapes import Scrape, evaluated

QUERIES = list(dashboard.queries())


def test_the_file_has_all_panels_with_their_queries() -> None:
    board = json.loads(dashboard.FILE.read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    shown = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    assert shown == QUERIES
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= dashboard.WIDTH for panel in board["panels"])


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    asked = {metric for _title, query in QUERIES for metric in metrics_of(query)}
    assert asked - SERIES == set()


def test_every_query_finds_series_in_what_real_services_served() -> None:
    filled_in = [
        re.sub(r'(\w+=~)"\$\w+"', r'\1".*"', query).replace("$__rate_interval", "4m") for _title, query in QUERIES
    ]
    counted = [f"(count({query}) > bool 0) or vector(0)" for query in filled_in]
    found = [any(values) for values in zip(*(evaluated(counted, (each, 6)) for each in Scrape.recorded()), strict=True)]
    assert {title for (title, _query), has_series in zip(QUERIES, found, strict=True) if not has_series} == set()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("a[]", 'a{cluster=~"$cluster",instance_name=~"$instance_name"}'),
        ('rate(a[b="c"][5m])', 'rate(a{b="c",cluster=~"$cluster",instance_name=~"$instance_name"}[5m])'),
    ],
)
def test_a_query_selects_the_chosen_services(query: str, expected: str) -> None:
    assert dashboard.selected(query) == expected
