"""The Java archives that the program needs, each with its SHA-512; streaming.spark.ivy fetches them."""

from pathlib import Path

from streaming.errors import ConfigError
from streaming.spark.ivy import Artifact, Progress, fetch

# The connector is a Scala 2.12 build for one Spark line: another Spark minor needs another coordinate here.
CONNECTORS = {
    "3.5": Artifact(
        "io.streamnative.connectors",
        "pulsar-spark-connector_2.12",
        "3.1.1.4",
        "jar",
        "",
        36_065_628,
        "04622a3f1ef2c81ce4cfa6b230806bf1a1c1199fa13a6fbe8831fcdb3aa5addd0a3502d8e853f6d4552c2cd0f9f411e30d6b36a02c8ccc726f8854c03de37a9e",
    ),
}
# Hadoop's S3 client of the Hadoop that PySpark 3.5 ships, and the SDK it was built with.
S3A = (
    Artifact(
        "org.apache.hadoop",
        "hadoop-aws",
        "3.3.4",
        "jar",
        "",
        962_685,
        "b48a67a6af0b9885c05459b81d97ec07c30e30f889f6730966771d6a6d70cb3e856c29661b17c16a62a07044a4655467d682147b52a89651a137d146181fc284",
    ),
    Artifact(
        "com.amazonaws",
        "aws-java-sdk-bundle",
        "1.12.262",
        "jar",
        "",
        280_645_251,
        "4231e69dfc4b952575579d5310e97abfc931f44f2184a71ce2072970d12623200f3adb346fea131c75c515188f665ae7912d2516becc14307cda144acb52e3f6",
    ),
)


def jars(cache: Path | None = None, progress: Progress | None = None, spark: str | None = None) -> list[Path]:
    """The connector's jar for a Spark version (default: the installed one), fetched if missing.

    Raises ConfigError if no connector is known for that version, UnavailableError if they can't be fetched.
    """
    return fetch([connector(spark or _installed_spark())], cache=cache, progress=progress)


def connector(spark_version: str) -> Artifact:
    """The connector that was built for this Spark version. Raises ConfigError if there is none."""
    minor = ".".join(spark_version.split(".")[:2])
    if minor not in CONNECTORS:
        known = ", ".join(sorted(CONNECTORS))
        raise ConfigError(f"no Pulsar connector is known for Spark {spark_version}: install PySpark {known}")
    return CONNECTORS[minor]


def _installed_spark() -> str:
    from importlib.metadata import version

    return version("pyspark")
