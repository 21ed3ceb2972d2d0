"""ZooKeeper's addWatch (operation 106, servers since 3.6), which kazoo has no call for: the events of a whole tree.

Wire format: the path and the mode; the answer is empty. A persistent recursive watch stays after an event, and tells of
each znode below that is made, changed or deleted. It dies with its connection. kazoo hands an event to those who
watch that very path, and drops the others: so we put a table of our own in the place of kazoo's, which sees each path.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct

ADD_WATCH = 106
_PERSISTENT_RECURSIVE = 1


class AddWatch:
    """One request for the events of a znode (an absolute path, which need not exist) and of all that lies below it."""

    def __init__(self, path: str, number: int = ADD_WATCH) -> None:
        self.type = number
        self.path = path

    def __repr__(self) -> str:
        return f"AddWatch(path={self.path})"

    def serialize(self) -> bytes:
        """Return the request's bytes: the path's UTF-8 length, the path, the mode."""
        encoded = self.path.encode()
        return b"".join((int_struct.pack(len(encoded)), encoded, int_struct.pack(_PERSISTENT_RECURSIVE)))

    def deserialize(self, _buffer: bytes, _offset: int) -> bool:
        """Return True: the watch is set."""
        return True


def hear(client: KazooClient, heard: Callable[[str], None]) -> None:
    """Have a client's events told: the absolute path, in the client's own thread. kazoo forgets it with the session."""
    if not isinstance(client._data_watchers, _Heard):
        client._data_watchers = _Heard(heard)


class _Heard(defaultdict[str, set[Any]]):
    """Watchers by path, as kazoo keeps them; kazoo takes out the path of each event for a znode and its data."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        super().__init__(set)
        self._heard = heard

    def pop(self, path: str, *default: Any) -> Any:
        self._heard(path)
        return super().pop(path, *default)
