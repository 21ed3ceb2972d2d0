"""Brokers in memory that delete segments, as those of Pulsar 5.0.0-M1 do."""

from collections.abc import Callable

from streaming.adapters.memory.faults import Faults
from streaming.adapters.memory.tree import MemoryTree
from streaming.errors import RefusedError, UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import in_use_ids, parse_cursor
from udfs.formats.segment_layout import parse_layout
from udfs.owners.references import named_by_cursor
from udfs.paths import Layout, decode_name, layout_path, ledger_path, managed_ledger_path, schema_path, segment_of


class MemorySegmentRemover:
    """SegmentRemover in memory: it deletes any segment, with its ledgers and the schema of its topic's name."""

    def __init__(self, tree: MemoryTree, layout: Layout, root: str) -> None:
        """Create brokers.

        Args:
            tree: the brokers' ZooKeeper.
            layout: of BookKeeper's ledgers.
            root: of BookKeeper's ledgers.
        """
        self._tree = tree
        self._layout = layout
        self._root = root
        self.connected: set[str] = set()  # segments that clients use
        self.leaked: set[int] = set()  # ledgers that brokers fail to delete
        self.calls: list[str] = []
        self.faults = Faults()

    def delete(self, segment: str, may_send: Callable[[], bool]) -> bool:
        """Delete the segment; False if its layout names it or may_send forbids it."""
        name = segment_of(segment)
        if name is None or name.may_be_v1 or _is_encoded(name.topic.rpartition("/")[2]):
            raise RefusedError(f"{segment}: no request to a broker can name such a segment")
        layout = layout_path(name.topic)
        try:
            is_named = layout in self._tree.paths() and parse_layout(self._tree.read(layout).data).names(name)
        except FormatError as error:
            raise UnavailableError(str(error)) from error
        if is_named or not may_send():
            return False
        self.faults.step("delete_segment", [segment])
        self.calls.append(segment)
        if segment in self.connected:
            raise RefusedError("Topic has 1 client connected")
        self.faults.effect(lambda: self._delete(managed_ledger_path(segment), schema_path(name.topic)))
        return True

    def close(self) -> None:
        """Do nothing."""

    def _delete(self, own: str, schema: str) -> None:
        theirs = [path for path in self._tree.paths() if path == own or path.startswith(f"{own}/")]
        if not theirs:
            return
        named = {*in_use_ids(self._tree.read(own).data).ids}
        named |= {
            ledger_id
            for path in theirs
            if path != own
            for _component, ledger_id in named_by_cursor(parse_cursor(self._tree.read(path).data))
        }
        ledgers = [ledger_path(self._layout, self._root, ledger_id) for ledger_id in named - self.leaked]
        for path in (*ledgers, *sorted(theirs, reverse=True), schema):
            if path in self._tree.paths():
                self._tree.remove(path)


def _is_encoded(topic: str) -> bool:
    return decode_name(topic) != topic
