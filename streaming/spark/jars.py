"""Lists the Java archives that the program needs, each with its SHA-512, and finds them.

They come from the folder that the variable LEDGER_REAPER_JARS names, else from a folder that the caller provides, else
streaming.spark.ivy fetches them.
"""

import os
import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from streaming.errors import ConfigError
from streaming.spark.installed import has_connector, require_tested, spark_version
from streaming.spark.ivy import Artifact, Progress, are_fetched, fetch, sha512_of

# This variable names a folder with all archives (`ledger-reaper jars --to` creates it): then nothing is fetched.
FOLDER_VARIABLE = "LEDGER_REAPER_JARS"
SUMS = "SHA512SUMS"
# Our own: classes for kinds of credentials that the connector's Pulsar client does not know (`make credentials-jar`).
CREDENTIALS = Path(__file__).parent / "credentials.jar"

# A build for Scala 2.12 and Spark 3.5; there is none for the others, which read Pulsar by our own source.
CONNECTOR = Artifact(
    organisation="io.streamnative.connectors",
    name="pulsar-spark-connector_2.12",
    revision="3.1.1.4",
    extension="jar",
    classifier="",
    size_bytes=36_065_628,
    sha512="04622a3f1ef2c81ce4cfa6b230806bf1a1c1199fa13a6fbe8831fcdb3aa5addd0a3502d8e853f6d4552c2cd0f9f411e30d6b36a02c8ccc726f8854c03de37a9e",
)
# The S3 client for the version of Hadoop that PySpark ships, and the AWS SDK with which this client was built.
S3A_OF_SPARK_3 = (
    Artifact(
        organisation="org.apache.hadoop",
        name="hadoop-aws",
        revision="3.3.4",
        extension="jar",
        classifier="",
        size_bytes=962_685,
        sha512="b48a67a6af0b9885c05459b81d97ec07c30e30f889f6730966771d6a6d70cb3e856c29661b17c16a62a07044a4655467d682147b52a89651a137d146181fc284",
    ),
    Artifact(
        organisation="com.amazonaws",
        name="aws-java-sdk-bundle",
        revision="1.12.262",
        extension="jar",
        classifier="",
        size_bytes=280_645_251,
        sha512="4231e69dfc4b952575579d5310e97abfc931f44f2184a71ce2072970d12623200f3adb346fea131c75c515188f665ae7912d2516becc14307cda144acb52e3f6",
    ),
)
S3A_OF_SPARK_4 = (
    Artifact(
        organisation="org.apache.hadoop",
        name="hadoop-aws",
        revision="3.5.0",
        extension="jar",
        classifier="",
        size_bytes=938_071,
        sha512="68d112702267efaec0ed88fc1b9a0cf93fb6175f4cce2f6d72822c3ceda03651e9299d2284ec1a747f36671a5f47e0501884f9a7e218b3a2a530a00f77a99333",
    ),
    Artifact(
        organisation="software.amazon.awssdk",
        name="bundle",
        revision="2.35.4",
        extension="jar",
        classifier="",
        size_bytes=686_119_507,
        sha512="92117c93e34c8c8f5c7e27c0f29f9ae027a2d8ff186da7e40b4815cfeb1607b4cc121fd20fa7b58ee4cb692a4f5e919953e11263d831cc9b2b69c6bed124f6db",
    ),
    # S3A loads its classes even if no key selects it
    Artifact(
        organisation="software.amazon.s3.analyticsaccelerator",
        name="analyticsaccelerator-s3",
        revision="1.3.1",
        extension="jar",
        classifier="",
        size_bytes=2_473_459,
        sha512="a0a16fa26c8c10a149eb5d0823cef53005e3f02cf8ba2fa5c3ea2a87479885568bc55bf2355131c8198f6870f43daa9ce9fe4927b86415bf5e37cc45cf6d0204",
    ),
)


def connector() -> tuple[Artifact, ...]:
    """Return the connector for the installed PySpark; nothing if there is none, and our own source reads Pulsar.

    Raises ConfigError if this PySpark was not tested.
    """
    require_tested()
    return (CONNECTOR,) if has_connector() else ()


def s3a() -> tuple[Artifact, ...]:
    """Return what checkpoints on S3 need with the installed PySpark."""
    return S3A_OF_SPARK_3 if has_connector() else S3A_OF_SPARK_4


def jars(*, progress: Progress | None = None, provided: Path | None = None) -> list[Path]:
    """Return the paths of connector(). Raises what connector() and found() raise."""
    return found(connector(), progress=progress, provided=provided)


def are_here(others: Sequence[Artifact] = ()) -> bool:
    """Whether nothing has to be fetched for connector() and others. Raises what connector() does."""
    return folder() is not None or are_fetched([*connector(), *others])


def folder() -> Path | None:
    """Return the folder that FOLDER_VARIABLE names; None if it is not set."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).absolute() if named else None


def found(
    artifacts: Sequence[Artifact], *, progress: Progress | None = None, provided: Path | None = None
) -> list[Path]:
    """Return the artifacts' paths: in the folder that FOLDER_VARIABLE names, in `provided`, or fetched into the cache.

    Raises ConfigError if a file is missing in one of these folders or is not the tested file, UnavailableError if the
    files can't be fetched.
    """
    source = folder() or provided
    if source is None:
        return fetch(artifacts, progress=progress)
    paths = [source / artifact.file_name for artifact in artifacts]
    for path, artifact in zip(paths, artifacts, strict=True):
        if not path.is_file() or sha512_of(path) != artifact.sha512:
            raise ConfigError(
                f"{source} does not have the {path.name} that this version needs: create the folder with "
                f"`ledger-reaper jars --to`, or unset {FOLDER_VARIABLE}"
            )
    return paths


def copied(into: Path, progress: Progress | None = None) -> list[Path]:
    """Copy all archives that any configuration needs into a folder, together with a file of their SHA-512."""
    own = [CREDENTIALS] if has_connector() else []
    into.mkdir(parents=True, exist_ok=True)
    archives = found([*connector(), *s3a()], progress=progress)
    copies = [Path(shutil.copy(path, into)) for path in (*archives, *own)]
    sums = "".join(f"{sha512_of(path)}  {path.name}\n" for path in copies)
    (into / SUMS).write_text(sums, encoding="utf-8")
    return copies


def versions() -> tuple[str, str, str, str]:
    """Return the versions of this program, of PySpark, of the connector and of Python; "" for what is not there."""
    try:
        spark = spark_version()
        pulsar = "".join(each.revision for each in connector())
    except ConfigError:  # the watcher works without Spark
        spark = pulsar = ""
    return version("ledger-reaper"), spark, pulsar, platform.python_version()
