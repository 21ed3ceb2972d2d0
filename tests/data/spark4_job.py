"""Runs queries with the source "pulsar-frames"; see tests/integration/spark4_jobs.py.

Each line of the input is a command in JSON; a query runs until everything is read, and its answer starts with @.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from streaming.adapters.pulsar.source.data_source import NAME, PulsarDataSource

_POSITION = ["topic", "ledger_id", "entry_id", "batch_index"]


class Effects:
    """Counts the effects of a query, and ends the process with SIGKILL at one of them."""

    def __init__(self, dies_at: int) -> None:
        self._dies_at = dies_at
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count == self._dies_at:
            os.killpg(0, signal.SIGKILL)


def run(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of each batch to a file of its own; one more for each time that the batch runs."""
    effect = Effects(command.get("dies_at", 0))
    folder = Path(command["folder"])
    folder.mkdir(parents=True, exist_ok=True)

    def write(batch: DataFrame, number: int) -> None:
        effect()
        table = batch.toArrow()  # type: ignore[operator]  # PySpark 3.5 has no such method
        table = table.sort_by([(name, "ascending") for name in _POSITION]).combine_chunks()
        content = table.to_batches()[0].serialize().to_pybytes() if table.num_rows else b""
        attempt = len([*folder.glob(f"{number:04}-*.arrow")])
        partial = folder / f"partial-{number:04}"
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        partial.rename(folder / f"{number:04}-{attempt}-{hashlib.sha256(content).hexdigest()}.arrow")
        effect()

    started_s = time.monotonic()
    interval = command.get("trigger")  # of a query that runs for some seconds
    try:
        stream = spark.readStream.format(NAME).options(**command["options"]).load().writeStream
    except Exception as error:
        return {"refused": str(error)}
    stream = (stream.foreachBatch(write) if command["writes"] else stream.format("noop")).option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    query = stream.trigger(**({"processingTime": interval} if interval else {"availableNow": True})).start()
    try:
        query.awaitTermination(*([command["seconds"]] if interval else []))
        query.stop()
    except Exception as error:
        return {"error": str(error)}
    return {
        "seconds": time.monotonic() - started_s,
        "progress": [
            {key: progress[key] for key in ("batchId", "numInputRows", "durationMs")}
            for progress in query.recentProgress
        ],
    }


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.local.dir", os.environ["TMPDIR"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(PulsarDataSource)  # type: ignore[attr-defined]
    for line in sys.stdin:
        sys.stdout.write(f"@{json.dumps(run(spark, json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
