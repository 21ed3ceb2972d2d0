"""Spark for the commands of RocketMQ: local, with one thread for each core, and errors of tasks as errors of ours."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from streaming.config.load import load
from streaming.errors import ReaperError
from streaming.spark.failures import translated
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


@contextmanager
def our_errors() -> Iterator[None]:
    """Turn what a task raised, which comes back inside a Java exception, into the error of ours that it was."""
    try:
        yield
    except ReaperError:
        raise
    except Exception as error:
        ours = translated(error)
        if ours is error:
            raise
        raise ours from error
