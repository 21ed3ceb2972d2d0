"""Bulk reads over one connection, in requests that are large enough to be fast and small enough for the server.

1. Requests carry many paths, and several requests are in flight. How many paths a request carries depends on the size
   of earlier answers.
2. If the connection breaks while only one request is in flight, that request is halved, down to an ordinary read of
   one path; if that breaks the connection too, the path is Unreadable.
3. Each read sees at least everything that was written anywhere in the ensemble before the call.
"""

from collections import deque
from collections.abc import Sequence

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData, Sync

from streaming.adapters.zookeeper.multi_read import MULTI_READ, Answer, MultiRead, SingleRead
from streaming.adapters.zookeeper.zookeeper_session import (
    AnsweredError,
    ConnectionLostError,
    NotImplementedByServerError,
    Pending,
    Request,
    ZooKeeperSession,
)
from streaming.errors import UnavailableError
from streaming.ports import Unreadable, Znode

DATA: int = GetData.type
CHILDREN: int = GetChildren.type

_PATHS_PER_REQUEST = 200  # 500 are hardly faster (313,000 reads/s instead of 276,000), and more is lost with a request
_FIRST_PATHS_PER_REQUEST = 16  # before the size of the znodes is known
_ANSWER_BYTES = 512 * 1024  # the target; half of jute.maxbuffer's default
_REQUEST_BYTES = 256 * 1024  # the limit; the server drops connections that send more than its jute.maxbuffer (1 MB)
_WINDOW = 4
_WINDOW_OF_SINGLES = 100  # kazoo's wake-up pipe blocks its caller near 278 requests
# enough to isolate a few bad paths among thousands by halving; with more losses, the paths are not what breaks it
_LOSSES = 64


