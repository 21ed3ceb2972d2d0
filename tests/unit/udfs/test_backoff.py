"""Pauses that grow with the failures in a row, and stay at the longest."""

import pytest

from udfs.backoff import Backoff


@pytest.mark.parametrize(("failures", "pause_s"), [(-1, 5), (0, 5), (1, 5), (2, 15), (3, 30), (4, 30), (1000, 30)])
def test_each_failure_in_a_row_makes_the_pause_longer_up_to_the_longest(failures: int, pause_s: float) -> None:
    assert Backoff((5, 15, 30)).pause_s(failures) == pause_s
