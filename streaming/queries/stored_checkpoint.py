"""A checkpoint of a query that does not run, as it is stored, and what was done after it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from streaming.config.settings import Settings
from streaming.errors import SafetyError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import location_of, newest_number, offsets_in
from streaming.queries.delivery.batches import COMMIT
from streaming.queries.names import checkpoint_of
from streaming.state import receipts, waiting
from streaming.state.filesystem import folder_of
from udfs.formats.internal_stats import InternalStats, Position
from udfs.formats.spark_offsets import StoredOffsets, offsets_file
from udfs.paths import base_topic, partition_index


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as it is."""

    query: str
    shown: str
    metadata: str  # contents of the file
    started: int  # number of the last started batch
    newest: StoredOffsets  # of that batch
    committed: int  # number of the last committed batch; -1: none was
    before: StoredOffsets | None  # of that batch

    @classmethod
    def read(cls, settings: Settings, name: str) -> "StoredCheckpoint | None":
        """Return a query's checkpoint; None if it has no batch. Raises UnavailableError, SafetyError."""
        location, where = location_of(settings, name), checkpoint_of(settings, name)
        folder = folder_of(location)
        started, committed = newest_number(location, "offsets"), newest_number(location, "commits")
        if started < 0 and committed < 0:
            return None
        metadata = folder.read("metadata")
        if metadata is None or committed not in (started, started - 1):
            raise SafetyError(
                f"{where} is damaged: batch {started} was started last, and {committed} committed last; "
                "see checkpoints/README.md, `Damaged?`"
            )
        newest = offsets_in(folder, f"offsets/{started}")
        before = offsets_in(folder, f"offsets/{committed}") if committed >= 0 else None
        if before is not None and before.writer is not newest.writer:
            raise SafetyError(f"{where} has batches of {before.writer} and of {newest.writer}: move it away")
        return cls(name, where, metadata.decode(), started, newest, committed, before)

    @property
    def topics(self) -> set[str]:
        """The topics that were read."""
        return {base_topic(partition) for partition in self.newest.positions}

    @property
    def number(self) -> int:
        """The last committed batch of the converted checkpoint, which has one even if nothing was committed before."""
        return max(self.committed, 0)

    def files(self, offset: str) -> dict[str, str]:
        """Return the files of a checkpoint whose last batch is committed."""
        return {
            "metadata": self.metadata,
            f"offsets/{self.number}": self.offsets(offset),
            f"commits/{self.number}": COMMIT,
        }

    def offsets(self, offset: str) -> str:
        """Return the contents of a file below offsets/."""
        return offsets_file(self.newest.spark_line, offset)


def stats_of(admin: TopicAdmin, partitions: Iterable[str]) -> dict[str, InternalStats | None]:
    """Return the stats of each partition; None: it does not exist."""
    counts: dict[str, int | None] = {}
    stats: dict[str, InternalStats | None] = {}
    for partition in partitions:
        topic, index = base_topic(partition), partition_index(partition)
        if topic not in counts:
            counts[topic] = admin.partitions(topic)
        count = counts[topic]
        exists = count is not None and (index < count if index >= 0 else count == 0)
        stats[partition] = admin.internal_stats(partition) if exists else None
    return stats


def newest_done(state_dir: str, topics: Collection[str], condition: Any = None) -> dict[str, Position]:
    """Return, by partition, the newest entry that has a receipt or waits as a retry.

    condition: a pyarrow.dataset expression that the rows of both tables have to meet.
    """

    @lru_cache(maxsize=4096)
    def is_wanted(partition: str) -> bool:
        return base_topic(partition) in topics

    done: dict[str, Position] = {}
    for table in (receipts.TABLE, waiting.TABLE):
        for partition, at in receipts.newest_positions(state_dir, is_wanted, condition, table=table).items():
            done[partition] = max(at, done.get(partition, at))
    return done
