"""Spark's start, beside the rest of a start: a JVM takes seconds until it is up, and the rest takes as long.

1. Spark begins in a thread, while our modules are loaded, the lock is taken, and topics are checked. A session does
   nothing by itself, and the service, which does, takes it only once it holds the lock.
2. Then Spark reads a batch without messages, in a thread too: when the first real one comes, Python's workers are up,
   and Spark has compiled its code.
3. Where spark-submit has started the JVM, or archives have to be fetched, Spark begins only when the service takes
   it: a cluster's executors, or minutes of fetching, are not for a service that may be refused.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from streaming.config.settings import Settings
from streaming.spark.session import are_jars_here, jars_for, start
from streaming.spark.submitted import is_submitted
from udfs import columns as c

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

log = logging.getLogger("ledger-reaper")

_TASKS = 2
# As the connector's rows, of a column that there are no rows of: of constants Spark would make other code.
_NOTHING = (
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
def begun(settings: Settings) -> Iterator[Callable[[], "SparkSession"]]:
    """Yield what waits for Spark and returns its session, for the caller to stop. Raises what session.start does."""

    def begin() -> "SparkSession":
        return start(settings, jars_for(settings))

    def begin_warm() -> "SparkSession":
        spark = begin()
        threading.Thread(target=_warm_up, args=(spark, settings), name="spark-warm-up", daemon=True).start()
        return spark

    if is_submitted() or not are_jars_here(settings):
        yield begin
        return
    with beside(begin_warm) as take:
        yield take


@contextlib.contextmanager
def beside(begin: Callable[[], Session]) -> Iterator[Callable[[], Session]]:
    """Call begin() in a thread while the block runs; yields what waits for its result, and raises what it raised.

    Whoever has taken the session stops it. A block that ends without that waits for begin(), and stops the session.
    """
    result: Future[Session] = Future()
    taken = threading.Event()

    def settle() -> None:
        try:
            result.set_result(begin())
        except BaseException as error:  # whoever takes it raises it
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
            with contextlib.suppress(Exception):  # why the block ended is what counts
                result.result().stop()


def read_nothing(spark: "SparkSession", most_bytes: int) -> list["Row"]:
    """Read a batch without messages, as the service reads its batches; returns the entries that it had, which are none.

    most_bytes: as transforms.messages takes it.
    """
    from streaming.queries.completion import delivered_runs
    from streaming.queries.transforms import messages

    nothing = spark.range(0, _TASKS, 1, _TASKS).where("id < 0").selectExpr(*_NOTHING)
    rows = messages(nothing, most_bytes, _TASKS).persist()
    try:
        return delivered_runs(rows).collect()
    finally:
        rows.unpersist()


def _warm_up(spark: "SparkSession", settings: Settings) -> None:
    try:
        spark.sparkContext.setJobDescription("beginning: no messages")
        read_nothing(spark, settings.service.max_request_bytes)
    except Exception as error:  # Spark may have been stopped meanwhile
        log.debug("nothing was read before the first batch: %s", error)
