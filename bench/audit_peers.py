"""Measures the audit's comparison beside two tools that do the same for files: find those without references.

    .venv/bin/python -m bench.audit_peers [--listed 1100000] [--referenced 1000000] [--runs 3]

The others are Iceberg's remove_orphan_files and Delta's vacuum. Each tool gets a listing (file_list_view, USING
INVENTORY) and reads the references from its own metadata; none deletes anything (dry run), and no file exists. Every
20th reference names a file that is not in the listing. The others run on Spark with a heap of 2 GiB, all on two cores,
once to warm up; then the script prints the median with its range. It compares the results of each run with the expected
ids, and exits with 1 if a tool found any others.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.audit_antijoin import compare, listing, references_to
from bench.session import command_line, local_spark
from streaming.audit import audit_columns as a
from streaming.audit.tables import Tables
from streaming.spark.ivy import Artifact, fetch
from streaming.spark.session import NEEDED
from udfs import columns as c

ICEBERG = Artifact(
    organisation="org.apache.iceberg",
    name="iceberg-spark-runtime-3.5_2.12",
    revision="1.9.2",
    extension="jar",
    classifier="",
    size_bytes=45_381_197,
    sha512="687e3ddb0e47cd5e1a5c15e13b3d94f63208219610fe0847786cb55ae8800a26d2d713626a9758157500e8468fdbd891533924236cfdd5119c4e7b81ae0249b8",
)
DELTA = (
    Artifact(
        organisation="io.delta",
        name="delta-spark_2.12",
        revision="3.3.2",
        extension="jar",
        classifier="",
        size_bytes=7_120_414,
        sha512="0599674293c8719f7a90c658e53aec59ac12b0a95f78dc272b91dcdd90fb43df15f6dccf537fa64990295c45b0112b8091b3081ee41dc654f35c2346e65b988b",
    ),
    Artifact(
        organisation="io.delta",
        name="delta-storage",
        revision="3.3.2",
        extension="jar",
        classifier="",
        size_bytes=32_229,
        sha512="2004d9d0eb7634a722a548c718555fdcb70593354df9332ae51691f01faebbaffd92211fac88498d2e90b4b54aa47c56a0e96ba3a8201372d86d805a323e4d01",
    ),
)
MISSING_EVERY = 20
# adds files that do not exist to a table's metadata; this would take an hour from Python
APPEND = """
import java.util.stream.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.*;
import org.apache.iceberg.hadoop.HadoopTables;

