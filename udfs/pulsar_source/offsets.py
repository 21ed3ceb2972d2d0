"""The offsets of the Spark source "pulsar-frames": for each partition, a position and what its last batch contains.

Spark stores an offset as JSON before it runs the batch that ends there. The offset names every entry of the batch, so
that a replay reads the same entries, whatever the topic contains by then.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from udfs.entry_ranges import EntrySpan
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position

VERSION = 1
_POSITION = re.compile(r"(-?\d{1,19}):(-?\d{1,19})", re.ASCII)
_SPAN = re.compile(r"(\d{1,19}):(\d{1,19})-(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gap:
    """Positions that Pulsar deleted before they were read."""

    after: Position  # exclusive
    before: Position  # exclusive: the first position that is still stored, or the next that will be
    is_certain: bool  # whether entries were seen there; otherwise the ledgers may have been empty


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """A partition's part of an offset."""

    at: Position  # everything up to here is processed; (ledger, -1): before the ledger's first entry
    seen: Position = BEFORE_ALL  # the newest entry that was stored when this offset was chosen
    after: Position = BEFORE_ALL  # `at` of the offset before
    spans: tuple[EntrySpan, ...] = ()  # the entries between `after` and `at`
    gap: Gap | None = None  # between `after` and the first of the spans


def read_up_to(at: Position) -> PartitionOffset:
    """Return the offset of a partition that was read up to here; no later entry is known."""
    return PartitionOffset(at=at, seen=at, after=at)


Offset = Mapping[str, PartitionOffset]
"""By the full name of a partition, or of a topic without partitions."""


def to_json(offset: Offset) -> dict[str, Any]:
    """Return the JSON object that Spark stores."""
    return {"version": VERSION, "partitions": {name: _partition_to_json(part) for name, part in offset.items()}}


def from_json(stored: Mapping[str, Any]) -> dict[str, PartitionOffset]:
    """Parse what to_json returned. Raises FormatError."""
    if stored.get("version") != VERSION:
        raise FormatError(f"offset of version {stored.get('version')!r}; this source reads version {VERSION}")
    try:
        return {str(name): _partition_from_json(part) for name, part in stored["partitions"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"offset of an unknown form: {error!r}") from error


def shown(position: Position) -> str:
    """Return a position as `ledger:entry`."""
    return f"{position[0]}:{position[1]}"


def position_in(text: str) -> Position:
    """Parse `ledger:entry`. Raises FormatError."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise FormatError(f"{text[:60]!a} is no position (ledger:entry)")
    return int(match[1]), int(match[2])


def _partition_to_json(part: PartitionOffset) -> dict[str, Any]:
    written: dict[str, Any] = {"at": shown(part.at), "seen": shown(part.seen), "after": shown(part.after)}
    if part.spans:
        written["spans"] = " ".join(f"{span.ledger}:{span.first}-{span.last}" for span in part.spans)
    if part.gap is not None:
        gap = part.gap
        written["gap"] = {"after": shown(gap.after), "before": shown(gap.before), "is_certain": gap.is_certain}
    return written


def _partition_from_json(stored: Mapping[str, Any]) -> PartitionOffset:
    gap = stored.get("gap")
    return PartitionOffset(
        at=position_in(stored["at"]),
        seen=position_in(stored["seen"]),
        after=position_in(stored["after"]),
        spans=tuple(_span_in(text) for text in stored.get("spans", "").split()),
        gap=gap and Gap(position_in(gap["after"]), position_in(gap["before"]), bool(gap["is_certain"])),
    )


def _span_in(text: str) -> EntrySpan:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise FormatError(f"{text[:60]!a} are no entries (ledger:first-last)")
    ledger, first, last = (int(number) for number in match.groups())
    return EntrySpan(ledger, first, last)
