"""The watcher's Delta table: the names in each znode, and the requests that it has not published yet.

1. A commit contains the names that are in the znodes now, and the requests for the names that are gone: both are
   durable, or neither. So a crash loses no request and creates none twice.
2. Of a path's rows, only the row of its latest commit is valid.
3. The unpublished requests are bounded, in all and for each tenant (quota).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from streaming import schemas
from streaming.state.delta.commits import commit, written_here
from streaming.state.delta.delta_tables import Durable, Table, created, opened, refuse_torn, scan, table_path
from streaming.state.delta.leftovers import remove_leftovers
from udfs import columns as c

TABLE = "watched"
_APP = "ledger-reaper-watched"
_COMMITS_BEFORE_FOLD = 300
_ROWS_PER_BATCH = 20_000
_KEEP_HOURS = 1
_BYTES_BEFORE_FOLD = 64 << 20  # of requests: a start also reads those that were published since the last fold
# a tenant that deletes millions of names must not exhaust the watcher's memory, nor keep the requests of others waiting
# for long
_MOST_WAITING_BYTES = 256 << 20
_MOST_WAITING_BYTES_OF_TENANT = 16 << 20
_BYTES_EACH = 400  # of memory that a request takes in addition to its payload
# with a commit a second, at most 3,600 log files are kept, instead of those of a month
_SETTINGS: dict[str, str | None] = {"delta.logRetentionDuration": "interval 1 hours"}


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request that is durable and not published yet."""

    number: int
    path: str
    payload: bytes  # JSON
    at_ms: int  # when the watcher noticed that the name was gone

    @property
    def cost(self) -> int:
        """Approximate bytes of memory."""
        return cost_of(self.payload)


def cost_of(payload: bytes) -> int:
    """Return approximately how many bytes of memory a request takes while it waits."""
    return len(payload) + _BYTES_EACH


def tenant_of(path: str) -> str:
    """Return the tenant of a topic's, cursor's or schema's znode; "" if `path` is no such znode's."""
    return path.split("/", 3)[2] if path.count("/") > 2 and path.startswith("/") else ""


