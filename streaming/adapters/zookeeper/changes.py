"""Implements ChangeHints with persistent recursive watches: ZooKeeper reports which paths below some znodes changed.

If the server does not implement such watches, or does not answer, take() reports no paths and is_watching=False.
"""

from collections.abc import Sequence
from threading import Lock

from streaming.adapters.zookeeper.add_watch import ADD_WATCH, AddWatch, forward_events
from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings
from streaming.adapters.zookeeper.zookeeper_session import AnsweredError, NotImplementedByServerError, ZooKeeperSession
from streaming.errors import UnavailableError
from streaming.ports import ChangedPaths

_MOST_PATHS = 100_000  # kept between two calls; above that, a complete scan is faster than reading the paths
_NEVER = -1


class ZooKeeperChanges:
    """ChangeHints over a session of its own.

    Args:
        watch_with: the number of the operation that sets a watch.
    """

    def __init__(self, settings: ZooKeeperClientSettings, roots: Sequence[str], *, watch_with: int = ADD_WATCH) -> None:
        self._session = ZooKeeperSession(settings)
        self._roots = tuple(roots)
        self._watch_with = watch_with
        self._prefix = self._session.absolute("/").rstrip("/")
        self._lock = Lock()
        self._paths: set[str] = set()
        self._has_overflowed = False
        self._is_supported = True
        self._set_at = _NEVER  # how many connections the session had lost when the watches were set

    def take(self) -> ChangedPaths:
        """Return the paths that changed since the last call; set missing watches. Never raises."""
        is_new = self._renew()
        with self._lock:
            paths, self._paths = self._paths, set()
            has_overflowed, self._has_overflowed = self._has_overflowed, False
        is_watching = self._set_at == self._session.losses
        return ChangedPaths(frozenset(paths), has_gap=is_new or has_overflowed, is_watching=is_watching)

    def close(self) -> None:
        """End the session, and the watches with it."""
        self._session.close()

    def _renew(self) -> bool:
        """Set the watches unless they are set; return True if this call set them."""
        # watches end with their connection: after a loss, the next take() sets them again and reports a gap
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
        losses = self._session.losses  # before the watches are set: a loss in between must be noticed
        forward_events(client, self._on_event)
        for root in self._roots:
            self._session.call(AddWatch(self._session.absolute(root), self._watch_with))
        return losses

    def _on_event(self, path: str) -> None:
        """Keep a path. Called from kazoo's thread."""
        with self._lock:
            if len(self._paths) < _MOST_PATHS:
                self._paths.add(path.removeprefix(self._prefix))
            else:
                self._has_overflowed = True
