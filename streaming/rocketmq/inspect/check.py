"""Checks whether a store in RocksDB form is complete: each queue, each unit, the rows about queues, the configuration.

It only reads the store. It compares the databases with the commitlog, which alone holds the messages, and with the
file queues and JSON files as far as these are not older than the databases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.errors import ConfigError, SafetyError
from streaming.rocketmq.convert.work import works_of
from streaming.rocketmq.failures import refused
from streaming.rocketmq.inspect.check_bounds import StoreContents, bound_findings, checkpoint_findings, contents_of
from streaming.rocketmq.inspect.check_configuration import check_configuration
from streaming.rocketmq.inspect.check_notes import progress_notes, store_notes
from streaming.rocketmq.inspect.check_queues import joined_queues, without_wild_max
from streaming.rocketmq.inspect.check_topics import has_lmq, is_left_out, topic_notes, without_deleted
from streaming.rocketmq.inspect.unit_job import UnitJob, numbering_of
from streaming.rocketmq.progress import Say, progress_of
from streaming.rocketmq.store.bounds import Bounds
from streaming.rocketmq.store.configuration import topics_of
from streaming.rocketmq.store.inventory import Queue
from streaming.rocketmq.store.locks import is_broker_running
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.rollback_plan import unfinished_rollback
from udfs.rocketmq.compare import Finding
from udfs.rocketmq.dispatch import DispatchRules
from udfs.rocketmq.parts import QueueKey
from udfs.rocketmq.refusals import Code

ROWS_PER_PART = 300_000


class QueueState(NamedTuple):
    """A queue, for the output."""

    topic: str
    queue_id: int
    first: int
    next: int  # offset of the next message, according to the database
    file_end: int  # offset of the next message, according to the file queue
    units: int


class CheckResult(NamedTuple):
    """The result of a check."""

    queues: tuple[QueueState, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]  # information for the operator that is no fault
    checkpoint: int
    log_end: int

    @property
    def is_sound(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a store whose broker is stopped."""

    paths: StorePaths
    clock: Clock
    say: Say
    rows_per_part: int = ROWS_PER_PART

    def run(self, spark: SparkContext, topic: str = "") -> CheckResult:
        """Check all queues, or those of a topic.

        Raises SafetyError if there is nothing to check, and ConfigError for an unknown topic.
        """
        self._require_something_to_check()
        contents = contents_of(self.paths)
        inventory, bounds = contents.inventory, contents.bounds
        queues = joined_queues(inventory, without_wild_max(inventory, bounds), topic.encode())
        compared = self._compared(spark, contents, queues, topic)
        topics = topics_of(self.paths)
        is_empty = bool(topic) and not queues and not compared
        if is_empty and topic.encode() not in topics:
            raise ConfigError(f"neither queues nor commitlog nor configuration contain a topic {topic}")
        findings, deleted = without_deleted([*compared, *bound_findings(queues, contents)], topics)
        notes = [*topic_notes(deleted, bounds, topics)]
        if is_empty:
            notes.append(f"topic {topic} has no queue yet: it never got a message")
        notes += store_notes(self.paths, findings, earlier=contents.earlier)
        if not topic:
            findings += checkpoint_findings(contents.checkpoint, inventory.log.end)
            notes += progress_notes(queues, inventory, contents.checkpoint)
            config_findings, config_notes = check_configuration(self.paths)
            findings += config_findings
            notes += config_notes
        states = tuple(_state(queue, bounds) for queue in queues)
        return CheckResult(
            queues=states,
            findings=tuple(sorted(findings)),
            notes=tuple(notes),
            checkpoint=contents.checkpoint or 0,
            log_end=inventory.log.end,
        )

    def _require_something_to_check(self) -> None:
        if is_broker_running(self.paths):
            raise refused(Code.RUNNING, f"a broker runs on {self.paths.store}: stop it, or check a copy")
        if not exists(self.paths.rocksdb):
            unfinished = unfinished_rollback(self.paths)
            raise SafetyError(
                f"there is no RocksDB of consume queues in {self.paths.rocksdb}"
                + (f", and {unfinished}" if unfinished else ": `backfill` creates it")
            )

    def _compared(
        self, spark: SparkContext, contents: StoreContents, queues: Sequence[Queue], topic: str
    ) -> list[Finding]:
        """Compare single units, of one topic if it is named."""
        inventory, bounds = contents.inventory, contents.bounds
        done = spark.accumulator(0)
        conf = self.paths.conf
        is_multi = has_lmq(inventory, bounds) if conf.is_multi_dispatch is None else conf.is_multi_dispatch
        numbering = numbering_of(queues, self.rows_per_part)
        rules = DispatchRules(self.paths.delays_ms, is_multi=is_multi)
        job = UnitJob(log=inventory.log, rocksdb=str(self.paths.rocksdb), rules=rules, numbering=numbering, done=done)
        works = list(works_of(queues, self.rows_per_part))
        units = sum(work.rows for work in works)
        with progress_of(self.say, lambda: min(done.value // 2, units), units, self.clock):
            findings = job.run(spark, works)
        return [
            finding
            for finding in findings
            if (not topic or finding.topic == topic.encode()) and not is_left_out(finding, bounds)
        ]


def _state(queue: Queue, bounds: dict[QueueKey, Bounds]) -> QueueState:
    bound = bounds.get(queue.range.key, Bounds())
    following = bound.max[1] + 1 if bound.max else max(bound.last + 1, 0)
    return QueueState(
        topic=queue.range.topic.decode("utf-8", "replace"),
        queue_id=queue.range.queue_id,
        first=max(bound.first, 0),
        next=following,
        file_end=queue.files.end(),
        units=queue.range.end - queue.range.first,
    )
