"""Spark for the commands of RocketMQ: local, with a thread for each core."""

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

# Python does the work here, and Spark's JVM passes bytes on: its second compiler and a collector with threads took two
# fifths of its CPU time in a backfill of 10 million units, without making anything faster.
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# For glibc in the Python workers: arrays of up to 32 MB (its highest bound) reuse the memory of earlier arrays, and no
# memory is returned before the worker ends. Otherwise the system provides each array again, in pages that it first
# fills with zeros: a tenth of the CPU time of a backfill of 20 million units.
_KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


@contextmanager
def local_spark(cores: int | None = None) -> Iterator[SparkSession]:
    """Start Spark in this process, and stop it after the block. It needs no configuration file."""
    settings = load(None)
    threads = cores or len(os.sched_getaffinity(0))
    options = settings.spark.java_options or _JAVA_OPTIONS
    chosen = settings.spark.model_copy(update={"master": f"local[{threads}]", "ui_port": 0, "java_options": options})
    spark = start(settings.model_copy(update={"spark": chosen}), Jars(), with_streams=False)
    try:
        _silence_task_failures(spark)
        spark.sparkContext.environment.update(_KEPT_MEMORY)
        with ThreadPoolExecutor(max_workers=1) as thread:  # while it starts, the command reads the store
            thread.submit(_start_workers, spark.sparkContext, threads)
            with our_errors():
                yield spark
    finally:
        spark.stop()


def _start_workers(spark: SparkContext, count: int) -> None:
    """Run a first job that starts the Python workers and loads what the JVM needs for jobs: that takes a second."""
    spark.parallelize(range(count), count).map(abs).collect()


def _silence_task_failures(spark: SparkSession) -> None:
    """Keep Spark from logging failed tasks."""
    # Each failed task ends the command, which reports on one line what the task refused. Unexpected errors are raised
    # with everything that Spark reports about them.
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.scheduler.TaskSetManager", log4j.Level.OFF)
