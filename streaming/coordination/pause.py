"""The pause: a znode that stops every instance of the cluster from deleting."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streaming.clock import Clock, SystemClock, utc_text
from streaming.coordination.identity import iso_time, operator_name
from streaming.coordination.own_znodes import read_own
from streaming.errors import SafetyError
from streaming.ports import MetadataStore, Znode

_ENDED = b'{"ended":true}'


@dataclass(frozen=True, slots=True)
class PauseNote:
    """A pause as its znode describes it."""

    text: str  # the reason, the operator, the start and the end
    version: int  # of the znode
    until_ms: int | None  # ends at this time of ZooKeeper's; None: an operator ends it
    since_ms: int  # when it was set, by ZooKeeper's time


class Pause:
    """The znode <root>/pause, which every instance of the cluster reads before it deletes.

    Executors use no clock; a service's driver ends the pause once the agreed clock has passed its end.
    """

    def __init__(self, store: MetadataStore, root: str, *, clock: Clock | None = None) -> None:
        self.path = f"{root}/pause"
        self._store = store
        self._clock = clock or SystemClock()

    def set(self, why: str, *, for_ms: int | None = None, force: bool = False) -> PauseNote | None:
        """Pause every instance; return the pause that was replaced, if any.

        Raises SafetyError, which describes the present pause, if there is one and force is not set; UnavailableError.
        """
        # a duration, which starts at ZooKeeper's time of the write: the clock of the operator's machine has no
        # influence
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
        """Return the present pause, if any. Raises UnavailableError if that is unknown."""
        node = read_own(self._store, self.path)
        return None if node is None else self._parsed(node)

    def reason(self) -> str:
        """Return the text of the present pause; "" if there is none. Raises UnavailableError."""
        present = self.read()
        return "" if present is None else present.text

    def end(self, pause: PauseNote) -> bool:
        """End this pause only; return False if it has ended or was replaced. Raises UnavailableError."""
        # the znode stays, so that versions never repeat: otherwise the end of one pause could end a later one
        return self._store.set_data(self.path, _ENDED, version=pause.version) is not None

    def ended(self, agreed_ms: Callable[[], int]) -> PauseNote | None:
        """End the pause if its time is over, and return it; None if no pause has ended. Raises UnavailableError.

        Args:
            agreed_ms: returns the agreed time; called only if there is a pause with an end.
        """
        present = self.read()
        if present is None or present.until_ms is None or agreed_ms() < present.until_ms:
            return None
        return present if self.end(present) else None

    def _parsed(self, node: Znode) -> PauseNote | None:
        if node.data == _ENDED:
            return None
        try:
            fields: dict[str, Any] = dict(json.loads(node.data))
            text = f"{fields['why']} (by {fields['who']}, since {utc_text(node.mtime_ms)}"
            until_ms = node.mtime_ms + int(fields["for_ms"]) if "for_ms" in fields else None
            until = "" if until_ms is None else f", until {utc_text(until_ms)}"
        except (ValueError, KeyError, TypeError, OverflowError):
            # an operator created it by hand, so it lasts until it is deleted by hand or by `resume`
            return PauseNote(f"{self.path} exists", node.version, None, node.mtime_ms)
        return PauseNote(f"{text}{until})", node.version, until_ms, node.mtime_ms)
