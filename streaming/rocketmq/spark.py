"""Spark for the commands of RocketMQ: local, with one thread for each core."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from streaming.config.load import load
from streaming.rocketmq.failures import our_errors
from streaming.spark.session import Jars, start


@contextmanager
def local_spark(cores: int | None = None) -> Iterator[SparkSession]:
    """Start Spark in this process, and end it afterwards. No configuration file is needed."""
    settings = load(None)
    threads = cores or len(os.sched_getaffinity(0))
    chosen = settings.spark.model_copy(update={"master": f"local[{threads}]", "ui_port": 0})
    spark = start(settings.model_copy(update={"spark": chosen}), Jars(), with_streams=False)
    try:
        with our_errors():
            yield spark
    finally:
        spark.stop()
