"""The options and filters of an audit."""

import pytest

from streaming.audit.audit_options import FindingFilters, every_seconds_of
from streaming.errors import ConfigError
from udfs.records import LedgerComponent


@pytest.mark.parametrize("text", ["0s", "soon"])
def test_a_watch_needs_an_interval(text: str) -> None:
    with pytest.raises(ConfigError, match="--watch"):
        every_seconds_of(text, last=False)


def test_a_watch_searches_each_time_and_refuses_the_last_audit() -> None:
    assert (every_seconds_of("", last=True), every_seconds_of("2m", last=False)) == (0, 120)
    with pytest.raises(ConfigError, match="--last"):
        every_seconds_of("2m", last=True)


@pytest.mark.parametrize(
    ("filters", "arguments"),
    [
        pytest.param(FindingFilters(), "", id="none"),
        pytest.param(FindingFilters(namespace="a b/c"), " --namespace 'a b/c'", id="quoted for a shell"),
        pytest.param(
            FindingFilters(tenant="t", component=LedgerComponent.SCHEMA_STORAGE, older_than_seconds=60, max_bytes=5),
            " --tenant t --component SCHEMA_STORAGE --older-than 60s --max-bytes 5",
            id="several",
        ),
    ],
)
def test_filters_are_converted_to_the_options_of_the_same_selection(filters: FindingFilters, arguments: str) -> None:
    assert filters.arguments() == arguments
