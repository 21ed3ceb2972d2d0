"""The sweep of orphan segments: read, judge, journal, check once more, let a broker delete the segment, verify.

A broker deletes any segment on request, and no transaction can contain its REST call. Instead:
1. a segment is judged by all its znodes and by the brokers' layout (udfs.verdicts.judge_segment), in two sweeps;
2. all its ledgers are read: each must name this segment as its owner, and is in the journal before the call;
3. right before the call, all znodes must still be as they were judged, and epoch, migration and brokers' sessions are
   checked. The call is never repeated without this check;
4. afterwards, ZooKeeper shows what is left. After a call without an answer, nothing more is sent in this sweep, since
   a broker that hangs must not collect calls that it carries out later.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from streaming.clock import Clock
from streaming.coordination.live_store import await_broker
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import SegmentRemover, SweepStore, Unreadable, Znode
from streaming.state.journal import JournalEntry
from streaming.sweep.jobs import Job, Journal, Limiter, OpenJob, SweepRules, Swept, split_duplicates, swept_of
from streaming.sweep.ledgers import LedgerAcls
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata
from udfs.formats.managed_ledger import in_use_ids, parse_cursor
from udfs.formats.store_migration import MIGRATION_STARTED, NO_MIGRATION
from udfs.owners.named_owner import mismatch
from udfs.owners.references import key_of, named_by_cursor
from udfs.paths import cursor_path, ledger_path
from udfs.records import LedgerComponent, LedgerType, Outcome, PendingDelete, Presence, Reason, Reference, Verdict
from udfs.verdicts.judge_segment import MOST_LEDGERS, RemovalFacts, is_unchanged, judge_removal

_GROUP_SIZE = 50  # segments that are judged together: their removal takes some seconds
_MOST_MS = 20_000  # of a sweep, because other requests wait until the chunk ends
# Not 0, so that a request which this sweep does not reach uses up no try. It returns after
# two_phase.reconsume_later_seconds, if that is longer.
_LATER_MS = 1_000


@dataclass(slots=True, kw_only=True)
class SegmentJob(OpenJob):
    """A job for one segment."""

    facts: RemovalFacts | None = None  # that the verdict rests on
    ledgers: Mapping[int, Znode] = field(default_factory=dict)  # the znodes of its ledgers


class SegmentSweeper:
    """Sweeps groups of SEGMENT requests. It keeps no state between groups."""

    def __init__(  # noqa: PLR0913  what it acts through, and what it reads
        self,
        store: SweepStore,
        loader: InUseLoader,
        journal: Journal,
        clock: Clock,
        rules: SweepRules,
        *,
        open_remover: Callable[[], AbstractContextManager[SegmentRemover]],
    ) -> None:
        self._open_remover = open_remover  # called once for each sweep()
        self._store = store
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
        open_jobs = [SegmentJob(job, key_of(job.request)) for job in jobs]
        leads: dict[tuple[object, ...], SegmentJob] = {}
        for job in open_jobs:
            leads.setdefault((job.rests_on, job.request.ledger_id), job)
        until_ms = self._clock.now_ms() + _MOST_MS
        pending = list(leads.values())
        with self._open_remover() as remover:
            for start in range(0, len(pending), _GROUP_SIZE):
                group = pending[start : start + _GROUP_SIZE]
                if self._clock.now_ms() >= until_ms:
                    _postpone(group, "other requests must not wait for it")
                elif not self._sweep_group(group, remover, limiter, until_ms):
                    until_ms = 0
        now_ms = self._clock.now_ms()
        return [self._swept(job, leads[job.rests_on, job.request.ledger_id], now_ms) for job in open_jobs]

    def _swept(self, job: SegmentJob, lead: SegmentJob, now_ms: int) -> Swept:
        swept = swept_of(job, lead, self._rules.policy, now_ms=now_ms)
        if lead.facts is None:  # postponed before it was judged: this was no sighting
            return replace(swept, absent_since_ms=job.given.absent_since_ms)
        return swept

    def _sweep_group(
        self, group: Sequence[SegmentJob], remover: SegmentRemover, limiter: Limiter | None, until_ms: int
    ) -> bool:
        """Judge and remove; False if a broker did not answer, so that nothing more may be sent."""
        self._judge(group)
        removable, _duplicates = split_duplicates(
            [job for job in group if job.is_to_delete], lambda job: job.request.managed_ledger
        )
        removable = self._journaled(removable)
        for at, job in enumerate(removable):
            if self._clock.now_ms() >= until_ms:
                _postpone(removable[at:], "other requests must not wait for it")
                break
            if limiter is not None:
                limiter.wait_for(1)
            has_answer = self._remove(job, remover)
            if limiter is not None:
                limiter.done()
            if not has_answer:
                _postpone(removable[at + 1 :], "a broker did not answer an earlier call")
                return False
        return True

    def _judge(self, jobs: Sequence[SegmentJob]) -> None:
        facts = self._loader.removals([job.request.managed_ledger for job in jobs])
        for job in jobs:
            job.facts = facts[job.request.managed_ledger]
            job.verdict = judge_removal(
                job.facts,
                job.request.ledger_id,
                self._rules.policy,
                absent_since_ms=job.given.absent_since_ms,
                now_ms=self._clock.now_ms(),
            )

    def _journaled(self, jobs: Sequence[SegmentJob]) -> list[SegmentJob]:
        """Make durable what an undo of the deletes needs; return the jobs whose segments may still be removed."""
        acls = LedgerAcls(self._store)
        journaled: list[JournalEntry] = []
        ready = []
        for job in jobs:
            try:
                job.ledgers = self._ledgers(job)
                written = [self._entry(job, ledger_id, acls) for ledger_id in job.ledgers]
            except ValueError as error:  # FormatError, and a cursor's name that no broker writes
                job.later(Reason.NOT_REMOVABLE, str(error))
                continue
            except RefusedError as error:
                job.later(Reason.STORE_REFUSED, f"not deleted, because the delete could not be undone: {error}")
                continue
            ready.append(job)
            journaled += written
        if journaled:
            self._journal.write(journaled)
        return ready

    def _ledgers(self, job: SegmentJob) -> dict[int, Znode]:
        """Read the ledgers that the segment names; each must name the segment. Raises FormatError."""
        named = self._named(job)
        paths = [self._path(ledger_id) for ledger_id in named]
        ledgers: dict[int, Znode] = {}
        for (ledger_id, (component, cursor)), node in zip(named.items(), self._store.read_many(paths), strict=True):
            if isinstance(node, Unreadable):
                raise FormatError(f"ledger {ledger_id} could not be read: {node.detail}")
            if node is None:
                continue  # nothing to delete or to undo
            claim = PendingDelete(
                managed_ledger=job.request.managed_ledger,
                component=component,
                ledger_type=LedgerType.LEDGER,
                ledger_id=ledger_id,
                cursor_name=cursor,
            )
            metadata = parse_ledger_metadata(node.data)
            # a broker would delete it all the same
            if why := mismatch(claim, metadata.custom_metadata):
                raise FormatError(f"it names ledger {ledger_id}, which is not its own: {why[1]}")
            job.length_bytes += metadata.length_bytes
            ledgers[ledger_id] = node
        return ledgers

    def _named(self, job: SegmentJob) -> dict[int, tuple[LedgerComponent, str | None]]:
        """Return what names each ledger of the segment: a component, and its cursor. Raises FormatError."""
        own, segment = _facts(job).segment.own, job.request.managed_ledger
        named: dict[int, tuple[LedgerComponent, str | None]] = {}
        for ledger_id in in_use_ids(own.data or b"").ids:
            named[ledger_id] = LedgerComponent.MANAGED_LEDGER, None
        (cursors,) = self._store.children_many([own.path])
        if isinstance(cursors, Unreadable):
            raise FormatError(f"its cursors could not be listed: {cursors.detail}")
        paths = {cursor: cursor_path(segment, cursor) for cursor in cursors or ()}
        for cursor, node in zip(paths, self._store.read_many(list(paths.values())) if paths else (), strict=True):
            if isinstance(node, Unreadable):
                raise FormatError(f"its cursor {cursor!a} could not be read: {node.detail}")
            for component, ledger_id in named_by_cursor(parse_cursor(node.data)) if node is not None else ():
                named[ledger_id] = component, cursor
        if len(named) > MOST_LEDGERS:
            raise FormatError(f"it names {len(named)} ledgers, more than {MOST_LEDGERS}")
        return named

    def _path(self, ledger_id: int) -> str:
        return ledger_path(self._rules.layout, self._rules.ledgers_root, ledger_id)

    def _entry(self, job: SegmentJob, ledger_id: int, acls: LedgerAcls) -> JournalEntry:
        node, path, segment = job.ledgers[ledger_id], self._path(ledger_id), _facts(job).segment
        checks = tuple((read.path, read.version) for read in (segment.own, segment.layout) if read.data is not None)
        return JournalEntry(
            ledger_id=ledger_id,
            path=path,
            data=node.data,
            version=node.version,
            acl=acls.of(path, node),
            reference=Reference(key=job.key, presence=Presence.PRESENT, read_at_ms=self._clock.now_ms(), checks=checks),
        )

    def _remove(self, job: SegmentJob, remover: SegmentRemover) -> bool:
        """Have a broker delete the segment, unless something has changed; False if no broker answered."""
        is_sent = False

        def may_send() -> bool:
            nonlocal is_sent
            is_sent = self._may_remove(job)
            return is_sent

        try:
            # Allowed here: judged removable in two sweeps, its ledgers are in the journal, and may_send reads right
            # before the call that nothing has changed.
            if not remover.delete(job.request.managed_ledger, may_send):
                job.later(Reason.OWNER_CHANGED, "its znodes or its layout changed since the check; nothing was sent")
                return True
        except RefusedError as error:
            job.later(Reason.STORE_REFUSED, str(error))
            return True
        except UnavailableError as error:
            if not is_sent:
                job.later(Reason.STORE_UNAVAILABLE, str(error))
                return True
            removed, has_answer = job.verdict, False
            job.later(Reason.STORE_UNAVAILABLE, f"no broker confirmed the deletion, which may happen later: {error}")
        else:
            removed, has_answer = job.verdict, True
        self._verify(job, removed)
        return has_answer

    def _may_remove(self, job: SegmentJob) -> bool:
        """Whether nothing has changed since the judgement. Raises FencedError, UnavailableError."""
        holding = self._loader.holding([self._rules.epoch, NO_MIGRATION])
        if self._rules.epoch not in holding:
            raise FencedError("another instance of this service has taken over; stopping without deleting")
        if NO_MIGRATION not in holding:  # the znodes may be old
            raise UnavailableError(MIGRATION_STARTED)
        await_broker(self._store)
        segment = job.request.managed_ledger
        return is_unchanged(_facts(job), self._loader.removals([segment], ask=False)[segment])

    def _verify(self, job: SegmentJob, removed: Verdict | None) -> None:
        """Read the segment and its ledgers; what is found was not deleted."""
        own = _facts(job).segment.own.path
        (node, *ledgers) = self._store.read_many([own, *map(self._path, job.ledgers)])
        left = [ledger for ledger in ledgers if ledger is not None]
        if node is None and removed is not None:
            leaked = f"; {len(left)} of its ledgers are left, which the next audit finds" if left else ""
            job.verdict = Verdict(removed.outcome, removed.reason, f"{removed.detail}{leaked}")
        elif job.is_to_delete:
            job.later(Reason.STILL_THERE, f"{own} was found after its deletion")


def _facts(job: SegmentJob) -> RemovalFacts:
    if job.facts is None:
        raise AssertionError(f"{job.request.managed_ledger} was not judged")
    return job.facts


def _postpone(jobs: Sequence[SegmentJob], why: str) -> None:
    """Retry requests later; they keep their first sighting, and use up no try."""
    for job in jobs:
        job.verdict = Verdict(Outcome.RETRY, Reason.UNREFERENCED_ONCE, f"not this time: {why}", wait_ms=_LATER_MS)
