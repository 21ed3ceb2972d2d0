"""Converts a stopped broker's consume queues, topics, groups and offsets to RocksDB.

All is made in a folder beside the consume queues; the store itself is touched only when everything is whole
(streaming/rocketmq/move.py). A run that was cut short goes on where it was, as long as the store has not changed since;
otherwise what it made is thrown away.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, opened
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.rocketmq.configuration import Configuration, write_databases
from streaming.rocketmq.inventory import Inventory
from streaming.rocketmq.job import Job, Written, file_name, require_end
from streaming.rocketmq.locks import broker_kept_out, one_writer
from streaming.rocketmq.move import Rename, is_moved_in, move_in, take_back
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say, told
from streaming.rocketmq.staging import (
    CONFIG,
    PARTS,
    QUEUES,
    Sealed,
    Started,
    begin,
    finished_parts,
    new_kept,
    part_path,
    seal,
    sealed_of,
    throw_away,
)
from streaming.rocketmq.survey import survey_of
from streaming.rocketmq.work import works_of
from udfs.rocketmq import rows
from udfs.rocketmq.refusals import refusals_of

ROWS_PER_FILE = 300_000
_STAGES = 3  # a unit is counted in each


class Result(NamedTuple):
    """What a backfill did. resumed: it went on with what an earlier run had made."""

    queues: int
    units: int
    files: int
    bytes: int
    seconds: float
    resumed: bool


@dataclass(frozen=True, slots=True)
class Backfill:
    """One conversion. replace: a consume queues' database that is there is set aside."""

    place: Place
    clock: Clock
    say: Say
    rows_per_file: int = ROWS_PER_FILE
    restart: bool = False
    replace: bool = False
    rename: Rename = os.replace

    def run(self, spark: SparkContext) -> Result:
        """Convert the store. Raises SafetyError if the store is refused, BusyError beside another writer of ours."""
        with ExitStack() as locks:
            locks.enter_context(broker_kept_out(self.place))
            locks.enter_context(one_writer(self.place))
            began_ms = self.clock.now_ms()
            self._settle()
            inventory, configuration = self._accepted()
            sealed = self._sealed_for(inventory.fingerprint())
            written, resumed = list[Written](), sealed is not None
            if sealed is None:
                written, sealed, resumed = self._make(spark, inventory, configuration)
            self.say("moving in")
            move_in(self.place, sealed, self.rename)
            return Result(
                sealed.queues, sealed.units, len(written), sum(each.size for each in written),
                (self.clock.now_ms() - began_ms) / 1000, resumed,
            )  # fmt: skip

    def _accepted(self) -> tuple[Inventory, Configuration]:
        self.say("looking at the store")
        # this process holds the broker's lock itself, and would lose it if it asked
        survey = survey_of(self.place, is_running=False)
        refusals = refusals_of(survey.facts, replace=self.replace)
        if refusals or survey.inventory is None or survey.configuration is None:
            raise SafetyError("\n".join(f"{each.code}: {each.text}" for each in refusals) or "the store can't be read")
        return survey.inventory, survey.configuration

    def _settle(self) -> None:
        """Remove the staging folder of a run that was cut short after its last rename: nothing is left to do of it."""
        sealed = sealed_of(self.place)
        if sealed is not None and is_moved_in(self.place, sealed):
            throw_away(self.place)

    def _sealed_for(self, fingerprint: str) -> Sealed | None:
        """What an earlier run has made of this state of the store; what it made of another one is taken back."""
        sealed = sealed_of(self.place)
        if sealed is not None and (self.restart or sealed.fingerprint != fingerprint):
            take_back(self.place, sealed, self.rename)
            return None
        return sealed

    def _make(
        self, spark: SparkContext, inventory: Inventory, configuration: Configuration
    ) -> tuple[list[Written], Sealed, bool]:
        started = Started(inventory.fingerprint(), self.rows_per_file)
        resumed = begin(self.place, started, restart=self.restart)
        for queue in inventory.queues:
            if queue.range.first == queue.range.end:  # no task reads this queue's files
                require_end(queue.files, queue.range.end)
        there = finished_parts(self.place)
        works = list(works_of(inventory.queues, self.rows_per_file))
        missing = [work for work in works if file_name(work.number) not in there]
        done = spark.accumulator(0)
        job = Job(inventory.log, str(self.place.staging / PARTS), done)
        units = sum(work.rows for work in missing)
        with told(self.say, lambda: done.value // _STAGES, units, self.clock):
            written = job.run(spark, missing)
        self._join(inventory, [part_path(self.place, work.number) for work in works])
        write_databases(configuration, self._config_folder())
        if inventory.fingerprint() != started.fingerprint:
            raise SafetyError("the store has changed while it was read")
        kept = new_kept(self.place, self.clock.now_ms())
        counts = (len(inventory.queues), inventory.units, inventory.log.end)
        return written, seal(self.place, started, kept, counts), resumed

    def _config_folder(self) -> Path:
        folder = self.place.staging / CONFIG
        folder.mkdir()
        return folder

    def _join(self, inventory: Inventory, parts: list[Path]) -> None:
        """Make the consume queues' database of the finished files."""
        self.say("joining the files")
        folder = self.place.staging / QUEUES
        folder.mkdir()
        linked = []
        for part in parts:  # taking in moves a file, and a run that is cut short here needs it again
            link = folder / f"{part.name}.link"
            link.hardlink_to(part)
            linked.append(str(link))
        with opened(folder, (rows.OFFSET_FAMILY,), compressed=True) as database:
            if linked:
                database.take_in(linked)
            database.put_all(rows.OFFSET_FAMILY, offset_rows(inventory))
            database.flush()
            first, last = _ends(inventory)
            if first is not None and (
                database.get(DEFAULT_FAMILY, first) is None or database.get(DEFAULT_FAMILY, last) is None
            ):
                raise SafetyError("the database lacks its first or last row")


def offset_rows(inventory: Inventory) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the column family `offset`.

    Every queue that ever had a message gets its `max`, for that alone says which offset the next message gets. All
    messages are indexed, so CHECKPOINT is the end of the commitlog.
    """
    for queue in inventory.queues:
        each = queue.range
        if each.end > 0:
            yield rows.max_key(each.topic, each.queue_id), rows.bound_value(max(queue.last_phy, 0), each.end - 1)
        if each.first < each.end:
            first = queue.files.read(each.first, each.first + 1)
            yield rows.min_key(each.topic, each.queue_id), rows.bound_value(int(first.phy[0]), each.first)
    yield rows.checkpoint_key(), rows.checkpoint_value(inventory.log.end)


def _ends(inventory: Inventory) -> tuple[bytes | None, bytes]:
    live = [queue.range for queue in inventory.queues if queue.range.first < queue.range.end]
    if not live:
        return None, b""
    first, last = live[0], live[-1]
    return (
        rows.unit_key(first.topic, first.queue_id, first.first),
        rows.unit_key(last.topic, last.queue_id, last.end - 1),
    )
