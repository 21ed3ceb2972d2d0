"""The settings of the upgrade to RocksDB in each version of RocketMQ, and the warnings about that version.

Tried with real brokers of 5.3.3, 5.4.0, 5.5.0 and 5.5.1; the rest was read in their code.
"""

import re
from typing import NamedTuple

NEWEST_KNOWN = (5, 5, 1)
_FIRST = (5, 3, 1)
Version = tuple[int, int, int]


class Stage(NamedTuple):
    """A stage of the upgrade: its description, and the broker's settings."""

    stage: int
    when: str
    settings: dict[str, str]


def version_of(text: str) -> Version | None:
    """Parse a version such as `5.3.3`; None for other text."""
    match = re.fullmatch(r"[vV]?(\d+)\.(\d+)\.(\d+)\S*", text.strip())
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def stages_of(version: Version | None) -> list[Stage]:
    """Return the three stages with the settings of this version; None: with the usual settings."""
    double = {"storeType": "default", "rocksdbCQDoubleWriteEnable": "true"}
    if version is not None and version >= (5, 5, 0):
        double["combineCQUseRocksdbForLmq"] = "true"
    last = {"storeType": "defaultRocksDB"}
    if version is not None and version < (5, 3, 2):
        last |= {"transferMetadataJsonToRocksdb": "true", "transferOffsetJsonToRocksdb": "true"}
    return [
        Stage(1, "before: file queues only", {"storeType": "default"}),
        Stage(2, "may be left out after a backfill: both forms are written, the file queues are read", double),
        Stage(3, "after a backfill: RocksDB only", last),
    ]


def warnings_of(version: Version | None) -> list[str]:
    """Return the warnings for operators of this version. None: the version is unknown."""
    if version is None:
        return ["with --broker-version VERSION, this lists the settings and traps of that version"]
    if version < _FIRST:
        return [f"the upgrade came with RocketMQ {_text(_FIRST)}: {_text(version)} has no RocksDB to upgrade to"]
    warnings = []
    if version > NEWEST_KNOWN:
        warnings.append(
            f"this was not tried with {_text(version)}; {_text(NEWEST_KNOWN)} is the newest version that was"
        )
    if version >= (5, 5, 0):
        warnings.append("in stage 2 the broker ends while it starts, unless combineCQUseRocksdbForLmq=true")
    if (5, 3, 1) <= version < (5, 4, 0):
        warnings.append(
            "in stage 2 a broker that is killed loses up to an hour of RocksDB rows for good, and the queues then have "
            "holes: leave stage 2 out, or run `check` before stage 3"
        )
    return warnings


def _text(version: Version) -> str:
    return ".".join(map(str, version))
