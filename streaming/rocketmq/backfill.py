"""Converts a stopped broker's consume queues, topics, groups and offsets to RocksDB.

All is made in a folder beside the consume queues; the store itself is touched only when everything is whole
(streaming/rocketmq/move.py). A run that was cut short goes on where it was, as long as the store has not changed since;
otherwise what it made is thrown away.
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
from streaming.rocketmq.configuration import Configuration, write_databases
from streaming.rocketmq.failures import damage
from streaming.rocketmq.follow.followed import followed_of, rules_of
from streaming.rocketmq.follow.handover import give_back, take_over, throw_away_followed, tidy_up
from streaming.rocketmq.follow.ranges import RangeJob, ranges_up_to_the_end
from streaming.rocketmq.follow.tail import OvertakenError
from streaming.rocketmq.inventory import Inventory
from streaming.rocketmq.job import Job, Written, file_name, require_end
from streaming.rocketmq.join import join
from streaming.rocketmq.locks import broker_kept_out, one_writer
from streaming.rocketmq.move import Rename, move_in, take_back, unfinished
from streaming.rocketmq.owner import require_owner
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say, told
from streaming.rocketmq.staging import (
    CONFIG,
    COVERED,
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
    throw_away_rollback,
)
from streaming.rocketmq.survey import survey_of
from streaming.rocketmq.unindexed import text_of, unindexed_of
from streaming.rocketmq.work import works_of
from udfs.rocketmq import metadata as m
from udfs.rocketmq.refusals import Code, Refusal, StoreFacts, losses_of, refusals_of

ROWS_PER_FILE = 300_000
_RANGES_AT_ONCE = 8
_STAGES = 3  # a unit is counted in each


class Result(NamedTuple):
    """What a backfill did.

    resumed: it went on with what an earlier run had made. losses: what the store lost, as the operator had accepted.
    """

    queues: int
    units: int
    files: int
    bytes: int
    seconds: float
    resumed: bool
    losses: tuple[Refusal, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as one object."""
        return self._asdict() | {"losses": [each._asdict() for each in self.losses]}


