"""Spark for the commands of RocketMQ: local, with one thread for each core."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from streaming.config.load import load
from streaming.rocketmq.failures import our_errors
from streaming.spark.session import Jars, start

# Python does the work here, and Spark's JVM hands bytes about: its second compiler and a collector with threads took
# two fifths of its CPU time in a backfill of 10 million units, and made nothing faster.
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


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
        with our_errors():
            yield spark
    finally:
        spark.stop()


def _leave_failures_to_us(spark: SparkSession) -> None:
    """Have Spark log no failed task: each ends the command, which says in a line what the task has refused.

    What nobody has thought of is raised with all that Spark tells of it.
    """
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.scheduler.TaskSetManager", log4j.Level.OFF)
