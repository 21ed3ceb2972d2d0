"""The sweep of BookKeeper: look, judge, write the journal, delete under guard, look again; it runs in the executors.

1. Everything is read in bulk, so that no ledger waits for a round trip of its own.
2. A cached reference is read again where it can't answer safely: its owner is absent or unreadable, the ledger is newer
   than its list, it says "in use" (which may be over), or it is a compacted ledger's, which stands in no znode.
3. A ledger that its list still names as offloaded goes only after tiered storage was asked for both of its objects.
4. The journal is durable before the first delete is sent.
5. A delete checks the znode versions that it was judged on, and our epoch. If any has changed, nothing is deleted.
6. We look for each ledger after its deletion, and say DELETED only if we don't find it. We look for the kept ones too.
7. Different requests for one ledger are each judged for themselves. Where two would delete it, only the first is sent;
   the other is judged again after that.
"""

from collections.abc import Mapping, Sequence

from streaming.clock import Clock
from streaming.errors import FencedError, RefusedError
from streaming.in_use.loader import InUseLoader
from streaming.ports import GuardResult, GuardStatus, SweepStore, Unreadable, Znode
from streaming.state.journal import JournalEntry
from streaming.sweep.jobs import Job, Journal, LedgerJob, Limiter, SweepRules, Swept, one_for_each, swept_of
from streaming.sweep.offloaded import Confirm
from streaming.sweep.references import SweepReferences
from streaming.sweep.transactions import Guarded, Nodes, changed, guards_of, parent_of, portions, read_node, refused
from udfs.judge import NOT_ASKED, Case, judge, refers_to
from udfs.ledger_facts import facts_of
from udfs.ownership import names_another
from udfs.paths import ledger_path
from udfs.records import LedgerComponent, LedgerFacts, Outcome, Reason, Reference, Verdict
from udfs.references import key_of

_Asked = tuple[str, tuple[str, str, int | None]]  # a ledger's path, and what a verdict on it rests on
_ROUNDS = 4  # a busy owner changes its list every few seconds; more rounds only add load, RETRY comes back anyway


