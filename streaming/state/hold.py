"""Why nothing is deleted at the moment, in a file beside the receipts: for a reader who can't ask ZooKeeper."""

import contextlib
import json

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of

_FILE = "held.json"


def note(state_dir: str, why: str, *, now_ms: int) -> None:
    """Write why and since when; "" takes the note away. A note that can't be written stops nothing."""
    with contextlib.suppress(UnavailableError):
        folder = folder_of(state_dir)
        if why:
            folder.write(_FILE, json.dumps({"why": why, "since_ms": now_ms}).encode())
        else:
            folder.delete(_FILE)


def noted(state_dir: str) -> tuple[str, int]:
    """(why, since ms) as noted last; ("", 0) where there is no note, or none that can be read."""
    try:
        said = json.loads(folder_of(state_dir).read(_FILE) or b"{}")
        return str(said["why"]), int(said["since_ms"])
    except (UnavailableError, ValueError, KeyError, TypeError):
        return "", 0