class Sizes:
    """How many paths a request may carry, learnt per operation and tree (`/ledgers`, `/managed-ledgers`).

    A session has one Sizes.

    Args:
        probe_with: the number of the operation that probe() sends.
    """

    def __init__(self, probe_with: int = MULTI_READ) -> None:
        self.multi_read = True
        self._probe_with = probe_with
        self._is_probed = False
        self._paths: dict[tuple[int, str], int] = {}

    def probe(self, session: ZooKeeperSession) -> None:
        """Find out, once, whether the server implements multiRead."""
        # The caller has no other request in flight: the answer "not implemented" would overtake the answers to earlier
        # requests, which breaks kazoo's connection.
        if self._is_probed:
            return
        try:
            session.call(MultiRead(DATA, [session.absolute("/")], self._probe_with))
        except NotImplementedByServerError:
            self.multi_read = False
        self._is_probed = True

    def paths_per_request(self, operation: int, path: str) -> int:
        """Return how many paths a request may carry whose first path is `path`."""
        return self._paths.get((operation, _tree(path)), _FIRST_PATHS_PER_REQUEST)

    def learn(self, operation: int, paths: Sequence[str], answers: Sequence[Answer]) -> None:
        """Adjust how many paths a request may carry, so that an answer has about _ANSWER_BYTES."""
        size = max(1, sum(map(_size, answers)))
        key = (operation, _tree(paths[0]))
        now = self._paths.get(key, _FIRST_PATHS_PER_REQUEST)
        # the server builds each answer in memory, and must not be asked for a thousand large znodes at once
        fitting = _ANSWER_BYTES * len(paths) // size
        # it grows by at most half, because one small answer predicts little
        self._paths[key] = max(1, min(fitting, now + now // 2 + 1, _PATHS_PER_REQUEST))


class BulkRead:
    """A single read_many or children_many call."""

    def __init__(self, session: ZooKeeperSession, sizes: Sizes, operation: int, paths: Sequence[str]) -> None:
        self._session = session
        self._sizes = sizes
        self._operation = operation
        self._paths = [session.absolute(path) for path in paths]
        self._answers: list[Answer | Unreadable | None] = [None] * len(paths)
        self._next = 0
        self._again: deque[range] = deque()  # requests that were lost together with others are retried alone
        # the last element is _synced_at as it was when the request was sent
        self._in_flight: deque[tuple[range, Pending, int]] = deque()
        self._broke_as_single: set[int] = set()
        self._losses = 0
        self._synced_at = -1  # how many connections the session had lost before the last sync

    def run(self) -> list[Answer | Unreadable | None]:
        """Return an answer for each path: the znode or its children, Unreadable, or None if there is no such znode."""
        if not self._paths:
            return self._answers
        self._sizes.probe(self._session)
        while self._fill():
            span, pending, synced_at = self._in_flight.popleft()
            try:
                answers = self._answered(span, pending)
            except NotImplementedByServerError:
                self._sizes.multi_read = False
                self._again.append(span)
            except ConnectionLostError as error:
                self._lost(span, error)
            else:
                self._take(span, answers, is_fresh=self._session.losses == synced_at)
        return self._answers

    def _answered(self, span: range, pending: Pending) -> Sequence[Answer]:
        try:
            answers: Sequence[Answer] = self._session.wait(pending)
        except AnsweredError as error:
            return [self._single_code(span, error)]
        return answers

    def _take(self, span: range, answers: Sequence[Answer], *, is_fresh: bool) -> None:
        """Store the answers, or read them again."""
        if is_fresh:
            self._store(span, answers)
        else:
            # they came over another connection than the sync, and may be old
            self._count_loss("ZooKeeper's connection was replaced")
            self._again.append(span)

    def _fill(self) -> bool:
        """Send requests until the window is full; return False when all answers have arrived."""
        if self._again and self._sizes.multi_read:
            self._send(self._again.popleft())  # alone: whatever else was in flight is in _again too
            return True
        while len(self._in_flight) < self._window():
            span = self._next_span()
            if not span:
                break
            self._send(span)
        return bool(self._in_flight)

    def _window(self) -> int:
        return _WINDOW if self._sizes.multi_read else _WINDOW_OF_SINGLES

    def _next_span(self) -> range:
        if self._again:
            span = self._again.popleft()
            if len(span) > 1:
                self._again.appendleft(span[1:])
            return span[:1]
        start = self._next
        self._next = self._end_from(start)
        return range(start, self._next)

    def _send(self, span: range) -> None:
        if self._session.losses != self._synced_at:
            self._session.connect()
            self._synced_at = self._session.losses
            # A server that lags catches up before it answers requests that follow a sync on the same connection. A new
            # connection may lead to another server.
            self._session.send(Sync("/"))
        if self._is_single(span):
            request: Request = SingleRead(self._operation, self._paths[span.start])
        else:
            request = MultiRead(self._operation, self._paths[span.start : span.stop])
        self._in_flight.append((span, self._session.send(request), self._synced_at))

    def _is_single(self, span: range) -> bool:
        """Whether the span is read by an ordinary read."""
        return not self._sizes.multi_read or span.start in self._broke_as_single

    def _end_from(self, start: int) -> int:
        if start >= len(self._paths) or not self._sizes.multi_read:
            return min(start + 1, len(self._paths))
        most = self._sizes.paths_per_request(self._operation, self._paths[start])
        end, size = start, 0
        while end < min(start + most, len(self._paths)) and size < _REQUEST_BYTES:
            size += len(self._paths[end]) + 14
            end += 1
        return end

    def _store(self, span: range, answers: Sequence[Answer]) -> None:
        self._sizes.learn(self._operation, self._paths[span.start : span.stop], answers)
        for index, answer in zip(span, answers, strict=True):
            self._answers[index] = _translated(answer) if isinstance(answer, int) else answer

    def _single_code(self, span: range, error: AnsweredError) -> int:
        if len(span) > 1 or not self._is_single(span):  # a multiRead has an error per path; this error is the request's
            raise UnavailableError(f"ZooKeeper refused a read with error {error.code}; try again later") from error
        return error.code

    def _lost(self, span: range, error: ConnectionLostError) -> None:
        self._count_loss(str(error))
        if self._in_flight:
            # any of them may have broken the connection, so each is retried alone
            self._again.extend([span, *(other for other, _pending, _synced_at in self._in_flight)])
            self._in_flight.clear()
        else:
            self._broke_alone(span)
        self._session.connect()

    def _count_loss(self, why: str) -> None:
        self._losses += 1
        if self._losses > _LOSSES:
            raise UnavailableError(f"{why}; the connection broke {self._losses} times during one read")

    def _broke_alone(self, span: range) -> None:
        if len(span) > 1:
            middle = span.start + len(span) // 2
            self._again.extendleft([range(middle, span.stop), range(span.start, middle)])
        elif span.start in self._broke_as_single:
            self._answers[span.start] = Unreadable("the connection breaks whenever this znode is read: too large?")
        else:
            self._broke_as_single.add(span.start)
            self._again.appendleft(span)


def _tree(path: str) -> str:
    return path[: path.find("/", 1) + 1]


def _size(answer: Answer) -> int:
    if isinstance(answer, Znode):
        return len(answer.data)
    return sum(map(len, answer)) if isinstance(answer, list) else 0


def _translated(code: int) -> Unreadable | None:
    if code == NoNodeError.code:
        return None
    if code == NoAuthError.code:
        return Unreadable("no permission to read it")
    return Unreadable(f"ZooKeeper error {code}")
