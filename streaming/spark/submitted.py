"""Under spark-submit: its own options win over our configuration, except where our jobs would not be safe.

1. A key that spark-submit was given (--conf, --master, a properties file) keeps the value that it was given.
2. If that value contradicts ours for a key in FIXED, the start is refused with the reason.
3. Only the environment of the JVM says where Spark's UI listens (SPARK_LOCAL_IP; every address without it).
   spark-submit has started the JVM already. So if its environment does not say it, there is no UI.
"""

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from streaming.errors import ConfigError

if TYPE_CHECKING:
    from streaming.config.sections import SparkSettings

_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # spark-submit sets this variable for the Python that it starts
LOOPBACK = "127.0.0.1"
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  an operator chooses it, and we don't
NO_UI = "none; spark-submit needs SPARK_LOCAL_IP in its environment, the address that the UI is to listen on"
_LOCAL_IP, _PUBLIC_NAME = "SPARK_LOCAL_IP", "SPARK_PUBLIC_DNS"
_S3A = "spark.hadoop.fs.s3a."
_OF_BUCKET = re.compile(rf"{re.escape(_S3A)}bucket\..+\.endpoint(\.region)?")
# Keys that must have our value, and what would happen otherwise.
FIXED = {
    "spark.speculation": "Spark would run second copies of tasks that delete",
    "spark.sql.session.timeZone": "times would be read in another zone than they were written in",
    "spark.pulsar.client.cache.timeout": "the connector would close clients in use, or keep broken ones",
    "spark.sql.streaming.checkpointFileManagerClass": "a checkpoint that could not be written to S3 could go unnoticed",
    f"{_S3A}endpoint": "Spark would keep its checkpoints in another store than the one that we read them from",
    f"{_S3A}endpoint.region": "Spark would keep its checkpoints in another store than the one that we read them from",
}


def is_submitted() -> bool:
    """Whether spark-submit started this process: its JVM is then our parent process."""
    return _GATEWAY_PORT in os.environ


def is_local(master: str) -> bool:
    """Whether a master has its executors on the driver's own machine."""
    return master.startswith("local")


def is_yarns(property_of: Callable[[str], str | None]) -> bool:
    """Whether the driver's JVM, of which this tells a system property, is YARN's: its application master."""
    return property_of("spark.master") == "yarn" and property_of("spark.submit.deployMode") == "cluster"


def given() -> dict[str, str]:
    """What spark-submit was given, from --conf, other options and properties files alike."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def listen_on(address: str, environment: MutableMapping[str, str]) -> None:
    """Have a JVM that is started with this environment listen there with Spark's UI.

    Its URL names this address, unless the environment names another one for it (SPARK_PUBLIC_DNS).
    """
    environment.pop(_LOCAL_IP, None)
    if address not in EVERYWHERE:
        environment[_LOCAL_IP] = address
        environment.setdefault(_PUBLIC_NAME, address)


def chosen(spark: "SparkSettings", environment: Mapping[str, str]) -> dict[str, str]:
    """The part of [spark] that a JVM which runs already, with this environment, can still take."""
    if spark.ui_address in EVERYWHERE or environment.get(_LOCAL_IP):
        return {"spark.ui.port": str(spark.ui_port)}
    return {"spark.ui.port": str(spark.ui_port), "spark.ui.enabled": "false"}


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
    if is_local(given.get("spark.master", "")):  # executors on other machines have to reach the driver
        driver = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {key: value for key, value in {**ours, **driver}.items() if key not in given}
