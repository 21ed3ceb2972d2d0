"""A ZooKeeper session through kazoo, with a deadline on every wait and no hidden queue of requests.

If the server does not answer a request in time, the client is abandoned, and the next call opens a new session. A
client does not survive a fork: a child process opens a client of its own, and leaves its parent's alone.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread, Timer
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionLoss, KazooException, ZookeeperError
from kazoo.exceptions import UnimplementedError as KazooUnimplementedError
from kazoo.protocol.serialization import Exists, Sync
from kazoo.protocol.states import KazooState

from streaming.adapters.zookeeper.kerberos_login import forget_tickets
from streaming.adapters.zookeeper.zookeeper_client import (
    ZooKeeperClientSettings,
    client_for,
    connection_fault,
    pending_login,
    refusal,
)
from streaming.errors import UnavailableError

_DEAD_CODES = {-4, -7, -112, -115, -118}  # connection loss, timeout, session expired, auth failed, session moved
_CLOSE_SECONDS = 5.0
_CONNECT_TRIES = 2
_SYNC_TRIES = 5
_AUTH_FAILED = "AUTH_FAILED"  # a state of kazoo's client


class ConnectionLostError(UnavailableError):
    """The connection broke, or the answer did not arrive in time, while a request was in flight."""


class NotImplementedByServerError(Exception):
    """The server does not implement this operation; nothing happened."""


class AnsweredError(Exception):
    """The server answered with an error; `code` is ZooKeeper's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ZooKeeper error {code}")
        self.code = code


