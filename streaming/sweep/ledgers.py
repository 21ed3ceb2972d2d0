"""The sweep of BookKeeper, which runs in the executors: read, judge, journal, delete under guard, check again.

1. Everything is read in bulk, so that no ledger waits for a round trip of its own.
2. A cached reference is read again if it can't answer safely (jobs.SweepReferences).
3. The journal is durable before the first delete is sent.
4. A delete checks the znode versions that it was judged on, and our epoch. If any has changed, nothing is deleted.
   Right before it, one more read shows that no migration to another metadata store has started (decision 39).
5. Each ledger is read again after its deletion, and reported as DELETED only if it is not found. Kept ledgers are read
   again too.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streaming.clock import Clock
from streaming.coordination.live_store import stop_at_migration
from streaming.errors import FencedError, RefusedError
from streaming.in_use.loader import InUseLoader
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, SweepStore, Unreadable, Znode
from streaming.state.journal import JournalEntry
from streaming.sweep.jobs import (
    Job,
    Journal,
    LedgerJob,
    Limiter,
    SweepReferences,
    SweepRules,
    Swept,
    split_duplicates,
    swept_of,
)
from streaming.sweep.tiered_storage.offloaded import Confirm
from udfs.owners.named_owner import names_another
from udfs.owners.references import key_of
from udfs.paths import ledger_path
from udfs.records import LedgerComponent, LedgerFacts, Outcome, Reason, Reference, Verdict
from udfs.verdicts.judge import NOT_ASKED, Case, judge, refers_to
from udfs.verdicts.ledger_facts import facts_of

_Nodes = Mapping[str, Znode | Unreadable | None]  # by path, as a round has read them
_Question = tuple[str, tuple[str, str, int | None]]  # a ledger's path, and what a verdict on it rests on
_DELETES_PER_GUARD = 100  # in a transaction; a bigger transaction is hardly faster, and a conflict costs more
_ROUNDS = 4  # a busy owner changes its list every few seconds; more rounds only add load, RETRY comes back anyway
_RETRY_REASONS = {
    GuardStatus.CHECK_FAILED: Reason.OWNER_CHANGED,
    GuardStatus.GONE: Reason.LEDGER_CHANGED,
    GuardStatus.CHANGED: Reason.LEDGER_CHANGED,
    GuardStatus.UNKNOWN: Reason.STORE_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class GuardedJobs:
    """One transaction, and the jobs whose ledgers it deletes."""

    batch: GuardedDelete
    members: Sequence[LedgerJob]


class LedgerAcls:
    """Reads the ACLs of ledgers.

    BookKeeper gives all ledgers the same ACL, so one read serves all ledgers below a parent. Only a ledger whose ACL
    was changed (acl_version) needs a read of its own.
    """

    def __init__(self, store: SweepStore) -> None:
        self._store = store
        self._samples: dict[str, bytes] = {}

    def of(self, path: str, node: Znode) -> bytes:
        """Return a ledger's ACL. Raises UnavailableError, RefusedError."""
        sample = path if node.acl_version else parent_of(path)
        if sample in self._samples:
            return self._samples[sample]
        acl = self._store.acl_of(path)
        if acl is None:
            return b""  # the ledger is gone by now, as its delete will find; other ledgers still need an ACL
        self._samples[sample] = acl
        return acl


