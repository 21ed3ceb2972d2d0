"""A local Spark session for all Spark tests: small, quiet, without UI."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.spark.session import NEEDED
from tests.s3_folders import on_s3, s3_server  # noqa: F401  pytest finds fixtures by their names here

JVM = ("-Xss8m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


# Spark starts its Python workers once, and they keep this environment.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "any")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "any")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    import sys

    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch: Path = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.appName("tests").master("local[2]")
    conf = NEEDED | {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # a few rows are processed faster than code is compiled for them, or a plan optimised
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.python.daemon.module": "streaming.spark.worker_daemon",  # as the service's session
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": " ".join((*JVM, f"-Djava.io.tmpdir={scratch}")),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
