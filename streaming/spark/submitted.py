"""Under spark-submit: its own options win over our configuration, except where our jobs would not be safe.

1. A key that spark-submit was given (--conf, --master, a properties file) keeps the value that it was given.
2. If that value contradicts ours for a key in FIXED, the start is refused with the reason.
3. Delta's extension is added to other extensions of Spark SQL.
"""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streaming.errors import ConfigError

if TYPE_CHECKING:
    from streaming.config.sections import SparkSettings

_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # spark-submit sets this variable for the Python that it starts
LOOPBACK = "127.0.0.1"
_EXTENSIONS = "spark.sql.extensions"
_S3A = "spark.hadoop.fs.s3a."
_OF_BUCKET = re.compile(rf"{re.escape(_S3A)}bucket\..+\.endpoint(\.region)?")
# Keys that must have our value, and what would happen otherwise.
FIXED = {
    "spark.speculation": "Spark would run second copies of tasks that delete",
    "spark.sql.session.timeZone": "times would be read in another zone than they were written in",
    "spark.pulsar.client.cache.timeout": "the connector would close clients that a query is using",
    "spark.sql.catalog.spark_catalog": "Spark could not write the Delta table of waiting retries",
    "spark.sql.streaming.checkpointFileManagerClass": "a checkpoint that could not be written to S3 could go unnoticed",
    f"{_S3A}endpoint": "Spark would keep its checkpoints in another store than the one that we read them from",
    f"{_S3A}endpoint.region": "Spark would keep its checkpoints in another store than the one that we read them from",
}


def is_submitted() -> bool:
    """Whether spark-submit started this process: its JVM is then our parent process."""
    return _GATEWAY_PORT in os.environ


def given() -> dict[str, str]:
    """What spark-submit was given, from --conf, other options and properties files alike."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def chosen(spark: "SparkSettings") -> dict[str, str]:
    """The part of [spark] that a JVM which runs already can still take."""
    return {"spark.ui.port": str(spark.ui_port)}


def completed(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What to set beside what spark-submit was given. Raises ConfigError, naming every contradiction to FIXED."""
    wrong = [
        f"  {key}={given[key]}, and not {ours[key]}: {why}"
        for key, why in FIXED.items()
        if key in ours and key in given and given[key].lower() != ours[key].lower()
    ]
    # Hadoop lets an option of one bucket go before the same option of all buckets
    wrong += [
        f"  {key}: Spark would keep its checkpoints in another store than the one that we read them from"
        for key in given
        if f"{_S3A}endpoint" in ours and _OF_BUCKET.fullmatch(key)
    ]
    if wrong:
        raise ConfigError("\n".join(["spark-submit was given options with which it is not safe to run:", *wrong]))
    driver = {}
    if given.get("spark.master", "").startswith("local"):  # executors on other machines have to reach the driver
        driver = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    added = {key: value for key, value in {**ours, **driver}.items() if key not in given}
    if (
        _EXTENSIONS in ours
        and _EXTENSIONS in given
        and ours[_EXTENSIONS] not in re.split(r"\s*,\s*", given[_EXTENSIONS].strip())
    ):
        added[_EXTENSIONS] = f"{given[_EXTENSIONS]},{ours[_EXTENSIONS]}"
    return added
