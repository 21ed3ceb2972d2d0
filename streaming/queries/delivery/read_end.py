"""The last row of a read of a partition: what the rows of its messages do not show.

It is among the rows (schemas.MESSAGE), without POSITION_BATCH, so that a read has a single result, which Spark keeps.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streaming import schemas
from streaming.state.notes.lost_entries import Loss
from udfs import columns as c
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import Position


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """How far a partition was read."""

    upto: Position | None  # the last entry that was read whole; None: none was
    fault: str = ""  # why the entry after it was not read; "": all that was planned, or that fits into a pass, is read
    last_row: int = -1  # the greatest row number (columns.ROW); -1: there is no message
    empty: tuple[EntrySpan, ...] = ()  # entries that were read and contain no message
    oldest_ledger: int | None = None  # no message is in an older ledger; None: not known
    lost: tuple[Loss, ...] = ()


def end_row(source: str, end: ReadEnd) -> dict[str, Any]:
    """Return the row (schemas.MESSAGE) that contains the end of a read of this partition."""
    return dict.fromkeys(schemas.MESSAGE.names) | {
        c.SOURCE: source,
        c.PAYLOAD: json.dumps(asdict(end)).encode(),
    }


def end_in(row: Any) -> ReadEnd:
    """Return what end_row got. row: of Spark, or a mapping."""
    end = json.loads(bytes(row[c.PAYLOAD]))
    return ReadEnd(
        upto=None if end["upto"] is None else _position(end["upto"]),
        fault=end["fault"],
        last_row=end["last_row"],
        empty=tuple(EntrySpan(**span) for span in end["empty"]),
        oldest_ledger=end["oldest_ledger"],
        lost=tuple(Loss(**loss | {"first": _position(loss["first"])}) for loss in end["lost"]),
    )


def _position(numbers: Sequence[int]) -> Position:
    ledger, entry = numbers
    return ledger, entry
