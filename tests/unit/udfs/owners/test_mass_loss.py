"""Owners that vanish: of one tenant they hold that tenant, of many they hold everything; one never holds others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.owners.mass_loss import Doubts, Losses, doubts

MOST, ABOVE = 0.8, 100
EVERYTHING = "everything"


def judged(tenants: dict[str, tuple[int, int]], *, most: float = MOST) -> set[str]:
    """Return the doubted tenants, or EVERYTHING; tenants: (gone, known)."""
    losses = {name: Losses(known, gone, f"data:{name}/t" if gone else "") for name, (gone, known) in tenants.items()}
    doubted = doubts(losses, most=most, above=ABOVE)
    assert not (doubted.everything and doubted.tenants)
    return {EVERYTHING} if doubted.everything else set(doubted.tenants)


@pytest.mark.parametrize(
    ("tenants", "doubted"),
    [
        pytest.param({}, set(), id="nothing is known"),
        pytest.param({"a": (0, 1_000), "b": (0, 1)}, set(), id="nothing is gone"),
        pytest.param({"a": (160, 200)}, set(), id="the only tenant loses as much as may go"),
        pytest.param({"a": (161, 200)}, {"a"}, id="the only tenant loses one more: all that there is is held"),
        pytest.param({"a": (100, 100)}, set(), id="the only tenant loses all, and that is little"),
        pytest.param({"a": (161, 200), "b": (0, 1_000)}, {"a"}, id="a small tenant beside one that lives"),
        pytest.param({"a": (9_000, 9_000), "b": (0, 10)}, {"a"}, id="a large tenant beside one that lives"),
        pytest.param(
            {"a": (9_000, 9_000), "b": (5, 10)}, {"a"}, id="half of the others' owners may go at the same time"
        ),
        pytest.param(
            {"a": (9_000, 9_000), "b": (6, 10)}, {EVERYTHING}, id="more than half of the others' are gone too"
        ),
        pytest.param({"a": (150, 150), "b": (150, 150)}, {EVERYTHING}, id="two tenants at once"),
        pytest.param(
            {"a": (150, 150), "b": (150, 150), "c": (0, 300)}, {"a", "b"}, id="two tenants, and most of all is there"
        ),
        pytest.param({str(n): (1, 1) for n in range(161)} | {"b": (0, 39)}, {EVERYTHING}, id="many that are all small"),
        pytest.param({str(n): (1, 1) for n in range(160)} | {"b": (0, 40)}, set(), id="as much of them as may go"),
        pytest.param({"a": (76, 76), "b": (25, 50)}, {"a"}, id="held as the one that lost most, small as it is"),
    ],
)
def test_which_tenants_are_doubted(tenants: dict[str, tuple[int, int]], doubted: set[str]) -> None:
    assert judged(tenants) == doubted


@pytest.mark.parametrize("most", [0.1, 0.3, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("others", [1, 10, 10_000])
def test_no_deletion_of_one_tenant_holds_others(most: float, others: int) -> None:
    assert judged({"a": (10**6, 10**6), "b": (0, others), "c": (0, 1)}, most=most) == {"a"}


def test_nothing_is_doubted_if_any_share_may_go() -> None:
    assert judged({"a": (10**6, 10**6), "b": (10**6, 10**6)}, most=1.0) == set()


owners = st.integers(0, 400).flatmap(lambda known: st.tuples(st.integers(0, known), st.just(known)))


@given(st.dictionaries(st.sampled_from("abcdef"), owners, min_size=1), st.sampled_from([0.2, 0.5, 0.8]))
def test_if_all_owners_together_lost_too_much_a_tenant_that_lost_too_much_is_held(
    tenants: dict[str, tuple[int, int]], most: float
) -> None:
    """The rule by tenants is as strong as a rule without them: each doubted tenant lost more than may go."""
    gone, known = (sum(column) for column in zip(*tenants.values(), strict=True))
    doubted = judged(tenants, most=most)
    if gone > ABOVE and gone > most * known:
        assert doubted
    for tenant in doubted - {EVERYTHING}:
        assert tenants[tenant][0] > most * tenants[tenant][1]


@given(st.dictionaries(st.sampled_from("bcdef"), owners, min_size=1), owners)
def test_a_tenant_that_loses_less_than_half_is_not_held_by_another_tenants_deletes(
    others: dict[str, tuple[int, int]], attacker: tuple[int, int]
) -> None:
    calm = {tenant: (min(gone, known // 2), known) for tenant, (gone, known) in others.items()}
    assert judged(calm | {"attacker": attacker}) <= {"attacker"}


def test_a_doubt_names_the_number_and_an_example() -> None:
    doubted = doubts({"a": Losses(200, 161, "data:a/ns/persistent/t"), "b": Losses(900)}, most=MOST, above=ABOVE)
    assert doubted == Doubts(
        tenants={
            "a": "161 of the 200 owners known of tenant a are gone at once, for example data:a/ns/persistent/t",
        }
    )
