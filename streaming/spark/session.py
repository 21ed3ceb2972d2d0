"""Starts Spark, in a JVM of its own or in the JVM that spark-submit has started."""

import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from streaming.config.load import CONF
from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.errors import ConfigError
from streaming.spark import classes, connector_clients, connector_lz4, ivy, s3a, scratch, submitted
from streaming.spark.installed import has_connector, require_tested
from streaming.spark.submitted import JAVA_OPTIONS, LOOPBACK
from udfs.units import MIB

log = logging.getLogger("ledger-reaper")

_CLASS_PATH = "SPARK_DIST_CLASSPATH"  # Spark puts this at the end of the class path

# The number of rows that the JVM sends to Python at once.
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# The value of ROWS_PER_BATCH for messages with PySpark 3.5, because a sender chooses a message's size: a row has up to
# service.max_request_bytes of payload and udfs.requests.retry.MAX_ABOUT_BYTES of key and properties. With the defaults
# a batch has up to 32 MiB, in the JVM and in the worker.
_MESSAGES_PER_BATCH = "100"
# PySpark 4 ends a batch also at the row with which it has this many bytes.
_BYTES_PER_BATCH, _MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch", 8 * MIB

# Every job relies on these; conf/spark-defaults.conf has the same for spark-submit.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # as by default in Spark 3.5: a value that can't be cast becomes null
    "spark.sql.shuffle.partitions": "4",
    ROWS_PER_BATCH: "5000",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",  # a second copy of a deleting task would only conflict with the first
    # compresses persisted batches that spill to disk, so that payloads that arrived compressed do not grow there
    "spark.rdd.compress": "true",
    connector_clients.TIMEOUT: connector_clients.CACHED_IN_EXECUTORS,
    # Spark 4 would start no query after a kill while its first offsets were written; our own checks refuse a
    # checkpoint of something else
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.metrics.namespace": "ledger_reaper",
    # /metrics/spark shows them (streaming/prometheus/server.py)
    "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.killEnabled": "false",  # the UI's users may view jobs, but not end them
}


class Jars(NamedTuple):
    """The jars of a Spark application."""

    everywhere: Sequence[Path] = ()  # for driver and executors
    driver: Sequence[Path] = ()  # for the driver only; Spark need not copy them


def start(settings: Settings, jars: Jars, *, with_streams: bool = True) -> SparkSession:
    """Start Spark in this process.

    Raises ConfigError if this PySpark was not tested; if spark-submit was started without a jar that the checkpoints
    need, or with an option that contradicts what the jobs rely on; and, without spark-submit, if spark.master is a
    cluster.

    jars: the result of jars_for(settings); without streams no jars are needed.
    """
    require_tested()
    # Python workers must run this Python, not any python3 on the PATH
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    needed = NEEDED | s3a.spark_conf(settings) if with_streams else NEEDED
    if submitted.is_submitted():
        conf = submitted.completed(needed | submitted.chosen(settings.spark, os.environ), submitted.given())
    else:
        conf = needed | _own_conf(settings, jars, with_streams=with_streams)
    builder = SparkSession.builder.appName(f"ledger-reaper {settings.service.name}")
    for key, value in conf.items():
        builder = builder.config(key, value)
    with _sigint_kept():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    log_refusals_in_one_line(spark.sparkContext)
    # the executors' PATH (streaming/spark/submission.py): Spark would also pass it to our source's Python on the driver
    spark.sparkContext.environment.pop("PATH", None)
    if has_connector():
        connector_clients.keep_in_driver(spark)
        if with_streams:
            connector_lz4.decompress_safely(spark)
    if with_streams and is_on_s3(settings.checkpoints.dir):
        _require_s3a(spark)
    return spark


def batches_of_messages() -> tuple[str, str]:
    """Return the option that bounds the memory of a record batch of messages, whatever their senders wrote."""
    return (ROWS_PER_BATCH, _MESSAGES_PER_BATCH) if has_connector() else (_BYTES_PER_BATCH, str(_MOST_BYTES))


def log_refusals_in_one_line(context: SparkContext) -> None:
    """Log a line, not a traceback, for each connection that PySpark refuses, because it has no token (a port scan)."""

    def handle_error(_request: object, client_address: tuple[str, int]) -> None:
        log.warning("refused a connection from %s to Spark's accumulators: %s", client_address[0], sys.exc_info()[1])

    server: Any = context._accumulatorServer
    server.handle_error = handle_error


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark has ended (its master may end an application), so that the session can't be used any more."""
    context = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def _own_conf(settings: Settings, jars: Jars, *, with_streams: bool) -> dict[str, str]:
    """Return the options of our own JVM. Raises ConfigError for a master whose workers are on other machines."""
    if not submitted.is_local(settings.spark.master):
        raise ConfigError(
            f"spark.master is {settings.spark.master}: on a cluster spark-submit starts this command, and "
            "`ledger-reaper submit-args` prints the command line for that"
        )
    local_dir = scratch.folder_for(settings)
    # set by a variable, because Spark logs a warning at each start if spark.local.dir is set instead
    os.environ["SPARK_LOCAL_DIRS"] = str(local_dir)
    java_options = (
        *JAVA_OPTIONS,
        f'"-Dlog4j2.configurationFile={_log_configuration()}"',
        f'"-Djava.io.tmpdir={local_dir}"',
        settings.spark.java_options,
        *(classes.options(settings.spark, (*jars.everywhere, *jars.driver), local_dir) if with_streams else ()),
    )
    submitted.listen_on(settings.spark.ui_address, os.environ)
    if os.environ["PYSPARK_PYTHON"] == sys.executable:
        os.environ["PYSPARK_PYTHON"] = python_without_archives(local_dir, os.environ.get("PYTHONPATH", ""))
    conf = {
        "spark.master": settings.spark.master,
        # not under spark-submit: workers on other hosts may get this package only with their first task
        "spark.python.daemon.module": "streaming.spark.worker_daemon",
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.ui.port": str(settings.spark.ui_port),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
    }
    if is_one_process(settings.spark.master):
        load_with_spark(jars.everywhere, os.environ)
    elif jars.everywhere:
        conf["spark.jars"] = ",".join(str(jar) for jar in jars.everywhere)
    if jars.driver:
        conf["spark.driver.extraClassPath"] = ":".join(str(jar) for jar in jars.driver)
        s3a.name_profiles_for_java()
    return conf


