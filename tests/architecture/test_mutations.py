"""Every safety line that `make test-mutations` takes away occurs exactly once."""

import pytest

from tests.mutation import MUTATIONS, ROOT, Mutation, found_in


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.line)
def test_a_safety_line_is_where_it_is_looked_for(mutation: Mutation) -> None:
    found = found_in(mutation, ROOT)
    assert len(found) == 1, f"{mutation.before!r} in {mutation.where}"
