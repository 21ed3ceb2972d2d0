"""The operator log: what operators did with this service's commands, in <root>/history, for all instances of a cluster.

Each entry is a znode of its own with JSON, so no command overwrites another's entry. The time of an entry is when
ZooKeeper created the znode. The command that adds an entry removes the oldest ones, so that the newest KEPT stay.
"""

import json
import time
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from streaming.coordination.identity import operator_name
from streaming.coordination.own_znodes import HISTORY
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode

KEPT = 1000
_SLACK = 50  # further entries that stay for a while, so that not every new entry has to read all others
_LONGEST = 2000  # characters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEntry:
    """One action of an operator; the fields of `history --json`."""

    at_ms: int  # ZooKeeper's time, in ms since 1970
    who: str  # user@host
    service: str  # service.name of the operator's configuration
    command: str  # such as "pause" or "dlq replay"
    what: str  # the outcome, as the command printed it
    why: str  # the reason that the operator gave; "": none


class OperatorLog:
    """The entries below a root."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store, self._folder = store, f"{root}/{HISTORY}"

    def add(self, *, service: str, command: str, what: str, why: str = "") -> None:
        """Add an entry in the name of this process's user. Raises UnavailableError, RefusedError."""
        fields = {"who": operator_name(), "service": service, "command": command, "what": what, "why": why}
        data = json.dumps({name: text[:_LONGEST] for name, text in fields.items()}).encode()
        # the name orders entries of the same millisecond
        self._store.create(f"{self._folder}/{time.time_ns():020}-{uuid4().hex}", data, parents=True)
        if len(self._names()) > KEPT + _SLACK:
            # allowed here: only this log creates znodes in its folder, and the newest KEPT stay
            for path in [path for _at_ms, path, _data in self._read()][:-KEPT]:
                self._store.delete(path)

    def entries(self) -> list[OperatorEntry]:
        """Return all entries that can be read, the oldest first. Raises UnavailableError."""
        return [_parsed(at_ms, data) for at_ms, _path, data in self._read()]

    def unreadable(self) -> list[str]:
        """Return the path of each entry that can't be read, and why. Raises UnavailableError."""
        return [f"{path} ({node.detail})" for path, node in self._nodes() if isinstance(node, Unreadable)]

    def _read(self) -> list[tuple[int, str, bytes]]:
        """Return (time, path, data) of each entry, the oldest first."""
        return sorted((node.ctime_ms, path, node.data) for path, node in self._nodes() if isinstance(node, Znode))

    def _nodes(self) -> list[tuple[str, Znode | Unreadable | None]]:
        paths = [f"{self._folder}/{name}" for name in self._names()]
        return list(zip(paths, self._store.read_many(paths), strict=True)) if paths else []

    def _names(self) -> list[str]:
        (names,) = self._store.children_many([self._folder])
        if isinstance(names, Unreadable):
            raise UnavailableError(f"{self._folder} can't be listed: {names.detail}")
        return list(names or ())


def _parsed(at_ms: int, data: bytes) -> OperatorEntry:
    try:
        fields: dict[str, Any] = dict(json.loads(data))
    except (ValueError, TypeError):  # written by something else
        fields = {"what": repr(data[:_LONGEST])}
    who, service, command, what, why = (
        str(fields.get(name, "")) for name in ("who", "service", "command", "what", "why")
    )
    return OperatorEntry(at_ms=at_ms, who=who, service=service, command=command, what=what, why=why)
