"""Under spark-submit: its own options win over our configuration, except where our jobs would not be safe.

1. A key that spark-submit was given (--conf, --master, a properties file) keeps the value that it was given.
2. If that value contradicts ours for a key in FIXED, the start is refused with the reason.
3. There is no UI unless spark-submit's environment contains its address.
"""

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from streaming.errors import ConfigError

if TYPE_CHECKING:
    from streaming.config.sections import SparkSettings

_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # spark-submit sets this variable for the Python that it starts
# Of the driver's JVM; spark.java_options follow. Python does most of the work, and the JVM's second compiler (C2) costs
# more CPU than its code saves: 14 s at a start, and in a backlog of 300,000 requests as well (bench/README.md).
JAVA_OPTIONS = ("-Xss8m", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1")
LOOPBACK = "127.0.0.1"
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  an operator chooses it, and we don't
NO_UI = "none; spark-submit needs SPARK_LOCAL_IP in its environment, the address that the UI is to listen on"
_LOCAL_IP, _PUBLIC_NAME = "SPARK_LOCAL_IP", "SPARK_PUBLIC_DNS"
_S3A = "spark.hadoop.fs.s3a."
_OF_BUCKET = re.compile(rf"{re.escape(_S3A)}bucket\..+\.endpoint(\.region)?")
_OTHER_STORE = "Spark would keep its checkpoints in another store than the one from which they are read"
# Keys that must have our value, and what would happen otherwise.
FIXED = {
    "spark.speculation": "Spark would run second copies of tasks that delete",
    "spark.sql.session.timeZone": "times would be read in another time zone than they were written in",
    "spark.pulsar.client.cache.timeout": "the connector would close clients in use, or keep broken clients",
    "spark.sql.streaming.checkpointFileManagerClass": "a checkpoint that could not be written to S3 could go unnoticed",
    f"{_S3A}endpoint": _OTHER_STORE,
    f"{_S3A}endpoint.region": _OTHER_STORE,
}


def is_submitted() -> bool:
    """Whether spark-submit started this process: its JVM is then our parent process."""
    return _GATEWAY_PORT in os.environ


def is_local(master: str) -> bool:
    """Whether a master runs its executors on the driver's own machine."""
    return master.startswith("local")


def is_yarns(property_of: Callable[[str], str | None]) -> bool:
    """Whether the driver's JVM is YARN's application master.

    property_of: returns a system property of that JVM.
    """
    return property_of("spark.master") == "yarn" and property_of("spark.submit.deployMode") == "cluster"


def given() -> dict[str, str]:
    """Return the properties that spark-submit was given by --conf, other options and properties files."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def listen_on(address: str, environment: MutableMapping[str, str]) -> None:
    """Have Spark's UI listen on this address, in a JVM that is started with this environment.

    The UI's URL contains this address, unless the environment has another for it (SPARK_PUBLIC_DNS).
    """
    environment.pop(_LOCAL_IP, None)
    if address not in EVERYWHERE:
        environment[_LOCAL_IP] = address
        environment.setdefault(_PUBLIC_NAME, address)


def chosen(spark: "SparkSettings", environment: Mapping[str, str]) -> dict[str, str]:
    """Return those settings of [spark] that can still be applied to a running JVM with this environment."""
    if spark.ui_address in EVERYWHERE or environment.get(_LOCAL_IP):
        return {"spark.ui.port": str(spark.ui_port)}
    # spark-submit has started the JVM already, and without SPARK_LOCAL_IP in its environment, the UI would listen on
    # every address
    return {"spark.ui.port": str(spark.ui_port), "spark.ui.enabled": "false"}


def completed(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options to set besides those that spark-submit was given.

    Raises ConfigError, naming every contradiction to FIXED.
    """
    faults = [
        f"  {key}={given[key]}, and not {ours[key]}: {why}"
        for key, why in FIXED.items()
        if key in ours and key in given and given[key].lower() != ours[key].lower()
    ]
    # in Hadoop an option of one bucket takes precedence over the same option of all buckets
    faults += [f"  {key}: {_OTHER_STORE}" for key in given if f"{_S3A}endpoint" in ours and _OF_BUCKET.fullmatch(key)]
    if faults:
        raise ConfigError("\n".join(["spark-submit was given options with which it is not safe to run:", *faults]))
    driver = {}
    if is_local(given.get("spark.master", "")):  # executors on other machines must be able to reach the driver
        driver = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {key: value for key, value in {**ours, **driver}.items() if key not in given}
