"""What removing a bookie does to a ledger. Bookies are letters; the removed bookie is always `a`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placements import placed
from udfs.formats.ledger_placement import placement_of
from udfs.space.survival import Effect, Survival, removal_of


def removal(data: bytes, remaining: str, writable: str | None = None) -> Survival | None:
    names = frozenset(remaining)
    # places for copies are not what most tests are about
    return removal_of(placement_of(data), "a", names, names | {*"vwxyz"} if writable is None else frozenset(writable))


@pytest.mark.parametrize(
    ("data", "remaining", "writable", "missing"),
    [
        pytest.param(placed((0, "ab"), write=2, ack=2, last=9), "bc", "bc", 0, id="c takes the copies"),
        pytest.param(placed((0, "ab"), write=2, ack=2, last=9), "bc", "b", 1, id="c is read-only"),
        pytest.param(placed((0, "ab"), write=2, ack=2, last=9), "bc", "c", 0, id="b is only read"),
        pytest.param(placed((0, "abc"), write=3, ack=2, last=9), "bc", "bc", 1, id="all are in the ensemble"),
        pytest.param(placed((0, "abc"), write=3, ack=2, last=9), "bd", "bd", 1, id="c is away, too"),
        pytest.param(placed((0, "abc"), write=3, ack=2, last=9), "b", "b", 2, id="c is away, and no other bookie"),
        pytest.param(
            placed((0, "bz"), (4, "ab"), write=2, ack=2, last=9), "bc", "bc", 0, id="only affected ensembles count"
        ),
        pytest.param(placed((0, "ab"), (4, "az"), write=2, ack=2, last=9), "bc", "b", 1, id="the worst ensemble"),
        pytest.param(placed((0, "ab"), write=2, ack=1), "b", "b", 1, id="can't be closed"),
    ],
)
def test_new_copies_need_writable_bookies_outside_the_ensemble(
    data: bytes, remaining: str, writable: str, missing: int
) -> None:
    result = removal(data, remaining, writable)

    assert result is not None
    assert result.missing_bookies == missing


@pytest.mark.parametrize(
    ("data", "remaining", "expected"),
    [
        pytest.param(placed((0, "ab"), write=2, ack=2, last=9), "b", (Effect.BELOW_ACK_QUORUM, 1_000), id="2/2"),
        pytest.param(placed((0, "ab"), write=2, ack=1, last=9), "b", (Effect.UNDER_REPLICATED, 1_000), id="2/1"),
        pytest.param(placed((0, "abc"), write=3, ack=2, last=9), "bc", (Effect.UNDER_REPLICATED, 1_000), id="3/2"),
        pytest.param(placed((0, "abc"), write=3, ack=2, last=9), "c", (Effect.BELOW_ACK_QUORUM, 1_000), id="b is away"),
        pytest.param(placed((0, "a"), write=1, ack=1, last=9), "b", (Effect.LOST, 1_000), id="the only copy"),
        pytest.param(placed((0, "ab"), write=2, ack=2, last=9), "c", (Effect.LOST, 1_000), id="the other copy is away"),
        pytest.param(placed((0, "bc"), write=2, ack=2, last=9), "b", None, id="not on it"),
        pytest.param(placed((0, "ab"), write=2, ack=2, last=-1), "b", None, id="closed and empty"),
        # entries 0 and 1 of 3 bookies: 0 on a and b, 1 on b and c
        pytest.param(placed((0, "abc"), write=2, ack=2, last=1), "bc", (Effect.BELOW_ACK_QUORUM, 500), id="striped"),
        # entry 1 on b and c only
        pytest.param(placed((0, "bca"), write=2, ack=2, last=0), "bc", None, id="striped, none of its entries"),
        # entry 0 on a and b, 2 on c and a: only 0 has lost its other copy
        pytest.param(placed((0, "abc"), write=2, ack=2, last=2), "c", (Effect.LOST, 334), id="striped, one lost"),
        pytest.param(
            placed((0, "ab"), (4, "bc"), write=2, ack=1, last=9), "bc", (Effect.UNDER_REPLICATED, 400), id="1st"
        ),
        pytest.param(
            placed((0, "bc"), (4, "ab"), write=2, ack=1, last=9), "bc", (Effect.UNDER_REPLICATED, 600), id="2nd"
        ),
        pytest.param(
            placed((0, "bc"), (10, "ab"), write=2, ack=1, last=9), "bc", None, id="an ensemble without entries"
        ),
        pytest.param(
            placed((0, "ab"), (4, "ac"), write=2, ack=2, last=9), "c", (Effect.LOST, 400), id="the worst counts"
        ),
    ],
)
def test_a_closed_ledger(data: bytes, remaining: str, expected: tuple[Effect, int] | None) -> None:
    result = removal(data, remaining)

    assert result == (None if expected is None else Survival(*expected))


@pytest.mark.parametrize(
    ("data", "remaining", "expected"),
    [
        pytest.param(placed((0, "ab"), write=2, ack=2), "b", (Effect.BELOW_ACK_QUORUM, True), id="written to"),
        pytest.param(placed((0, "abc"), write=3, ack=2), "bc", (Effect.UNDER_REPLICATED, True), id="3/2"),
        pytest.param(placed((0, "a"), write=1, ack=1), "b", (Effect.LOST, True), id="the only copy, perhaps"),
        # one of two that acknowledge alone is away: nobody can know which entries it had acknowledged
        pytest.param(placed((0, "ab"), write=2, ack=1), "b", (Effect.UNRECOVERABLE, True), id="2/1 can't be closed"),
        pytest.param(placed((0, "abc"), write=3, ack=2), "b", (Effect.UNRECOVERABLE, True), id="two of three are away"),
        pytest.param(
            placed((0, "ab"), (5, "bc"), write=2, ack=2), "bc", (Effect.BELOW_ACK_QUORUM, False), id="earlier"
        ),
        pytest.param(placed((0, "ab"), (5, "cd"), write=2, ack=2), "cd", (Effect.LOST, False), id="earlier, lost"),
        # only the last ensemble decides whether it can be closed
        pytest.param(
            placed((0, "ab"), (5, "cd"), write=2, ack=1), "bc", (Effect.UNDER_REPLICATED, False), id="not last"
        ),
        pytest.param(placed((0, "bc"), write=2, ack=2), "bc", None, id="not on it"),
    ],
)
def test_an_open_ledger_has_no_size(data: bytes, remaining: str, expected: tuple[Effect, bool] | None) -> None:
    result = removal(data, remaining)

    assert result == (None if expected is None else Survival(expected[0], None, is_written=expected[1]))


@given(
    size=st.integers(1, 5),
    write=st.integers(1, 5),
    ack=st.integers(1, 5),
    last=st.integers(-1, 30),
    second=st.integers(1, 30),
    remaining=st.sets(st.sampled_from("bcdefg")),
)
def test_counting_by_residues_is_counting_entry_by_entry(
    *, size: int, write: int, ack: int, last: int, second: int, remaining: set[str]
) -> None:
    write, ack = min(write, size), min(ack, write, size)
    ensembles = ("abcde"[:size], "gfacb"[:size])
    data = placed((0, ensembles[0]), (second, ensembles[1]), write=write, ack=ack, last=last, length_bytes=last + 1)

    counts: dict[Effect, int] = {}
    for entry in range(last + 1):
        bookies = ensembles[0] if entry < second else ensembles[1]
        holders = {bookies[(entry + k) % size] for k in range(write)}
        if "a" in holders:
            copies = len(holders & remaining)
            effect = (
                Effect.LOST if copies == 0 else Effect.BELOW_ACK_QUORUM if copies < ack else Effect.UNDER_REPLICATED
            )
            counts[effect] = counts.get(effect, 0) + 1
    worst = next((effect for effect in Effect if effect in counts), None)

    assert removal(data, "".join(remaining)) == (None if worst is None else Survival(worst, counts[worst]))
