"""Loads pyarrow without pandas, for Spark's Python workers, and without numpy too, for commands that start no Spark."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_NUMPY, _PANDAS = "numpy", "pandas"


class _Nowhere(MetaPathFinder):
    """Hides packages from the import system."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Raise ModuleNotFoundError for a hidden package; leave other names to other finders."""
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def load_datasets(*, with_numpy: bool = False) -> None:
    """Load pyarrow.dataset. Nothing is hidden in a process that has loaded pyarrow, or what is to be hidden, already.

    with_numpy: the command passes arrays of numpy to pyarrow.
    """
    left_out = frozenset({_PANDAS} if with_numpy else {_NUMPY, _PANDAS})
    if not sys.modules.keys() & {"pyarrow", *left_out}:
        # pyarrow imports both only to recognize their values, which takes longer than the whole work of such a command.
        # If they can't be found at that moment, pyarrow works without them.
        with _without(left_out):
            import pyarrow.dataset  # noqa: F401  loaded here, used elsewhere


@contextmanager
def _without(names: frozenset[str]) -> Iterator[None]:
    nowhere = _Nowhere(names)
    sys.meta_path.insert(0, nowhere)
    try:
        yield
    finally:
        sys.meta_path.remove(nowhere)
