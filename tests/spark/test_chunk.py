"""A chunk's sweep: what it checks before it starts, and what it reports if it fails; it executes nothing here."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.config.load import load
from streaming.deletion.chunks.chunk import ChunkSweep, KnownOwners
from streaming.deletion.instance import Identity
from streaming.errors import SafetyError
from streaming.metrics import Metrics
from streaming.sweep.jobs import SweepRules
from streaming.sweep.measured import Measures, MeasuresParam, taken
from tests.builders import data_request
from udfs.blast_radius import Chunk
from udfs.paths import Layout
from udfs.requests.request_format import encode
from udfs.verdicts.judge import Policy

pytestmark = pytest.mark.spark

ORDERS, BILLS = ("shop", "data:shop/ns/persistent/orders"), ("bank", "data:bank/ns/persistent/bills")
SYSTEM, RIVALS = "persistent://pulsar/system/__ledger_deletion", "persistent://rival/reaper/requests"
NOW_MS = 1_000
CHUNK = Chunk("requests", 7, NOW_MS)


@dataclass(frozen=True)
class Measuring:
    """Tasks that measure one group of deletes each."""

    measures: Accumulator[Measures]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        self.measures.add(Measures((0.5,), 2.0, 250.0, 3, tasks=1))


def test_what_tasks_measure_reaches_the_driver_once(spark: SparkSession) -> None:
    measures = spark.sparkContext.accumulator(Measures(), MeasuresParam())
    rows = spark.range(0, 8, 1, 4)
    for _chunk in range(2):
        rows.mapInArrow(Measuring(measures), rows.schema).collect()
        assert taken(measures) == Measures((0.5,) * 4, 8.0, 1_000.0, 12, tasks=4)
    assert taken(measures) == Measures()


@dataclass
class World:
    """The gate, the receipts and the known owners."""

    events: list[Any] = field(default_factory=list)  # calls, in order
    held: dict[str, str] = field(default_factory=dict)
    is_doubted: bool = False
    append_fails: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    schema = from_arrow_schema(schemas.RECEIPT)

    @property
    def coordination(self) -> Any:
        return SimpleNamespace(agreed_ms=lambda: NOW_MS, later_ms=lambda: NOW_MS, start_plan=lambda: "/plans/a")

    @property
    def blast_radius(self) -> Any:
        return SimpleNamespace(interrupted=lambda: self.events.append("interrupted"))

    def wait_until_open(self) -> None:
        self.events.append("open")

    def __call__(self, query: str, admitted: Iterable[tuple[str, str]]) -> KnownOwners:
        self.events.append((query, sorted(key for _tenant, key in admitted)))
        if self.is_doubted:
            raise SafetyError("held")
        return KnownOwners(self.held, {}, {})

    def bound(self, chunk: Chunk, counts: dict[tuple[str, str], int], _plan: object) -> tuple[int, ...]:
        self.events.append((chunk, counts))
        return (3,)

    def append(self, _rows: DataFrame, chunk: int, _work: object) -> None:
        self.events.append(("append", chunk))
        if self.append_fails:
            raise OSError("the disk is not available")


def _sweep(spark: SparkSession, world: World, rows: DataFrame | None = None) -> None:
    policy = Policy(min_age_ms=0, above_newest_quarantine_ms=0, absence_interval_ms=0)
    identity = Identity(SweepRules(Layout.HIERARCHICAL, "/ledgers", ("/epoch", 1), policy), 1, 1)
    everything: Any = world
    sweep = ChunkSweep(
        spark=spark,
        settings=load(None),
        identity=identity,
        receipts=everything,
        owners=everything,
        gate=everything,
        describe=lambda *_: None,
        measures=spark.sparkContext.accumulator(Measures(), MeasuresParam()),
    )
    sweep("requests", 7, _rows(spark) if rows is None else rows, 5)


def _rows(spark: SparkSession) -> DataFrame:
    """Three requests that name an owner, a request that its sender may not send, and a message that is no request."""
    sent = [(SYSTEM, ORDERS), (SYSTEM, ORDERS), (SYSTEM, BILLS), (RIVALS, ("bank", "data:bank/ns/persistent/t"))]
    blank = dict.fromkeys(schemas.MESSAGE.names)
    rows = [
        blank
        | {"tenant": tenant, "reference_key": key, "position_entry": n, "source": f"{source}-partition-0"}
        | {"payload": encode(data_request(n, key.removeprefix("data:"))), "position_ledger": 7, "position_batch": -1}
        for n, (source, (tenant, key)) in enumerate(sent)
    ]
    rows.append(blank | {"source": f"{SYSTEM}-partition-0", "position_entry": 5})
    return spark.createDataFrame(cast("Any", rows), from_arrow_schema(schemas.MESSAGE))


def test_a_chunk_is_swept_when_nothing_holds_it_and_its_admitted_requests_are_counted_by_owner(
    spark: SparkSession,
) -> None:
    """A topic that is no request topic can't request another tenant's ledger; that owner is not checked."""
    world = World()
    _sweep(spark, world)
    owners = ("requests", sorted([ORDERS[1], BILLS[1]]))
    assert world.events == ["open", owners, (CHUNK, {ORDERS: 2, BILLS: 1}), ("append", 5)]


def test_a_chunk_without_a_message_is_no_chunk(spark: SparkSession) -> None:
    world = World()
    _sweep(spark, world, _rows(spark).limit(0))
    assert world.events == ["open"]


def test_requests_of_a_held_tenant_are_not_counted(spark: SparkSession) -> None:
    world = World(held={"shop": "161 of 200"})
    _sweep(spark, world)
    assert world.events[2] == (CHUNK, {BILLS: 1})


def test_a_chunk_whose_owners_are_doubted_is_not_swept(spark: SparkSession) -> None:
    world = World(is_doubted=True)
    with pytest.raises(SafetyError):
        _sweep(spark, world)
    assert ("append", 5) not in world.events


def test_a_sweep_that_fails_is_reported_to_the_limits(spark: SparkSession) -> None:
    world = World(append_fails=True)
    with pytest.raises(OSError, match="disk"):
        _sweep(spark, world)
    assert world.events[-2:] == [("append", 5), "interrupted"]
