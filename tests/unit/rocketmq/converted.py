"""Stores that are converted in this process, without a JVM."""

import shutil
import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import opened
from streaming.clock import Clock
from streaming.rocketmq.convert.backfill import Backfill, Result
from streaming.rocketmq.follow.lag import Lag
from streaming.rocketmq.follow.run import Follow
from streaming.rocketmq.inspect.check import Check, CheckResult
from streaming.rocketmq.progress import Say
from streaming.rocketmq.store.store_paths import StorePaths, store_paths
from tests.local_rdd import LocalContext
from tests.rocketmq_store import BASE_TIME, Store, Unit, small_store
from udfs.rocketmq import rows


class StoppedClock:
    def now_ms(self) -> int:
        return BASE_TIME


CLOCK: Clock = StoppedClock()


def context() -> SparkContext:
    return cast("SparkContext", LocalContext())


class TouchedError(Exception):
    """A session was used that nobody should have come to."""


class Untouched:
    """Stands in for a Spark session, and starts none: whoever uses it fails."""

    def __getattr__(self, name: str) -> Any:
        raise TouchedError(name)


def follow_untouched(root: Path) -> Lag:
    """Call `follow`, which fails as soon as it comes to Spark."""
    return Follow(paths=paths(root), clock=CLOCK, say=nothing).run(cast("Any", Untouched()), until_caught_up=True)


def paths(root: Path, *, lmq: bool | None = None) -> StorePaths:
    return store_paths(root, None, lmq=lmq)


def nothing(_text: str) -> None:
    """Say nothing."""


def backfill(root: Path, *, say: Say = nothing, **how: Any) -> Result:
    return Backfill(paths=paths(root), clock=CLOCK, say=say, **({"rows_per_file": 7} | how)).run(context())


def converted_store(root: Path) -> Store:
    """Return `small_store`, written and converted: a copy of one that was converted once, which takes a second."""
    shutil.copytree(_converted_once().name, root, dirs_exist_ok=True)
    store = small_store(root)
    store.first_live_phy = store.log_start
    return store


@cache
def _converted_once() -> "TemporaryDirectory[str]":
    folder = TemporaryDirectory(prefix="converted-")
    small_store(Path(folder.name)).write()
    backfill(Path(folder.name))
    return folder


def check(root: Path, topic: str = "", rows_per_part: int = 40) -> CheckResult:
    return Check(paths(root), CLOCK, nothing, rows_per_part=rows_per_part).run(context(), topic)


def files_below(root: Path) -> dict[str, bytes]:
    """Every file of a store but ours, with its bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "ledger-reaper" not in path.parts
    }


def everything_below(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every folder and file of a store, ours as well, with the time of its last change and its bytes."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def replace_rows(root: Path, topic: str, gone: list[Unit], new: list[Unit]) -> None:
    """Delete and add rows of a topic's queue 0 in RocksDB, and move its max row."""
    with opened(root / "consumequeue", ("offset",), compressed=True) as database:
        for unit in gone:
            database.delete("default", rows.unit_key(topic.encode(), 0, unit[0]))
        database.put_all(
            "default", [(rows.unit_key(topic.encode(), 0, unit[0]), struct.pack(">qiqq", *unit[1:])) for unit in new]
        )
        last = (new or gone)[-1]
        database.put_all("offset", [(rows.max_key(topic.encode(), 0), rows.bound_value(last[1], last[0]))])
        database.flush()
