"""Looks whether a store in RocksDB form is whole: each queue, each unit, the rows about queues, the configuration.

The store is only read. What it is compared with is the commitlog, which alone holds the messages; the file queues and
the JSON files where they are not older than the databases.
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
from streaming.rocketmq.lives import of_this_life
from streaming.rocketmq.locks import is_broker_running
from streaming.rocketmq.log_files import CommitLog
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say, told
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
    """One queue for people. file_end, next: offset of the next message by the file queue, and by the database."""

    topic: str
    queue_id: int
    first: int
    next: int
    file_end: int
    units: int


class CheckResult(NamedTuple):
    """notes: what a person may want to know, and is not wrong."""

    queues: tuple[QueueState, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    checkpoint: int
    log_end: int

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a store whose broker is stopped."""

    place: Place
    clock: Clock
    say: Say
    rows_per_part: int = ROWS_PER_PART

    def run(self, spark: SparkContext, topic: str = "") -> CheckResult:
        """Check all queues, or those of one topic.

        Raises SafetyError where there is nothing to check, and ConfigError for a topic that nothing knows.
        """
        self._require_something_to_check()
        inventory = inventory_of(self.place)
        with opened(self.place.rocksdb, read_only=True) as database:
            bounds = bounds_of(database)
            _require_sane(bounds, inventory.log)
            checkpoint = _checkpoint(database)
            inventory, earlier = of_this_life(inventory, bounds, database)
            live = _first_live(bounds, database, inventory.log.start)
            last = {name: _row_from(database, *name, each.last)[0] for name, each in bounds.items() if each.last >= 0}
        queues = _joined(inventory, _without_wild_max(inventory, bounds), topic.encode())
        compared = [
            each
            for each in self._compared(spark, inventory, queues, has_lmq=_has_lmq(inventory, bounds))
            if (not topic or each.topic == topic.encode()) and not _is_left_out(each, bounds)
        ]
        topics = topics_of(self.place)
        if topic and not queues and not compared and topic.encode() not in topics:
            raise ConfigError(f"neither queues nor commitlog nor configuration know a topic {topic}")
        findings, gone = without_deleted([*compared, *_of_bounds(queues, bounds, inventory, live, last)], topics)
        notes = [
            f"topic {each.decode('utf-8', 'replace')} is neither in topics.json nor in the database (deleted, "
            "perhaps), so what its queues lack is no finding"
            for each in gone
        ]
        unknown = sorted({name for name, _id in bounds if topics and not is_kept(name, topics)} - set(gone))
        if unknown:
            notes.append(
                f"RocksDB has rows of topics that neither topics.json nor the database has: {_names(unknown)}. A "
                "broker in RocksDB mode deletes these rows within the hour"
            )
        if topic and not queues and not compared:
            notes.append(f"topic {topic} has no queue yet: nobody has sent a message to it")
        notes += _notes_of_the_store(self.place)
        if not self.place.conf.delay_levels and any(each.topic == SCHEDULE_TOPIC for each in findings):
            notes.append(
                "a unit of the schedule topic says when its message is due: where the broker has its own "
                "messageDelayLevel, name its configuration with --broker-conf, and check again"
            )
        if earlier:
            notes.append(f"{earlier} file queues are of topics that were made anew since: `rollback` replaces them")
        if not topic:
            findings += _of_checkpoint(checkpoint, inventory.log.end)
            notes += _notes(queues, inventory, checkpoint)
            config, said = check_configuration(self.place)
            findings += config
            notes += said
        states = tuple(_state(queue, bounds) for queue in queues)
        return CheckResult(states, tuple(sorted(findings)), tuple(notes), checkpoint or 0, inventory.log.end)

    def _require_something_to_check(self) -> None:
        if is_broker_running(self.place):
            raise refused(Code.RUNNING, f"a broker runs on {self.place.store}: stop it, or check a copy")
        if not exists(self.place.rocksdb):
            left = unfinished_rollback(self.place)
            raise SafetyError(
                f"there is no RocksDB of consume queues in {self.place.rocksdb}"
                + (f", and {left}" if left else ": `backfill` makes it")
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
        with told(self.say, lambda: min(done.value // 2, units), units, self.clock):
            return job.run(spark, works)


def _has_lmq(inventory: Inventory, bounds: Collection[QueueKey]) -> bool:
    files = ((queue.range.topic, queue.range.queue_id) for queue in inventory.queues)
    return any(topic.startswith(LMQ_PREFIX) for topic, _queue_id in (*files, *bounds))


def _is_left_out(finding: Finding, bounds: dict[QueueKey, Bounds]) -> bool:
    """Whether this is about messages of an LMQ queue that a broker in file mode does not make: no folder has its name.

    One in RocksDB mode may have made it since, and begun it behind them.
    """
    is_path = finding.topic.startswith(LMQ_PREFIX) and b"/" in finding.topic
    first = bounds.get((finding.topic, finding.queue_id), Bounds()).first
    return is_path and finding.kind is FindingKind.NO_QUEUE and (first < 0 or finding.offset < first)


def check_configuration(place: Place) -> tuple[list[Finding], list[str]]:
    """Compare the configuration's databases with the JSON files: what is wrong, and what is only newer."""
    configuration, databases = read_json(place), read_databases(place.config)
    findings, notes = list[Finding](), list[str]()
    findings += _of_another_database(place)
    findings += _of_unread_offsets(place, databases[m.OFFSETS])
    for database in DATABASES:
        wanted, there = rows_of(database, configuration.tables[database]), databases[database]
        file = configuration.files[database]
        counter, wanted_counter = _counter(place, database, there), m.counter_of(wanted) or 0
        if counter is None or counter < wanted_counter - 1:
            text = f"the version of {database} is {counter}, and a broker would read {file} over its rows"
            findings.append(_config_finding(text, 1))
        lacking = [name for name in wanted.default if name not in there.default]
        other = [name for name, value in wanted.default.items() if there.default.get(name, value) != value]
        other += [name for name, value in wanted.forbidden.items() if there.forbidden.get(name) != value]
        if is_unopened(place, database):
            if lacking or other:
                text = f"{database} lacks or differs in {_names([*lacking, *other])} of {file}"
                findings.append(_config_finding(text, len(lacking) + len(other)))
        elif lacking or other:
            notes.append(
                f"a broker has worked with {database} since, so {file} is older: it has {_names([*lacking, *other])} "
                "as they were before"
            )
    if not is_unopened(place, m.OFFSETS):
        findings += _of_offsets(lost_offsets(configuration, databases), is_converted=moved_of(place) is not None)
    return findings, notes


def _of_another_database(place: Place) -> Iterator[Finding]:
    unknown = other_database(place)
    if unknown:
        text = f"{unknown} is a database that this program does not know: a broker may read it instead of the three"
        yield _config_finding(text, 1)


def _of_unread_offsets(place: Place, there: m.ConfigRows) -> Iterator[Finding]:
    unread = unread_offsets(place)
    lost = [name for name in unread.names if name.encode() not in there.default] if unread else []
    if unread and lost:
        shown = _names([name.encode() for name in lost])
        text = f"{m.OFFSETS} has none of the offsets of {unread.file}, the only file of offsets: {shown}"
        yield _config_finding(text, len(lost))


def _counter(place: Place, database: str, there: m.ConfigRows) -> int | None:
    try:
        return m.counter_of(there)
    except m.BadTableError as error:
        raise SafetyError(f"{place.config / database}: {error}") from error


def _of_offsets(lost: LostOffsets, *, is_converted: bool) -> Iterator[Finding]:
    """is_converted: a backfill has brought the offsets, so that lower ones were set back since."""
    lower = () if is_converted else lost.lower
    for what, names in (("lacks offsets", lost.missing), ("has lower offsets than those", lower)):
        if names:
            shown = _names([name.encode() for name in names])
            yield _config_finding(f"{m.OFFSETS} {what} of the JSON file: {shown}", len(names))


def topics_of(place: Place) -> frozenset[bytes]:
    """The topics that database or JSON file know. One that only one of them lacks does not count as deleted."""
    table = rows_of(m.TOPICS, read_json(place).tables[m.TOPICS])
    return frozenset(read_databases(place.config)[m.TOPICS].default.keys() | table.default.keys())


def without_deleted(findings: Sequence[Finding], topics: Collection[bytes]) -> tuple[list[Finding], list[bytes]]:
    """Take out the findings about topics that were deleted; returns those topics as well.

    A broker in RocksDB mode deletes the rows of topics that its configuration lacks, but for LMQ queues and RocketMQ's
    own topics. Where no topics are known, none counts as deleted. Neither does a topic whose units point to messages of
    other queues: the commitlog has no message of that topic there, so its queues are damaged or copied.
    """
    if not topics:
        return list(findings), []
    foreign = {each.topic for each in findings if each.kind in _FOREIGN}
    gone = {
        each.topic
        for each in findings
        if each.queue_id >= 0 and each.topic not in foreign and not is_kept(each.topic, topics)
    }
    return [each for each in findings if each.topic not in gone or each.queue_id < 0], sorted(gone)


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
    """Raise SafetyError where a queue has rows further apart than messages can be: nobody can compare what is between.

    No log that ended where this one does can ever have had more messages.
    """
    for (topic, queue_id), each in bounds.items():
        if each.last - each.first > log.end // RECORD_BYTES_MIN:
            raise SafetyError(
                f"the consume queues' database has a damaged key: {topic.decode('utf-8', 'replace')}, queue {queue_id} "
                f"has rows from queue offset {each.first} to {each.last}, more than the commitlog can have had messages"
            )


def _joined(inventory: Inventory, bounds: dict[QueueKey, Bounds], only: bytes = b"") -> list[Queue]:
    """All queues, or one topic's, that files or database know, with a range that has room for the units of both."""
    known = {(queue.range.topic, queue.range.queue_id): queue for queue in inventory.queues}
    ranges = list[QueueRange]()
    for topic, queue_id in known.keys() | bounds.keys():
        if only and topic != only:
            continue
        first, end = _span(bounds.get((topic, queue_id), Bounds()), known.get((topic, queue_id)))
        ranges.append(QueueRange(0, topic, queue_id, first, end))
    nothing = QueueFiles(())
    return [
        Queue(each._replace(number=number), known[name].files if name in known else nothing,
              max(known[name].last_phy if name in known else -1, (bounds.get(name, Bounds()).max or (-1, 0))[0]))
        for number, each in enumerate(in_key_order(ranges)) for name in [(each.topic, each.queue_id)]
    ]  # fmt: skip


def _span(bound: Bounds, queue: Queue | None) -> tuple[int, int]:
    """Where a queue's rows and live units are, and those that max promises; without any, where it goes on."""
    known = (queue.range.first, queue.range.end) if queue else (0, 0)
    following = bound.max[1] + 1 if bound.max else 0
    spans = [each for each in ((bound.first, bound.last + 1), known) if 0 <= each[0] < each[1]]
    if not spans:
        end = max(following, known[1])
        return end, end
    return min(span[0] for span in spans), max(following, *(span[1] for span in spans))


def _without_wild_max(inventory: Inventory, bounds: dict[QueueKey, Bounds]) -> dict[QueueKey, Bounds]:
    """Leave out each max that is behind all rows and units of its queue, and whose message is not in the log.

    It may be damaged, and promise more units than a disk can hold; what it says is judged apart from them.
    """
    ends = {(each.range.topic, each.range.queue_id): each.range for each in inventory.queues}
    found = dict(bounds)
    for name, bound in bounds.items():
        live = [bound.last + 1, *(each.end for each in [ends.get(name)] if each and each.first < each.end)]
        is_bare = max(live) == 0  # nothing else says where the queue goes on
        if bound.max is None or bound.max[1] < max(live) or is_bare:
            continue
        if not _is_in_log(inventory.log, name, bound.max):
            found[name] = bound._replace(max=None)
    return found


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
        each = queue.range
        firsts[each.topic, each.queue_id] = (each.first, each.end, before, queue.last_phy)
        before += each.end - each.first
    return Numbering(firsts, rows_per_part)


def _first_live(bounds: dict[QueueKey, Bounds], database: Database, log_start: int) -> dict[QueueKey, tuple[int, int]]:
    """Where the first message begins that the commitlog still has, and its queue offset, of queues that have a min."""
    found = dict[QueueKey, tuple[int, int]]()
    for name, bound in bounds.items():
        if bound.min is None or bound.first < 0:
            continue

        def row_from(offset: int, name: QueueKey = name) -> tuple[int, int]:
            return _row_from(database, *name, offset)

        offsets = range(bound.first, bound.last + 1)
        place = bisect.bisect_left(offsets, (log_start, -1), key=row_from)
        if place < len(offsets):
            found[name] = row_from(offsets[place])
    return found


def _row_from(database: Database, topic: bytes, queue_id: int, offset: int) -> tuple[int, int]:
    """Where the message begins of a queue's first row from an offset on, for which there is one; and its offset."""
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
    """live, last: where the first message that the log still has and the last one begin, of queues that have rows."""
    ends = {(each.range.topic, each.range.queue_id): each.range.end for each in inventory.queues}
    for queue in queues:
        name = (queue.range.topic, queue.range.queue_id)
        bound = bounds.get(name, Bounds())
        wanted, said = max(bound.last + 1, ends.get(name, 0)), bound.max[1] + 1 if bound.max else 0
        # without rows, all messages of a queue have expired, and the file queue may have ended long ago
        if said < wanted or (bound.last >= 0 and said != wanted):
            text = f"the max row gives the next message the offset {said}, and it has to be {wanted}"
            yield Finding(*name, FindingKind.MAX, 1, wanted, text)
        elif bound.max is not None and name in last and bound.max[0] != last[name]:
            # a broker takes all messages of a queue for expired whose max row names a place before the log
            text = f"the max row says that the last message begins at {bound.max[0]}, and it begins at {last[name]}"
            yield Finding(*name, FindingKind.MAX, 1, said - 1, text)
        if bound.min is not None and name in live and _is_wrong_min(bound.min, live[name], inventory.log.start):
            phy, offset = live[name]
            text = f"the min row says {bound.min[1]} at {bound.min[0]}, and the first message is {offset} at {phy}"
            yield Finding(*name, FindingKind.MIN, 1, offset, text)


def _is_wrong_min(said: tuple[int, int], live: tuple[int, int], log_start: int) -> bool:
    """A broker takes the offset for true as long as the log has that place, and looks for another one otherwise."""
    return said[1] != live[1] if said[0] >= log_start else said[1] > live[1]


def _notes_of_the_store(place: Place) -> Iterator[str]:
    if (place.store / "abort").exists():
        yield (
            "the file `abort` is there: the broker did not stop cleanly. At its next start in RocksDB mode it "
            "indexes what begins behind CHECKPOINT, so check again after that"
        )
    left = unfinished_rollback(place)
    if left:
        yield left


def _of_checkpoint(checkpoint: int | None, log_end: int) -> Iterator[Finding]:
    if checkpoint is None:
        yield Finding(b"", -1, FindingKind.CHECKPOINT, 1, -1, "the database has no CHECKPOINT")
    elif checkpoint > log_end:
        text = f"CHECKPOINT is {checkpoint}, behind the end of the commitlog, {log_end}"
        yield Finding(b"", -1, FindingKind.CHECKPOINT, 1, checkpoint, text)


def _notes(queues: Sequence[Queue], inventory: Inventory, checkpoint: int | None) -> Iterator[str]:
    ends = {(each.range.topic, each.range.queue_id): each.range.end for each in inventory.queues}
    behind = sum(1 for queue in queues if ends.get((queue.range.topic, queue.range.queue_id), 0) < queue.range.end)
    if behind:
        yield f"{behind} file queues end before the database: a broker in RocksDB mode does not write them"
    behind = _behind(checkpoint, inventory.log)
    if behind:
        yield f"CHECKPOINT is {checkpoint}: the broker will index the last {behind} bytes of the log at its start"


def _behind(checkpoint: int | None, log: CommitLog) -> int:
    """Bytes of the log behind CHECKPOINT, and behind the message that begins there, which is indexed."""
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
        queue.range.topic.decode("utf-8", "replace"), queue.range.queue_id, max(bound.first, 0), following,
        queue.files.end(), queue.range.end - queue.range.first,
    )  # fmt: skip