class Sweeper:
    """Sweeps groups of BookKeeper requests. Each worker process has its own; it keeps no state between groups."""

    def __init__(  # noqa: PLR0913  what it acts through, and what it reads
        self,
        store: SweepStore,
        loader: InUseLoader,
        journal: Journal,
        clock: Clock,
        rules: SweepRules,
        *,
        confirm: Confirm | None = None,
    ) -> None:
        self._store = store
        self._loader = loader
        self._journal = journal
        self._clock = clock
        self._rules = rules
        self._confirm = confirm  # None: offloaded ledgers are kept

    def sweep(
        self, jobs: Sequence[Job], cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Sweep jobs; return their results in order.

        Raises UnavailableError (nothing is known; repeat all jobs), FencedError.
        """
        opened = [self._open(job) for job in jobs]
        # requests that name different owners are judged separately, so that a forged request can't lend its sources to
        # another
        questions: list[_Question] = [(job.path, job.rests_on) for job in opened]
        leads: dict[_Question, LedgerJob] = {}
        for question, job in zip(questions, opened, strict=True):
            leads.setdefault(question, job)
        references = SweepReferences(self._loader, cached)
        pending = list(leads.values())
        for _round in range(_ROUNDS):
            pending = self._one_round(pending, references, limiter)
            if not pending:
                break
        self._find_lost([job for job in pending if job.sent is not None])
        self._verify([job for job in leads.values() if job.is_to_delete])
        self._confirm_kept([job for job in leads.values() if job.is_kept], references)
        policy, now_ms = self._rules.policy, self._clock.now_ms()
        return [
            swept_of(job, leads[question], policy, now_ms=now_ms, refreshed=references.was_stale(job.key))
            for question, job in zip(questions, opened, strict=True)
        ]

    def _open(self, job: Job) -> LedgerJob:
        path = ledger_path(self._rules.layout, self._rules.ledgers_root, job.request.ledger_id)
        return LedgerJob(job, key_of(job.request), path=path)

    def _one_round(
        self, pending: Sequence[LedgerJob], references: SweepReferences, limiter: Limiter | None
    ) -> list[LedgerJob]:
        """Judge and delete once; return the jobs to judge again: those whose delete was tried, then duplicates."""
        paths = list(dict.fromkeys(job.path for job in pending))
        nodes = dict(zip(paths, self._store.read_many(paths), strict=True))
        references.prepare(pending)
        # if two requests would delete a ledger, only the first is sent; the other is judged again after that
        first, duplicates = split_duplicates(self._judge(pending, nodes, references), lambda job: job.path)
        # durable before the first delete, or it could not be undone
        deletable = self._journaled(first, nodes)
        again: list[LedgerJob] = []
        for group in in_groups(guards_of(deletable, nodes, self._rules.epoch), limiter):
            if limiter is not None:
                limiter.wait_for(sum(len(guard.members) for guard in group))
            # after the ledgers were read, so that none of them was created after a migration (decision 39)
            stop_at_migration(self._store)
            # Allowed here: judged deletable on exactly the versions these guards check, and durable in the journal.
            results = self._store.delete_guarded([guard.batch for guard in group])
            if limiter is not None:
                limiter.done()
            for guard, result in zip(group, results, strict=True):
                again += self._absorb(guard, result, references)
        return again + duplicates

    def _judge(self, pending: Sequence[LedgerJob], nodes: _Nodes, references: SweepReferences) -> list[LedgerJob]:
        """Give every job its current verdict; return the jobs to delete whose ledger exists."""
        for job in pending:
            job.verdict = self._verdict(job, nodes[job.path], references)
        # a cached "in use" may be over by now
        doubted = {job.key for job in pending if job.is_in_use and references.is_cached(job.key)}
        if doubted:
            references.reload(doubted)
            for job in pending:
                if job.key in doubted:
                    job.verdict = self._verdict(job, nodes[job.path], references)
        # the list still names these as offloaded: the copy in BookKeeper may be the last (tiered_storage/offloaded.py)
        self._confirm_offloaded([job for job in pending if job.verdict == NOT_ASKED], nodes, references)
        return [job for job in pending if job.is_to_delete and nodes[job.path] is not None]

    def _confirm_offloaded(self, unasked: Sequence[LedgerJob], nodes: _Nodes, references: SweepReferences) -> None:
        """Ask tiered storage for all these ledgers together, and judge them again by its answers."""
        if not unasked or self._confirm is None:
            return
        answers = self._confirm([(job.request, references[job.key]) for job in unasked])
        for job, answer in zip(unasked, answers, strict=True):
            job.verdict = self._verdict(job, nodes[job.path], references, answer)

    def _verdict(
        self,
        job: LedgerJob,
        node: Znode | Unreadable | None,
        references: SweepReferences,
        unconfirmed: Verdict | None = NOT_ASKED,
    ) -> Verdict:
        if isinstance(node, Unreadable):
            return Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, node.detail)
        if node is None and job.sent is not None:
            return job.found_gone()
        facts = _facts(job, node)
        job.judged_on = references[job.key]
        if facts is not None and facts.metadata is not None:
            job.length_bytes = facts.metadata.length_bytes
        job.was_there = node is not None
        case = Case(
            request=job.request,
            ledger=facts,
            reference=job.judged_on,
            absent_since_ms=job.given.absent_since_ms,
            baseline=job.given.baseline,
            unconfirmed=unconfirmed,
        )
        verdict = judge(case, self._rules.policy, now_ms=self._clock.now_ms())
        # judge() deletes no ledger that names another owner
        if verdict.outcome is not Outcome.DELETED and facts is not None and facts.metadata is not None:
            job.is_anothers = names_another(job.request, facts.metadata.custom_metadata)
        return verdict

    def _journaled(self, deletable: Sequence[LedgerJob], nodes: _Nodes) -> list[LedgerJob]:
        """Make durable what an undo of the deletes needs; return the jobs that may still delete."""
        acls = LedgerAcls(self._store)
        entries, ready = [], []
        for job in deletable:
            node = read_node(nodes, job.path)
            try:
                acl = acls.of(job.path, node)
            except RefusedError as error:
                # no delete without its undo, which needs the ACL
                job.later(Reason.STORE_REFUSED, f"not deleted, because the delete could not be undone: {error}")
                continue
            ready.append(job)
            entries.append(
                JournalEntry(
                    ledger_id=job.request.ledger_id,
                    path=job.path,
                    data=node.data,
                    version=node.version,
                    acl=acl,
                    reference=job.basis(),
                )
            )
        if entries:
            self._journal.write(entries)
        return ready

    def _absorb(self, guard: GuardedJobs, result: GuardResult, references: SweepReferences) -> list[LedgerJob]:
        """Apply the result of one transaction; return the members to judge again."""
        if result.status is GuardStatus.DELETED:
            return []
        if result.status in (GuardStatus.REFUSED, GuardStatus.NOT_EMPTY):
            return refused(guard.members, result)
        if result.status is GuardStatus.CHECK_FAILED:
            if result.path == self._rules.epoch[0]:
                raise FencedError("another instance of this service has taken over; stopping without deleting")
            references.reload({job.key for job in guard.members})
        return changed(guard.members, result)

    def _find_lost(self, sent: Sequence[LedgerJob]) -> None:
        """Read ledgers whose last answer got lost when no round was left: they may have been deleted."""
        if not sent:
            return
        for job, node in zip(sent, self._store.read_many([job.path for job in sent]), strict=True):
            if node is None:
                job.verdict = job.found_gone()

    def _verify(self, deleted: Sequence[LedgerJob]) -> None:
        """Read the deleted ledgers again; a ledger that is found was not deleted."""
        for job, node in zip(deleted, self._store.read_many([job.path for job in deleted]), strict=True):
            if node is not None:
                job.later(Reason.STILL_THERE, f"{job.path} was found after its deletion")

    def _confirm_kept(self, kept: Sequence[LedgerJob], references: SweepReferences) -> None:
        """Read the kept ledgers again, and report those that vanished while their owner still refers to them.

        Such a ledger was in use, and something other than this sweep deleted it.
        """
        # Ledgers of two kinds may vanish although the request's owner refers to them. The znode of a compaction cursor
        # names an old ledger until the broker writes the cursor again. A ledger whose metadata names another owner may
        # be released by that owner, and a client that may set a subscription's properties can name any ledger there.
        kept = [
            job for job in kept if job.request.component is not LedgerComponent.COMPACTED_LEDGER and not job.is_anothers
        ]
        nodes = self._store.read_many([job.path for job in kept])
        missing = [job for job, node in zip(kept, nodes, strict=True) if node is None]
        if missing:
            references.reload({job.key for job in missing})
        for job in missing:
            # if its owner has released it since, a broker deleted it, as brokers may
            if refers_to(references[job.key], job.request.ledger_id):
                job.later(Reason.KEPT_AND_GONE, f"{job.key} refers to it, and {job.path} vanished during the sweep")


def _facts(job: LedgerJob, node: Znode | None) -> LedgerFacts | None:
    if node is None:
        return None
    return facts_of(job.request.ledger_id, job.path, node.data, node.version, (node.ctime_ms, node.mtime_ms))


def guards_of(deletable: Sequence[LedgerJob], nodes: _Nodes, epoch: tuple[str, int]) -> list[GuardedJobs]:
    """Create the transactions, by owner: each checks the znode versions on which all its jobs were judged.

    Call this before the first transaction is sent.
    """
    groups: defaultdict[tuple[str, tuple[tuple[str, int], ...]], list[LedgerJob]] = defaultdict(list)
    for job in deletable:
        # An owner that is read again later has a new version, and a verdict that rests on the old version must not be
        # carried out with the new version.
        groups[job.key, job.basis().checks].append(job)
    guards = []
    for (_key, checks), members in groups.items():
        for start in range(0, len(members), _DELETES_PER_GUARD):
            together = members[start : start + _DELETES_PER_GUARD]
            deletes = tuple((job.path, read_node(nodes, job.path).version) for job in together)
            guards.append(GuardedJobs(GuardedDelete((epoch, *checks), deletes), together))
    return guards


def in_groups(guards: Sequence[GuardedJobs], limiter: Limiter | None) -> Iterable[list[GuardedJobs]]:
    """Group the transactions to send together: at most limiter.at_once deletes a group; no transaction is split."""
    group: list[GuardedJobs] = []
    size = 0
    for guard in guards:
        if group and limiter is not None and size + len(guard.members) > limiter.at_once:
            yield group
            group, size = [], 0
        group.append(guard)
        size += len(guard.members)
    if group:
        yield group


def read_node(nodes: _Nodes, path: str) -> Znode:
    """Return the znode as it was judged."""
    node = nodes[path]
    if not isinstance(node, Znode):
        raise AssertionError(f"{path} was judged deletable without having been read")
    return node


def changed(members: Sequence[LedgerJob], result: GuardResult) -> list[LedgerJob]:
    """Delay all members, and return them to be judged again: a znode has changed, or the answer got lost."""
    for job in members:
        # the delete may have happened: if the ledger is gone at the next read, this transaction deleted it
        if result.status is GuardStatus.UNKNOWN:
            job.sent = job.verdict
        job.later(_RETRY_REASONS[result.status], f"{result.status} at {result.path or job.path}")
    return list(members)


def refused(members: Sequence[LedgerJob], result: GuardResult) -> list[LedgerJob]:
    """Delay all members, and return those to send again: one that can't be deleted makes the transaction fail."""
    culprits = {job.path for job in members if job.path == result.path}
    if culprits and result.status is GuardStatus.REFUSED:
        # The parent's ACL allows or forbids the delete of a znode, so all ledgers below the same parent are left out.
        culprits = {job.path for job in members if parent_of(job.path) == parent_of(result.path)}
    for job in members:
        job.later(Reason.STORE_REFUSED, f"ZooKeeper: {result.status} at {result.path or job.path}")
    return [job for job in members if job.path not in culprits] if culprits else []


def parent_of(path: str) -> str:
    """Return the path of the parent."""
    return path.rpartition("/")[0]
