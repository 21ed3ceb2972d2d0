"""Loads pyarrow without numpy and pandas, for commands that start no Spark.

pyarrow loads both as soon as it is loaded itself, only to see whether a value is one of theirs. That takes longer than
all that such a command does. Where they can't be found at that moment, pyarrow does without them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_LEFT_OUT = frozenset({"numpy", "pandas"})


class _Nowhere(MetaPathFinder):
    """Says that they are not installed."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Raise ModuleNotFoundError for what is left out; leave the rest to others."""
        if name in _LEFT_OUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def load_datasets() -> None:
    """Load pyarrow.dataset. In a process that has loaded pyarrow, numpy or pandas already, this changes nothing."""
    if not sys.modules.keys() & {"pyarrow", *_LEFT_OUT}:
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
