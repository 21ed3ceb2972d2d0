"""Collects signs about topics from what the watcher reads, for the marking ([watch] mark_ahead).

Its methods run in the watcher's thread. They never wait, and ignore content that can't be parsed.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from streaming.ports import Unreadable, Znode
from udfs.formats.compression import unwrap
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import in_use_ids, parse_managed_ledger
from udfs.paths import MANAGED_LEDGERS_ROOT
from udfs.phase_one.marks import PREFIX, read_marks
from udfs.phase_one.trim_forecast import Sign, no_longer_listed, sign_of
from udfs.phase_one.vanished_names import Names, ZnodeKind, kind_of

_PARTS = 4  # tenant/namespace/persistent/name; brokers accept no marks for V1 names, which have five parts


@dataclass(slots=True)
class TopicSigns:
    """The signs of a complete scan, and of the hints before it."""

    loaded: set[str] = field(default_factory=set)  # a broker that has the topic loaded has written a znode
    closed: set[str] = field(default_factory=set)  # a cursor of the topic was closed
    marked: set[str] = field(default_factory=set)  # something is marked that the topic's list no longer names


class SignCollector:
    """Collects the signs that a watcher sees."""

    def __init__(self, hand_over: Callable[[TopicSigns], object]) -> None:
        """Start without signs; hand_over() gets the signs after each complete scan, and must not wait."""
        self._hand_over = hand_over
        self._signs = TopicSigns()
        self._has_scanned = False

    def observe(self, path: str, node: Znode | Unreadable | None, before: Names | None, after: Names | None) -> None:
        """Take a znode, and its names before and now. None: nothing was known, or the names are the same."""
        kind = kind_of(path)
        topic = _topic_at(path, kind)
        if topic is None or kind is None:
            return
        sign = sign_of(kind, before, after) if after is not None else None
        if sign is Sign.LOADED:
            self._signs.loaded.add(topic)
        elif sign is Sign.CLOSED:
            self._signs.closed.add(topic)
        if kind is ZnodeKind.TOPIC and isinstance(node, Znode):
            with suppress(FormatError, ValueError):
                if _has_removable_marks(node.data):
                    self._signs.marked.add(topic)

    def scan_ended(self) -> None:
        """Hand over the signs at the end of a complete scan."""
        signs, self._signs = self._signs, TopicSigns()
        if not self._has_scanned:  # changes since the last run may be hours old, and are no sign of a loaded topic
            signs.loaded.clear()
        self._has_scanned = True
        self._hand_over(signs)


def _topic_at(path: str, kind: ZnodeKind | None) -> str | None:
    name = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/")
    if kind is ZnodeKind.CURSOR:
        name = name.rpartition("/")[0]
    return name if kind in (ZnodeKind.TOPIC, ZnodeKind.CURSOR) and name.count("/") == _PARTS - 1 else None


def _has_removable_marks(data: bytes) -> bool:
    if PREFIX.encode() not in unwrap(data):
        return False
    listed = in_use_ids(data)
    return no_longer_listed(read_marks(parse_managed_ledger(data).properties), listed.ids, listed.offloads)
