"""Where state lies: a local path or a URI, opened as a pyarrow filesystem."""

from functools import lru_cache
from pathlib import Path

import pyarrow.fs as pafs

from streaming.errors import UnavailableError


def open_filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    """Filesystem and path of a local path or a URI (file://, hdfs://, s3://). Raises UnavailableError."""
    try:
        if "://" in location:
            return _of_uri(location)
        return pafs.LocalFileSystem(), str(Path(location).absolute())
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{shown(location)} can't be opened: {error}") from error


def shown(location: str) -> str:
    """A location for people: without the options of a URI."""
    return location.partition("?")[0] if "://" in location else location


@lru_cache(maxsize=32)  # a client of an object store is worth keeping: the positions are asked for twice a second
def _of_uri(location: str) -> tuple[pafs.FileSystem, str]:
    filesystem, path = pafs.FileSystem.from_uri(location)
    return filesystem, path
