"""Write-offs and replays of dead letters, in the folder `<state>/dead-letters`.

A file appears complete under its name, or not at all, and never changes.
1. `write-off-<ms>-<random>.parquet` contains receipts (schemas.RECEIPT). The file's existence is the write-off.
2. `replay-<ms>-<random>.parquet` is a plan: every message of one replay as we will publish it, and where the target
   topic ended before we sent the first. Once the plan exists, the replay is completed, by a later run if this run is
   interrupted.
3. `replay-<ms>-<random>.done.parquet` contains the id of each published message. While it is missing, the replay is
   incomplete.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from streaming import schemas
from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of
from udfs import columns as c

if TYPE_CHECKING:  # `receipts` reads no messages
    from streaming.ports import StoredMessage

# not in the receipts' table, because the service must be the only writer of that table
FOLDER = "dead-letters"
WAITING, REPLAYING, REPLAYED, WRITTEN_OFF = "WAITING", "REPLAYING", "REPLAYED", "WRITTEN_OFF"

Position = tuple[str, int, int, int]  # columns.POSITION

_AFTER = b"after"
_TARGET = b"target"
_DONE = ".done.parquet"
_PLAN = pa.schema(
    [
        pa.field(c.SOURCE, pa.string()),
        pa.field(c.POSITION_LEDGER, pa.int64()),
        pa.field(c.POSITION_ENTRY, pa.int64()),
        pa.field(c.POSITION_BATCH, pa.int32()),
        pa.field(c.MESSAGE_KEY, pa.string()),
        pa.field(c.PAYLOAD, pa.binary()),
        pa.field(c.MESSAGE_PROPERTIES, pa.map_(pa.string(), pa.string())),
    ]
)
_PUBLISHED = pa.schema([pa.field(c.ROW, pa.int64()), pa.field(c.ORIGIN_MESSAGE_ID, pa.string())])


def position_of(message: "StoredMessage") -> Position:
    """Return a dead letter's position."""
    return message.partition, message.ledger_id, message.entry_id, message.batch_index


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay of dead letters to a topic."""

    run: str
    target: str
    after: Mapping[str, tuple[int, int]]  # partition of target -> (ledger, entry) of its newest entry before we sent


@dataclass(slots=True)
class Settlements:
    """State of every dead letter that was replayed or written off."""

    states: dict[Position, str] = field(default_factory=dict)  # about 300 bytes each

    def of(self, position: Position) -> str:
        """Return WAITING, REPLAYING (interrupted), REPLAYED or WRITTEN_OFF."""
        return self.states.get(position, WAITING)


class SettlementFolder:
    """The folder of one state directory. Every method raises UnavailableError if it can't be read or written."""

    def __init__(self, state_dir: str) -> None:
        self._folder = folder_of(state_dir)
        self._filesystem = self._folder.filesystem
        self._path = f"{self._folder.root}/{FOLDER}"

    @contextlib.contextmanager
    def plan(self, at_ms: int, target: str, after: Mapping[str, tuple[int, int]]) -> Iterator["PlanWriter"]:
        """Write a plan; it takes effect when the block ends without an error."""
        run = f"replay-{at_ms}-{uuid4().hex}"
        schema = _PLAN.with_metadata({_TARGET: target.encode(), _AFTER: json.dumps(dict(after)).encode()})
        with self._new(f"{run}.parquet", schema) as writer:
            yield PlanWriter(ReplayPlan(run, target, dict(after)), writer)

    def unfinished(self) -> list[ReplayPlan]:
        """Return plans that were started and not finished, oldest first."""
        names = self._names()
        plans = [name for name in names if name.startswith("replay-") and not name.endswith(_DONE)]
        return [self._read_plan(name) for name in plans if name.replace(".parquet", _DONE) not in names]

    def rows(self, plan: ReplayPlan) -> Iterator[dict[str, Any]]:
        """Yield the plan's messages, in order."""
        with (
            _translated(self._path),
            pq.ParquetFile(f"{self._path}/{plan.run}.parquet", filesystem=self._filesystem) as f,
        ):
            for batch in f.iter_batches(batch_size=500):
                yield from batch.to_pylist()

    def finish(self, plan: ReplayPlan, published: Mapping[int, str]) -> None:
        """Record that the whole plan was published: row number -> message id."""
        rows = sorted(published.items())
        table = pa.table([[row for row, _ in rows], [text for _, text in rows]], schema=_PUBLISHED)
        with self._new(f"{plan.run}{_DONE}", _PUBLISHED) as writer:
            writer.write_table(table)

    def write_off(self, at_ms: int, receipts: Iterable[list[dict[str, Any]]]) -> int:
        """Write batches of receipts as one file, all or none, and return how many receipts there were."""
        count = 0
        with self._new(f"write-off-{at_ms}-{uuid4().hex}.parquet", schemas.RECEIPT) as writer:
            for batch in receipts:
                writer.write_table(pa.Table.from_pylist(batch, schema=schemas.RECEIPT))
                count += len(batch)
        return count

    def written_off(self, condition: Any = None, *, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield receipts of write-offs that meet a pyarrow.dataset expression."""
        files = [f"{self._path}/{name}" for name in self._names() if name.startswith("write-off-")]
        if files:
            with _translated(self._path):
                dataset = ds.dataset(files, schema=schemas.RECEIPT, format="parquet", filesystem=self._filesystem)
                for batch in dataset.to_batches(filter=condition, columns=columns):
                    yield from batch.to_pylist()

    def expire(self, before_ms: int) -> int:
        """Delete write-offs and finished replays older than before_ms, and return how many."""
        names = set(self._names())
        old = [
            name
            for name in sorted(names)
            if _at_ms(name) < before_ms
            and (name.startswith("write-off-") or name.endswith(_DONE) or name.replace(".parquet", _DONE) in names)
        ]
        with _translated(self._path):
            # a plan before its .done: a plan whose .done is gone would count as interrupted, and be sent again
            for name in sorted(old, key=lambda name: name.endswith(_DONE)):
                self._filesystem.delete_file(f"{self._path}/{name}")
        return sum(not name.endswith(_DONE) for name in old)

    def settled(self) -> Settlements:
        """Return the state of each dead letter that was replayed or written off."""
        settlements = Settlements()
        for name in self._names():
            if not name.endswith(_DONE):
                settlements.states |= dict.fromkeys(self._positions(name), self._state(name))
        return settlements

    def published_as(self, position: Position) -> list[tuple[str, str]]:
        """Return (run, message id in the request topic) of each finished replay of a dead letter."""
        replays = []
        for name in self._names():
            if name.endswith(_DONE):
                plan = name.replace(_DONE, ".parquet")
                rows = [row for row, in_plan in enumerate(self._positions(plan)) if in_plan == position]
                for row in rows:
                    replays.append((plan.removesuffix(".parquet"), self._published(name)[row]))
        return replays

    def _published(self, name: str) -> dict[int, str]:
        with _translated(self._path):
            table = pq.read_table(f"{self._path}/{name}", filesystem=self._filesystem)
        return {row[c.ROW]: row[c.ORIGIN_MESSAGE_ID] for row in table.to_pylist()}

    def _state(self, name: str) -> str:
        if name.startswith("write-off-"):
            return WRITTEN_OFF
        return REPLAYED if name.replace(".parquet", _DONE) in self._names() else REPLAYING

    def _positions(self, name: str) -> Iterator[Position]:
        with _translated(self._path), pq.ParquetFile(f"{self._path}/{name}", filesystem=self._filesystem) as f:
            for batch in f.iter_batches(columns=list(c.POSITION)):
                yield from zip(*(batch.column(name).to_pylist() for name in c.POSITION), strict=True)

    def _read_plan(self, name: str) -> ReplayPlan:
        with _translated(self._path):
            about = pq.read_schema(f"{self._path}/{name}", filesystem=self._filesystem).metadata
        after = {partition: (int(at[0]), int(at[1])) for partition, at in json.loads(about[_AFTER]).items()}
        return ReplayPlan(name.removesuffix(".parquet"), about[_TARGET].decode(), after)

    def _names(self) -> list[str]:
        return [name for name in self._folder.names(FOLDER) if name.endswith(".parquet")]

    @contextlib.contextmanager
    def _new(self, name: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        with (
            self._folder.new_file(f"{FOLDER}/{name}") as path,
            pq.ParquetWriter(path, schema, filesystem=self._filesystem, compression="zstd") as writer,
        ):
            yield writer


@dataclass(slots=True)
class PlanWriter:
    """Takes the messages of a plan, in the order in which they will be published."""

    plan: ReplayPlan
    _writer: pq.ParquetWriter
    count: int = 0

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add messages with the keys columns.POSITION, message_key, payload, message_properties (pairs)."""
        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._writer.schema))
        self.count += len(rows)


def _at_ms(name: str) -> int:
    """Return when the file was started, by its name."""
    return int(name.removeprefix("write-off-").removeprefix("replay-").partition("-")[0])


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise UnavailableError(f"{path} can't be read or written: {error}") from error