public class Append {
  public static void main(String[] a) {
    Table table = new HadoopTables(new Configuration()).load(a[0]);
    long files = Long.parseLong(a[1]), listed = Long.parseLong(a[2]);
    for (long start = 0; start < files; start += 200_000) {
      AppendFiles append = table.newFastAppend();
      LongStream.range(start, Math.min(files, start + 200_000)).forEach(n -> append.appendFile(
          DataFiles.builder(table.spec()).withPath(a[0] + "/data/" + (n % 20 == 0 ? n + listed : n) + ".parquet")
              .withFileSizeInBytes(1000).withRecordCount(10).withFormat(FileFormat.PARQUET).build()));
      append.commit();
    }
  }
}
"""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--listed", type=int, default=1_100_000)
    parser.add_argument("--referenced", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    jars = fetch([ICEBERG, *DELTA])
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        spark = local_spark(_conf(jars, here))
        makers = {"ledger-reaper": _ours, "iceberg remove_orphan_files": _iceberg, "delta vacuum": _delta}
        expected = _to_be_found(spark, options.listed, options.referenced).cache()
        wrong = []
        for name, maker in makers.items():
            run = maker(spark, here, options.listed, options.referenced)
            run()
            seconds = []
            for _ in range(options.runs):
                started = time.perf_counter()
                ids = run()
                seconds.append(round(time.perf_counter() - started, 2))
                wrong += [f"{name}: {fault}" for fault in _faults(ids, expected)]
            result = {
                "median_s": statistics.median(seconds),
                "range_s": [min(seconds), max(seconds)],
                "found": ids.count(),
            }
            print(json.dumps({name: result}), flush=True)
        spark.stop()
    if wrong:
        sys.exit("\n".join(wrong))


def _to_be_found(spark: SparkSession, listed: int, referenced: int) -> DataFrame:
    """Return the listed ids without references."""
    ids = spark.range(listed)
    return ids.where((F.col("id") % MISSING_EVERY == 0) | (F.col("id") >= referenced))


def _faults(found: DataFrame, expected: DataFrame) -> list[str]:
    """Describe how many ids a tool missed, and how many it found wrongly."""
    missed, wrong = expected.exceptAll(found).count(), found.exceptAll(expected).count()
    return [f"missed {missed} and found {wrong} wrongly"] if missed or wrong else []


def _conf(jars: list[Path], here: Path) -> dict[str, str]:
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    return NEEDED | {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": f"{here}/ice",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }


def _ours(spark: SparkSession, here: Path, listed: int, referenced: int) -> Callable[[], DataFrame]:
    tables = Tables(here / "tables", Event())
    ledgers = tables.keep_batches(listing(listed), a.LISTED)
    references = tables.keep_batches(references_to(listed, referenced), a.REFERENCE)

    def run() -> DataFrame:
        _seconds, unreferenced, _unlisted = compare(tables, ledgers, references)
        with unreferenced.reader() as reader:
            pq.write_table(reader.read_all(), here / "unreferenced.parquet")
        return spark.read.parquet(str(here / "unreferenced.parquet")).select(F.col(c.LEDGER_ID).alias("id"))

    return run


def _ids(paths: DataFrame) -> DataFrame:
    """Return the ids in the names of files."""
    return paths.select(F.regexp_extract(paths.columns[0], r"/data/(\d+)\.parquet$", 1).cast("bigint").alias("id"))


def _listing(spark: SparkSession, here: Path, listed: int, location: str) -> DataFrame:
    path = here / f"listing-{Path(location).parent.name}"
    names = F.concat(F.lit(f"{location}/data/"), F.col("id").cast("string"), F.lit(".parquet"))
    spark.range(listed).select(names.alias("path")).write.parquet(str(path))
    return spark.read.parquet(str(path))


def _iceberg(spark: SparkSession, here: Path, listed: int, referenced: int) -> Callable[[], DataFrame]:
    location = f"{here}/ice/db/t"
    spark.sql("CREATE TABLE ice.db.t (id bigint) USING iceberg")
    (here / "Append.java").write_text(APPEND)
    pyspark_jars = Path(pyspark.__path__[0]) / "jars"
    path = f"{fetch([ICEBERG])[0]}:{pyspark_jars}/*"
    command = ["java", "-Xmx2g", "-cp", path, str(here / "Append.java"), location, str(referenced), str(listed)]
    subprocess.run(command, check=True, capture_output=True)
    spark.sql("REFRESH TABLE ice.db.t")
    files = _listing(spark, here, listed, location)
    then = F.lit("2020-01-01 00:00:00").cast("timestamp")
    files.select(F.col("path").alias("file_path"), then.alias("last_modified")).createOrReplaceTempView("listing")

    def run() -> DataFrame:
        call = "CALL ice.system.remove_orphan_files(table => 'db.t', file_list_view => 'listing', dry_run => true)"
        return _ids(spark.sql(call))

    return run


def _delta(spark: SparkSession, here: Path, listed: int, referenced: int) -> Callable[[], DataFrame]:
    location = f"{here}/delta/t"
    log = Path(location) / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    head = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema)}
    with (log / f"{0:020d}.json").open("w") as out:
        out.write(json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}) + "\n")
        out.write(json.dumps({"metaData": head | {"partitionColumns": [], "configuration": {}}}) + "\n")
        for number in range(referenced):
            name = number + listed if number % MISSING_EVERY == 0 else number
            add = {"path": f"data/{name}.parquet", "partitionValues": {}, "size": 1000, "modificationTime": 1}
            out.write(json.dumps({"add": add | {"dataChange": True}}) + "\n")
    # with the scheme: Delta treats a path without a scheme as a file outside the table
    files = _listing(spark, here, listed, f"file:{location}")
    inventory = files.select(
        "path",
        F.lit(1000).cast("bigint").alias("length"),
        F.lit(False).alias("isDir"),
        F.lit(1).cast("bigint").alias("modificationTime"),
    )
    # written and read once, because Delta accepts only nullable columns
    inventory.write.parquet(f"{here}/inventory")
    spark.read.parquet(f"{here}/inventory").createOrReplaceTempView("inventory")

    def run() -> DataFrame:
        sql = f"VACUUM delta.`{location}` USING INVENTORY (SELECT * FROM inventory) RETAIN 0 HOURS DRY RUN"
        return _ids(spark.sql(sql))

    return run


if __name__ == "__main__":
    main()
