"""A bulk read over connections that come and go: each server lags until it has heard a sync on that connection."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from kazoo.protocol.serialization import Sync

from streaming.adapters.zookeeper.multi_read import MultiRead, SingleRead
from streaming.adapters.zookeeper.reads import DATA, BulkRead, Sizes
from streaming.adapters.zookeeper.session import AnsweredError, ConnectionLostError, ZooKeeperSession
from streaming.errors import UnavailableError
from streaming.ports import Znode

OLD, NEW = Znode(b"old", 0, 0, 0), Znode(b"new", 1, 0, 1)
NO_NODE = -101
PATHS = [f"/ledgers/{number}" for number in range(200)]


class LaggingServers:
    """A session whose connections lead to servers that answer with old data until a sync came.

    cut_before, cut_after: numbers of requests (from 0) before or after whose answer the connection is replaced. The
    answer of a request that was under way over the old connection is lost (told), or came in time (silent).
    """

    def __init__(self, *, silent: Sequence[int] = (), told: Sequence[int] = (), old: Any = OLD, new: Any = NEW) -> None:
        self.losses = 1
        self.sent: list[tuple[int, Any]] = []
        self._old, self._new = old, new
        self._silent, self._told = set(silent), set(told)
        self._synced = False
        self._waits = 0

    def absolute(self, path: str) -> str:
        return path

    def connect(self) -> None:
        pass

    def call(self, _request: Any) -> None:
        pass

    def send(self, request: Any) -> Any:
        """Returns what the server answers, as it is now, and on which connection."""
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
        if self._waits in self._told:
            self._replaced()
        at, answers, is_single = pending
        if at != self.losses and self._told:
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


@pytest.mark.parametrize("multi_read", [True, False], ids=["many at once", "one by one"])
@pytest.mark.parametrize(
    "servers",
    [
        pytest.param(LaggingServers, id="one connection"),
        pytest.param(lambda: LaggingServers(told=[3]), id="a connection that is lost with requests under way"),
        pytest.param(lambda: LaggingServers(told=[1, 2, 5, 9]), id="several"),
        pytest.param(lambda: LaggingServers(silent=[4]), id="one that is replaced between two requests"),
        pytest.param(lambda: LaggingServers(silent=[1]), id="one that is replaced right after the sync"),
        pytest.param(lambda: LaggingServers(silent=[1, 3, 4, 6], told=[2, 7]), id="all of that"),
    ],
)
def test_every_answer_is_as_new_as_the_call(servers: Callable[[], LaggingServers], *, multi_read: bool) -> None:
    assert _read(servers(), multi_read=multi_read) == [NEW] * len(PATHS)


def test_what_a_lagging_server_does_not_know_yet_is_not_absent() -> None:
    servers = LaggingServers(silent=[4], old=NO_NODE)
    assert _read(servers, multi_read=False) == [NEW] * len(PATHS)


def test_a_sync_goes_ahead_of_the_first_read_on_each_connection() -> None:
    servers = LaggingServers(told=[2, 5])
    _read(servers)
    for losses in {at for at, _request in servers.sent}:
        first = next(request for at, request in servers.sent if at == losses)
        assert isinstance(first, Sync)
    assert not any(isinstance(request, SingleRead) for _at, request in servers.sent)


def test_a_connection_that_is_replaced_again_and_again_is_given_up() -> None:
    with pytest.raises(UnavailableError, match="the connection broke 65 times"):
        _read(LaggingServers(silent=range(1, 10_000)))


@pytest.mark.parametrize("count", [1, 3, 200])
def test_what_is_absent_is_absent_where_the_connection_was_lost_once(count: int) -> None:
    servers = LaggingServers(told=[1], old=NO_NODE, new=NO_NODE)
    assert BulkRead(cast("ZooKeeperSession", servers), Sizes(), DATA, PATHS[:count]).run() == [None] * count
