"""Reads the batch that a query has started but not committed, and commits it without Spark.

Spark writes `offsets/N` before it reads batch N, and `commits/N` once the batch is done; a query that starts repeats a
batch that has only the first file. The query must not run at the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streaming.errors import SafetyError
from streaming.queries.checkpoints import newest_number, offsets_in, write_file
from streaming.state.filesystem import folder_of, shown
from udfs.entry_ranges import Range
from udfs.formats.internal_stats import BEFORE_ALL

# As Spark 3.5 writes it where no query has a watermark, and ours have none.
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query, as its checkpoint describes it."""

    number: int
    ranges: Mapping[str, Range]  # by full name of the partition; without partitions that the batch does not read


def unfinished(checkpoint: str) -> Batch | None:
    """Return the batch that was started but not committed, or None. Raises UnavailableError."""
    number = newest_number(checkpoint, "offsets")
    if number <= newest_number(checkpoint, "commits"):
        return None
    folder = folder_of(checkpoint)
    starts = offsets_in(folder, f"offsets/{number - 1}").positions if number else {}
    ends = offsets_in(folder, f"offsets/{number}").positions
    # a partition that the previous batch does not name is read from its first entry
    ranges = {partition: Range(starts.get(partition, BEFORE_ALL), end) for partition, end in ends.items()}
    return Batch(number, {partition: entries for partition, entries in ranges.items() if not entries.is_empty})


def next_number(checkpoint: str) -> int:
    """Return the number that the next batch will have. Raises UnavailableError."""
    return max(newest_number(checkpoint, "offsets"), newest_number(checkpoint, "commits")) + 1


def commit(checkpoint: str, number: int) -> None:
    """Record that a batch is done. A second call changes nothing.

    Raises SafetyError if it is not the batch that was started last, UnavailableError.
    """
    folder = folder_of(checkpoint)
    started, committed = newest_number(checkpoint, "offsets"), newest_number(checkpoint, "commits")
    # only the last started batch after the last committed batch: another commit would skip messages (decision 15)
    if number != started or committed not in (number - 1, number):
        raise SafetyError(
            f"{shown(checkpoint)}: batch {number} is not the one to commit: {started} was started last, and "
            f"{committed} committed last"
        )
    if committed < number:
        # as Spark does, so that the restarted query continues with the next batch
        write_file(folder, f"commits/{number}", COMMIT)
