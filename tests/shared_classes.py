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

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"  # fits what is installed there
_LATEST_SECONDS = 240


@cache
def java_options() -> str:
    """Options of a driver's JVM that use the archive; makes it if there is none, in a minute."""
    if not ARCHIVE.exists():
        _make()
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" if ARCHIVE.exists() else ""


def _make() -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="spark-classes-") as folder:
        made = Path(folder) / "classes.jsa"
        command = [sys.executable, "-m", "tests.shared_classes", folder, str(made)]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout.decode()
        deadline = time.monotonic() + _LATEST_SECONDS
        while time.monotonic() < deadline and _jvm_of(folder):  # it writes the archive when it ends, after Python
            time.sleep(0.5)
        if made.exists():
            made.replace(ARCHIVE)


def _jvm_of(folder: str) -> bool:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if any(folder in each for each in process.info["cmdline"] or ()) and process.pid != os.getpid():
            return True
    return False


def _use_spark(folder: str, archive: str) -> None:
    """Do a little of what the service does, so that its classes are loaded."""
    from pyspark.sql import DataFrame, SparkSession

    from streaming.artifacts import jars
    from streaming.session import NEEDED

    builder = SparkSession.builder.master("local[2]")
    conf = NEEDED | {
        "spark.jars": ",".join(str(jar) for jar in jars()),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.port": "0",
        "spark.local.dir": folder,
        "spark.driver.extraJavaOptions": f"-Xss8m -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={archive} "
        "-Xlog:cds=off -Xlog:cds+dynamic=off",
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
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
