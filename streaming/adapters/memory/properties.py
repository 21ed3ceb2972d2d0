"""TopicProperties in memory: it writes the znodes of a MemoryTree, as a broker does."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from streaming.adapters.memory.faults import Faults
from streaming.adapters.memory.tree import MemoryTree, NoNodeError
from streaming.errors import RefusedError
from udfs.formats.managed_ledger import parse_managed_ledger, serialize_managed_ledger
from udfs.paths import managed_ledger_path


class MemoryTopicProperties:
    """faults: what shall go wrong; each change of a znode is an effect."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self.faults = Faults()

    def update(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write properties; others stay."""
        self.faults.step("update", [topic])
        try:
            self._change(topic, lambda known: {**known, **properties})
        except NoNodeError:
            raise RefusedError(f"there is no topic {topic}: check the name") from None

    def remove(self, topic: str, key: str) -> bool:
        """Remove one property; False where there is no such topic any more."""
        self.faults.step("remove", [topic])
        try:
            self._change(topic, lambda known: {name: value for name, value in known.items() if name != key})
        except NoNodeError:
            return False
        return True

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _change(self, topic: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        path = managed_ledger_path(topic)
        info = parse_managed_ledger(self._tree.read(path).data)
        changed = serialize_managed_ledger(replace(info, properties=change(info.properties)))
        self.faults.effect(lambda: self._tree.write(path, changed))
