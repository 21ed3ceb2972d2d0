"""Entries are given up only after each try of ten minutes has failed because brokers do not return them."""

from typing import Any

import pytest

from streaming.adapters.pulsar.readers.admin_entries import NOTHING_SHOWN, WITHHELD
from streaming.errors import UnavailableError
from streaming.queries.delivery.withheld import GIVES_UP_S, Withheld


class Tries:
    """A read that fails with a text, or succeeds; records whether it may give up."""

    def __init__(self) -> None:
        self.withheld = Withheld()
        self.gave_up: list[bool] = []

    def at(self, now_s: float, why: str = "") -> None:
        def attempt(gives_up: bool) -> Any:
            self.gave_up.append(gives_up)
            if why:
                raise UnavailableError(why)

        if not why:
            self.withheld.read(attempt, now_s)
            return
        with pytest.raises(UnavailableError, match=why):
            self.withheld.read(attempt, now_s)


@pytest.mark.parametrize("why", [NOTHING_SHOWN, WITHHELD])
def test_entries_are_given_up_after_ten_minutes_of_failures(why: str) -> None:
    tries = Tries()
    for now_s in (5.0, 5.0 + GIVES_UP_S - 1, 5.0 + GIVES_UP_S):
        tries.at(now_s, why)
    assert tries.gave_up == [False, False, True]


@pytest.mark.parametrize("why", ["", "the bookies are away"])
def test_another_result_starts_the_ten_minutes_again(why: str) -> None:
    tries = Tries()
    tries.at(0.0, WITHHELD)
    tries.at(GIVES_UP_S - 1, why)
    tries.at(GIVES_UP_S, WITHHELD)
    tries.at(2 * GIVES_UP_S - 1, WITHHELD)
    assert tries.gave_up == [False] * 4
