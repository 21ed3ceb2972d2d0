"""What the tasks of one stage of a job hand to those of the next one: arrays in files, and through Spark only where.

Spark's shuffle takes bytes out of a Python process, through the JVM and into another Python process, packed and checked
on the way, which took more CPU time than all that the tasks do with them. The files lie in the folder in which the job
writes its results, which every task reaches anyway.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray


class HandedOn(NamedTuple):
    """An array in a file: from which byte on, and how many."""

    path: str
    at: int
    size: int

    def read(self, dtype: Any) -> NDArray[Any]:
        """Return the array, whose values have this type."""
        return np.frombuffer(self.bytes(), dtype=dtype)

    def bytes(self) -> bytes:
        """Return its bytes. Raises RuntimeError where the file has fewer."""
        if not self.size:
            return b""
        with open(self.path, "rb", buffering=0) as handle:  # noqa: PTH123  called for each block
            handle.seek(self.at)
            data = handle.read(self.size)
        if len(data) != self.size:
            raise RuntimeError(f"{self.path} has {len(data)} bytes from {self.at} on, and {self.size} were written")
        return data


HandOn = Callable[[NDArray[Any] | bytes], HandedOn]


@contextmanager
def handing_on(folder: Path) -> Iterator[HandOn]:
    """Give a task a function that writes arrays into one new file of the folder."""
    path = folder / uuid4().hex
    with path.open("wb") as handle:

        def hand_on(values: NDArray[Any] | bytes) -> HandedOn:
            at, size = handle.tell(), len(values) if isinstance(values, bytes) else values.nbytes
            handle.write(values if isinstance(values, bytes) else values.data)
            handle.flush()
            return HandedOn(str(path), at, size)

        yield hand_on
