"""Remembers targets that hang: after two timeouts in a row a target gets only a short attempt from time to time.

A target is a host, or one kind of request to a host. The whole process shares the memory, so a broker that hangs costs
all callers together a few seconds, not one timeout per topic. Any answer resets a target.

A tenant can make requests about its own topics hang, so these timeouts count for the tenant first:

1. After two timeouts in a row the tenant is slow at that host. All slow tenants of a host share one attempt from time
   to time, so that many of them cost no more than one.
2. The host itself counts as hanging only after timeouts of two tenants without an answer between them. These two
   tenants are then slow. The other tenants share attempts of their own. The first attempt may come at once, and an
   answer resets the host.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from streaming.errors import UnavailableError

_TIMEOUTS = 2
_TENANTS = 2  # timeouts of so many tenants show that the host hangs, not only one tenant's topics
TRY_SECONDS = 2.0  # timeout of the first attempt
_DOUBLINGS = 4  # up to 32 s, more than the default of pulsar.timeout_seconds
_MOST = 10_000  # states; tenants and namespaces come and go without end
_REST = 5  # the pause before the next attempt, in timeouts of the last attempt


@dataclass(slots=True)
class _Hanging:
    """The state of a target whose last request timed out."""

    timeouts: int = 0  # in a row, of requests that depend on no tenant
    tenants: set[str] = field(default_factory=set)  # tenants with timeouts since the last answer
    tries: int = 0  # since the target began to hang
    next_try_s: float = 0.0


class Silence:
    """Remembers targets that timed out. Thread-safe.

    In all methods `tenant` is the tenant whose topics a request is about; "": the answer depends on no tenant.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._known: dict[str, _Hanging] = {}
        self._lock = Lock()

    def is_due(self, what: str, tenant: str = "") -> bool:
        """Whether the target may get a request now."""
        with self._lock:
            hanging = self._hanging(what, tenant)
            return hanging is None or self._now_s() >= hanging.next_try_s

    def tries(self, what: str, tenant: str = "") -> str:
        """Return the group that shares a single attempt at a time; "": the tenant's requests are not limited."""
        with self._lock:
            return "" if self._hanging(what, tenant) is None else self._sharing(what, tenant)

    def at_most(self, what: str, seconds: float, tenant: str = "") -> float:
        """Return how long to wait for an answer of the target, at most `seconds`."""
        with self._lock:
            hanging = self._hanging(what, tenant)
            return seconds if hanging is None else min(seconds, _patience_s(hanging.tries))

    def patience(self, what: str, seconds: float, tenant: str = "") -> float:
        """Return the timeout of a request that is sent now. Without an answer, a pause follows before the next request.

        Raises UnavailableError if the target hangs and is not due, or if no time is left.
        """
        if seconds <= 0:
            raise UnavailableError(f"{what} got no request: the time for all requests was over")
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
        """Record that a request was not answered in time."""
        with self._lock:
            if not tenant:
                self._count(what)
                return
            if not self._is_slow(what, tenant):  # a slow tenant's timeout shows nothing new about the host
                tenants = self._state(what).tenants
                if len(tenants) < _MOST:
                    tenants.add(tenant)
            self._count(_of(what, tenant))
            if self._is_slow(what, tenant):
                self._rest(self._state(_slow(what), _TIMEOUTS))

    def answered(self, what: str, tenant: str = "") -> None:
        """Record that a complete answer arrived, of any content."""
        with self._lock:
            if self._is_slow(what, tenant):
                # the other slow tenants stay slow; their next attempt is due, and short again
                self._known[_slow(what)] = _Hanging(_TIMEOUTS)
            self._known.pop(what, None)
            self._known.pop(_of(what, tenant), None)

    def drop(self, host: str) -> None:
        """Forget a host that no longer runs."""
        with self._lock:
            for what in [what for what in self._known if what == host or what.startswith((f"{host}/", f"{host} "))]:
                del self._known[what]

    def forget(self) -> None:
        """Forget all targets, for tests that start servers on ports that were used before."""
        with self._lock:
            self._known.clear()

    def _state(self, what: str, timeouts: int = 0) -> _Hanging:
        """Return the target's state, and create it if needed; the least recently used state makes room."""
        state = self._known.pop(what, None)
        if state is None and len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        return self._known.setdefault(what, state or _Hanging(timeouts))

    def _count(self, what: str) -> None:
        hanging = self._state(what)
        hanging.timeouts += 1
        if hanging.timeouts >= _TIMEOUTS:
            self._rest(hanging)

    def _rest(self, hanging: _Hanging) -> None:
        hanging.next_try_s = self._now_s() + _REST * _patience_s(max(0, hanging.tries - 1))

    def _sharing(self, what: str, tenant: str) -> str:
        return _slow(what) if self._is_slow(what, tenant) else what

    def _is_slow(self, what: str, tenant: str) -> bool:
        if not tenant:
            return False
        host = self._known.get(what, _Hanging())
        has_silenced_it = len(host.tenants) >= _TENANTS and tenant in host.tenants
        return has_silenced_it or self._hanging(_of(what, tenant)) is not None

    def _hanging(self, what: str, tenant: str = "") -> _Hanging | None:
        state = self._known.get(self._sharing(what, tenant))
        return state if state and (state.timeouts >= _TIMEOUTS or len(state.tenants) >= _TENANTS) else None


def _of(what: str, tenant: str) -> str:
    return f"{what}/{tenant}"


def _slow(what: str) -> str:
    return f"{what} (slow tenants)"


def _patience_s(tries: int) -> float:
    """Return the timeout of the next attempt after so many failed attempts."""
    # doubled after each failure, as is the pause before it: a slow broker is used again, and a broker that hangs
    # permanently costs at most a sixth of the time
    return TRY_SECONDS * 2.0 ** min(tries, _DOUBLINGS)


def hangs(what: str) -> str:
    """Return the message about a target that is not due."""
    return f"{what} left two requests in a row unanswered; a short attempt is made from time to time"


silence = Silence()
