"""The installed PySpark, which decides how Pulsar is read."""

from importlib.metadata import version


def spark_version() -> str:
    """Return the version of the installed PySpark."""
    return version("pyspark")


def has_connector() -> bool:
    """Whether the pulsar-spark connector reads Pulsar (PySpark 3.5); if not, our source "pulsar-frames" does."""
    return spark_version().startswith("3.5.")
