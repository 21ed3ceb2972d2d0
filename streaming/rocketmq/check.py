"""Checks whether a store in RocksDB form is complete: each queue, each unit, the rows about queues, the configuration.

It only reads the store. The reference is the commitlog, which alone holds the messages, and the file queues and JSON
files as far as they are not older than the databases.
"""

import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, exists, opened
from streaming.clock import Clock
from streaming.errors import ConfigError, SafetyError
from streaming.rocketmq.bounds import Bounds, bounds_of
from streaming.rocketmq.configuration import (
    DATABASES,
    LostOffsets,
    lost_offsets,
    other_database,
    read_databases,
    read_json,
    rows_of,
    unread_offsets,
)
from streaming.rocketmq.failures import refused
from streaming.rocketmq.index_job import IndexJob, Numbering, QueueKey
from streaming.rocketmq.inventory import Inventory, Queue, inventory_of
from streaming.rocketmq.lives import of_this_incarnation
from streaming.rocketmq.locks import is_broker_running
from streaming.rocketmq.log_files import CommitLog
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say, progress_of
from streaming.rocketmq.queue_files import QueueFiles
from streaming.rocketmq.staging import is_unopened, moved_of, unfinished_rollback
from streaming.rocketmq.work import works_of
from udfs.rocketmq import metadata as m
from udfs.rocketmq import rows
from udfs.rocketmq.commitlog import RECORD_BYTES_MIN
from udfs.rocketmq.compare import Finding, FindingKind
from udfs.rocketmq.dispatch import (
    LMQ_PREFIX,
    SCHEDULE_TOPIC,
    Dispatch,
    DispatchRules,
    is_kept,
    properties_of,
    units_of,
)
from udfs.rocketmq.parts import QueueRange, in_key_order
from udfs.rocketmq.refusals import Code

ROWS_PER_PART = 300_000
_FOREIGN = (FindingKind.NO_MESSAGE, FindingKind.FILE_NO_MESSAGE)


