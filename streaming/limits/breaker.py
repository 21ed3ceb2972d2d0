"""The breaker: a znode that stops deleting until a person resumes, and says why. It survives restarts."""

import json
from dataclasses import dataclass
from typing import Any

from streaming.coordination.own_znodes import read_own, write_own
from streaming.ports import MetadataStore


@dataclass(frozen=True, slots=True)
class Breaker:
    """The znode <root>/instances/<name>/breaker."""

    store: MetadataStore
    path: str

    def reason(self) -> str:
        """Return why it tripped; "" where it has not. Raises UnavailableError where that is not known."""
        return str(self._read().get("why", ""))

    def granted_ms(self) -> int:
        """Return when a person resumed last; 0: never."""
        return int(self._read().get("granted_ms", 0))

    def trip(self, why: str, about: str = "") -> None:
        """Stop deleting until a person resumes. about: what the resume will let pass (blast_radius.subject_of)."""
        self._write({"why": why, "about": about, "granted_ms": self.granted_ms()})

    def clear(self, *, now_ms: int) -> bool:
        """Note that a person has looked and resumes; False if it had not tripped."""
        state = self._read()
        had_tripped = bool(state.get("why"))
        if had_tripped:
            self._write({"granted_ms": now_ms, "granted": state.get("about", "")})
        return had_tripped

    def take_granted(self) -> str:
        """Return what a person's resume lets pass, and forget it; "" where nothing is left."""
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
            return {"why": f"{self.path} can't be parsed; find out why, then `ledger-reaper resume --limit`"}

    def _write(self, state: dict[str, Any]) -> None:
        write_own(self.store, self.path, json.dumps(state).encode())


def breaker_path(own_root: str, name: str) -> str:
    """Return where an instance's breaker is."""
    return f"{own_root}/instances/{name}/breaker"
