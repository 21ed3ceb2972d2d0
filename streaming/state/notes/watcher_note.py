"""The note of what the watcher counted in its last complete scan, for `check` and `status`."""

from dataclasses import asdict, dataclass
from typing import Any

from streaming.state.notes.note import DamagedNoteError, Note

FILE = "watcher.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherNote:
    """What `check` and `status` show of a watcher."""

    at_ms: int  # end of the scan
    znodes: int  # that the watcher knows
    waiting: int  # requests not sent yet
    unreadable: int  # znodes that could not be read, parsed or listed
    unwatched: int = 0  # topics, cursors and schemas that no request could name
    unwatched_names: tuple[str, ...] = ()  # a few of them


def _value(value: object) -> Any:
    return tuple(map(str, value)) if isinstance(value, list) else int(str(value))


_NOTE: Note[WatcherNote] = Note(
    FILE,
    encode=asdict,
    decode=lambda fields: WatcherNote(**{name: _value(value) for name, value in fields.items()}),
)


def note(state_dir: str, scan: WatcherNote) -> None:
    """Write the note. A failure to write is ignored."""
    _NOTE.try_write(state_dir, scan)


def noted(state_dir: str) -> WatcherNote | None:
    """Return the newest note; None if there is none or it can't be parsed. Raises UnavailableError."""
    try:
        return _NOTE.read(state_dir)
    except DamagedNoteError:
        return None
