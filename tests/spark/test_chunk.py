"""What a chunk's sweep asks before it runs, and what it leaves behind when it breaks off; nothing is executed here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.config.load import load
from streaming.deletion.chunk import ChunkSweep
from streaming.deletion.instance import Identity
from streaming.errors import SafetyError
from streaming.sweep.jobs import SweepRules
from udfs.blast_radius import Chunk
from udfs.judge import Policy
from udfs.paths import Layout

pytestmark = pytest.mark.spark

ORDERS, BILLS = ("shop", "data:shop/ns/persistent/orders"), ("bank", "data:bank/ns/persistent/bills")
NOW_MS = 1_000


@dataclass
class World:
    """The gate, the receipts, the cache and the sources of in-use sets; events: what was asked of them, in order."""

    events: list[Any] = field(default_factory=list)
    doubt: str = ""
    holds: bool = False
    append_fails: bool = False
    schema = from_arrow_schema(schemas.RECEIPT)

    @property
    def coordination(self) -> Any:
        return SimpleNamespace(agreed_ms=lambda: NOW_MS)

    @property
    def blast_radius(self) -> Any:
        return SimpleNamespace(interrupted=lambda: self.events.append("interrupted"))

    @property
    def baseline(self) -> Any:
        return SimpleNamespace(forget=lambda _keys: self.events.append("forget"))

    def wait_until_open(self) -> None:
        self.events.append("open")

    def hold_if_doubted(self, query: str, doubt: str) -> None:
        self.events.append((query, doubt))
        if self.holds:
            raise SafetyError("held")

    def bound(self, chunk: Chunk, asked: dict[tuple[str, str], int], _plan: object) -> tuple[int, ...]:
        self.events.append((chunk, asked))
        return (3,)

    def references(self, keys: Sequence[str]) -> dict[str, Any]:
        self.events.append(sorted(keys))
        return {}

    def before(self, _references: object, _keys: object) -> tuple[dict[str, Any], str]:
        return {}, self.doubt

    def append(self, _rows: DataFrame, chunk: int) -> None:
        self.events.append(("append", chunk))
        if self.append_fails:
            raise OSError("the disk is away")


def _sweep(spark: SparkSession, world: World) -> None:
    policy = Policy(min_age_ms=0, above_newest_quarantine_ms=0, absence_interval_ms=0)
    identity = Identity(SweepRules(Layout.HIERARCHICAL, "/ledgers", ("/epoch", 1), policy), b"secret", 1, 1)
    part: Any = world
    sweep = ChunkSweep(spark, load(None), identity, part, part, part, part, lambda *_: None)
    sweep("requests", 7, _rows(spark), 4, 5)


def _rows(spark: SparkSession) -> DataFrame:
    """Three requests that name an owner, and one message that is none."""
    named = [(*ORDERS, 1), (*ORDERS, 2), (*BILLS, 3), (None, None, 4)]
    lacking = dict.fromkeys(schemas.MESSAGE.names)
    rows = [lacking | {"tenant": t, "reference_key": key, "position_entry": n, "source": "s"} for t, key, n in named]
    return spark.createDataFrame(cast("Any", rows), from_arrow_schema(schemas.MESSAGE))


def test_a_chunk_is_swept_once_nothing_holds_it_and_its_requests_are_counted_by_owner(spark: SparkSession) -> None:
    world = World()
    _sweep(spark, world)
    asked = {ORDERS: 2, BILLS: 1}
    chunk = Chunk("requests", 7, NOW_MS)
    assert world.events == ["open", sorted([ORDERS[1], BILLS[1]]), (chunk, asked), ("append", 5)]


def test_doubted_sources_hold_the_chunk_and_count_as_believed_once_a_person_has_looked(spark: SparkSession) -> None:
    world = World(doubt="9 of 10 owners")
    _sweep(spark, world)
    assert world.events[2:4] == [("requests", "9 of 10 owners"), "forget"]
    held = World(doubt="9 of 10 owners", holds=True)
    with pytest.raises(SafetyError):
        _sweep(spark, held)
    assert ("append", 5) not in held.events


def test_a_sweep_that_breaks_off_tells_the_limits(spark: SparkSession) -> None:
    world = World(append_fails=True)
    with pytest.raises(OSError, match="disk"):
        _sweep(spark, world)
    assert world.events[-2:] == [("append", 5), "interrupted"]