class QueueState(NamedTuple):
    """A queue, for the output."""

    topic: str
    queue_id: int
    first: int
    next: int  # offset of the next message by the database
    file_end: int  # offset of the next message by the file queue
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

    place: Place
    clock: Clock
    say: Say
    rows_per_part: int = ROWS_PER_PART

    def run(self, spark: SparkContext, topic: str = "") -> CheckResult:
        """Check all queues, or those of a topic.

        Raises SafetyError if there is nothing to check, and ConfigError for an unknown topic.
        """
        self._require_something_to_check()
        inventory = inventory_of(self.place)
        with opened(self.place.rocksdb, read_only=True) as database:
            bounds = bounds_of(database)
            _require_sane(bounds, inventory.log)
            checkpoint = _checkpoint(database)
            inventory, earlier = of_this_incarnation(inventory, bounds, database)
            live = _first_live(bounds, database, inventory.log.start)
            last = {
                name: _row_from(database, *name, bound.last)[0] for name, bound in bounds.items() if bound.last >= 0
            }
        queues = _joined(inventory, _without_wild_max(inventory, bounds), topic.encode())
        compared = [
            finding
            for finding in self._compared(spark, inventory, queues, has_lmq=_has_lmq(inventory, bounds))
            if (not topic or finding.topic == topic.encode()) and not _is_left_out(finding, bounds)
        ]
        topics = topics_of(self.place)
        if topic and not queues and not compared and topic.encode() not in topics:
            raise ConfigError(f"neither queues nor commitlog nor configuration contain a topic {topic}")
        findings, gone = without_deleted([*compared, *_of_bounds(queues, bounds, inventory, live, last)], topics)
        notes = [
            f"topic {name.decode('utf-8', 'replace')} is neither in topics.json nor in the database (deleted, "
            "perhaps), so faults of its queues are no findings"
            for name in gone
        ]
        unknown = sorted({name for name, _id in bounds if topics and not is_kept(name, topics)} - set(gone))
        if unknown:
            notes.append(
                f"RocksDB has rows of topics that are neither in topics.json nor in the database: {_names(unknown)}. A "
                "broker in RocksDB mode deletes these rows within the hour"
            )
        if topic and not queues and not compared:
            notes.append(f"topic {topic} has no queue yet: it never got a message")
        notes += _notes_of_the_store(self.place)
        if not self.place.conf.delay_levels and any(finding.topic == SCHEDULE_TOPIC for finding in findings):
            notes.append(
                "a unit of the schedule topic contains when its message is due: if the broker has its own "
                "messageDelayLevel, name its configuration with --broker-conf, and check again"
            )
        if earlier:
            notes.append(f"{earlier} file queues are of topics that were created again since: `rollback` replaces them")
        if not topic:
            findings += _of_checkpoint(checkpoint, inventory.log.end)
            notes += _notes(queues, inventory, checkpoint)
            config_findings, config_notes = check_configuration(self.place)
            findings += config_findings
            notes += config_notes
        states = tuple(_state(queue, bounds) for queue in queues)
        return CheckResult(states, tuple(sorted(findings)), tuple(notes), checkpoint or 0, inventory.log.end)

    def _require_something_to_check(self) -> None:
        if is_broker_running(self.place):
            raise refused(Code.RUNNING, f"a broker runs on {self.place.store}: stop it, or check a copy")
        if not exists(self.place.rocksdb):
            unfinished = unfinished_rollback(self.place)
            raise SafetyError(
                f"there is no RocksDB of consume queues in {self.place.rocksdb}"
                + (f", and {unfinished}" if unfinished else ": `backfill` creates it")
            )

    def _compared(
        self, spark: SparkContext, inventory: Inventory, queues: Sequence[Queue], *, has_lmq: bool
    ) -> list[Finding]:
        done = spark.accumulator(0)
        conf = self.place.conf
        is_multi = has_lmq if conf.is_multi_dispatch is None else conf.is_multi_dispatch
        numbering = _numbering(queues, self.rows_per_part)
        rules = DispatchRules(self.place.delays_ms, is_multi=is_multi)
        job = IndexJob(inventory.log, str(self.place.rocksdb), rules, numbering, done)
        works = list(works_of(queues, self.rows_per_part))
        units = sum(work.rows for work in works)
        with progress_of(self.say, lambda: min(done.value // 2, units), units, self.clock):
            return job.run(spark, works)


def _has_lmq(inventory: Inventory, bounds: Collection[QueueKey]) -> bool:
    files = ((queue.range.topic, queue.range.queue_id) for queue in inventory.queues)
    return any(topic.startswith(LMQ_PREFIX) for topic, _queue_id in (*files, *bounds))


def _is_left_out(finding: Finding, bounds: dict[QueueKey, Bounds]) -> bool:
    """Whether a finding is about messages of an LMQ queue that no broker in file mode creates: its name is no folder's.

    A broker in RocksDB mode may have created the queue since, with a start after those messages.
    """
    is_path = finding.topic.startswith(LMQ_PREFIX) and b"/" in finding.topic
    first = bounds.get((finding.topic, finding.queue_id), Bounds()).first
    return is_path and finding.kind is FindingKind.NO_QUEUE and (first < 0 or finding.offset < first)


def check_configuration(place: Place) -> tuple[list[Finding], list[str]]:
    """Compare the configuration's databases with the JSON files: return findings, and notes about newer entries."""
    configuration, databases = read_json(place), read_databases(place.config)
    findings, notes = list[Finding](), list[str]()
    findings += _of_another_database(place)
    findings += _of_unread_offsets(place, databases[m.OFFSETS])
    for database in DATABASES:
        expected, current = rows_of(database, configuration.tables[database]), databases[database]
        file = configuration.files[database]
        counter, file_counter = _counter(place, database, current), (m.counter_of(expected) or 0) - 1
        if counter is None or counter < file_counter:
            text = f"the version of {database} is {counter}, and a broker would read {file} over its rows"
            findings.append(_config_finding(text, 1))
        missing = [name for name in expected.default if name not in current.default]
        other = [name for name, value in expected.default.items() if current.default.get(name, value) != value]
        other += [name for name, value in expected.forbidden.items() if current.forbidden.get(name) != value]
        if is_unopened(place, database):
            if missing or other:
                text = f"entries of {file} are missing from {database}, or differ: {_names([*missing, *other])}"
                findings.append(_config_finding(text, len(missing) + len(other)))
        elif missing or other:
            notes.append(
                f"a broker has worked with {database} since, so {file} is older: it has earlier values of "
                f"{_names([*missing, *other])}"
            )
    if not is_unopened(place, m.OFFSETS):
        findings += _of_offsets(lost_offsets(configuration, databases), is_converted=moved_of(place) is not None)
    return findings, notes


def _of_another_database(place: Place) -> Iterator[Finding]:
    unknown = other_database(place)
    if unknown:
        text = f"{unknown} is a database that this program does not know: a broker may read it instead of the three"
        yield _config_finding(text, 1)


def _of_unread_offsets(place: Place, current: m.ConfigRows) -> Iterator[Finding]:
    unread = unread_offsets(place)
    lost = [name for name in unread.names if name.encode() not in current.default] if unread else []
    if unread and lost:
        shown = _names([name.encode() for name in lost])
        text = f"{m.OFFSETS} has none of the offsets of {unread.file}, the only file of offsets: {shown}"
        yield _config_finding(text, len(lost))


def _counter(place: Place, database: str, rows: m.ConfigRows) -> int | None:
    try:
        return m.counter_of(rows)
    except m.BadTableError as error:
        raise SafetyError(f"{place.config / database}: {error}") from error


def _of_offsets(lost: LostOffsets, *, is_converted: bool) -> Iterator[Finding]:
    """is_converted: a backfill has brought the offsets, so lower offsets were reset later."""
    lower = () if is_converted else lost.lower
    for fault, names in (("are missing from", lost.missing), ("are higher than in", lower)):
        if names:
            shown = _names([name.encode() for name in names])
            yield _config_finding(f"offsets of the JSON file {fault} {m.OFFSETS}: {shown}", len(names))


def topics_of(place: Place) -> frozenset[bytes]:
    """Return the topics in the database or the JSON file. A topic in only one of them does not count as deleted."""
    table = rows_of(m.TOPICS, read_json(place).tables[m.TOPICS])
    return frozenset(read_databases(place.config)[m.TOPICS].default.keys() | table.default.keys())


def without_deleted(findings: Sequence[Finding], topics: Collection[bytes]) -> tuple[list[Finding], list[bytes]]:
    """Remove the findings about deleted topics; return those topics as well.

    A broker in RocksDB mode deletes the rows of topics that are missing from its configuration, except LMQ queues and
    RocketMQ's own topics. If no topics are known, none counts as deleted. Neither does a topic whose units point to
    messages of other queues: the commitlog has no message of that topic there, so its queues are damaged or copied.
    """
    if not topics:
        return list(findings), []
    foreign = {finding.topic for finding in findings if finding.kind in _FOREIGN}
    gone = {
        finding.topic
        for finding in findings
        if finding.queue_id >= 0 and finding.topic not in foreign and not is_kept(finding.topic, topics)
    }
    return [finding for finding in findings if finding.topic not in gone or finding.queue_id < 0], sorted(gone)


def _config_finding(text: str, count: int) -> Finding:
    return Finding(b"", -1, FindingKind.CONFIG, count, -1, text)


def _names(names: Sequence[bytes]) -> str:
    shown = ", ".join(name.decode("utf-8", "replace") for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _checkpoint(database: Database) -> int | None:
    value = database.get(rows.OFFSET_FAMILY, rows.checkpoint_key())
    try:
        return None if value is None else rows.decode_checkpoint(value)
    except ValueError as error:
        raise SafetyError(f"the consume queues' database has a damaged row: {error}") from error


def _require_sane(bounds: Mapping[QueueKey, Bounds], log: CommitLog) -> None:
    """Raise SafetyError if a queue's rows are further apart than messages can be: the rows between can't be compared.

    No log with this end can ever have had more messages.
    """
    for (topic, queue_id), bound in bounds.items():
        if bound.last - bound.first > log.end // RECORD_BYTES_MIN:
            raise SafetyError(
                f"the consume queues' database has a damaged key: {topic.decode('utf-8', 'replace')}, queue {queue_id} "
                f"has rows from queue offset {bound.first} to {bound.last}, more than the commitlog ever had messages"
            )


def _joined(inventory: Inventory, bounds: dict[QueueKey, Bounds], only: bytes = b"") -> list[Queue]:
    """Return the queues, or those of a topic, in files or database, with a range that covers the units of both."""
    file_queues = {(queue.range.topic, queue.range.queue_id): queue for queue in inventory.queues}
    ranges = list[QueueRange]()
    for topic, queue_id in file_queues.keys() | bounds.keys():
        if only and topic != only:
            continue
        first, end = _span(bounds.get((topic, queue_id), Bounds()), file_queues.get((topic, queue_id)))
        ranges.append(QueueRange(0, topic, queue_id, first, end))
    return [
        _joined_queue(joined._replace(number=number), file_queues, bounds)
        for number, joined in enumerate(in_key_order(ranges))
    ]


def _joined_queue(joined: QueueRange, files: Mapping[QueueKey, Queue], bounds: Mapping[QueueKey, Bounds]) -> Queue:
    name = (joined.topic, joined.queue_id)
    queue, bound = files.get(name), bounds.get(name, Bounds())
    last_phy = max(queue.last_phy if queue else -1, bound.max[0] if bound.max else -1)
    return Queue(joined, queue.files if queue else QueueFiles(()), last_phy)


def _span(bound: Bounds, queue: Queue | None) -> tuple[int, int]:
    """Return the span of rows, live units, and units promised by max; without any, the next offset twice."""
    live = (queue.range.first, queue.range.end) if queue else (0, 0)
    following = bound.max[1] + 1 if bound.max else 0
    spans = [span for span in ((bound.first, bound.last + 1), live) if 0 <= span[0] < span[1]]
    if not spans:
        end = max(following, live[1])
        return end, end
    return min(span[0] for span in spans), max(following, *(span[1] for span in spans))


def _without_wild_max(inventory: Inventory, bounds: dict[QueueKey, Bounds]) -> dict[QueueKey, Bounds]:
    """Remove each max that is after all rows and units of its queue, and whose message is not in the log.

    Such a max may be damaged, and promise more units than a disk can hold; `_of_bounds` judges it separately.
    """
    ranges = {(queue.range.topic, queue.range.queue_id): queue.range for queue in inventory.queues}
    sane = dict(bounds)
    for name, bound in bounds.items():
        live_range = ranges.get(name)
        live = [bound.last + 1, *([live_range.end] if live_range and live_range.first < live_range.end else [])]
        is_bare = max(live) == 0  # nothing else determines the queue's end
        if bound.max is None or bound.max[1] < max(live) or is_bare:
            continue
        if not _is_in_log(inventory.log, name, bound.max):
            sane[name] = bound._replace(max=None)
    return sane


def _is_in_log(log: CommitLog, name: QueueKey, bound: tuple[int, int]) -> bool:
    phy, offset = bound
    try:
        record = log.record_at(phy)
    except SafetyError:
        return False
    if record is None:
        return False
    units = units_of(record, properties_of(record.properties), DispatchRules((), is_multi=True))
    return Dispatch(*name, offset) in units


def _numbering(queues: Sequence[Queue], rows_per_part: int) -> Numbering:
    firsts, before = dict[QueueKey, tuple[int, int, int, int]](), 0
    for queue in queues:
        live = queue.range
        firsts[live.topic, live.queue_id] = (live.first, live.end, before, queue.last_phy)
        before += live.end - live.first
    return Numbering(firsts, rows_per_part)


def _first_live(bounds: dict[QueueKey, Bounds], database: Database, log_start: int) -> dict[QueueKey, tuple[int, int]]:
    """Return start and queue offset of the first message that the commitlog still has, for queues that have a min."""
    first_live = dict[QueueKey, tuple[int, int]]()
    for name, bound in bounds.items():
        if bound.min is None or bound.first < 0:
            continue

        def row_from(offset: int, name: QueueKey = name) -> tuple[int, int]:
            return _row_from(database, *name, offset)

        offsets = range(bound.first, bound.last + 1)
        index = bisect.bisect_left(offsets, (log_start, -1), key=row_from)
        if index < len(offsets):
            first_live[name] = row_from(offsets[index])
    return first_live


def _row_from(database: Database, topic: bytes, queue_id: int, offset: int) -> tuple[int, int]:
    """Return (physical offset, queue offset) of the first row at or after `offset`; the row must exist."""
    key, value = next(database.rows(DEFAULT_FAMILY, rows.unit_key(topic, queue_id, offset)))
    try:
        return int(rows.decode_values([value])[0].phy[0]), rows.decode_key(key).offset
    except ValueError as error:
        shown = topic.decode("utf-8", "replace")
        raise SafetyError(f"the database has a damaged row of {shown}, queue {queue_id}: {error}") from error


def _of_bounds(
    queues: Sequence[Queue],
    bounds: dict[QueueKey, Bounds],
    inventory: Inventory,
    live: dict[QueueKey, tuple[int, int]],
    last: dict[QueueKey, int],
) -> Iterator[Finding]:
    """Yield the findings about `max` and `min`.

    Args:
        queues: to be checked.
        bounds: their rows in the database.
        inventory: of the store.
        live: start and queue offset of the first message that the log still has, of queues that have rows.
        last: start of the last message, of queues that have rows.
    """
    ends = {(queue.range.topic, queue.range.queue_id): queue.range.end for queue in inventory.queues}
    for queue in queues:
        name = (queue.range.topic, queue.range.queue_id)
        bound = bounds.get(name, Bounds())
        expected, following = max(bound.last + 1, ends.get(name, 0)), bound.max[1] + 1 if bound.max else 0
        # without rows, all messages of a queue have expired, and the file queue may have ended long ago
        if following < expected or (bound.last >= 0 and following != expected):
            text = f"by the max row, the next message gets the offset {following}, and it has to be {expected}"
            yield Finding(*name, FindingKind.MAX, 1, expected, text)
        elif bound.max is not None and name in last and bound.max[0] != last[name]:
            # a broker treats all messages of a queue as expired if its max row names a position before the log
            text = f"the max row gives {bound.max[0]} as the start of the last message, which starts at {last[name]}"
            yield Finding(*name, FindingKind.MAX, 1, following - 1, text)
        if bound.min is not None and name in live and _is_wrong_min(bound.min, live[name], inventory.log.start):
            phy, offset = live[name]
            text = f"the min row gives {bound.min[1]} at {bound.min[0]}, and the first message is {offset} at {phy}"
            yield Finding(*name, FindingKind.MIN, 1, offset, text)


def _is_wrong_min(bound: tuple[int, int], live: tuple[int, int], log_start: int) -> bool:
    """A broker trusts the offset as long as the log contains that position, and searches for another otherwise."""
    return bound[1] != live[1] if bound[0] >= log_start else bound[1] > live[1]


def _notes_of_the_store(place: Place) -> Iterator[str]:
    if (place.store / "abort").exists():
        yield (
            "the file `abort` exists: the broker did not stop cleanly. At its next start in RocksDB mode it "
            "indexes the messages that start after CHECKPOINT, so check again after that"
        )
    unfinished = unfinished_rollback(place)
    if unfinished:
        yield unfinished


def _of_checkpoint(checkpoint: int | None, log_end: int) -> Iterator[Finding]:
    if checkpoint is None:
        yield Finding(b"", -1, FindingKind.CHECKPOINT, 1, -1, "the database has no CHECKPOINT")
    elif checkpoint > log_end:
        text = f"CHECKPOINT is {checkpoint}, after the end of the commitlog, {log_end}"
        yield Finding(b"", -1, FindingKind.CHECKPOINT, 1, checkpoint, text)


def _notes(queues: Sequence[Queue], inventory: Inventory, checkpoint: int | None) -> Iterator[str]:
    ends = {(queue.range.topic, queue.range.queue_id): queue.range.end for queue in inventory.queues}
    shorter = sum(1 for queue in queues if ends.get((queue.range.topic, queue.range.queue_id), 0) < queue.range.end)
    if shorter:
        yield f"{shorter} file queues end before the database: a broker in RocksDB mode does not write them"
    unindexed = _unindexed_bytes(checkpoint, inventory.log)
    if unindexed:
        yield f"CHECKPOINT is {checkpoint}: the broker will index the last {unindexed} bytes of the log at its start"


def _unindexed_bytes(checkpoint: int | None, log: CommitLog) -> int:
    """Return the bytes of the log after CHECKPOINT, without the message that starts there, which is indexed."""
    if checkpoint is None:
        return 0
    try:
        record = log.record_at(checkpoint)
    except SafetyError:
        record = None
    return max(log.end - checkpoint - (record.size if record else 0), 0)


def _state(queue: Queue, bounds: dict[QueueKey, Bounds]) -> QueueState:
    bound = bounds.get((queue.range.topic, queue.range.queue_id), Bounds())
    following = bound.max[1] + 1 if bound.max else max(bound.last + 1, 0)
    return QueueState(
        topic=queue.range.topic.decode("utf-8", "replace"),
        queue_id=queue.range.queue_id,
        first=max(bound.first, 0),
        next=following,
        file_end=queue.files.end(),
        units=queue.range.end - queue.range.first,
    )
