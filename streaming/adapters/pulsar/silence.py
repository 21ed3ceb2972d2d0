"""What hangs: after two timeouts in a row it is not asked, but for one short try now and then.

"It" is a host, or one kind of question to it. The whole process remembers it, so that a broker that hangs costs all who
ask it the same few seconds, and not one timeout for each topic. Any answer ends it. Each try in vain doubles the
patience of the next and the time before it: a broker that answers slowly is heard again, and one that hangs for good
costs a sixth of the time at most.

A tenant can have questions about its own topics hang, so they count for the tenant first:

1. After two in a row the tenant is slow at that host. All slow tenants of a host share one try now and then, so that
   many of them cost no more than one does.
2. The host itself hangs only after timeouts of two tenants without an answer between them. These two are slow then.
   The others share tries of their own, the first at once: an answer to any of them ends it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from streaming.errors import UnavailableError

_TIMEOUTS = 2
_TENANTS = 2  # whose timeouts say that a host hangs, and not that one tenant has it hang
TRY_SECONDS = 2.0  # patience of the first try
_DOUBLINGS = 4  # 32 s: more than the default of pulsar.timeout_seconds
_REST = 5  # times the patience of a try pass before the next


@dataclass(slots=True)
class _Hanging:
    """What is known of something that did not answer last."""

    timeouts: int = 0  # in a row, of questions that depend on no tenant
    tenants: set[str] = field(default_factory=set)  # whose questions timed out since the last answer
    tries: int = 0  # granted since then
    next_try_s: float = 0.0


class Silence:
    """Remembers hosts that timed out. Thread-safe. now_s: a clock that never goes back.

    tenant: the tenant whose topics a question is about; "": the answer does not depend on any tenant.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._known: dict[str, _Hanging] = {}
        self._lock = Lock()

    def is_due(self, what: str, tenant: str = "") -> bool:
        """Whether it may be asked now."""
        with self._lock:
            hanging = self._hanging(what, tenant)
            return hanging is None or self._now_s() >= hanging.next_try_s

    def tries(self, what: str, tenant: str = "") -> str:
        """Return with whom the tenant shares one try at a time; "": all its questions may be asked."""
        with self._lock:
            return "" if self._hanging(what, tenant) is None else self._sharing(what, tenant)

    def at_most(self, what: str, seconds: float, tenant: str = "") -> float:
        """Return for how long to wait for its answer, `seconds` at most."""
        with self._lock:
            hanging = self._hanging(what, tenant)
            return seconds if hanging is None else min(seconds, _patience_s(hanging.tries))

    def patience(self, what: str, seconds: float, tenant: str = "") -> float:
        """Return the same to who asks now; the next one may do so after a rest, unless an answer comes.

        Raises UnavailableError where it hangs and is not due for another try, or where there is no time left.
        """
        if seconds <= 0:
            raise UnavailableError(f"{what} was not asked: the time for all questions was over")
        with self._lock:
            hanging = self._hanging(what, tenant)
            if hanging is None:
                return seconds
            if self._now_s() < hanging.next_try_s:
                raise UnavailableError(hangs(what))
            patience_s = _patience_s(hanging.tries)
            hanging.next_try_s = self._now_s() + _REST * patience_s
            hanging.tries += 1
            return min(seconds, patience_s)

    def timed_out(self, what: str, tenant: str = "") -> None:
        """A question was not answered in time."""
        with self._lock:
            if not tenant:
                self._count(what)
                return
            if not self._is_slow(what, tenant):  # of a slow one we know already that it hangs
                self._known.setdefault(what, _Hanging()).tenants.add(tenant)
            self._count(_of(what, tenant))
            if self._is_slow(what, tenant):
                self._rest(self._known.setdefault(_slow(what), _Hanging(_TIMEOUTS)))

    def answered(self, what: str, tenant: str = "") -> None:
        """A whole answer came, whatever it says."""
        with self._lock:
            if self._is_slow(what, tenant):
                # the other slow tenants stay slow: their next try is due, and short again
                self._known[_slow(what)] = _Hanging(_TIMEOUTS)
            self._known.pop(what, None)
            self._known.pop(_of(what, tenant), None)

    def drop(self, host: str) -> None:
        """Forget a host that runs no more."""
        with self._lock:
            for what in [what for what in self._known if what == host or what.startswith((f"{host}/", f"{host} "))]:
                del self._known[what]

    def forget(self) -> None:
        """Forget all: tests start their servers on ports that others had before."""
        with self._lock:
            self._known.clear()

    def _count(self, what: str) -> None:
        known = self._known.setdefault(what, _Hanging())
        known.timeouts += 1
        if known.timeouts >= _TIMEOUTS:
            self._rest(known)

    def _rest(self, known: _Hanging) -> None:
        known.next_try_s = self._now_s() + _REST * _patience_s(max(0, known.tries - 1))

    def _sharing(self, what: str, tenant: str) -> str:
        return _slow(what) if self._is_slow(what, tenant) else what

    def _is_slow(self, what: str, tenant: str) -> bool:
        if not tenant:
            return False
        host = self._known.get(what, _Hanging())
        has_silenced_it = len(host.tenants) >= _TENANTS and tenant in host.tenants
        return has_silenced_it or self._hanging(_of(what, tenant)) is not None

    def _hanging(self, what: str, tenant: str = "") -> _Hanging | None:
        known = self._known.get(self._sharing(what, tenant))
        return known if known and (known.timeouts >= _TIMEOUTS or len(known.tenants) >= _TENANTS) else None


def _of(what: str, tenant: str) -> str:
    return f"{what}/{tenant}"


def _slow(what: str) -> str:
    return f"{what} (slow tenants)"


def _patience_s(tries: int) -> float:
    """Return how long the next try may take after so many in vain."""
    return TRY_SECONDS * 2.0 ** min(tries, _DOUBLINGS)


def hangs(what: str) -> str:
    """Say so of something that is not due."""
    return f"{what} did not answer twice in a row, and is tried again now and then"


silence = Silence()
