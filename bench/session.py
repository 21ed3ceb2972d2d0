"""Shared by the benchmarks: the command line, a cluster, and a quiet Spark on two cores."""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from streaming.sandbox import cluster as clusters
from streaming.sandbox.cluster import Cluster

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


@contextmanager
def scratch_cluster(name: str) -> Iterator[Cluster]:
    """Yield a new cluster; it is stopped and its folder removed at the end."""
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        home = Path(folder)
        try:
            yield clusters.up(home)
        finally:
            clusters.down(home)


def local_spark(conf: Mapping[str, str]) -> SparkSession:
    """Start Spark on local[2] with a heap of 2 GiB and these further settings."""
    builder = SparkSession.builder.appName("bench").master("local[2]")
    for key, value in {**_OWN, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
