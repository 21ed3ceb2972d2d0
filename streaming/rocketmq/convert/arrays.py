"""Arrays that tasks pass to the next stage of a job: in files, so that Spark carries only paths and positions.

Spark's shuffle carries bytes out of a Python process, through the JVM and into another Python process, packed and
checked on the way, which took more CPU time than everything that the tasks do with them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray


class StoredArray(NamedTuple):
    """An array in a file, from the byte `at` on."""

    path: str
    at: int
    size: int

    def read(self, dtype: Any) -> NDArray[Any]:
        """Read the array as values of this type."""
        return np.frombuffer(self.bytes(), dtype=dtype)

    def bytes(self) -> bytes:
        """Read the bytes. Raises RuntimeError if the file has fewer."""
        if not self.size:
            return b""
        with open(self.path, "rb", buffering=0) as handle:  # noqa: PTH123  called for each block
            handle.seek(self.at)
            data = handle.read(self.size)
        if len(data) != self.size:
            raise RuntimeError(f"{self.path} has {len(data)} bytes from {self.at} on, and {self.size} were written")
        return data


SaveArray = Callable[[NDArray[Any] | bytes], StoredArray]


@contextmanager
def array_writer(folder: Path) -> Iterator[SaveArray]:
    """Yield a function that appends arrays to a new file of the folder."""
    # a name that no other task uses: Spark may run a task twice
    path = folder / uuid4().hex
    with path.open("wb") as handle:

        def save(values: NDArray[Any] | bytes) -> StoredArray:
            at, size = handle.tell(), len(values) if isinstance(values, bytes) else values.nbytes
            handle.write(values if isinstance(values, bytes) else values.data)
            # `note_covered` reads arrays back before this file is closed
            handle.flush()
            return StoredArray(str(path), at, size)

        yield save
