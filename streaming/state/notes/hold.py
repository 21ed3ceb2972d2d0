"""The note of why nothing is deleted at the moment, for readers that can't reach ZooKeeper."""

from streaming.state.notes.note import Note

_NOTE: Note[tuple[str, int]] = Note(
    "held.json",
    encode=lambda hold: {"why": hold[0], "since_ms": hold[1]},
    decode=lambda hold: (str(hold["why"]), int(hold["since_ms"])),
)


def note(state_dir: str, why: str, *, now_ms: int) -> None:
    """Write why and since when; "" deletes the note. A failure to write is ignored."""
    _NOTE.try_write(state_dir, (why, now_ms) if why else None)


def noted(state_dir: str) -> tuple[str, int]:
    """Return (why, since ms) of the newest note; ("", 0) if there is none or it can't be read."""
    return _NOTE.try_read(state_dir) or ("", 0)
