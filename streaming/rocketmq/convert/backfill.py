"""Converts a stopped broker's consume queues, topics, groups and offsets to RocksDB.

Everything is created in a folder beside the consume queues, and moved into the store once all of it is complete
(streaming/rocketmq/workspace/move.py).
"""

import os
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.rocketmq.convert.index_database import OvertakenError, open_index_database, rules_of
from streaming.rocketmq.convert.job import Job, Written, require_end
from streaming.rocketmq.convert.join import join
from streaming.rocketmq.convert.ranges import RangeJob, ranges_up_to_the_end
from streaming.rocketmq.convert.survey import survey_of
from streaming.rocketmq.convert.unindexed import text_of, unindexed_of
from streaming.rocketmq.convert.work import works_of
from streaming.rocketmq.failures import damage
from streaming.rocketmq.progress import Say, progress_of
from streaming.rocketmq.store.configuration import Configuration, write_databases
from streaming.rocketmq.store.inventory import Inventory
from streaming.rocketmq.store.locks import broker_kept_out, one_writer
from streaming.rocketmq.store.owner import require_owner
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.handover import delete_follow_result, give_back, take_over, tidy_up
from streaming.rocketmq.workspace.move import Rename, move_in, take_back, unfinished
from streaming.rocketmq.workspace.rollback_plan import delete_rollback
from streaming.rocketmq.workspace.staging import (
    CONFIG,
    COVERED,
    PARTS,
    QUEUES,
    Sealed,
    Started,
    file_name,
    finished_parts,
    new_kept,
    part_path,
    seal,
    sealed_of,
    start,
)
from udfs.rocketmq import metadata as m
from udfs.rocketmq.refusals import Code, Refusal, StoreFacts, losses_of, refusals_of

ROWS_PER_FILE = 300_000
_RANGES_AT_ONCE = 8
_STAGES = 3  # each of them counts a unit once


