"""Every safety line that `make test-mutations` takes away is there, once."""

import pytest

from tests.mutation import MUTATIONS, ROOT, Mutation, found_in


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.line)
def test_a_safety_line_is_where_it_is_looked_for(mutation: Mutation) -> None:
    assert len(found_in(mutation, ROOT)) == 1, f"{mutation.before!r} in {mutation.where}"