@dataclass(frozen=True, slots=True)
class Backfill:
    """One conversion.

    replace: a consume queues' database that is there is set aside. accept_loss: the operator has confirmed these
    refusals, of udfs/rocketmq/refusals.py LOSSES.
    """

    place: Place
    clock: Clock
    say: Say
    rows_per_file: int = ROWS_PER_FILE
    restart: bool = False
    replace: bool = False
    accept_loss: Collection[Code] = ()
    rename: Rename = os.replace

    def run(self, spark: SparkContext) -> Result:
        """Convert the store. Raises SafetyError if the store is refused, BusyError beside another writer of ours."""
        require_owner(self.place)
        with ExitStack() as locks:
            locks.enter_context(broker_kept_out(self.place))
            locks.enter_context(one_writer(self.place))
            began_ms = self.clock.now_ms()
            unfinished(self.place)
            give_back(self.place)
            inventory, configuration, losses = self._accepted()
            throw_away_rollback(self.place)
            sealed = self._sealed_for(inventory.fingerprint())
            written, resumed = list[Written](), sealed is not None
            if sealed is None and self._finish_followed(spark, inventory):
                sealed, resumed = self._seal_followed(inventory, configuration), True
            if sealed is None:
                written, sealed, resumed, unindexed = self._make(spark, inventory, configuration)
                losses += unindexed
            self.say("moving in")
            move_in(self.place, sealed, self.rename)
            left = inventory.unindexed_bytes
            if left:
                self.say(
                    f"note: the last {left} bytes of the log are in no queue yet. The broker indexes them at its "
                    "start; before that, `check` reports messages among them as NO_QUEUE"
                )
            tidy_up(self.place)
            return Result(
                sealed.queues, sealed.units, len(written), sum(each.size for each in written),
                (self.clock.now_ms() - began_ms) / 1000, resumed, tuple(losses),
            )  # fmt: skip

    def _accepted(self) -> tuple[Inventory, Configuration, list[Refusal]]:
        self.say("looking at the store")
        # this process holds the broker's lock itself, and would lose it if it asked
        survey = survey_of(self.place, is_running=False)
        losses = self._losses_of(survey.facts)
        if survey.inventory is None or survey.configuration is None:
            raise SafetyError("the store can't be read")
        return survey.inventory, survey.configuration, losses

    def _losses_of(self, facts: StoreFacts) -> list[Refusal]:
        """Return the losses that the operator has accepted, each with a warning. Raises SafetyError for any refusal."""
        refusals = refusals_of(facts, replace=self.replace, accept_loss=self.accept_loss)
        if refusals:
            raise SafetyError("\n".join(f"{each.code}: {each.text}" for each in refusals))
        losses = losses_of(facts, self.accept_loss)
        for each in losses:
            self.say(f"warning: {each.code} is accepted: {each.text}")
        return losses

    def _sealed_for(self, fingerprint: str) -> Sealed | None:
        """What an earlier run has made of this state of the store; what it made of another one is taken back."""
        sealed = sealed_of(self.place)
        if sealed is not None and (self.restart or sealed.fingerprint != fingerprint):
            take_back(self.place, sealed, self.rename)
            return None
        return sealed

    def _make(
        self, spark: SparkContext, inventory: Inventory, configuration: Configuration
    ) -> tuple[list[Written], Sealed, bool, list[Refusal]]:
        started = Started(inventory.fingerprint(), self.rows_per_file)
        resumed = begin(self.place, started, restart=self.restart)
        with damage():
            for queue in inventory.queues:
                if queue.range.first == queue.range.end:  # no task reads this queue's files
                    require_end(queue.files, queue.range.end)
        there = finished_parts(self.place)
        works = list(works_of(inventory.queues, self.rows_per_file))
        missing = [work for work in works if file_name(work.number) not in there]
        done = spark.accumulator(0)
        covered = self.place.staging / COVERED
        job = Job(inventory.log, str(self.place.staging / PARTS), done, str(covered))
        units = sum(work.rows for work in missing)
        with told(self.say, lambda: done.value // _STAGES, units, self.clock), damage():
            written = job.run(spark, missing)
        found = unindexed_of(spark, covered, inventory, _topics(configuration), rules_of(self.place))
        losses = self._losses_of(StoreFacts(unindexed=(text_of(found),) if found else ()))
        self.say("joining the files")
        parts = [part_path(self.place, work.number) for work in works]
        join(self.place.staging / QUEUES, parts, inventory, inventory.checkpoint)
        write_databases(configuration, self._config_folder())
        if inventory.fingerprint() != started.fingerprint:
            raise SafetyError("the store has changed while it was read")
        kept = new_kept(self.place, self.clock.now_ms())
        counts = (len(inventory.queues), inventory.units, inventory.log.end)
        return written, seal(self.place, started, kept, counts), resumed, losses

    def _config_folder(self) -> Path:
        folder = self.place.staging / CONFIG
        folder.mkdir()
        return folder

    def _finish_followed(self, spark: SparkContext, inventory: Inventory) -> bool:
        """Bring what `follow` has made to the end of the log; False if there is nothing of use."""
        if not exists(self.place.followed_queues):
            return False
        rules = rules_of(self.place)
        try:
            if self.restart:
                raise OvertakenError("it was to be thrown away")
            with followed_of(self.place) as followed:
                left = list(ranges_up_to_the_end(inventory.log, followed.resume(inventory.log)))
                self.say(f"going on with what `follow` has made: {sum(each.end - each.start for each in left):,} bytes")
                for first in range(0, len(left), _RANGES_AT_ONCE):
                    followed.add(RangeJob(rules).run(spark, left[first : first + _RANGES_AT_ONCE]))
                followed.settle(inventory)
        except OvertakenError:
            # Allowed here: the folder is ours, and the operator wants a new one, or the log has none of its messages.
            throw_away_followed(self.place)
            return False
        return True

    def _seal_followed(self, inventory: Inventory, configuration: Configuration) -> Sealed:
        started = Started(inventory.fingerprint(), self.rows_per_file)
        begin(self.place, started, restart=True)
        write_databases(configuration, self._config_folder())
        take_over(self.place)
        kept = new_kept(self.place, self.clock.now_ms())
        return seal(self.place, started, kept, (len(inventory.queues), inventory.units, inventory.log.end))


def _topics(configuration: Configuration) -> frozenset[bytes]:
    return frozenset(name.encode() for name in configuration.tables[m.TOPICS]["topicConfigTable"])
