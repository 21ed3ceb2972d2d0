"""Configures Spark for checkpoints on an object store, through Hadoop's S3A (our own access: streaming.config.stores).

Spark gets the endpoint and the region of the configuration, even if the environment contains others. It writes each
file under another name and then renames it, so that the file is complete or absent, and a failed write fails the batch.
"""

import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from streaming.config.sections import CheckpointSettings
from streaming.config.settings import Settings
from streaming.config.stores import endpoint_of, is_on_s3
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.spark.installed import has_connector

FILESYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_HADOOP = "spark.hadoop.fs.s3a."
_OF_SDK = re.compile(r"[^\n]*(?:com\.amazonaws|software\.amazon\.awssdk)\.[^\n]{0,300}")
# AWS's Java SDK 1, which S3A of Spark 3.5 uses, has its own name for all other tools' AWS_SHARED_CREDENTIALS_FILE.
_PROFILES, _JAVA_PROFILES = "AWS_SHARED_CREDENTIALS_FILE", "AWS_CREDENTIAL_PROFILES_FILE"

# The class that writes checkpoints, and the one that finds credentials where AWS's tools do. The former renames, which
# S3A does by copying a single object. AbortableStreamBasedCheckpointFileManager, which was written for S3, only logs
# that a file could not be written, and the batch continues as if the file existed.
_SPARK_3 = (
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",
    "com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
)
_SPARK_4 = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return Spark's options for checkpoints on an object store; empty if they are on a disk. None is a secret."""
    if not is_on_s3(settings.checkpoints.dir):
        return {}
    manager, credentials = _SPARK_3 if has_connector() else _SPARK_4
    return {
        "spark.sql.streaming.checkpointFileManagerClass": manager,
        f"{_HADOOP}endpoint": endpoint_of(settings.s3),
        f"{_HADOOP}endpoint.region": settings.s3.region,
        f"{_HADOOP}path.style.access": "true",  # pyarrow does the same if it is given an endpoint
        # our configuration contains no credentials: S3A reads them where AWS's own tools do, from variables, profile
        # files, or the machine's role
        f"{_HADOOP}aws.credentials.provider": credentials,
        f"{_HADOOP}fast.upload.buffer": "bytebuffer",  # a file of a kilobyte needs no temporary file
        f"{_HADOOP}directory.marker.retention": "keep",  # else each write deletes the markers of the folders above
    }


@contextmanager
def faults_named(checkpoints: CheckpointSettings) -> Iterator[None]:
    """Raise UnavailableError instead of a Java exception of Spark whose text reports that the store failed."""
    try:
        yield
    except Exception as error:
        fault = _OF_SDK.search(str(error)) if is_on_s3(checkpoints.dir) else None
        # our errors state more than Java's text, and the caller decides by their class
        if fault is None or isinstance(error, UnavailableError | SafetyError | ConfigError):
            raise
        raise UnavailableError(f"the checkpoints at {checkpoints.dir} can't be read or written: {fault[0]}") from error


def name_profiles_for_java(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have the JVM that is started next use the profile file of pyarrow and boto3."""
    if _PROFILES in environment:
        environment.setdefault(_JAVA_PROFILES, environment[_PROFILES])
