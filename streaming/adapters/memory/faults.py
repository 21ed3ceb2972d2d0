"""Injects failures into the fakes.

An effect is a call that changes the fake service; a test can make each effect fail in turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streaming.errors import UnavailableError

Hook = Callable[[str, Sequence[str]], None]


class CrashError(BaseException):
    """Simulates the death of the process. Code under test must not catch this error and continue."""


@dataclass(slots=True)
class _Fault:
    effects_left: int
    applied: bool
    crash: bool


class Faults:
    """Counts effects, and lets the effect that the test has chosen fail."""

    def __init__(self) -> None:
        self.effects = 0
        self.away = False  # True: every operation raises UnavailableError
        self._fault: _Fault | None = None
        self._hooks: list[Hook] = []

    def fail_at(self, effect: int, *, applied: bool = False, crash: bool = False) -> None:
        """Make one effect fail, once.

        Args:
            effect: the number of the effect that fails; 1 is the next effect.
            applied: the effect is applied before it fails.
            crash: raise CrashError instead of UnavailableError.
        """
        self._fault = _Fault(effect, applied, crash)

    def before(self, hook: Hook) -> None:
        """Call hook(operation, paths) before each operation, and before each batch of delete_guarded."""
        self._hooks.append(hook)

    def step(self, operation: str, paths: Sequence[str]) -> None:
        """Run the hooks. Raises UnavailableError while `away` is set."""
        for hook in self._hooks:
            hook(operation, paths)
        if self.away:
            raise UnavailableError("the service is unreachable")

    def effect(self, apply: Callable[[], object]) -> None:
        """Apply an effect, or fail as fail_at demands."""
        fault = self._due()
        if fault is None or fault.applied:
            apply()
            self.effects += 1
        if fault is not None and fault.crash:
            raise CrashError
        if fault is not None:
            raise UnavailableError("the connection broke")

    def _due(self) -> _Fault | None:
        if self._fault is None:
            return None
        self._fault.effects_left -= 1
        if self._fault.effects_left > 0:
            return None
        due, self._fault = self._fault, None
        return due
