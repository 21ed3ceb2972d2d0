"""Every safety line that `make test-mutations` takes away is there, once, and recorded."""

import pytest

from tests.mutation import MUTATIONS, ROOT, Mutation, found_in


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.line)
def test_a_safety_line_is_where_it_is_looked_for(mutation: Mutation) -> None:
    found = found_in(mutation, ROOT)
    assert len(found) == 1, f"{mutation.before!r} in {mutation.where}"
    record = (ROOT / "tests" / "BROKEN_ON_PURPOSE.md").read_text()
    assert f"| {mutation.line} | `{found[0].relative_to(ROOT)}` |" in record