def python_without_archives(folder: Path, path: str) -> str:
    """Return a program that runs this Python with PYTHONPATH as in `path`, whatever Spark adds; or this Python itself.

    Spark's archive of PySpark comes first in the PYTHONPATH that it sets. It contains no compiled modules: loading
    PySpark from it costs 0.4 s of CPU more, in each of the processes that plan and read a query of our source.

    folder: where the program is created, unless programs can't be executed there.
    """
    program = folder / "python"
    text = f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} "$@"\n'
    program.write_bytes(os.fsencode(text))
    program.chmod(0o700)
    return str(program) if os.access(program, os.X_OK) else sys.executable


def is_one_process(master: str) -> bool:
    """Whether the executors run in the driver's JVM."""
    return submitted.is_local(master) and not master.startswith("local-cluster")


def load_with_spark(jars: Sequence[Path], environment: MutableMapping[str, str]) -> None:
    """Have the JVM that is started with this environment load these jars like Spark's own jars, and after them."""
    # as spark.jars they would be copied twice, and none of their classes would be in the archive (classes.py)
    entries = environment.get(_CLASS_PATH, "").split(":")
    environment[_CLASS_PATH] = ":".join(filter(None, dict.fromkeys((*entries, *map(str, jars)))))


@contextlib.contextmanager
def _sigint_kept() -> Iterator[None]:
    """Keep our SIGINT handler: a new SparkContext sets a handler that raises KeyboardInterrupt in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _require_s3a(spark: SparkSession) -> None:
    jvm = SparkContext._jvm
    if jvm is not None and not jvm.org.apache.spark.util.Utils.classIsLoadable(s3a.FILESYSTEM):
        spark.stop()
        raise ConfigError(
            "checkpoints.dir is on S3, but Spark was started without Hadoop's S3A: give spark-submit "
            '--jars "$(ledger-reaper jars --config F)"'
        )


def end(spark: SparkSession) -> None:
    """Stop a session whose work is over."""
    jvm: Any = spark.sparkContext._jvm
    with contextlib.suppress(Py4JError, OSError):  # the JVM may have ended
        # Spark closes its thread pools before all of its own messages are answered. Scala prints a stack for each such
        # answer, and not through the log, which stays as it is.
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    spark.stop()


def end_jvm(exit_code: int) -> None:
    """End spark-submit's JVM together with this process; otherwise the connector's threads keep it alive for ever."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    with contextlib.suppress(Py4JError, OSError):  # the JVM ends before it answers
        system = gateway.jvm.java.lang.System
        # On YARN the JVM that contains the driver ends by itself after this process. If it ended sooner, YARN would
        # treat the application as failed and run it again.
        if not submitted.is_yarns(system.getProperty):
            system.exit(exit_code)


def jars_for(settings: Settings) -> Jars:
    """Return the jars that the service needs, fetched if missing; none under spark-submit, which has them by --jars."""
    return Jars() if submitted.is_submitted() else fetched_jars(settings)


def are_jars_here(settings: Settings) -> bool:
    """Whether fetched_jars has nothing to fetch."""
    from streaming.spark import jars as artifacts

    return artifacts.are_here(_for_checkpoints(settings))


def _for_checkpoints(settings: Settings) -> Sequence[ivy.Artifact]:
    from streaming.spark import jars as artifacts

    return artifacts.s3a() if is_on_s3(settings.checkpoints.dir) else ()


def fetched_jars(settings: Settings, provided: Path | None = None) -> Jars:
    """Return the connector, S3A for checkpoints on S3, and our classes for OAuth2 and passwords, as far as needed.

    The first two come from a folder that has them, which LEDGER_REAPER_JARS names, or `provided`, else from the cache;
    those that are not there are fetched.
    """
    from streaming.spark import jars as artifacts

    progress = fetches_logged()
    driver = artifacts.found(_for_checkpoints(settings), progress=progress, provided=provided)
    jars = artifacts.jars(progress=progress, provided=provided)
    own = [artifacts.CREDENTIALS] if jars and (settings.pulsar.basic_file or settings.pulsar.oauth2_key_file) else []
    return Jars([*jars, *own], driver)


def fetches_logged() -> ivy.Progress:
    """Return a Progress that logs each fetch when it starts."""
    logged: set[str] = set()

    def log_once(what: str, _done: int, total: int) -> None:
        if what not in logged:
            logged.add(what)
            log.info("%s (%s MB, once)", what, total // 1_000_000)

    return log_once


def _log_configuration() -> str:
    return str(CONF / "log4j2.properties")
