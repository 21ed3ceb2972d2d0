"""Messages of any kind on several topics, kills at any moment, and a connector with the failures of the real one.

Queries and fallbacks are the service's own, with checkpoints on the disk; the connector, the topics and the receipts
are modelled. docs/findings.md describes the connector's behaviour.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.deletion.fallback import Fallback
from streaming.deletion.service import LedgerDeletionService
from streaming.queries.delivery.batches import next_number, unfinished
from streaming.queries.life import QueryTools
from streaming.queries.names import Query, checkpoint_of
from streaming.queries.running import RunningQueries
from tests.invariants import OF_TOPICS
from udfs.entry_ranges import EntrySpan, spans_of
from udfs.formats.internal_stats import Position
from udfs.proto.message_id_pb2 import MessageIdData

LEDGER = 7
PATIENCE_S = 60  # of the promise, and the time that a query may take besides


class Kind(StrEnum):
    """What the connector does with an entry."""

    HONEST = "delivered"
    FAILS = "the query fails on it"
    PASSED_OVER = "skipped silently; as the last entry, the query fails"
    MARKER = "the same, and no message"
    HIDES_THE_END = "skipped silently; as the last entry, no batch can be planned"


class KilledError(Exception):
    """The process ends here."""


@dataclass
class Stream:
    """A query of the connector."""

    query: Query
    world: "World"
    isActive: bool = True  # noqa: N815  Spark's name
    lastProgress: object = None  # noqa: N815
    failure: Exception | None = None
    status: Mapping[str, str] = field(default_factory=lambda: {"message": "Waiting for next trigger"})

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False

    def trigger(self) -> None:
        """Read a batch if there is one."""
        try:
            self.world.read_batch(self.query)
            self.lastProgress = {}
        except KilledError:
            raise
        except Exception as error:
            self.isActive, self.failure = False, error


class Rows(list[tuple[str, int, int]]):
    """A stand-in for a DataFrame."""

    def unpersist(self) -> None: ...


@dataclass
class World:
    """Topics, receipts and a disk that outlive the service; `start` starts a new process."""

    settings: Settings
    entries: dict[str, list[Kind]] = field(default_factory=dict)
    receipts: list[tuple[str, int, int]] = field(default_factory=list)
    ended_by: Exception | None = None
    has_had_time: bool = False
    kill_in: int = -1  # steps until the process is killed; -1: never
    fail_in: int = -1  # steps until an error in our code, once
    now_s: float = 0.0
    streams: list[Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pulsar = MemoryPulsar()
        for topic in (*self.settings.topics.requests, self.settings.topics.retry):
            self.pulsar.store(f"{topic}-partition-0", (LEDGER, 0))
            self.entries[topic] = []
        self.start()

    @property
    def messages(self) -> list[tuple[str, int, int]]:
        return [
            (f"{topic}-partition-0", LEDGER, number)
            for topic, kinds in self.entries.items()
            for number, kind in enumerate(kinds)
            if kind is not Kind.MARKER
        ]

    def start(self) -> None:
        self.started: set[str] = set()
        self.streams = []
        self.kill_in = -1
        fallback = Fallback(
            settings=self.settings,
            admin=self.pulsar,
            service=cast("LedgerDeletionService", self),
            read=cast("Any", self._rows),
            reports_last_message=lambda partition: not self._hides_its_end(partition.removesuffix("-partition-0")),
        )

        def monotonic() -> float:
            return self.now_s

        tools = QueryTools(
            admin=self.pulsar,
            start=self._start_query,
            restart=self.restart,
            fallback=fallback,
            monotonic=monotonic,
            now_ms=lambda: 0,
        )
        self.queries = RunningQueries(self.settings, tools)
        self.queries.start()

    def note(self, _spans: object) -> None:
        """Do nothing: the model loses no messages."""

    def publish(self, topic: str, kind: Kind) -> None:
        self.entries[topic].append(kind)
        self.pulsar.store(f"{topic}-partition-0", (LEDGER, len(self.entries[topic])))
        self.has_had_time = False

    def run(self, seconds: float) -> None:
        """Let the service run; a kill ends it, and it is started again."""
        until_s = self.now_s + seconds
        while self.now_s < until_s and self.ended_by is None:
            self.now_s += 0.5
            try:
                for stream in self.streams:
                    if stream.isActive:
                        stream.trigger()
                for why in self.queries.check_once().values():
                    self.ended_by = why
                assert self.queries.join(10)
                if self.kill_in == 0:
                    raise KilledError
            except KilledError:
                self.start()

    # what RunningQueries and Fallback need of the service

    def _start_query(self, query: Query) -> Any:
        self.streams = [stream for stream in self.streams if stream.query != query]
        self.streams.append(Stream(query, self))
        return self.streams[-1]

    def restart(self, query: str) -> None:
        self.started.discard(query)

    def describe(self, *_: object) -> None: ...

    def take(self, query: str, rows: Any, _batch_id: int) -> None:
        """Write receipts like LedgerDeletionService: after a start only for rows without one, later for all."""
        done = set(self.receipts) if query not in self.started else set()
        for row in rows:
            if row not in done:
                self._may_be_killed()
                self.receipts.append(row)
        self._may_be_killed()
        self.started.add(query)

    def _may_be_killed(self) -> None:
        if self.kill_in == 0:
            raise KilledError
        self.kill_in -= self.kill_in > 0
        self.fail_in -= self.fail_in >= 0
        if self.fail_in == 0:
            raise RuntimeError("a bug")

    def _rows(self, _query: str, spans: Mapping[str, Sequence[EntrySpan]], /, *, gives_up: bool = False) -> "Rows":
        assert not gives_up
        return Rows(
            (partition, span.ledger, number)
            for partition, of_partition in spans.items()
            for span in of_partition
            for number in range(span.first, span.last + 1)
            if self.entries[partition.removesuffix("-partition-0")][number] is not Kind.MARKER
        )

    # the connector

    def _hides_its_end(self, topic: str) -> bool:
        return self.entries[topic][-1:] == [Kind.HIDES_THE_END]

    def read_batch(self, query: Query) -> None:
        (topic,) = query.topics
        partition, kinds = f"{topic}-partition-0", self.entries[topic]
        checkpoint = Path(checkpoint_of(self.settings, query.name))
        batch = unfinished(str(checkpoint))
        if batch is None:
            if not kinds or self._last(checkpoint) == len(kinds) - 1:
                return
            if self._hides_its_end(topic):
                raise RuntimeError("Failed to get last messageId")
            self._plan(checkpoint, partition, len(kinds) - 1)
            batch = unfinished(str(checkpoint))
            assert batch is not None
        (span,) = spans_of([(LEDGER, len(kinds))], batch.ranges[partition])
        previous = kinds[span.first - 1 : span.first]  # the connector starts with the last entry of the previous batch
        if previous and previous[0] is not Kind.HONEST:
            raise RuntimeError("Potential Data Loss: intended to start at another entry")
        if Kind.FAILS in kinds[span.first : span.last + 1] or kinds[span.last] is not Kind.HONEST:
            raise RuntimeError("We didn't get enough message as promised")
        # Completion reads skipped entries in between through the fallback
        self.take(query.name, self._rows(query.name, {partition: [span]}), batch.number)
        (checkpoint / "commits").mkdir(exist_ok=True)
        (checkpoint / "commits" / str(batch.number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def _last(self, checkpoint: Path) -> int:
        number = next_number(str(checkpoint)) - 1
        return -1 if number < 0 else int((checkpoint / "last").read_text())

    def _plan(self, checkpoint: Path, partition: str, last: int) -> None:
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        position: Position = (LEDGER, last)
        written = MessageIdData(ledgerId=position[0], entryId=position[1]).SerializeToString()
        number = next_number(str(checkpoint))
        text = json.dumps({partition: [byte - 256 if byte > 127 else byte for byte in written]})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{text}")
        (checkpoint / "last").write_text(str(last))


topics = st.integers(0, 2)
publications = st.tuples(st.just("publish"), topics, st.sampled_from(Kind))
runs = st.tuples(st.just("run"), st.sampled_from([1, 5, 30]), st.none())
kills = st.tuples(st.sampled_from(["kill", "fail"]), st.integers(0, 5), st.none())
HONEST, HIDES = Kind.HONEST, Kind.HIDES_THE_END


@settings(max_examples=30, deadline=None)
@example([("publish", 0, HIDES), ("run", 5, None), ("publish", 0, HONEST), ("run", 30, None)])
@example(
    [
        *[("publish", 0, HONEST), ("run", 5, None)],
        *[("publish", 0, HONEST)] * 3,
        *[("fail", 2, None), ("run", 5, None)],
    ]
)
@given(st.lists(publications | publications | runs | kills, max_size=25))
def test_each_message_of_any_kind_ends_in_one_receipt_despite_kills_at_any_moment(
    acts: list[tuple[str, int, Kind | None]],
) -> None:
    with TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        listed = [f"persistent://pulsar/system/d{number}" for number in range(2)]
        config.write_text(f'[topics]\nrequests = {json.dumps(listed)}\n[checkpoints]\ndir = "{folder}/checkpoints"\n')
        world = World(load(config))
        names = (*listed, world.settings.topics.retry)
        for act, number, kind in acts:
            if act == "publish" and kind is not None:
                world.publish(names[number], kind)
            elif act == "run":
                world.run(number)
            elif act == "kill":
                world.kill_in = number
            else:
                world.fail_in = number
            for promise in OF_TOPICS:
                promise(world)
        world.run(PATIENCE_S)
        world.has_had_time = True
        for promise in OF_TOPICS:
            promise(world)
