"""The log line of a publication."""

import pytest

from streaming.audit.publication.orphan_requests import OrphansRequested


@pytest.mark.parametrize(
    ("published", "line"),
    [
        pytest.param(OrphansRequested(2), "T received 2 requests", id="all new"),
        pytest.param(OrphansRequested(2, is_repetition=True), "T already held 2 requests", id="the same again"),
        pytest.param(
            OrphansRequested(0, 5),
            "T received 0 requests; not requested again: 5 orphans",
            id="nothing new",
        ),
    ],
)
def test_the_log_line_counts_requests_and_left_out_orphans(published: OrphansRequested, line: str) -> None:
    assert published.log_line("T") == line
