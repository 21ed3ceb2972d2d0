"""Which lanes are parked and why, in a file beside the receipts: for `check` and `receipts`, which are other processes.

A lane is one query with its topic. It is parked where its query has failed, until the query reads again.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of

_FILE = "lanes.json"


@dataclass(frozen=True, slots=True)
class ParkedQuery:
    """A lane that is parked.

    why: what its query failed of, in one line. failures: tries in a row that came to nothing. is_read: the lane's
    messages are worked off all the same, by another way than the connector.
    """

    topic: str
    why: str
    since_ms: int
    failures: int = 0
    is_read: bool = False


def note(state_dir: str, parked: Mapping[str, ParkedQuery]) -> None:
    """Write down the parked lanes by the names of their queries. A note that can't be written stops nothing."""
    with contextlib.suppress(UnavailableError):
        folder = folder_of(state_dir)
        if parked:
            folder.write(_FILE, json.dumps({name: asdict(lane) for name, lane in parked.items()}).encode())
        else:
            folder.delete(_FILE)


def noted(state_dir: str) -> dict[str, ParkedQuery]:
    """Return the parked lanes as noted last; none where there is no note, or none that can be read."""
    try:
        said = json.loads(folder_of(state_dir).read(_FILE) or b"{}")
        return {str(name): _lane(lane) for name, lane in said.items()}
    except (UnavailableError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _lane(said: Mapping[str, object]) -> ParkedQuery:
    return ParkedQuery(
        str(said["topic"]),
        str(said["why"]),
        int(str(said["since_ms"])),
        int(str(said["failures"])),
        said["is_read"] is True,
    )
