"""The port ChangeHints over persistent recursive watches: what has changed below some znodes, as far as we were told.

1. Watches die with their connection. A lost connection, or an expired session, is seen by the session's count of
   losses; the next take() sets them anew, and says that there is a gap.
2. Where the server knows no such watches, or does not answer, nothing is told, and take() says so.
"""

from collections.abc import Sequence
from threading import Lock

from streaming.adapters.zookeeper.add_watch import ADD_WATCH, AddWatch, hear
from streaming.adapters.zookeeper.session import AnsweredError, NotImplementedByServerError, ZooKeeperSession
from streaming.adapters.zookeeper.settings import ZooKeeperSettings
from streaming.errors import UnavailableError
from streaming.ports import ChangedPaths

_MOST_PATHS = 100_000  # kept between two calls; more would be read by a whole look sooner
_NEVER = -1


class ZooKeeperChanges:
    """ChangeHints of one session of its own. watch_with: the operation that sets a watch."""

    def __init__(self, settings: ZooKeeperSettings, roots: Sequence[str], *, watch_with: int = ADD_WATCH) -> None:
        self._session = ZooKeeperSession(settings)
        self._roots = tuple(roots)
        self._watch_with = watch_with
        self._prefix = self._session.absolute("/").rstrip("/")
        self._lock = Lock()
        self._paths: set[str] = set()
        self._is_too_much = False
        self._is_supported = True
        self._set_at = _NEVER  # the session's losses when the watches were set

    def take(self) -> ChangedPaths:
        """Return what changed since the last call; sets the watches where there are none. Never raises."""
        is_new = self._renew()
        with self._lock:
            paths, self._paths = self._paths, set()
            is_too_much, self._is_too_much = self._is_too_much, False
        is_watching = self._set_at == self._session.losses
        return ChangedPaths(frozenset(paths), has_gap=is_new or is_too_much, is_watching=is_watching)

    def close(self) -> None:
        """End the session, and the watches with it."""
        self._session.close()

    def _renew(self) -> bool:
        """Set the watches, unless they are set; True if that was now."""
        if not self._is_supported or self._set_at == self._session.losses:
            return False
        try:
            losses = self._set()
        except NotImplementedByServerError:
            self._is_supported = False
            return False
        except (UnavailableError, AnsweredError):
            return False
        self._set_at = losses
        return True

    def _set(self) -> int:
        client = self._session.client()
        losses = self._session.losses
        hear(client, self._heard)
        for root in self._roots:
            self._session.call(AddWatch(self._session.absolute(root), self._watch_with))
        return losses

    def _heard(self, path: str) -> None:
        """Keep a path; called from kazoo's thread."""
        with self._lock:
            if len(self._paths) < _MOST_PATHS:
                self._paths.add(path.removeprefix(self._prefix))
            else:
                self._is_too_much = True
