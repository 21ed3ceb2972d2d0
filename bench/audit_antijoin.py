"""Measures how long the audit takes to compare a listing of ledgers with the references to them, both ways.

    .venv/bin/python -m bench.audit_antijoin [--listed 11000000] [--referenced 10000000] [--runs 5]

It creates both sides once, as Parquet: the listing in the order of the folders, the references in the order of their
owners, 5 % of them without a ledger. Each run is the audit's own comparison (streaming.audit.reference_join) on two
cores, and writes its findings. After two warm-ups it prints the median with its range, and the peak memory of all
processes.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.sampler import Sampler
from bench.session import command_line, local_spark
from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.spark.session import NEEDED
from udfs import columns as c

WARM_UPS = 2
TOPICS = 100_000


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--listed", type=int, default=11_000_000)
    parser.add_argument("--referenced", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    spark = local_spark(NEEDED)
    with tempfile.TemporaryDirectory() as folder, Sampler() as sampler:
        here = Path(folder)
        listed, references = generate(spark, here, options.listed, options.referenced)
        seconds = []
        for _ in range(WARM_UPS + options.runs):
            seconds.append(compare(listed, references, here))
            print(f"{seconds[-1]:.2f} s", flush=True)
        del seconds[:WARM_UPS]
        findings = _findings(spark, here)
    result = {
        "listed": options.listed,
        "referenced": options.referenced,
        **findings,
        "seconds_median": round(statistics.median(seconds), 2),
        "seconds_range": [round(min(seconds), 2), round(max(seconds), 2)],
        **sampler.peak_mb(),
    }
    print(json.dumps(result, indent=2))
    spark.stop()


def generate(spark: SparkSession, here: Path, listed: int, referenced: int) -> tuple[DataFrame, DataFrame]:
    nothing = F.lit(None).cast("string")
    ledgers = spark.range(listed).select(F.col("id").alias(c.LEDGER_ID), nothing.alias(a.PATH), nothing.alias(c.DETAIL))
    # every 20th reference names a ledger that was not listed
    missing = F.col("id") % 20 == 0
    ids = F.when(missing, F.col("id") + listed).otherwise(F.col("id"))
    topic = F.concat(F.lit("public/ns"), F.pmod(F.xxhash64("id"), F.lit(50)), F.lit("/persistent/t"))
    owner = F.concat(topic, F.pmod(F.xxhash64("id"), F.lit(TOPICS)))
    owned = spark.range(referenced).select(ids.alias(c.LEDGER_ID), owner.alias(a.MANAGED_LEDGER), F.col("id"))
    rows = owned.select(
        c.LEDGER_ID,
        F.lit(True).alias(a.IN_BOOKKEEPER),
        nothing.alias(c.UUID),
        nothing.alias(a.STORE),
        F.lit(None).cast("boolean").alias(a.IS_COMPLETE),
        F.lit(1_000).cast("bigint").alias(c.BYTES),
        F.concat(F.lit("data:"), F.col(a.MANAGED_LEDGER)).alias(c.REFERENCE_KEY),
        F.lit("MANAGED_LEDGER").alias(c.COMPONENT),
        a.MANAGED_LEDGER,
        F.substring_index(a.MANAGED_LEDGER, "/", 2).alias(a.NAMESPACE),
        nothing.alias(a.PATH),
        nothing.alias(c.DETAIL),
    )
    shuffled = rows.repartition(32, c.REFERENCE_KEY)
    ledgers.repartitionByRange(32, c.LEDGER_ID).write.parquet(str(here / "ledgers"))
    shuffled.write.parquet(str(here / "references"))
    return spark.read.parquet(str(here / "ledgers")), spark.read.parquet(str(here / "references"))


def compare(listed: DataFrame, references: DataFrame, here: Path) -> float:
    started = time.perf_counter()
    reference_join.one_sided(listed, references).write.mode("overwrite").parquet(str(here / "compared"))
    compared = listed.sparkSession.read.parquet(str(here / "compared"))
    reference_join.unreferenced(compared).write.mode("overwrite").parquet(str(here / "unreferenced"))
    reference_join.unlisted(references, compared).write.mode("overwrite").parquet(str(here / "unlisted"))
    return time.perf_counter() - started


def _findings(spark: SparkSession, here: Path) -> dict[str, int]:
    return {name: spark.read.parquet(str(here / name)).count() for name in ("unreferenced", "unlisted")}


if __name__ == "__main__":
    main()
