"""Bulk reads over connections that are replaced: each server lags until it receives a sync on its connection."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from kazoo.protocol.serialization import Sync

from streaming.adapters.zookeeper.multi_read import MultiRead, SingleRead
from streaming.adapters.zookeeper.reads import DATA, BulkRead, Sizes
from streaming.adapters.zookeeper.zookeeper_session import AnsweredError, ConnectionLostError, ZooKeeperSession
from streaming.errors import UnavailableError
from streaming.ports import Znode

OLD, NEW = Znode(data=b"old", version=0, ctime_ms=0, mtime_ms=0), Znode(data=b"new", version=1, ctime_ms=0, mtime_ms=1)
NO_NODE = -101
PATHS = [f"/ledgers/{number}" for number in range(200)]


class LaggingServers:
    """A session whose connections lead to servers that answer with old data until they receive a sync.

    Args:
        silent: the connection is replaced before these requests (from 0) are sent; earlier answers arrive.
        lost: the connection is replaced before these answers (from 1) are awaited; earlier requests fail.
    """

    def __init__(self, *, silent: Sequence[int] = (), lost: Sequence[int] = (), old: Any = OLD, new: Any = NEW) -> None:
        self.losses = 1
        self.sent: list[tuple[int, Any]] = []
        self._old, self._new = old, new
        self._silent, self._lost = set(silent), set(lost)
        self._synced = False
        self._waits = 0

    def absolute(self, path: str) -> str:
        return path

    def connect(self) -> None:
        pass

    def call(self, _request: Any) -> None:
        pass

    def send(self, request: Any) -> Any:
        """Return the server's present answer, and the connection that it uses."""
        if len(self.sent) in self._silent:
            self._replaced()
        self.sent.append((self.losses, request))
        if isinstance(request, Sync):
            self._synced = True
            return None
        count = len(request.paths) if isinstance(request, MultiRead) else 1
        answers = [self._new if self._synced else self._old] * count
        return self.losses, answers, isinstance(request, SingleRead)

    def wait(self, pending: Any) -> Any:
        self._waits += 1
        if self._waits in self._lost:
            self._replaced()
        at, answers, is_single = pending
        if at != self.losses and self._lost:
            raise ConnectionLostError("lost")
        if is_single and answers == [NO_NODE]:
            raise AnsweredError(NO_NODE)
        return answers

    def _replaced(self) -> None:
        self.losses += 1
        self._synced = False


def _read(servers: LaggingServers, *, multi_read: bool = True) -> list[Any]:
    sizes = Sizes()
    sizes.multi_read = multi_read
    return BulkRead(cast("ZooKeeperSession", servers), sizes, DATA, PATHS).run()


@pytest.mark.parametrize("multi_read", [True, False], ids=["multi reads", "single reads"])
@pytest.mark.parametrize(
    "servers",
    [
        pytest.param(LaggingServers, id="one connection"),
        pytest.param(lambda: LaggingServers(lost=[3]), id="a connection that is lost with requests in flight"),
        pytest.param(lambda: LaggingServers(lost=[1, 2, 5, 9]), id="several lost connections"),
        pytest.param(lambda: LaggingServers(silent=[4]), id="a connection that is replaced between two requests"),
        pytest.param(lambda: LaggingServers(silent=[1]), id="a connection that is replaced right after the sync"),
        pytest.param(lambda: LaggingServers(silent=[1, 3, 4, 6], lost=[2, 7]), id="lost and replaced connections"),
    ],
)
def test_no_answer_is_older_than_the_call(servers: Callable[[], LaggingServers], *, multi_read: bool) -> None:
    assert _read(servers(), multi_read=multi_read) == [NEW] * len(PATHS)


def test_a_znode_that_a_lagging_server_does_not_have_yet_is_not_absent() -> None:
    servers = LaggingServers(silent=[4], old=NO_NODE)
    assert _read(servers, multi_read=False) == [NEW] * len(PATHS)


def test_each_connection_starts_with_a_sync() -> None:
    servers = LaggingServers(lost=[2, 5])
    _read(servers)
    for losses in {at for at, _request in servers.sent}:
        first = next(request for at, request in servers.sent if at == losses)
        assert isinstance(first, Sync)
    assert not any(isinstance(request, SingleRead) for _at, request in servers.sent)


def test_a_read_ends_if_the_connection_is_replaced_too_often() -> None:
    with pytest.raises(UnavailableError, match="the connection broke 65 times"):
        _read(LaggingServers(silent=range(1, 10_000)))


@pytest.mark.parametrize("count", [1, 3, 200])
def test_an_absent_znode_is_absent_after_a_lost_connection(count: int) -> None:
    servers = LaggingServers(lost=[1], old=NO_NODE, new=NO_NODE)
    assert BulkRead(cast("ZooKeeperSession", servers), Sizes(), DATA, PATHS[:count]).run() == [None] * count
