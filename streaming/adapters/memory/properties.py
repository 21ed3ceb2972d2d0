"""TopicProperties in memory: writes the znodes of a MemoryTree, as a broker does."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from streaming.adapters.memory.faults import Faults
from streaming.adapters.memory.tree import MemoryTree, NoNodeError
from streaming.errors import RefusedError
from udfs.formats.managed_ledger import parse_managed_ledger, serialize_managed_ledger
from udfs.paths import managed_ledger_path


class MemoryTopicProperties:
    """TopicProperties on a MemoryTree."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self.faults = Faults()  # each change of a znode is an effect

    def update(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write these properties and keep the others."""
        self.faults.step("update", [topic])
        try:
            self._change(topic, lambda before: {**before, **properties})
        except NoNodeError:
            raise RefusedError(f"there is no topic {topic}: check the name") from None

    def remove(self, topic: str, key: str) -> bool:
        """Remove a property; return False if the topic no longer exists."""
        self.faults.step("remove", [topic])
        try:
            self._change(topic, lambda before: {name: value for name, value in before.items() if name != key})
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
