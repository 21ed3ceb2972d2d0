"""What the watcher found at its last whole look, in a file beside the receipts, so that `check` can tell."""

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of

FILE = "watcher.json"


@dataclass(frozen=True, slots=True)
class WatcherNote:
    """What `check` and `status` show of a watcher."""

    at_ms: int  # when the look ended
    znodes: int  # that are known
    waiting: int  # requests that are not sent yet
    unreadable: int  # znodes that could not be read, parsed or listed
    unwatched: int = 0  # topics, cursors and schemas that no request could name
    unwatched_names: tuple[str, ...] = ()  # a few of them


def note(state_dir: str, found: WatcherNote) -> None:
    """Write it down. A note that can't be written stops nothing."""
    with contextlib.suppress(UnavailableError):
        folder_of(state_dir).write(FILE, json.dumps(asdict(found)).encode())


def noted(state_dir: str) -> WatcherNote | None:
    """What was noted last; None where nothing was, or nothing that can be read. Raises UnavailableError."""
    content = folder_of(state_dir).read(FILE)
    try:
        return WatcherNote(**{name: _parsed(value) for name, value in json.loads(content).items()}) if content else None
    except (AttributeError, TypeError, ValueError):
        return None


def _parsed(value: object) -> Any:
    return tuple(map(str, value)) if isinstance(value, list) else int(str(value))
