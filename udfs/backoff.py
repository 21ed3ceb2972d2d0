"""Pauses between tries that grow with the failures in a row."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses in seconds: the first one after the first failure; the last one repeats."""

    pauses_s: tuple[float, ...]

    def pause_s(self, failures: int) -> float:
        """Return the pause after so many failures in a row; fewer than one count as one."""
        return self.pauses_s[min(max(failures, 1), len(self.pauses_s)) - 1]


LONG = Backoff((5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0))  # for failures that may have any cause
