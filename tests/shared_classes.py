"""Spark's classes, loaded and checked once for all tests: a class data sharing archive, which halves a JVM's start.

The tests start the service half a hundred times. The JVM ignores an archive that does not fit it or its class path.
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import psutil

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"  # fits what is installed there
_LATEST_SECONDS = 240
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
CONFIG = f"""
[spark]
ui_port = 0
java_options = "-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={{archive}} {_QUIET}"
local_dir = "{{folder}}/spark"
[state]
dir = "{{folder}}/state"
[checkpoints]
dir = "{{folder}}/checkpoints"
"""


@cache
def java_options() -> str:
    """Options of a driver's JVM that use the archive; makes it if there is none, in a minute."""
    if not ARCHIVE.exists():
        _make()
    return f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() else ""


def _make() -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="spark-classes-") as folder:
        made = Path(folder) / "classes.jsa"
        command = [sys.executable, "-m", "tests.shared_classes", folder, str(made)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout.decode()
        deadline = time.monotonic() + _LATEST_SECONDS
        while time.monotonic() < deadline and _jvm_of(folder):  # it writes the archive when it ends, after Python
            time.sleep(0.5)
        if made.exists():
            made.replace(ARCHIVE)


def _jvm_of(folder: str) -> bool:
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in each for each in process.info["cmdline"] or ()) and process.pid != os.getpid():
            return True
    return False


def _use_spark(folder: str, archive: str) -> None:
    """Do a little of what the service does, so that its classes are loaded."""
    from pyspark.sql import DataFrame

    from streaming.config.load import load
    from streaming.spark.session import fetched_jars, start

    config = Path(folder, "config.toml")
    config.write_text(CONFIG.format(folder=folder, archive=archive))
    settings = load(config)
    spark = start(settings, fetched_jars(settings))
    spark.sparkContext.setLogLevel("OFF")
    table = f"{folder}/table"

    def batch(rows: DataFrame, _number: int) -> None:
        kept = rows.mapInPandas(lambda frames: frames, rows.schema).repartition(2)
        kept.write.format("delta").mode("append").save(table)

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    query = stream.writeStream.foreachBatch(batch).option("checkpointLocation", f"{folder}/checkpoint").start()
    while not Path(table, "_delta_log", f"{1:020}.json").exists():
        if error := query.exception():
            raise error
        time.sleep(0.2)
    query.stop()
    spark.read.format("delta").load(table).groupBy("value").count().collect()
    spark.stop()


if __name__ == "__main__":
    _use_spark(*sys.argv[1:])
