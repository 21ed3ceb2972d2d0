"""Shared by the benchmarks: the command line, and a quiet Spark on two cores."""

import argparse
import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

# The measured processes compile the modules once, as for users, and not at each start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_OWN = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
}


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Create a parser whose --help is the script's docstring, unchanged."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def local_spark(conf: Mapping[str, str]) -> SparkSession:
    """Start Spark on local[2] with a heap of 2 GiB and these further settings."""
    builder = SparkSession.builder.appName("bench").master("local[2]")
    for key, value in {**_OWN, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
