"""What the watcher hears of topics, for whoever marks what brokers are about to drop ([watch] mark_ahead).

1. It is called in the watcher's thread. No call waits, and what can't be parsed is passed over.
2. After a whole look it hands over which topics a broker has loaded, as their znodes tell, and which topics have marks
   of what their lists name no more.
3. What the first whole look finds changed may be hours old. It does not count as a sign that a topic is loaded.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from streaming.ports import Unreadable, Znode
from udfs.formats.compression import unwrap
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import in_use_ids, parse_managed_ledger
from udfs.paths import MANAGED_LEDGERS_ROOT
from udfs.phase_one.ahead import Sign, no_longer_listed, sign_of
from udfs.phase_one.marks import PREFIX, read_marks
from udfs.phase_one.watched import Names, ZnodeKind, kind_of

_PARTS = 4  # tenant/namespace/persistent/name; brokers take no marks for V1 names, which have five


@dataclass(slots=True)
class Seen:
    """What one whole look, and the hints before it, told of topics.

    loaded: a broker that has it loaded has written. closed: one of its cursors was closed. marked: something is marked
    that its list names no more.
    """

    loaded: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    marked: set[str] = field(default_factory=set)


class Ahead:
    """Listens to one watcher. hand_over: is given what was seen after each whole look; it must not wait."""

    def __init__(self, hand_over: Callable[[Seen], object]) -> None:
        self._hand_over = hand_over
        self._seen = Seen()
        self._has_looked = False

    def saw(self, path: str, node: Znode | Unreadable | None, before: Names | None, after: Names | None) -> None:
        """Hear what a znode is now, and what it named before. None: nothing was known, or it names the same."""
        kind = kind_of(path)
        topic = _topic_at(path, kind)
        if topic is None or kind is None:
            return
        sign = sign_of(kind, before, after) if after is not None else None
        if sign is Sign.LOADED:
            self._seen.loaded.add(topic)
        elif sign is Sign.CLOSED:
            self._seen.closed.add(topic)
        if kind is ZnodeKind.TOPIC and isinstance(node, Znode):
            with suppress(FormatError, ValueError):
                if _has_marks_to_work_off(node.data):
                    self._seen.marked.add(topic)

    def looked(self) -> None:
        """Hear that a whole look has ended."""
        seen, self._seen = self._seen, Seen()
        if not self._has_looked:
            seen.loaded.clear()
        self._has_looked = True
        self._hand_over(seen)


def _topic_at(path: str, kind: ZnodeKind | None) -> str | None:
    name = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/")
    if kind is ZnodeKind.CURSOR:
        name = name.rpartition("/")[0]
    return name if kind in (ZnodeKind.TOPIC, ZnodeKind.CURSOR) and name.count("/") == _PARTS - 1 else None


def _has_marks_to_work_off(data: bytes) -> bool:
    if PREFIX.encode() not in unwrap(data):
        return False
    listed = in_use_ids(data)
    return no_longer_listed(read_marks(parse_managed_ledger(data).properties), listed.ids, listed.offloads)
