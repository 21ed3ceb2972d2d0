"""The pause flag: one znode that stops every instance of the cluster from deleting."""

import json

from streaming.clock import Clock, SystemClock
from streaming.coordination.identity import iso_time, operator_name
from streaming.coordination.own_znodes import read_own
from streaming.ports import MetadataStore


class Pause:
    """The flag at <root>/pause that every instance of the cluster looks at before it deletes."""

    def __init__(self, store: MetadataStore, root: str, *, clock: Clock | None = None) -> None:
        self.path = f"{root}/pause"
        self._store = store
        self._clock = clock or SystemClock()

    def set(self, why: str) -> None:
        """Pause every instance; a second call replaces who, when and why. Raises UnavailableError."""
        data = json.dumps({"who": operator_name(), "since": iso_time(self._clock), "why": why}).encode()
        while not self._store.create(self.path, data, parents=True):
            if self._store.set_data(self.path, data) is not None:
                return

    def clear(self) -> bool:
        """Let them go on; False if they were not paused."""
        return self._store.delete(self.path)

    def reason(self) -> str:
        """Return "" when not paused, else why, who and since when. Raises UnavailableError: unknown is not "no"."""
        node = read_own(self._store, self.path)
        if node is None:
            return ""
        try:
            known = json.loads(node.data)
            return f"{known['why']} (by {known['who']}, since {known['since']})"
        except (ValueError, KeyError, TypeError):
            return f"{self.path} exists"  # made by hand: whoever did that meant it
