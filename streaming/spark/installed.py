"""The installed PySpark, which decides how Pulsar is read, and the versions that were tested."""

import sys
from importlib.metadata import PackageNotFoundError, version

from streaming.errors import ConfigError

_TESTED = {"3.5": {(3, 11)}, "4.2": {(3, 11)}, "4.3": {(3, 11), (3, 12), (3, 13)}}  # minor versions and their Pythons
_REMEDY = (
    "install ledger-reaper[spark35] for PySpark 3.5 and its Pulsar connector (Python 3.11), or ledger-reaper[spark4] "
    "for PySpark 4 (docs/deploying.md)"
)


def missing() -> ConfigError:
    """Return the error for an environment without PySpark."""
    return ConfigError(f"PySpark is not installed: {_REMEDY}")


def spark_version() -> str:
    """Return the version of the installed PySpark. Raises ConfigError if there is none."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        raise missing() from None


def require_tested() -> None:
    """Raise ConfigError unless the installed PySpark was tested, with this version of Python."""
    spark, python = spark_version(), sys.version_info[:2]
    if python not in _TESTED.get(".".join(spark.split(".")[:2]), ()):
        raise ConfigError(f"PySpark {spark} was not tested with Python {python[0]}.{python[1]}: {_REMEDY}")


def has_connector() -> bool:
    """Whether the pulsar-spark connector reads Pulsar (PySpark 3.5); if not, our source "pulsar-frames" does.

    Raises ConfigError if there is no PySpark.
    """
    return spark_version().startswith("3.5.")
