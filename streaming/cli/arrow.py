"""Loads pyarrow without numpy and pandas, for commands that start no Spark."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_LEFT_OUT = frozenset({"numpy", "pandas"})


class _Nowhere(MetaPathFinder):
    """Hides both packages from the import system."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Raise ModuleNotFoundError for a hidden package; leave other names to other finders."""
        if name in _LEFT_OUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def load_datasets() -> None:
    """Load pyarrow.dataset. Nothing is hidden in a process that has loaded pyarrow, numpy or pandas already."""
    if not sys.modules.keys() & {"pyarrow", *_LEFT_OUT}:
        # pyarrow imports both only to recognize their values, which takes longer than the whole work of such a command.
        # If they can't be found at that moment, pyarrow works without them.
        with _without_them():
            import pyarrow.dataset  # noqa: F401  loaded here, used elsewhere


@contextmanager
def _without_them() -> Iterator[None]:
    nowhere = _Nowhere()
    sys.meta_path.insert(0, nowhere)
    try:
        yield
    finally:
        sys.meta_path.remove(nowhere)
