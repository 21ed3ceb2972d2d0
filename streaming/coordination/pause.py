"""The pause: one znode that stops every instance of the cluster from deleting."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from streaming.clock import Clock, SystemClock
from streaming.coordination.identity import iso_time, operator_name
from streaming.coordination.own_znodes import read_own
from streaming.errors import SafetyError
from streaming.ports import MetadataStore, Znode

_ENDED = b'{"ended":true}'


@dataclass(frozen=True, slots=True)
class PauseNote:
    """One pause, as its znode holds it."""

    text: str  # why, by whom, since when and until when
    version: int  # of the znode
    until_ms: int | None  # ZooKeeper's time at which it ends; None: an operator ends it


class Pause:
    """The znode <root>/pause, which every instance of the cluster reads before it deletes.

    A pause with an end holds a length (`for_ms`), counted from ZooKeeper's own time of the write, so that the clock of
    the operator's machine decides nothing. Executors use no clock; a service's driver ends the pause once the agreed
    clock has passed its end. A pause that has ended leaves its znode, so that versions never repeat: otherwise the end
    of one pause could end a later one.
    """

    def __init__(self, store: MetadataStore, root: str, *, clock: Clock | None = None) -> None:
        self.path = f"{root}/pause"
        self._store = store
        self._clock = clock or SystemClock()

    def set(self, why: str, *, for_ms: int | None = None, force: bool = False) -> PauseNote | None:
        """Pause every instance; return the pause that this one replaced, if any.

        Raises SafetyError, which names the present pause, where there is one and force is not set; UnavailableError.
        """
        end = {} if for_ms is None else {"for_ms": for_ms}
        data = json.dumps({"who": operator_name(), "since": iso_time(self._clock), "why": why} | end).encode()
        while not self._store.create(self.path, data, parents=True):
            node = read_own(self._store, self.path)
            if node is None:
                continue
            present = self._parsed(node)
            if present is not None and not force:
                raise SafetyError(f"paused already: {present.text}. --force replaces that pause with yours")
            if self._store.set_data(self.path, data, version=node.version) is not None:
                return present
        return None

    def read(self) -> PauseNote | None:
        """Return the present pause; None where there is none. Raises UnavailableError: unknown is not "no"."""
        node = read_own(self._store, self.path)
        return None if node is None else self._parsed(node)

    def reason(self) -> str:
        """Return why, who, since when and until when; "" when not paused. Raises as read."""
        present = self.read()
        return "" if present is None else present.text

    def end(self, pause: PauseNote) -> bool:
        """End just this pause; False where it is gone or was replaced meanwhile. Raises as read."""
        return self._store.set_data(self.path, _ENDED, version=pause.version) is not None

    def ended(self, agreed_ms: Callable[[], int]) -> PauseNote | None:
        """End the pause if its time is over, and return it; None where none has ended.

        agreed_ms: the agreed time, which is asked for only where a pause has an end. Raises as read.
        """
        present = self.read()
        if present is None or present.until_ms is None or agreed_ms() < present.until_ms:
            return None
        return present if self.end(present) else None

    def _parsed(self, node: Znode) -> PauseNote | None:
        if node.data == _ENDED:
            return None
        try:
            known: dict[str, Any] = dict(json.loads(node.data))
            said = f"{known['why']} (by {known['who']}, since {known['since']}"
            until_ms = node.mtime_ms + int(known["for_ms"]) if "for_ms" in known else None
            until = "" if until_ms is None else f", until {_iso(until_ms)}"
        except (ValueError, KeyError, TypeError, OverflowError):
            # made by hand, so it lasts until it is removed by hand or by `resume`
            return PauseNote(f"{self.path} exists", node.version, None)
        return PauseNote(f"{said}{until})", node.version, until_ms)


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
