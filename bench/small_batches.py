"""Measures the cost of checking whether the connector delivered a complete small batch.

    .venv/bin/python -m bench.small_batches [--batches 40] [--messages 10]

A stream reads files instead of the connector, two per batch, as two partitions of a topic that stores exactly the
messages in them. Each batch is annotated, persisted and counted before the check, so that reading it is not measured.
The script then prints medians for the second half of the batches: the time of a check, the CPU time of all processes
during it, the number of Spark jobs and tasks, and how often Spark compiled generated code.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bench.session import command_line, local_spark
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.queries.delivery.completion import Completion
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.names import checkpoint_of
from streaming.queries.streams import messages
from streaming.schemas import REQUESTS
from streaming.spark.session import NEEDED, batches_of_messages
from udfs import columns as c
from udfs.formats.message_id import MessagePosition, serialize_message_id
from udfs.proto.message_id_pb2 import MessageIdData

TOPIC = "persistent://pulsar/system/__ledger_deletion"
PARTITIONS = [f"{TOPIC}-partition-{n}" for n in range(2)]
LEDGER = 7
_AS_THE_SERVICE = (
    NEEDED | dict([batches_of_messages()]) | {"spark.python.daemon.module": "streaming.spark.worker_daemon"}
)
SCHEMA = pa.schema(
    [
        (c.VALUE, pa.binary()),
        (c.KEY, pa.binary()),
        (c.TOPIC, pa.string()),
        (c.MESSAGE_ID, pa.binary()),
        (c.PUBLISH_TIME, pa.timestamp("us", "UTC")),
        (c.PROPERTIES, pa.map_(pa.string(), pa.string())),
    ]
)
REQUEST = json.dumps(
    {"topicName": "t/ns/persistent/x", "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": 7}
).encode()


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of checking a batch."""

    ms: float
    cpu_ms: float
    jobs: int
    tasks: int
    compilations: int


def _cpu_s() -> float:
    process = psutil.Process()
    times = [measured.cpu_times() for measured in (process, *process.children(recursive=True))]
    return sum(cpu.user + cpu.system for cpu in times)


def _compilations(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())


def _jobs(spark: SparkSession, newer_than: int) -> list[tuple[int, int]]:
    """Return (id, tasks) of the jobs that Spark has recorded."""
    context: Any = spark.sparkContext._jsc
    found = context.sc().statusStore().jobsList(None)
    jobs = [(found.apply(n).jobId(), found.apply(n).numTasks()) for n in range(found.size())]
    return [(job, tasks) for job, tasks in jobs if job > newer_than]


def write(folder: Path, batches: int, each: int) -> None:
    """Write the files of all batches, one per partition, each a second younger than the previous file."""
    folder.mkdir()
    now = datetime.now(UTC)
    for batch in range(batches):
        for number, partition in enumerate(PARTITIONS):
            ids = [serialize_message_id(MessagePosition(LEDGER, batch * each + n, number)) for n in range(each)]
            rows = [
                dict(zip(SCHEMA.names, (REQUEST, b"k", partition, message_id, now, {"a": "b"}), strict=True))
                for message_id in ids
            ]
            file = folder / f"{batch}-{number}.parquet"
            parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)
            written_s = time.time() - 2 * batches + 2 * batch + number
            os.utime(file, (written_s, written_s))


def begin(checkpoint: Path, number: int, each: int) -> None:
    """Write the end offsets of a batch as the connector does, and commit the previous batch."""
    for kind in ("offsets", "commits"):
        (checkpoint / kind).mkdir(parents=True, exist_ok=True)
    end = [*MessageIdData(ledgerId=LEDGER, entryId=(number + 1) * each - 1).SerializeToString()]
    ends = json.dumps(dict.fromkeys(PARTITIONS, end))
    (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}")
    if number:
        (checkpoint / "commits" / str(number - 1)).write_text("v1\n{}")


def run(scratch: Path, batches: int, each: int) -> list[Cost]:
    """Check so many batches, and return the cost of each check."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = local_spark(_AS_THE_SERVICE)
    try:
        write(scratch / "in", batches, each)
        config = scratch / "config.toml"
        config.write_text(f'[checkpoints]\ndir = "{scratch}/checkpoints"\n')
        settings, pulsar = load(config), MemoryPulsar()
        pulsar.known_namespaces.add("pulsar/system")
        pulsar.create_partitioned_topic(TOPIC, len(PARTITIONS))
        for partition in PARTITIONS:
            pulsar.partition(partition).ledgers = {LEDGER: batches * each}
        completion = Completion(
            spark=spark, settings=settings, admin=pulsar, read=_refuse, slots=ReadSlots(threading.Event(), lambda: 2)
        )
        costs: list[Cost] = []

        def check(source: DataFrame, batch_id: int) -> None:
            begin(Path(checkpoint_of(settings, REQUESTS)), batch_id, each)
            delivered = messages(source, 1_048_576, 2).persist()
            delivered.count()
            newest = max((job for job, _ in _jobs(spark, -1)), default=-1)
            compiled, cpu_s, began_s = _compilations(spark), _cpu_s(), time.monotonic()
            if completion(REQUESTS, batch_id, delivered).rows is not delivered:
                raise AssertionError("messages are reported missing")
            ms, cpu_ms = (time.monotonic() - began_s) * 1000, (_cpu_s() - cpu_s) * 1000
            jobs = _jobs(spark, newest)
            tasks = sum(tasks for _, tasks in jobs)
            costs.append(Cost(ms, cpu_ms, len(jobs), tasks, _compilations(spark) - compiled))
            delivered.unpersist()

        stream = spark.readStream.schema(from_arrow_schema(SCHEMA)).option("maxFilesPerTrigger", len(PARTITIONS))
        query = (
            stream.parquet(str(scratch / "in"))
            .writeStream.option("checkpointLocation", str(scratch / "stream"))
            .trigger(availableNow=True)
            .foreachBatch(check)
            .start()
        )
        query.awaitTermination()
        return costs
    finally:
        spark.stop()


def _refuse(_query: str, missing: object, /, *, gives_up: bool = False) -> DataFrame:
    raise AssertionError(f"{gives_up}: reported missing: {missing}")


def _print(costs: Sequence[Cost]) -> None:
    for field, values in zip(fields(Cost), zip(*map(astuple, costs), strict=True), strict=True):
        print(f"{field.name}: {statistics.median(values):g} ({min(values):g} to {max(values):g})")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--messages", type=int, default=10, help="of a batch, in all partitions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="small-batches-") as scratch:
        costs = run(Path(scratch), options.batches, options.messages // len(PARTITIONS))
    _print(costs[len(costs) // 2 :])


if __name__ == "__main__":
    main()
