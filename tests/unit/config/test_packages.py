"""Packages that are not part of every installation."""

from streaming.config.packages import has_package


def test_a_package_is_found_whether_or_not_the_package_above_it_is_there() -> None:
    assert has_package("importlib.util")
    assert not has_package("importlib.no_such_module")
    assert not has_package("no_such_package.below")
