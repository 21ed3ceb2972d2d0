"""Waits for the index that a broker writes once it has replayed a topic, and has the topic loaded again if none comes.

Pulsar 4.0.8 writes segments one after another, and an index behind the last one. It has the next one begun by another
thread just before it says that it is free; where that thread looks first, it goes away again, and nothing more is
written until messages come, then one segment or a few (seen in a third of the replays of fifteen segments). In a rarer
case it stays busy for ever. It logs neither (apache/pulsar#26565 mends both). Another load begins anew, which helps
where segments are few: of a hundred, hardly any replay would come to its end.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from streaming.clock import Clock
from streaming.errors import RefusedError, UnavailableError
from udfs.snapshots.audit import READY, BufferFacts
from udfs.snapshots.codec import Index
from udfs.snapshots.repairing import unwritten
from udfs.snapshots.values import ReadValue

LOADS, FEW_SEGMENTS = 8, 50
_PATIENCE_MS, _SAY_MS, _WAIT_SECONDS = 600_000, 30_000, 1.0


def silent(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstIndex:
    """What is needed to wait for one topic's index.

    index: reads the latest one. buffer: asks the broker, also for its segments. again: has the topic loaded from what
    the repair published. quiet_seconds: for how long nothing must have changed, until nothing more is waited for. say:
    is told in words what is waited for.
    """

    index: Callable[[], ReadValue | None]
    buffer: Callable[[], BufferFacts | None]
    again: Callable[[], object]
    quiet_seconds: float
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = silent

    def wait(self) -> tuple[str, int]:
        """Return what the index lacks after all that, and how often the topic was loaded; "" where it lacks nothing.

        Raises what its parts raise, but for errors that pass within ten minutes.
        """
        for load in range(1, LOADS):
            lacks, segments = self._lacks()
            if not lacks or segments > FEW_SEGMENTS:
                return lacks, load
            self.say(f"{lacks}, and nothing changes any more: it is loaded once more ({load + 1} of {LOADS})")
            self.again()
        return self._lacks()[0], LOADS

    def _lacks(self) -> tuple[str, int]:
        """Return what is lacking once nothing changes any more, and how many segments the broker has sealed."""
        seen: object = None
        changed_ms = began_ms = said_ms = self.clock.now_ms()
        while True:
            try:
                buffer, read = self.buffer(), self.index()
            except (UnavailableError, RefusedError):  # not known yet, which is neither silence nor a change
                if self.clock.now_ms() - began_ms >= _PATIENCE_MS:
                    raise
                changed_ms = self.clock.now_ms()
                self.sleep(_WAIT_SECONDS)
                continue
            lacks = _lack(buffer, read)
            segments = len(buffer.sealed) if buffer is not None else 0
            if not lacks:
                return "", segments
            now_ms = self.clock.now_ms()
            now = (buffer, None if read is None else read.position)
            if now != seen:
                seen, changed_ms = now, now_ms
            if now_ms - said_ms >= _SAY_MS:
                said_ms = now_ms
                self.say(f"waits for the index of its broker since {(now_ms - began_ms) // 1_000} seconds: {lacks}")
            if now_ms - changed_ms >= self.quiet_seconds * 1_000 or now_ms - began_ms >= _PATIENCE_MS:
                return lacks, segments
            self.sleep(_WAIT_SECONDS)


def _lack(buffer: BufferFacts | None, read: ReadValue | None) -> str:
    if buffer is None or buffer.state != READY:
        return "its broker does not have it loaded any more"
    return unwritten(read.value if read is not None and isinstance(read.value, Index) else None, buffer.sealed)
