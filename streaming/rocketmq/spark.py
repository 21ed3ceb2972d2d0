"""Spark for the commands of RocketMQ: local, with one thread for each core."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from streaming.config.load import load
from streaming.rocketmq.failures import our_errors
from streaming.spark.session import Jars, start

# Python does the work here, and Spark's JVM hands bytes about: its second compiler and a collector with threads took
# two fifths of its CPU time in a backfill of 10 million units, and made nothing faster.
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# For glibc in the Python workers: arrays of up to 32 MB (it takes no higher bound) come from memory that earlier ones
# had, and none of that goes back before the worker ends. Otherwise the system hands each array over anew, in pages that
# it fills with zeros first: a tenth of the CPU time of a backfill of 20 million units.
_KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


@contextmanager
def local_spark(cores: int | None = None) -> Iterator[SparkSession]:
    """Start Spark in this process, and end it afterwards. No configuration file is needed."""
    settings = load(None)
    threads = cores or len(os.sched_getaffinity(0))
    options = settings.spark.java_options or _JAVA_OPTIONS
    chosen = settings.spark.model_copy(update={"master": f"local[{threads}]", "ui_port": 0, "java_options": options})
    spark = start(settings.model_copy(update={"spark": chosen}), Jars(), with_streams=False)
    try:
        _leave_failures_to_us(spark)
        spark.sparkContext.environment.update(_KEPT_MEMORY)
        with ThreadPoolExecutor(max_workers=1) as beside:  # the command meanwhile looks at the store
            beside.submit(_begin_workers, spark.sparkContext, threads)
            with our_errors():
                yield spark
    finally:
        spark.stop()


def _begin_workers(spark: SparkContext, count: int) -> None:
    """Have a first job start the Python workers, and load what the JVM needs for jobs: that takes a second."""
    spark.parallelize(range(count), count).map(abs).collect()


def _leave_failures_to_us(spark: SparkSession) -> None:
    """Have Spark log no failed task: each ends the command, which says in a line what the task has refused.

    What nobody has thought of is raised with all that Spark tells of it.
    """
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.scheduler.TaskSetManager", log4j.Level.OFF)