class Request(Protocol):
    """A request that kazoo can send: its operation number, `serialize`, and `deserialize`, which reads the answer."""

    type: Any

    def serialize(self) -> Any:
        """Return the request's bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Pending:
    """A request in flight, and the client that sends it."""

    client: KazooClient
    reply: Any


class ZooKeeperSession:
    """A kazoo client that is opened when first needed and replaced when it is no longer usable. Thread-safe."""

    def __init__(self, settings: ZooKeeperClientSettings) -> None:
        self._settings = settings
        chroot = settings.hosts.partition("/")[2].strip("/")
        self._chroot = f"/{chroot}" if chroot else ""
        self._lock = Lock()
        self._pid = os.getpid()
        self._client: KazooClient | None = None
        self._live: Event | None = None
        self._closed = False
        self._on_end: list[Callable[[], None]] = []
        self._suspended: Timer | None = None
        self._refused: KazooClient | None = None  # the last client whose credentials the server refused
        self._losses = 0

    @property
    def losses(self) -> int:
        """How often a connection was lost or abandoned.

        The count increases before the next connection is used. A caller reads it before it sends a first request, and
        again after the answer to a later request. If the count is the same, both requests used the same connection,
        and the server processed them in the order in which they were sent.
        """
        return self._losses

    def connect(self) -> None:
        """Wait up to connect_timeout_seconds for a connection. Raises UnavailableError if there is none by then."""
        self._connected()

    def client(self) -> KazooClient:
        """Return a connected client; wait as connect() does. Raises UnavailableError."""
        return self._connected()

    def absolute(self, path: str) -> str:
        """Return the path including the chroot, as the server knows it."""
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    def send(self, request: Request) -> Pending:
        """Send a request with absolute paths. Raises UnavailableError; then it was not sent."""
        # kazoo silently queues requests while it has no connection
        client = self._connected()
        reply = client.handler.async_result()
        client._call(request, reply)
        return Pending(client, reply)

    def wait(self, pending: Pending) -> Any:
        """Return the answer. Raises ConnectionLostError, NotImplementedByServerError, AnsweredError."""
        try:
            return pending.reply.get(timeout=self._settings.operation_timeout_seconds)
        except KazooUnimplementedError as error:
            raise NotImplementedByServerError from error
        except AuthFailedError as error:
            raise self._unusable(pending.client) from error
        except ZookeeperError as error:
            code = getattr(error, "code", None)
            if code is None or code in _DEAD_CODES:
                raise self._lost(pending, error) from error
            raise AnsweredError(code) from error
        except KazooException as error:
            raise self._lost(pending, error) from error
        except RuntimeError as error:  # an error code that kazoo does not know, inside a multi's answer
            raise ConnectionLostError(self._text(f"gave an answer that could not be read ({error})")) from error
        except pending.client.handler.timeout_exception:
            # the request may still be in kazoo's queue, and must not be sent later
            self._abandon(pending.client)
            seconds = self._settings.operation_timeout_seconds
            why = pending_login(pending.client)
            raise ConnectionLostError(self._text(f"did not answer within {seconds:g} s") + why) from None

    def _lost(self, pending: Pending, error: Exception) -> ConnectionLostError:
        # once the connection whose credentials were refused has ended, kazoo fails a request with
        # ConnectionClosedError, not AuthFailedError
        if pending.client is self._refused:
            return self._unusable(pending.client)
        return ConnectionLostError(self._text(f"lost the connection ({type(error).__name__})"))

    def _unusable(self, client: KazooClient) -> ConnectionLostError:
        return ConnectionLostError(self._text("can't be used") + refusal(client))

    def call(self, request: Request) -> Any:
        """Send a request and return its answer. Raises UnavailableError, NotImplementedByServerError, AnsweredError."""
        return self.wait(self.send(request))

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Register a callback, called once from a thread of the session when the session may have ended."""
        with self._lock:
            self._on_end.append(callback)

    def close(self) -> None:
        """End the session; every later call raises UnavailableError. A second call does nothing."""
        with self._lock:
            client, self._client, self._closed = self._client, None, True
            self._on_end.clear()
        if client is not None and self._pid == os.getpid():
            _stop(client)

    def _connected(self) -> KazooClient:
        for _ in range(_CONNECT_TRIES):
            client, live = self._usable()
            if live.wait(self._settings.connect_timeout_seconds / _CONNECT_TRIES):
                return client
            if client._session_id is None:
                # A server that is just starting may drop kazoo's first request, and kazoo waits for the answer as long
                # as a session lasts. A new client loses nothing, because this client has no session yet.
                self._abandon(client)
        reason = connection_fault(self._settings)
        what = f"can't be reached ({reason})" if reason else "can't be reached"
        raise UnavailableError(self._text(what) + _advice(client))

    def _usable(self) -> tuple[KazooClient, Event]:
        if self._pid != os.getpid():
            self._forget_parent()
        with self._lock:
            if self._closed:
                raise UnavailableError(self._text("is no longer in use: this session was closed"))
            # kazoo's thread dies of an error code that it does not know
            if self._client is None or self._live is None or _is_dead(self._client):
                self._losses += 1
                self._client = client_for(self._settings)
                self._client.add_listener(self._state_listener(self._client))
                self._live = self._client.start_async()
            return self._client, self._live

    def _forget_parent(self) -> None:
        # The child has none of the parent's threads, and closing the parent's socket would end the parent's session.
        self._lock = Lock()
        self._pid = os.getpid()
        self._client = None
        self._on_end = []
        self._suspended = None

    def _abandon(self, client: KazooClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        _empty_queue(client)  # an unsent request must never be sent, because its caller treats the result as unknown
        raw = client._connection._socket
        if raw is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(raw, socket.SHUT_RDWR)
        self._ended()
        Thread(target=_stop, args=(client,), daemon=True).start()

    def _state_listener(self, client: KazooClient) -> Callable[[str], None]:
        def on_state(state: str) -> None:
            if client.client_state == _AUTH_FAILED:
                self._refused = client
                forget_tickets()
            if self._client is not client:
                return
            if state != KazooState.CONNECTED:
                self._losses += 1
            if self._suspended is not None:
                self._suspended.cancel()
                self._suspended = None
            if state == KazooState.LOST:
                self._ended()
            elif state == KazooState.SUSPENDED and self._on_end:
                # Without a connection we do not learn when the session ends; after its timeout it may have ended.
                self._suspended = Timer(self._settings.session_timeout_seconds, self._ended)
                self._suspended.daemon = True
                self._suspended.start()

        return on_state

    def _ended(self) -> None:
        with self._lock:
            callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def _text(self, what: str) -> str:
        return f"ZooKeeper at {self._settings.hosts} {what}"


def _advice(client: KazooClient) -> str:
    if client.client_state == _AUTH_FAILED:
        return refusal(client)
    return ". Check that it runs, that zookeeper.hosts is right and that TLS is on at both ends or at none"


def _empty_queue(client: KazooClient) -> None:
    with contextlib.suppress(IndexError):
        while True:
            _request, reply = client._queue.popleft()
            if reply is not None:
                reply.set_exception(ConnectionLoss())


def _is_dead(client: KazooClient) -> bool:
    routine = client._connection._connection_routine
    return routine is None or not routine.is_alive()


def _stop(client: KazooClient) -> None:
    def stop() -> None:
        with contextlib.suppress(Exception):  # the socket may be in any state, and no caller needs the error
            client.stop()
            client.close()

    stopper = Thread(target=stop, daemon=True)
    stopper.start()
    stopper.join(_CLOSE_SECONDS)


def newest_zxid(settings: ZooKeeperClientSettings) -> int:
    """Return the id of a transaction that every later read (after a sync) sees. Raises UnavailableError.

    The header of every answer contains the newest transaction that the server has applied, and kazoo records it.
    """
    session = ZooKeeperSession(settings)
    try:
        for _ in range(_SYNC_TRIES):
            session.connect()
            losses = session.losses
            # the server catches up with its leader before it answers the next request
            session.send(Sync(session.absolute("/")))
            pending = session.send(Exists(session.absolute("/"), False))
            session.wait(pending)
            if session.losses == losses:
                return int(pending.client.last_zxid)
        raise UnavailableError("ZooKeeper did not report its newest transaction: the connection broke repeatedly")
    except AnsweredError as error:
        raise UnavailableError(f"ZooKeeper did not report its newest transaction: error {error.code}") from error
    finally:
        session.close()
