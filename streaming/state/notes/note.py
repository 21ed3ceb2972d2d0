"""Notes: small JSON files in state.dir that one process writes and others read."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of

T = TypeVar("T")


class DamagedNoteError(UnavailableError):
    """A note exists and can't be parsed."""


@dataclass(frozen=True, slots=True)
class Note(Generic[T]):
    """One kind of note. write() and read() raise; try_write() and try_read() are for notes that must stop nothing."""

    file: str
    encode: Callable[[T], object]  # to JSON's types
    decode: Callable[[Any], T]

    def write(self, state_dir: str, value: T | None) -> None:
        """Replace the note, or delete it if the value is None. Raises UnavailableError."""
        folder = folder_of(state_dir)
        if value is None:
            folder.delete(self.file)
        else:
            folder.write(self.file, json.dumps(self.encode(value)).encode())

    def try_write(self, state_dir: str, value: T | None) -> None:
        """Like write(), but ignore UnavailableError."""
        # a note only informs: its loss must not stop the work
        with suppress(UnavailableError):
            self.write(state_dir, value)

    def read(self, state_dir: str) -> T | None:
        """Return the note; None if there is none. Raises UnavailableError, of which DamagedNoteError is a kind."""
        folder = folder_of(state_dir)
        content = folder.read(self.file)
        if content is None:
            return None
        try:
            return self.decode(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = f"{folder.root}/{self.file}"
            raise DamagedNoteError(f"{path} can't be read: {error}; remove it to start over") from error

    def try_read(self, state_dir: str) -> T | None:
        """Like read(), but return None for a note that can't be read."""
        try:
            return self.read(state_dir)
        except UnavailableError:
            return None