class Watched:
    """The table, and its content in memory. One per watcher; not thread-safe.

    After an error, open it again: the commit may be stored.
    """

    def __init__(self, state_dir: str, open_table: Callable[[str, str], Table | None] = opened) -> None:
        """Open the table and take it over. Raises UnavailableError, SafetyError, FencedError."""
        self.path = table_path(state_dir, TABLE)
        refuse_torn(self.path)
        table = open_table(state_dir, TABLE)
        self.is_new = table is None  # so nothing was known
        self._table = table or created(self.path, schemas.WATCHED, "ledger-reaper watched znodes", _SETTINGS)
        self.nodes: dict[str, bytes] = {}  # path -> the names in the znode, as udfs.phase_one.kept_names encodes them
        self.notes: dict[str, bytes] = {}  # the watcher's notes, by name
        self.requests: dict[int, KeptRequest] = {}  # by number, ascending
        self._waiting: Counter[str] = Counter()  # tenant -> bytes of its requests
        self._request_bytes = 0  # in the table since the last fold
        self._commits = self._read()
        self._version = (self._table.transaction_version(_APP) or 0) + 1
        self._durable = Durable(self.path)
        self._next_number = max(self.requests, default=-1) + 1
        # a watcher that stalled before this, and continues later, is refused
        commit(self._table, [], schemas.WATCHED, _APP, self._version)
        self._durable.sync()

    def forget_through(self, number: int) -> None:
        """Drop requests up to this number, which are published. Later requests get higher numbers."""
        for published in [kept for kept in self.requests if kept <= number]:
            self._count(self.requests.pop(published), -1)
        self._next_number = max(self._next_number, number + 1)

    def quota_left_of(self, tenant: str) -> int:
        """Return how many bytes of requests (cost_of) may still be added for a tenant."""
        return _MOST_WAITING_BYTES_OF_TENANT - self._waiting[tenant]

    def quota_left(self) -> int:
        """Return how many bytes of requests may still be added in all."""
        return _MOST_WAITING_BYTES - self._waiting.total()

    def save(
        self,
        nodes: Mapping[str, bytes | None],
        requests: Sequence[tuple[str, bytes]] = (),
        *,
        notes: Mapping[str, bytes] | None = None,
        at_ms: int,
    ) -> None:
        """Commit changes. Raises UnavailableError (open the table again: they may be stored), FencedError, SafetyError.

        Args:
            nodes: path -> names; None if the znode is gone.
            requests: (path, payload) of each new request.
            notes: the notes that changed.
            at_ms: the time, in ms since 1970.
        """
        added = [
            KeptRequest(self._next_number + at, path, payload, at_ms) for at, (path, payload) in enumerate(requests)
        ]
        version = self._version + 1
        rows = chain(
            (_row(version, at_ms, path, kept) for path, kept in chain(nodes.items(), (notes or {}).items())),
            (_request_row(version, request) for request in added),
        )
        # before the memory changes: if the commit fails, the table is opened again
        self._commit(version, rows)
        for path, kept in nodes.items():
            if kept is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = kept
        self.notes |= notes or {}
        for request in added:
            self.requests[request.number] = request
            self._count(request, 1)
            self._request_bytes += request.cost
        self._next_number += len(added)

    def fold_if_due(self, *, at_ms: int) -> bool:
        """Replace the table by its valid rows, if there were many commits since the last time. Raises like save()."""
        if self._commits < _COMMITS_BEFORE_FOLD and self._request_bytes < _BYTES_BEFORE_FOLD:
            return False
        version = self._version + 1
        rows = chain(
            (_row(version, at_ms, path, kept) for path, kept in chain(self.nodes.items(), self.notes.items())),
            (_request_row(version, request) for request in self.requests.values()),
        )
        # only the row of a path's latest commit is valid, so the valid rows replace the table, which keeps it small
        commit(self._table, self._files(rows, version), schemas.WATCHED, _APP, version, mode="overwrite")
        self._version, self._commits = version, 0
        self._request_bytes = 0  # each fold writes the waiting requests again, which must not trigger the next fold
        self._durable.sync()
        self._table.create_checkpoint()
        remove_leftovers(self._table, self.path, _APP, keep_hours=_KEEP_HOURS)
        return True

    def _commit(self, version: int, rows: Iterable[dict[str, Any]]) -> None:
        commit(self._table, self._files(rows, version), schemas.WATCHED, _APP, version)
        self._version = version
        self._commits += 1
        self._durable.sync()

    def _files(self, rows: Iterable[dict[str, Any]], version: int) -> list[Any]:
        return written_here(_batches(iter(rows)), self.path, schemas.WATCHED, version=version)

    def _read(self) -> int:
        """Read the table, and return how many commits its rows come from."""
        newest: dict[str, int] = {}
        paths: dict[str, str] = {}  # shared, because a path may have 4,000 characters and a thousand requests
        chunks: set[int] = set()
        for row in _rows(self._table):
            chunk, path = row[c.CHUNK], row[c.WATCHED_PATH]
            chunks.add(chunk)
            if row[c.REQUEST_NUMBER] >= 0:
                request = KeptRequest(row[c.REQUEST_NUMBER], paths.setdefault(path, path), row[c.PAYLOAD], row[c.AT_MS])
                self.requests[request.number] = request
                self._count(request, 1)
                self._request_bytes += request.cost
            elif newest.get(path, -1) < chunk:
                newest[path] = chunk
                self._take(path, row[c.KEPT])
        self.requests = dict(sorted(self.requests.items()))
        return len(chunks)

    def _count(self, request: KeptRequest, sign: int) -> None:
        tenant = tenant_of(request.path)
        self._waiting[tenant] += sign * request.cost
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _take(self, path: str, kept: bytes | None) -> None:
        into = self.nodes if path.startswith("/") else self.notes
        if kept is None:
            into.pop(path, None)
        else:
            into[path] = kept


def _rows(table: Table) -> Iterator[dict[str, Any]]:
    for batch in scan(table):
        yield from batch.to_pylist()


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    while batch := list(islice(rows, _ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(batch, schema=schemas.WATCHED)


def _row(version: int, at_ms: int, path: str, kept: bytes | None) -> dict[str, Any]:
    return {c.CHUNK: version, c.AT_MS: at_ms, c.REQUEST_NUMBER: -1, c.WATCHED_PATH: path, c.KEPT: kept}


def _request_row(version: int, request: KeptRequest) -> dict[str, Any]:
    return {
        c.CHUNK: version,
        c.AT_MS: request.at_ms,
        c.REQUEST_NUMBER: request.number,
        c.WATCHED_PATH: request.path,
        c.PAYLOAD: request.payload,
    }
