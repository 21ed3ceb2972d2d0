"""What /healthz and /readyz report: whether the process works, and why it does not do its job now."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Above this time without a pass of the main loop, the process counts as stalled. A pass asks several brokers, and waits
# for each up to a minute.
STALLED_S = 600.0
STARTING = "start"  # the subject of a process that is not ready yet


@dataclass(slots=True)
class Health:
    """One per process. Any thread may call it."""

    monotonic: Callable[[], float] = time.monotonic
    _waits_for: dict[str, str] = field(default_factory=dict)  # subject -> why the process is not ready
    _beat_s: float | None = None  # None: the main loop has not started
    _alarms: dict[str, str] = field(default_factory=dict)  # subject -> what an operator has to look at
    _ended: str = ""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def not_ready(self, subject: str, why: str) -> None:
        """Record a subject's reason why the process is not ready; "": the subject has none."""
        with self._guard:
            if why:
                self._waits_for[subject] = why
            else:
                self._waits_for.pop(subject, None)

    def alarm(self, subject: str, what: str) -> None:
        """Record what an operator has to look at although the process is ready; "": the subject has nothing."""
        with self._guard:
            if what:
                self._alarms[subject] = what
            else:
                self._alarms.pop(subject, None)

    @property
    def to_report(self) -> dict[str, str]:
        """Return subject -> text of each reason and alarm, without the start, which no operator has to learn of."""
        with self._guard:
            return {subject: why for subject, why in (self._waits_for | self._alarms).items() if subject != STARTING}

    def beat(self) -> None:
        """Record that the main loop starts a pass."""
        self._beat_s = self.monotonic()

    def end(self, why: str) -> None:
        """Record that the main loop has ended."""
        self._ended = why

    @property
    def stalled(self) -> str:
        """Why the process is not alive; "" if it is."""
        if self._ended:
            return self._ended
        beat_s = self._beat_s
        if beat_s is not None and self.monotonic() - beat_s > STALLED_S:
            return f"the main loop has not completed a round for {self.monotonic() - beat_s:.0f} s"
        return ""

    @property
    def waits_for(self) -> str:
        """Why the process is not ready, a line for each reason; "" if it is."""
        with self._guard:
            reasons = list(self._waits_for.values())
        return "\n".join([*filter(None, [self.stalled]), *reasons])
