"""RocketMQ's jars, as Maven would resolve them, downloaded once into the user's cache.

The lists beside this module (`jars-VERSION.txt`) pin every jar with its size and SHA-512.
"""

from pathlib import Path

from streaming.errors import ConfigError
from streaming.spark.ivy import Artifact, Progress, default_cache, fetch, pinned

_LISTS = Path(__file__).parent


def versions() -> list[str]:
    """Return the versions of RocketMQ that can be downloaded."""
    return sorted(path.stem.removeprefix("jars-") for path in _LISTS.glob("jars-*.txt"))


def artifacts(version: str) -> list[Artifact]:
    """Return every jar of a version. Raises ConfigError for a version without a list."""
    if version not in versions():
        raise ConfigError(f"no jars are pinned for RocketMQ {version}: take {' or '.join(versions())}")
    return pinned(_LISTS / f"jars-{version}.txt")


def class_path(version: str, *, cache: Path | None = None, progress: Progress | None = None) -> str:
    """Return Java's class path for a version, and download its missing jars.

    Each version has its own folder. Raises what artifacts() and streaming.spark.ivy.fetch() raise.
    """
    folder = (cache or default_cache()) / f"rocketmq-{version}"
    fetch(artifacts(version), cache=folder, progress=progress)
    return f"{folder}/*"
