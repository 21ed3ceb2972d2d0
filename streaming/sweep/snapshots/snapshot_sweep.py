"""The sweep of transaction-buffer snapshots: scan, read owners, journal, read owners again, send a tombstone, verify.

A Pulsar publish can't be conditional. Instead:
1. the snapshot topics are read first, segments before indexes, and their owners after that; then the judge decides
   (udfs.verdicts.judge_snapshot);
2. the bytes are in the journal before any tombstone is sent. Right before each tombstone, the epoch shows whether a
   newer instance has taken over, no migration to another metadata store may have started, and the owner is read once
   more;
3. afterwards, the messages written since the scan are read. The key's last value is published again in three cases: a
   value of the key was written before our tombstone, an index has come to name the segment, or the owner is no
   longer as it was judged;
4. segments go before the index of their topic.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.clock import Clock
from streaming.errors import FencedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.sweep.jobs import Job, Limiter, SweepRules, Swept, split_duplicates, swept_of
from streaming.sweep.snapshots.snapshot_jobs import SnapshotJob, SnapshotJournal, Snapshots, opened
from streaming.sweep.snapshots.snapshot_scan import Namespace, Scan, TopicsFailedError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.formats.store_migration import MIGRATION_STARTED, NO_MIGRATION
from udfs.paths import namespace_of
from udfs.records import Reason, Reference
from udfs.snapshots.keys import SnapshotKind, segment_key_of
from udfs.snapshots.values import ReadValue
from udfs.verdicts.judge_snapshot import IndexFacts, MessageFacts, SnapshotCase, judge_snapshot

log = logging.getLogger("ledger-reaper")

_REPUBLISH_TRIES = 5
_GROUP_SIZE = 50  # tombstones per scan: sending them takes a second or two
_ORDER = (SnapshotKind.SEGMENT, SnapshotKind.SINGLE, SnapshotKind.INDEX)


class SnapshotSweeper:
    """Sweeps groups of COMPACTED_MESSAGE requests. It keeps no state between groups."""

    def __init__(
        self,
        open_topics: Callable[[], AbstractContextManager[Snapshots]],
        loader: InUseLoader,
        journal: SnapshotJournal,
        clock: Clock,
        rules: SweepRules,
    ) -> None:
        self._open_topics = open_topics  # called once for each sweep()
        self._loader = loader
        self._journal = journal
        self._clock = clock
        self._rules = rules

    def sweep(
        self, jobs: Sequence[Job], _cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Sweep jobs; return their results in order.

        Raises UnavailableError (ZooKeeper or journal: repeat all jobs), FencedError.
        """
        open_jobs = [opened(job) for job in jobs]
        leads: dict[tuple[object, ...], SnapshotJob] = {}
        for job in open_jobs:
            leads.setdefault((job.rests_on, job.message), job)
        by_namespace: defaultdict[str, list[SnapshotJob]] = defaultdict(list)
        for job in leads.values():
            by_namespace[namespace_of(job.topic)].append(job)
        with self._open_topics() as topics:
            for name, namespace_jobs in by_namespace.items():
                self._sweep_namespace(Namespace(topics, name), namespace_jobs, limiter)
        now_ms = self._clock.now_ms()
        return [swept_of(job, leads[job.rests_on, job.message], self._rules.policy, now_ms=now_ms) for job in open_jobs]

    def _sweep_namespace(self, namespace: Namespace, jobs: Sequence[SnapshotJob], limiter: Limiter | None) -> None:
        try:
            for kind in _ORDER:
                self._sweep_kind(namespace, kind, [job for job in jobs if job.kind is kind], limiter)
        # only the requests of this namespace come back later; those of others continue
        except TopicsFailedError as failed:
            for job in jobs:
                if job.verdict is None or (job.is_to_delete and not job.is_verified):
                    job.verdict = failed.verdict  # if a tombstone was sent, the next scan finds it

    def _sweep_kind(
        self, namespace: Namespace, kind: SnapshotKind, jobs: Sequence[SnapshotJob], limiter: Limiter | None
    ) -> None:
        def not_compacted(error: Exception) -> None:  # tombstones of segments are compacted after the next scan
            log.warning("%s: tombstones of %s can still be read: %s", namespace.name, kind, error)

        # brokers can't delete a loaded topic while a tombstone in the segments topic can be read
        with _always_after(lambda: _compact_tombstones(namespace, kind, jobs), not_compacted):
            for start in range(0, len(jobs), _GROUP_SIZE):
                self._sweep_group(namespace, kind, jobs[start : start + _GROUP_SIZE], limiter)

    def _sweep_group(
        self, namespace: Namespace, kind: SnapshotKind, jobs: Sequence[SnapshotJob], limiter: Limiter | None
    ) -> None:
        def not_verified(error: Exception) -> None:  # the next scan restores what is missing
            log.error("%s: could not check whether messages that got tombstones are needed: %s", namespace.name, error)

        scan = namespace.scan(kind, jobs)
        self._judge(jobs, scan)
        # An earlier verification may have failed: then the journal has the bytes and a live topic has lost them. They
        # are published again before the request is answered.
        self._restore_missing(namespace, kind, jobs, scan)
        deletable, _duplicates = split_duplicates([job for job in jobs if job.is_to_delete], lambda job: job.message)
        if not deletable:
            return
        self._journal.write_snapshots([job.journal_entry(namespace.name) for job in deletable])
        if limiter is not None:
            limiter.wait_for(len(deletable))
        sent: list[SnapshotJob] = []
        # every tombstone that may have been sent is verified, whatever fails
        with _always_after(lambda: self._verify(namespace, kind, sent, scan), not_verified):
            for job in deletable:
                self._send(namespace, job, sent)
        if limiter is not None:
            limiter.done()

    def _judge(self, jobs: Sequence[SnapshotJob], scan: Scan) -> None:
        """Read the owners now, after the scan, and judge."""
        references = self._loader.load({job.key for job in jobs})
        for job in jobs:
            latest = scan.latest.get((job.kind, job.context.key))
            job.judged_on = references[job.key]
            job.length_bytes = 0 if latest is None else latest.size_bytes
            job.data = b"" if latest is None else latest.data
            case = SnapshotCase(
                request=job.request,
                latest=None if latest is None else _facts(latest),
                index=scan.indexes.get(job.topic, IndexFacts()),
                segments=len(scan.segments.get(job.topic, ())),
                is_guarded=scan.is_guarded,
                reference=job.judged_on,
                absent_since_ms=job.given.absent_since_ms,
            )
            job.verdict = judge_snapshot(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _restore_missing(
        self, namespace: Namespace, kind: SnapshotKind, jobs: Sequence[SnapshotJob], scan: Scan
    ) -> None:
        """Restore messages that a live topic needs and that an unverified tombstone of ours removed."""
        missing = [job for job in jobs if job.is_in_use and scan.is_missing(kind, job.context.key)]
        if not missing:
            return
        keys = {job.context.key for job in missing}
        journaled = self._journal.newest_snapshots(system_topic(namespace.name, kind), keys)
        for job in missing:
            if job.context.key not in journaled:
                continue  # the tombstone of this key, if any, is not ours
            in_use, job.verdict = job.verdict, None  # so that the request comes back if the brokers fail now
            position, data = journaled[job.context.key]
            written = namespace.written_after(kind, position, {job.context.key})
            if written and not written[-1].is_null:
                job.verdict = in_use
                continue
            values = [read for read in written if not read.is_null]
            position = self._republish(namespace, job, scan, values[-1].data if values else data)
            where = f"{position[0]}:{position[1]}"
            job.later(
                Reason.OWNER_CHANGED,
                f"its topic exists, and an earlier try had removed the message; published again at {where}",
            )
            log.error("%s: %s had a tombstone from an earlier try; published again", namespace.name, job.context.key)

    def _send(self, namespace: Namespace, job: SnapshotJob, sent: list[SnapshotJob]) -> None:
        """Send the tombstone, unless the owner has changed since. Raises FencedError, UnavailableError."""
        holding = self._loader.holding([self._rules.epoch, NO_MIGRATION])
        if self._rules.epoch not in holding:
            raise FencedError("another instance of this service has taken over; stopping without deleting")
        if NO_MIGRATION not in holding:  # the owner may be old
            raise UnavailableError(MIGRATION_STARTED)
        if not self._is_as_judged(job):
            job.later(Reason.OWNER_CHANGED, "its topic was created or deleted since the scan; nothing was sent")
            return
        # Allowed here: two checks have found that nothing needs the value, its bytes are in the journal, and its owner
        # was read right now. The tombstone counts as sent before we send it: it may be stored even without an answer.
        sent.append(job)
        job.is_unsettled = True
        job.sent_at = namespace.send(job.kind, job.context.key, None)

    def _is_as_judged(self, job: SnapshotJob) -> bool:
        presence = self._loader.load({job.key})[job.key].presence
        return job.judged_on is not None and presence is job.judged_on.presence

    def _verify(self, namespace: Namespace, kind: SnapshotKind, sent: Sequence[SnapshotJob], scan: Scan) -> None:
        """Restore a message that came to be needed since the scan, or whose key got a new value before the tombstone.

        A job stays DELETED only if its tombstone is found. If the verification of a tombstone fails, the others are
        verified before the error is raised.
        """
        if not sent:
            return
        written = namespace.written_since(kind, scan, {job.context.key for job in sent})
        named = namespace.named_since(scan, {job.topic for job in sent}) if kind is SnapshotKind.SEGMENT else set()
        changes = _Changes(written, named)
        errors: list[Exception] = []
        for job in sent:
            try:
                job.is_unsettled = not self._is_settled(namespace, job, scan, changes)
            except (TopicsFailedError, UnavailableError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _is_settled(self, namespace: Namespace, job: SnapshotJob, scan: Scan, changes: "_Changes") -> bool:
        """Verify one tombstone; return False if only the next scan can show its result."""
        written = [read for read in changes.written if read.key == job.context.key]
        # A value after our tombstone counts, and the bytes that we would publish must not replace it.
        if written and not written[-1].is_null:
            job.later(Reason.OWNER_CHANGED, "its key has a newer value by now, which was left as it is")
            return job.sent_at is not None
        if job.sent_at is None and not written:
            return False  # it had no answer and is not stored; if it is stored later after all, the next scan finds it
        sent_at = written[-1].position if job.sent_at is None else job.sent_at
        between = [read for read in written if not read.is_null and read.position < sent_at]
        if between or changes.name(job) or not self._is_as_judged(job):
            position = self._republish(namespace, job, scan, between[-1].data if between else job.data)
            where = f"{position[0]}:{position[1]}"
            job.later(Reason.OWNER_CHANGED, f"its topic needed it a moment later; published again at {where}")
            log.error("%s: %s had a tombstone for a moment; published again", namespace.name, job.context.key)
        elif job.sent_at is None:
            return False  # a tombstone exists, but was not acknowledged: the next scan shows its result
        elif not any(read.is_null and read.position == job.sent_at for read in written):
            job.later(Reason.STILL_THERE, "its tombstone was acknowledged, but is not found")
        else:
            job.is_verified = True
        return True

    def _republish(self, namespace: Namespace, job: SnapshotJob, scan: Scan, data: bytes) -> Position:
        """Publish the bytes again.

        If the topic wrote the key between our tombstone and these bytes, publish the topic's value after the bytes.
        """
        key, ours = job.context.key, set[Position]()
        for _try in range(_REPUBLISH_TRIES):
            position = namespace.send(job.kind, key, data)
            ours.add(position)
            written = namespace.written_since(job.kind, scan, {key})
            others = [read for read in written if not read.is_null and read.position not in ours]
            theirs = [read for read in others if read.position > (job.sent_at or BEFORE_ALL)]
            if not theirs or theirs[-1].position > position or theirs[-1].data == data:
                break
            data = theirs[-1].data
        return position


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes since a scan."""

    written: Sequence[ReadValue]
    named: set[tuple[str, object]]  # (owner, number) and (owner, position) of segments that new indexes name

    def name(self, job: SnapshotJob) -> bool:
        """Whether a new index names the segment of this job."""
        segment = segment_key_of(job.context.key)
        return (job.topic, job.position) in self.named or (
            segment is not None and (job.topic, segment.sequence) in self.named
        )


@contextmanager
def _always_after(step: Callable[[], None], on_second_error: Callable[[Exception], None]) -> Iterator[None]:
    """Run a step after the block, even if the block fails; the block's error is then raised.

    If the step fails as well (TopicsFailedError, UnavailableError), on_second_error gets its error.
    """
    try:
        yield
    except BaseException:
        try:
            step()
        except (TopicsFailedError, UnavailableError) as error:
            on_second_error(error)
        raise
    step()


def _compact_tombstones(namespace: Namespace, kind: SnapshotKind, jobs: Sequence[SnapshotJob]) -> None:
    """Have the topic compacted if it has tombstones that we sent or, for segments, that a scan found."""
    # Not yet: a compaction may let the brokers trim the topic, and a message that is trimmed could not be published
    # again.
    if any(job.is_unsettled for job in jobs):
        return
    if kind in namespace.with_tombstones or any(job.is_verified for job in jobs):
        namespace.compact_tombstones(kind)


def _facts(read: ReadValue) -> MessageFacts:
    return MessageFacts(read.position, read.publish_ms, read.is_null, str(read.fault or ""))
