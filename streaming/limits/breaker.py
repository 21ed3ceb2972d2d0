"""The breaker: a znode that says why deleting stopped until a person resumes; it survives restarts."""

import json
from dataclasses import dataclass
from typing import Any

from streaming.coordination.own_znodes import read_own
from streaming.ports import MetadataStore


@dataclass(frozen=True, slots=True)
class Breaker:
    """The znode <root>/instances/<name>/breaker."""

    store: MetadataStore
    path: str

    def reason(self) -> str:
        """Return "" while closed, else why it tripped. Raises UnavailableError: unknown is not "no"."""
        return str(self._read().get("why", ""))

    def granted_ms(self) -> int:
        """When a person last let it go on; 0: never."""
        return int(self._read().get("granted_ms", 0))

    def trip(self, why: str, about: str = "") -> None:
        """Stop deleting until a person resumes. about: what that lets go on, by a name that a later run knows it by."""
        self._write({"why": why, "about": about, "granted_ms": self.granted_ms()})

    def clear(self, *, now_ms: int) -> bool:
        """A person has looked; False if it had not tripped."""
        state = self._read()
        had_tripped = bool(state.get("why"))
        if had_tripped:
            self._write({"granted_ms": now_ms, "granted": state.get("about", "")})
        return had_tripped

    def take_granted(self) -> str:
        """What a person let go on, to whoever asks first; "" where there is nothing (left)."""
        granted = str(self._read().get("granted", ""))
        if granted:
            self._write({"granted_ms": self.granted_ms()})
        return granted

    def _read(self) -> dict[str, Any]:
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return dict(json.loads(node.data))
        except ValueError:
            return {"why": f"{self.path} can't be parsed; `ledger-reaper resume` once you have looked"}

    def _write(self, state: dict[str, Any]) -> None:
        self.store.create(self.path, b"", parents=True)
        self.store.set_data(self.path, json.dumps(state).encode())


def breaker_path(own_root: str, name: str) -> str:
    """Where an instance's breaker is."""
    return f"{own_root}/instances/{name}/breaker"
