"""Implements ZooKeeper's addWatch (operation 106, servers since 3.6) for kazoo: one watch reports a whole tree.

The request contains the path and the mode; the answer is empty. A persistent recursive watch remains after an event,
and reports each znode below its path that is created, changed or deleted. The watch ends with its connection.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct

ADD_WATCH = 106
_PERSISTENT_RECURSIVE = 1


class AddWatch:
    """A request for the events of a znode and of its whole subtree. The path is absolute and need not exist."""

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


def forward_events(client: KazooClient, on_event: Callable[[str], None]) -> None:
    """Call on_event with the absolute path of each event, in the client's thread, until the session ends."""
    if not isinstance(client._data_watchers, _ForwardingWatchers):
        # kazoo delivers an event only to watchers of exactly that path
        client._data_watchers = _ForwardingWatchers(on_event)


class _ForwardingWatchers(defaultdict[str, set[Any]]):
    """Replaces kazoo's table of watchers by path: kazoo pops the path of each event from it."""

    def __init__(self, on_event: Callable[[str], None]) -> None:
        super().__init__(set)
        self._on_event = on_event

    def pop(self, path: str, *default: Any) -> Any:
        self._on_event(path)
        return super().pop(path, *default)
