"""Texts for amounts, shares, bounds and names."""

import pytest

from streaming.space.output.space_texts import Price, ago_text, bounds_text, bytes_text, share_text, shell_word, yes_no
from udfs.space.view import Amount


@pytest.mark.parametrize(
    ("part", "whole", "text"), [(0, 0, ""), (0, 5, "0.0 %"), (1, 10**6, "<0.1 %"), (1, 3, "33.3 %"), (3, 3, "100.0 %")]
)
def test_shares_have_one_decimal(part: int, whole: int, text: str) -> None:
    assert share_text(part, whole) == text


@pytest.mark.parametrize(
    ("at_least", "at_most", "text"),
    [
        (None, None, "size not known"),
        (0, None, "size not known"),
        (1024, None, "at least 1.0 KiB"),
        (None, 1024, "0 B to 1.0 KiB"),
        (1, 2, "1 B to 2 B"),
    ],
)
def test_bounds_are_named_as_far_as_they_are_known(at_least: int | None, at_most: int | None, text: str) -> None:
    assert bounds_text(at_least, at_most) == text


def test_unknown_facts_are_never_shown_as_no_or_never() -> None:
    assert [yes_no(fact) for fact in (True, False, None)] == ["yes", "no", "not known"]
    assert ago_text(None, 5) == "not known"
    assert ago_text(9000, 5000) == "0 s ago", "clocks differ"


def test_estimates_are_marked() -> None:
    assert (bytes_text(5), bytes_text(5, is_exact=False)) == ("5 B", "~5 B")


def test_prices_apply_to_stored_and_to_tiered_bytes() -> None:
    amount = Amount(one_copy=10**9, stored=3 * 10**9, tiered=10**9)
    assert Price(0.5, 0.25, "EUR").text(amount) == "1.75 EUR"
    assert Price(2000).text(amount) == "6,000.00"
    assert not Price().is_known


def test_printable_names_are_quoted_only_if_they_have_to_be() -> None:
    assert shell_word("persistent://a/b/c-partition-0") == "persistent://a/b/c-partition-0"
    assert shell_word("a b") == "'a b'"
    assert shell_word("a\nb'\\") == "$'a\\x0ab\\'\\\\'"