class Sweeper:
    """Works off groups of BookKeeper requests. One per worker process; holds no state between groups."""

    def __init__(  # noqa: PLR0913  what it acts through, and what it asks
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
        self._confirm = confirm  # None: what is offloaded is kept

    def sweep(
        self, jobs: Sequence[Job], cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Work off jobs, in order. Raises UnavailableError (nothing is known; do all again), FencedError."""
        opened = [self._open(job) for job in jobs]
        leads: dict[_Asked, LedgerJob] = {}
        for one in opened:
            leads.setdefault((one.path, one.asks), one)
        references = SweepReferences(self._loader, cached)
        pending = list(leads.values())
        for _round in range(_ROUNDS):
            pending = self._one_round(pending, references, limiter)
            if not pending:
                break
        self._look_for_lost([one for one in pending if one.sent is not None])
        self._verify([one for one in leads.values() if one.is_to_delete])
        self._confirm_kept([one for one in leads.values() if one.is_kept], references)
        policy, now_ms = self._rules.policy, self._clock.now_ms()
        return [
            swept_of(one, leads[one.path, one.asks], policy, now_ms=now_ms, refreshed=references.was_stale(one.key))
            for one in opened
        ]

    def _open(self, job: Job) -> LedgerJob:
        path = ledger_path(self._rules.layout, self._rules.ledgers_root, job.request.ledger_id)
        return LedgerJob(job, key_of(job.request), path=path)

    def _one_round(
        self, pending: Sequence[LedgerJob], references: SweepReferences, limiter: Limiter | None
    ) -> list[LedgerJob]:
        """Judge and delete once; return the jobs that need another look, those that were tried before others."""
        paths = list(dict.fromkeys(one.path for one in pending))
        nodes = dict(zip(paths, self._store.read_many(paths), strict=True))
        references.prepare(pending)
        first, others = one_for_each(self._judge(pending, nodes, references), lambda one: one.path)
        deletable = self._journaled(first, nodes)
        again: list[LedgerJob] = []
        for portion in portions(guards_of(deletable, nodes, self._rules.epoch), limiter):
            if limiter is not None:
                limiter.wait_for(sum(len(guard.members) for guard in portion))
            # Allowed here: judged deletable on exactly the versions these guards check, and durable in the journal.
            results = self._store.delete_guarded([guard.batch for guard in portion])
            if limiter is not None:
                limiter.done()
            for guard, result in zip(portion, results, strict=True):
                again += self._absorb(guard, result, references)
        return again + others

    def _judge(self, pending: Sequence[LedgerJob], nodes: Nodes, references: SweepReferences) -> list[LedgerJob]:
        """Give every job the verdict of now; return those to delete whose ledger is there."""
        for one in pending:
            one.verdict = self._verdict(one, nodes[one.path], references)
        doubted = {one.key for one in pending if one.is_in_use and references.is_cached(one.key)}
        if doubted:
            references.reload(doubted)
            for one in pending:
                if one.key in doubted:
                    one.verdict = self._verdict(one, nodes[one.path], references)
        self._confirm_offloaded([one for one in pending if one.verdict == NOT_ASKED], nodes, references)
        return [one for one in pending if one.is_to_delete and nodes[one.path] is not None]

    def _confirm_offloaded(self, unasked: Sequence[LedgerJob], nodes: Nodes, references: SweepReferences) -> None:
        """Ask tiered storage for all of them together, and judge them again by its answers."""
        if not unasked or self._confirm is None:
            return
        answers = self._confirm([(one.job.request, references[one.key]) for one in unasked])
        for one, answer in zip(unasked, answers, strict=True):
            one.verdict = self._verdict(one, nodes[one.path], references, answer)

    def _verdict(
        self,
        one: LedgerJob,
        node: Znode | Unreadable | None,
        references: SweepReferences,
        unconfirmed: Verdict | None = NOT_ASKED,
    ) -> Verdict:
        if isinstance(node, Unreadable):
            return Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, node.detail)
        if node is None and one.sent is not None:
            return one.found_gone()
        facts = _facts(one, node)
        one.judged_on = references[one.key]
        if facts is not None and facts.metadata is not None:
            one.length_bytes = facts.metadata.length_bytes
            one.is_anothers = names_another(one.job.request, facts.metadata.custom_metadata)
        one.was_there = node is not None
        case = Case(
            request=one.job.request,
            ledger=facts,
            reference=one.judged_on,
            absent_since_ms=one.job.absent_since_ms,
            baseline=one.job.baseline,
            unconfirmed=unconfirmed,
        )
        return judge(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _journaled(self, deletable: Sequence[LedgerJob], nodes: Nodes) -> list[LedgerJob]:
        """Make durable what is needed to undo the deletes; return the jobs that may go on."""
        acls: dict[str, bytes] = {}
        entries, ready = [], []
        for one in deletable:
            node = read_node(nodes, one.path)
            try:
                acl = self._acl(one.path, node, acls)
            except RefusedError as error:
                one.later(Reason.STORE_REFUSED, f"could not be undone: {error}")
                continue
            ready.append(one)
            entries.append(
                JournalEntry(
                    ledger_id=one.job.request.ledger_id,
                    path=one.path,
                    data=node.data,
                    version=node.version,
                    acl=acl,
                    reference=one.basis(),
                )
            )
        if entries:
            self._journal.write(entries)
        return ready

    def _acl(self, path: str, node: Znode, samples: dict[str, bytes]) -> bytes:
        """Return a ledger's ACL.

        BookKeeper gives all ledgers the same ACL, so that one of a parent stands for all. Only a ledger whose ACL was
        changed (acl_version) is asked for itself.
        """
        sample = path if node.acl_version else parent_of(path)
        if sample in samples:
            return samples[sample]
        acl = self._store.acl_of(path)
        if acl is None:
            return b""  # the ledger is gone meanwhile, as its delete will say; its ACL stands for no other
        samples[sample] = acl
        return acl

    def _absorb(self, guard: Guarded, result: GuardResult, references: SweepReferences) -> list[LedgerJob]:
        """Take in what became of one transaction; return the members that need another look."""
        if result.status is GuardStatus.DELETED:
            return []
        if result.status in (GuardStatus.REFUSED, GuardStatus.NOT_EMPTY):
            return refused(guard.members, result)
        if result.status is GuardStatus.CHECK_FAILED:
            if result.path == self._rules.epoch[0]:
                raise FencedError("another instance of this service has taken over; stopping without deleting")
            references.reload({one.key for one in guard.members})
        return changed(guard.members, result)

    def _look_for_lost(self, sent: Sequence[LedgerJob]) -> None:
        """Look for ledgers whose last answer got lost when no round was left: they may have been deleted."""
        if not sent:
            return
        for one, node in zip(sent, self._store.read_many([one.path for one in sent]), strict=True):
            if node is None:
                one.verdict = one.found_gone()

    def _verify(self, deleted: Sequence[LedgerJob]) -> None:
        """Look for the deleted ledgers; one that we find was not deleted."""
        for one, node in zip(deleted, self._store.read_many([one.path for one in deleted]), strict=True):
            if node is not None:
                one.later(Reason.STILL_THERE, f"{one.path} was found after its deletion")

    def _confirm_kept(self, kept: Sequence[LedgerJob], references: SweepReferences) -> None:
        """Look for the kept ledgers.

        Where one is gone and its owner still refers to it, somebody deleted data that is in use. Where the owner gave
        it up meanwhile, a broker deleted it, as it may. Compacted ledgers are left out: the cursor's znode names an old
        one until the broker writes the cursor again. So are ledgers that name another owner: that owner may give them
        up, and whoever may set a subscription's properties can name any ledger there.
        """
        kept = [
            one
            for one in kept
            if one.job.request.component is not LedgerComponent.COMPACTED_LEDGER and not one.is_anothers
        ]
        nodes = self._store.read_many([one.path for one in kept])
        missing = [one for one, node in zip(kept, nodes, strict=True) if node is None]
        if missing:
            references.reload({one.key for one in missing})
        for one in missing:
            if refers_to(references[one.key], one.job.request.ledger_id):
                one.later(Reason.KEPT_AND_GONE, f"{one.key} refers to it, and {one.path} vanished during the sweep")


def _facts(one: LedgerJob, node: Znode | None) -> LedgerFacts | None:
    if node is None:
        return None
    return facts_of(one.job.request.ledger_id, one.path, node.data, node.version, (node.ctime_ms, node.mtime_ms))
