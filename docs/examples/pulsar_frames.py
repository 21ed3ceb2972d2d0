"""Copies topics to JSON files: `python docs/examples/pulsar_frames.py SERVICE_URL ADMIN_URL TOPICS FOLDER`.

It needs PySpark 4.2 or later, and the packages `streaming` and `udfs` on the driver and in the executors. Each run
copies what was published since the last one, and ends. Rows of messages are in FOLDER/messages; rows of all that is no
readable message are in FOLDER/others, with the reason in `detail`.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.adapters.pulsar.source.data_source import NAME, PulsarDataSource

SUBSCRIPTION = "copy-to-json"  # keeps ledgers until they are copied


def main(service_url: str, admin_url: str, topics: str, folder: Path) -> None:
    """Copy the topics, whose names are separated by commas."""
    spark = SparkSession.builder.appName("pulsar-frames").getOrCreate()
    spark.dataSource.register(PulsarDataSource)  # type: ignore[attr-defined]  # PySpark 3.5 has no dataSource
    rows = (
        spark.readStream.format(NAME)
        .option("serviceUrl", service_url)
        .option("adminUrl", admin_url)
        .option("topics", topics)
        .option("subscription", SUBSCRIPTION)
        .load()
    )

    def write(batch: DataFrame, number: int) -> None:
        # Spark may run a batch again after a crash; the batch then replaces what it has written before
        is_message = F.col("kind") == "MESSAGE"
        for name, part in (("messages", batch.where(is_message)), ("others", batch.where(~is_message))):
            part.write.mode("overwrite").json(str(folder / name / f"batch={number}"))

    query = (
        rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
