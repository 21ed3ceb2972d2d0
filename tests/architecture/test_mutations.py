"""Every safety line that `make test-mutations` takes away occurs exactly once, and the tests nearest to it exist."""

from functools import cache

from tests.mutation import MUTATIONS, NARROWED, ROOT


@cache
def _texts(where: str) -> list[str]:
    path = ROOT / where
    return [file.read_text() for file in (path.rglob("*.py") if path.is_dir() else [path])]


def test_every_safety_line_is_where_it_is_looked_for() -> None:
    found = {each: sum(text.count(each.before) for text in _texts(each.where)) for each in MUTATIONS}
    assert len(found) > 500
    assert [(each.line, count, each.before, each.where) for each, count in found.items() if count != 1] == []


def test_every_test_that_a_safety_line_names_exists_and_every_line_with_such_tests_too() -> None:
    named = {test for tests in NARROWED.values() for test in tests if test.startswith("tests/")}
    assert [test for test in sorted(named) if not (ROOT / test.partition("::")[0]).exists()] == []
    assert NARROWED.keys() - {mutation.line for mutation in MUTATIONS} == set()