class Result(NamedTuple):
    """What a backfill did."""

    queues: int
    units: int
    files: int
    bytes: int
    seconds: float
    resumed: bool  # from an earlier run's files
    losses: tuple[Refusal, ...]  # losses of the store that the operator had accepted

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return self._asdict() | {"losses": [loss._asdict() for loss in self.losses]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A conversion."""

    paths: StorePaths
    clock: Clock
    say: Say
    rows_per_file: int = ROWS_PER_FILE
    restart: bool = False
    replace: bool = False  # set aside an existing consume queues' database
    accept_loss: Collection[Code] = ()  # LOSSES of udfs/rocketmq/refusals.py that the operator has confirmed
    rename: Rename = os.replace

    def run(self, spark: SparkContext) -> Result:
        """Convert the store. Raises SafetyError if the store is refused, BusyError if another command writes to it."""
        require_owner(self.paths)
        with ExitStack() as locks:
            locks.enter_context(broker_kept_out(self.paths))
            locks.enter_context(one_writer(self.paths))
            started_ms = self.clock.now_ms()
            unfinished(self.paths)
            give_back(self.paths)
            inventory, configuration, losses = self._accepted()
            delete_rollback(self.paths)
            sealed = self._sealed_for(inventory.fingerprint())
            written, resumed = list[Written](), sealed is not None
            if sealed is None and self._finish_follow(spark, inventory):
                sealed, resumed = self._seal_index(inventory, configuration), True
            if sealed is None:
                written, sealed, resumed, new_losses = self._convert(spark, inventory, configuration)
                losses += new_losses
            self.say("moving in")
            move_in(self.paths, sealed, self.rename)
            left = inventory.unindexed_bytes
            if left:
                self.say(
                    f"note: the last {left} bytes of the log are in no queue yet. The broker indexes them at its "
                    "start; until then, `check` reports their messages as NO_QUEUE"
                )
            tidy_up(self.paths)
            return Result(
                queues=sealed.queues,
                units=sealed.units,
                files=len(written),
                bytes=sum(part.size for part in written),
                seconds=(self.clock.now_ms() - started_ms) / 1000,
                resumed=resumed,
                losses=tuple(losses),
            )

    def _accepted(self) -> tuple[Inventory, Configuration, list[Refusal]]:
        self.say("reading the store")
        # this process holds the broker's lock, and a test of the lock would release it
        survey = survey_of(self.paths, is_running=False)
        losses = self._losses_of(survey.facts)
        if survey.inventory is None or survey.configuration is None:
            raise SafetyError("the store can't be read")
        return survey.inventory, survey.configuration, losses

    def _losses_of(self, facts: StoreFacts) -> list[Refusal]:
        """Return the accepted losses, with a warning about each. Raises SafetyError for a refusal."""
        refusals = refusals_of(facts, replace=self.replace, accept_loss=self.accept_loss)
        if refusals:
            raise SafetyError("\n".join(f"{refusal.code}: {refusal.text}" for refusal in refusals))
        losses = losses_of(facts, self.accept_loss)
        for loss in losses:
            self.say(f"warning: {loss.code} is accepted: {loss.text}")
        return losses

    def _sealed_for(self, fingerprint: str) -> Sealed | None:
        """Return an earlier run's sealed result for this state of the store; for another state it is taken back."""
        # the result for another state would not have what a broker has written since
        sealed = sealed_of(self.paths)
        if sealed is not None and (self.restart or sealed.fingerprint != fingerprint):
            take_back(self.paths, sealed, self.rename)
            return None
        return sealed

    def _convert(
        self, spark: SparkContext, inventory: Inventory, configuration: Configuration
    ) -> tuple[list[Written], Sealed, bool, list[Refusal]]:
        started = Started(inventory.fingerprint(), self.rows_per_file)
        resumed = start(self.paths, started, restart=self.restart)
        with damage():
            for queue in inventory.queues:
                if queue.range.first == queue.range.end:  # no task reads this queue's files
                    require_end(queue.files, queue.range.end)
        finished = finished_parts(self.paths)
        works = list(works_of(inventory.queues, self.rows_per_file))
        missing = [work for work in works if file_name(work.number) not in finished]
        done = spark.accumulator(0)
        covered = self.paths.staging / COVERED
        job = Job(inventory.log, str(self.paths.staging / PARTS), done, str(covered))
        units = sum(work.rows for work in missing)
        with progress_of(self.say, lambda: done.value // _STAGES, units, self.clock), damage():
            written = job.run(spark, missing)
        unindexed = unindexed_of(spark, covered, inventory, _topics(configuration), rules_of(self.paths))
        losses = self._losses_of(StoreFacts(unindexed=(text_of(unindexed),) if unindexed else ()))
        self.say("joining the files")
        parts = [part_path(self.paths, work.number) for work in works]
        join(self.paths.staging / QUEUES, parts, inventory, inventory.checkpoint)
        write_databases(configuration, self._config_folder())
        # brokers are kept out, other programs are not
        if inventory.fingerprint() != started.fingerprint:
            raise SafetyError(
                "the store has changed while it was read: run the command again, and let no other program write to "
                f"{self.paths.store}"
            )
        kept = new_kept(self.paths, self.clock.now_ms())
        counts = (len(inventory.queues), inventory.units, inventory.log.end)
        return written, seal(self.paths, started, kept, counts), resumed, losses

    def _config_folder(self) -> Path:
        folder = self.paths.staging / CONFIG
        folder.mkdir()
        return folder

    def _finish_follow(self, spark: SparkContext, inventory: Inventory) -> bool:
        """Bring the database of `follow` to the end of the log; False if there is none, or it can't be used."""
        if not exists(self.paths.follow_queues):
            return False
        rules = rules_of(self.paths)
        try:
            if self.restart:
                raise OvertakenError("the operator has asked for a new conversion")
            with open_index_database(self.paths) as index:
                left = list(ranges_up_to_the_end(inventory.log, index.resume(inventory.log)))
                left_bytes = sum(log_range.end - log_range.start for log_range in left)
                self.say(f"continuing with the result of `follow`: {left_bytes:,} bytes are left")
                for first in range(0, len(left), _RANGES_AT_ONCE):
                    index.add(RangeJob(rules).run(spark, left[first : first + _RANGES_AT_ONCE]))
                index.settle(inventory)
        except OvertakenError:
            # Allowed here: the folder is ours, and the operator wants a new conversion, or the log has no message any
            # more that is in this database.
            delete_follow_result(self.paths)
            return False
        return True

    def _seal_index(self, inventory: Inventory, configuration: Configuration) -> Sealed:
        started = Started(inventory.fingerprint(), self.rows_per_file)
        start(self.paths, started, restart=True)
        write_databases(configuration, self._config_folder())
        # if this run ends before it has sealed the folder, the next one gives the database back to `follow`
        take_over(self.paths)
        kept = new_kept(self.paths, self.clock.now_ms())
        return seal(self.paths, started, kept, (len(inventory.queues), inventory.units, inventory.log.end))


def _topics(configuration: Configuration) -> frozenset[bytes]:
    return frozenset(name.encode() for name in configuration.tables[m.TOPICS]["topicConfigTable"])
