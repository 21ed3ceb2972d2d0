"""Starts Spark in parallel with the rest of the service's start; each takes several seconds.

A thread starts Spark while modules are loaded, the lock is taken, and topics are checked. A session does nothing by
itself; the service takes it only once it holds the lock.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from streaming.config.settings import Settings
from streaming.spark.installed import has_connector
from streaming.spark.session import are_jars_here, jars_for, start
from streaming.spark.submitted import is_submitted
from udfs import columns as c

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

log = logging.getLogger("ledger-reaper")

_TASKS = 2
# Rows like the connector's, computed from a column without rows: for constants Spark would generate other code.
_EMPTY_BATCH = (
    f"cast(cast(id as string) as binary) {c.VALUE}",
    f"cast(cast(id as string) as binary) {c.KEY}",
    f"cast(id as string) {c.TOPIC}",
    f"cast(cast(id as string) as binary) {c.MESSAGE_ID}",
    f"timestamp_millis(id) {c.PUBLISH_TIME}",
    f"map(cast(id as string), cast(id as string)) {c.PROPERTIES}",
)


class _Stops(Protocol):
    def stop(self) -> None: ...


Session = TypeVar("Session", bound=_Stops)


@contextlib.contextmanager
def starting_spark(settings: Settings) -> Iterator[Callable[[], "SparkSession"]]:
    """Yield a function that waits for Spark and returns its session. The caller stops the session.

    The function raises what session.start does.
    """

    def start_spark() -> "SparkSession":
        return start(settings, jars_for(settings))

    def start_warm() -> "SparkSession":
        spark = start_spark()
        # before the first real batch, Python's workers are up and Spark has compiled its code
        threading.Thread(target=_warm_up, args=(spark, settings), name="spark-warm-up", daemon=True).start()
        return spark

    # a service that may be refused must neither occupy a cluster's executors nor spend minutes on fetching
    if is_submitted() or not are_jars_here(settings):
        yield start_spark
        return
    with in_parallel(start_warm) as take:
        yield take


@contextlib.contextmanager
def in_parallel(start_session: Callable[[], Session]) -> Iterator[Callable[[], Session]]:
    """Call start_session() in a thread while the block runs; yield a function that waits for its result.

    That function raises what start_session() raised, and its caller stops the session. If it was not called, the end of
    the block waits for start_session() and stops the session.
    """
    result: Future[Session] = Future()
    taken = threading.Event()

    def settle() -> None:
        try:
            result.set_result(start_session())
        except BaseException as error:  # take() raises it
            result.set_exception(error)

    def take() -> Session:
        session = result.result()
        taken.set()
        return session

    thread = threading.Thread(target=settle, name="spark-start", daemon=True)
    thread.start()
    try:
        yield take
    finally:
        thread.join()
        if not taken.is_set() and result.exception() is None:
            with contextlib.suppress(Exception):  # must not hide why the block ended
                result.result().stop()


def read_empty_batch(spark: "SparkSession", most_bytes: int) -> list["Row"]:
    """Read a batch without messages as the service reads its batches; return its entries, an empty list.

    most_bytes: as streams.messages takes it.
    """
    from streaming.queries.delivery.completion import delivered_runs

    if not has_connector():
        return _read_empty_source(spark)
    from streaming.queries.streams import messages

    source = spark.range(0, _TASKS, 1, _TASKS).where("id < 0").selectExpr(*_EMPTY_BATCH)
    rows = messages(source, most_bytes, _TASKS).persist()
    try:
        return delivered_runs(rows).collect()
    finally:
        rows.unpersist()


def _read_empty_source(spark: "SparkSession") -> list["Row"]:
    from pyspark.sql.pandas.types import from_arrow_schema

    from streaming.queries.delivery.fallback_reads import no_rows
    from streaming.queries.delivery.source_batches import ends_of
    from streaming.queries.streams import coalesced
    from streaming.schemas import MESSAGE

    source = spark.range(0, _TASKS, 1, _TASKS).where("id < 0").mapInArrow(no_rows, from_arrow_schema(MESSAGE))
    rows = coalesced(source, 0, _TASKS).persist()
    try:
        return ends_of(rows).collect()
    finally:
        rows.unpersist()


def _warm_up(spark: "SparkSession", settings: Settings) -> None:
    try:
        spark.sparkContext.setJobDescription("start: no messages")
        read_empty_batch(spark, settings.service.max_request_bytes)
    except Exception as error:  # Spark may have been stopped by now
        log.debug("no empty batch was read before the first batch: %s", error)
