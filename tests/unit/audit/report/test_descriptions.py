"""Texts for amounts and reasons."""

import pytest

from streaming.audit.report.descriptions import age_text, meaning_of, size_text
from udfs.records import Reason


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_have_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59 s"), (60, "1 min"), (3599, "59 min"), (3660, "1 h 1 min"), (93_784, "1 d 2 h"), (864_000, "10 d")],
)
def test_ages_have_at_most_two_units(seconds: int, text: str) -> None:
    assert age_text(seconds) == text


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_meaning(reason: Reason) -> None:
    assert meaning_of(reason).endswith(".")
