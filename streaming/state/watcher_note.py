"""What the watcher found at its last whole look, in a file beside the receipts, so that `check` can tell."""

import contextlib
import json
from dataclasses import asdict, dataclass

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of

FILE = "watcher.json"


@dataclass(frozen=True, slots=True)
class WatcherNote:
    """at_ms: when the look ended. znodes: that are known. waiting: requests that are not sent yet.

    unreadable: znodes that could not be read, parsed or listed.
    """

    at_ms: int
    znodes: int
    waiting: int
    unreadable: int


def note(state_dir: str, found: WatcherNote) -> None:
    """Write it down. A note that can't be written stops nothing."""
    with contextlib.suppress(UnavailableError):
        folder_of(state_dir).write(FILE, json.dumps(asdict(found)).encode())


def noted(state_dir: str) -> WatcherNote | None:
    """What was noted last; None where nothing was, or nothing that can be read. Raises UnavailableError."""
    content = folder_of(state_dir).read(FILE)
    try:
        return WatcherNote(**{name: int(value) for name, value in json.loads(content).items()}) if content else None
    except (AttributeError, TypeError, ValueError):
        return None
