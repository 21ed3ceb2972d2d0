"""The breaker: a znode that stops all deletes until an operator resumes. It survives restarts."""

import json
from dataclasses import dataclass
from typing import Any

from streaming.coordination.own_znodes import read_own, write_own
from streaming.ports import MetadataStore, Znode


@dataclass(frozen=True, slots=True)
class Breaker:
    """The znode <root>/instances/<name>/breaker."""

    store: MetadataStore
    path: str

    def reason(self) -> str:
        """Return why the breaker tripped; "" if it has not. Raises UnavailableError if that is unknown."""
        return str(self._read().get("why", ""))

    def tripped(self) -> tuple[str, int]:
        """Return why the breaker tripped, and when (ms since 1970); ("", 0) if it has not. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        why = str(_parsed(self.path, node).get("why", ""))
        return why, node.mtime_ms if node is not None and why else 0

    def granted_ms(self) -> int:
        """Return when an operator last resumed; 0: never."""
        return int(self._read().get("granted_ms", 0))

    def trip(self, why: str, about: str = "") -> None:
        """Stop deleting until an operator resumes.

        about: the plan or doubt that this resume then allows (blast_radius.subject_of); "": none.
        """
        self._write({"why": why, "about": about, "granted_ms": self.granted_ms()})

    def clear(self, *, now_ms: int) -> bool:
        """Record an operator's resume; False if the breaker had not tripped."""
        state = self._read()
        had_tripped = bool(state.get("why"))
        if had_tripped:
            self._write({"granted_ms": now_ms, "granted": state.get("about", "")})
        return had_tripped

    def take_granted(self) -> str:
        """Return the subject that an operator's resume allowed, and clear it in the znode; "" if there is none."""
        granted = str(self._read().get("granted", ""))
        if granted:
            self._write({"granted_ms": self.granted_ms()})
        return granted

    def _read(self) -> dict[str, Any]:
        return _parsed(self.path, read_own(self.store, self.path))

    def _write(self, state: dict[str, Any]) -> None:
        write_own(self.store, self.path, json.dumps(state).encode())


def _parsed(path: str, node: Znode | None) -> dict[str, Any]:
    if node is None or not node.data:
        return {}
    try:
        return dict(json.loads(node.data))
    except (ValueError, TypeError):
        # what can't be read holds all deletes
        return {"why": f"{path} can't be parsed; find out why, then `ledger-reaper resume --limit`"}


def breaker_path(own_root: str, name: str) -> str:
    """Return the path of an instance's breaker."""
    return f"{own_root}/instances/{name}/breaker"
