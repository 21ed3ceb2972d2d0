"""Every safety line that `make test-mutations` takes away occurs exactly once, and the tests nearest to it exist."""

import pytest

from tests.mutation import MUTATIONS, NARROWED, ROOT, Mutation, found_in


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.line)
def test_a_safety_line_is_where_it_is_looked_for(mutation: Mutation) -> None:
    found = found_in(mutation, ROOT)
    assert len(found) == 1, f"{mutation.before!r} in {mutation.where}"


def test_every_test_that_a_safety_line_names_exists_and_every_line_with_such_tests_too() -> None:
    named = {test for tests in NARROWED.values() for test in tests if test.startswith("tests/")}
    assert [test for test in sorted(named) if not (ROOT / test.partition("::")[0]).exists()] == []
    assert NARROWED.keys() - {mutation.line for mutation in MUTATIONS} == set()
