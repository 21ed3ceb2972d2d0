"""Look, decide, write down, delete with proof, look again: one group of requests, in an executor.

1. Everything is read in bulk; no ledger waits for a round trip of its own.
2. What a cached reference can't answer safely is read again first (absent or unreadable owners, ledgers newer
   than its list, compacted ledgers, whose reference stands in no znode; "in use" that may be over).
3. The journal is durable before the first delete is sent.
4. A delete carries the versions it was decided on, and our epoch; whatever changed makes it do nothing.
5. "Deleted" is said only after the ledger was looked for again and not found; and what was kept is looked for, too.
"""

from collections.abc import Mapping, Sequence

from streaming.clock import Clock
from streaming.errors import FencedError, RefusedError
from streaming.in_use.loader import InUseLoader
from streaming.ports import GuardResult, GuardStatus, SweepStore, Unreadable, Znode
from streaming.state.journal import JournalEntry
from streaming.sweep.jobs import Job, Journal, Limiter, OpenJob, SweepRules, Swept
from streaming.sweep.references import SweepReferences
from streaming.sweep.transactions import Guarded, Nodes, changed, guards_of, parent_of, portions, read_node, refused
from udfs.completeness import certificate
from udfs.judge import Case, judge, kept_by_shrinkage, refers_to, seen_before
from udfs.ledger_facts import facts_of
from udfs.paths import ledger_path
from udfs.records import LedgerComponent, LedgerFacts, Outcome, Reason, Reference, Verdict
from udfs.references import key_of

_ROUNDS = 4  # a busy owner changes its list every few seconds; more rounds only add load, RETRY comes back anyway
_NEEDS_SECOND_LOOK = frozenset({Reason.OWNER_ABSENT_ONCE, Reason.UNREFERENCED_ONCE})


class Sweeper:
    """Works off groups of BookKeeper requests. One per worker process; holds no state between groups."""

    def __init__(
        self, store: SweepStore, loader: InUseLoader, journal: Journal, clock: Clock, rules: SweepRules
    ) -> None:
        self._store = store
        self._loader = loader
        self._journal = journal
        self._clock = clock
        self._rules = rules

    def sweep(
        self, jobs: Sequence[Job], cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Work off jobs, in order. Raises UnavailableError (nothing is known; do all again), FencedError."""
        opened = [self._open(job) for job in jobs]
        leads: dict[str, OpenJob] = {}
        for one in opened:
            leads.setdefault(one.path, one)
        known = SweepReferences(self._loader, cached)
        pending = list(leads.values())
        for _round in range(_ROUNDS):
            pending = self._one_round(pending, known, limiter)
            if not pending:
                break
        self._look_for_lost([one for one in pending if one.allowed is not None])
        self._verify([one for one in leads.values() if one.is_to_delete])
        self._confirm_kept([one for one in leads.values() if one.is_kept], known)
        return [self._result(one, leads[one.path], known) for one in opened]

    def _open(self, job: Job) -> OpenJob:
        path = ledger_path(self._rules.layout, self._rules.ledgers_root, job.request.ledger_id)
        return OpenJob(job, key_of(job.request), path)

    def _one_round(self, pending: Sequence[OpenJob], known: SweepReferences, limiter: Limiter | None) -> list[OpenJob]:
        """Decide and delete once; return those that need another look."""
        nodes = dict(zip((p.path for p in pending), self._store.read_many([p.path for p in pending]), strict=True))
        known.prepare(pending)
        deletable = self._journaled(self._judge(pending, nodes, known), nodes)
        again: list[OpenJob] = []
        for portion in portions(guards_of(deletable, nodes, self._rules.epoch), limiter):
            if limiter is not None:
                limiter.wait_for(sum(len(guard.members) for guard in portion))
            # Allowed here: judged deletable on exactly the versions these guards check, and durable in the journal.
            results = self._store.delete_guarded([guard.batch for guard in portion])
            if limiter is not None:
                limiter.done()
            for guard, result in zip(portion, results, strict=True):
                again += self._absorb(guard, result, known)
        return again

    def _judge(self, pending: Sequence[OpenJob], nodes: Nodes, known: SweepReferences) -> list[OpenJob]:
        """Set the verdict of all that can be told now; return the deletable, whose outcome is still to come."""
        for one in pending:
            one.verdict = self._verdict(one, nodes[one.path], known)
        doubted = {one.key for one in pending if _is_in_use(one) and known.is_cached(one.key)}
        if doubted:
            known.reload(doubted)
            for one in pending:
                if one.key in doubted:
                    one.verdict = self._verdict(one, nodes[one.path], known)
        return [one for one in pending if one.is_to_delete and nodes[one.path] is not None]

    def _verdict(self, one: OpenJob, node: Znode | Unreadable | None, known: SweepReferences) -> Verdict:
        if isinstance(node, Unreadable):
            return Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, node.detail)
        if node is None and one.allowed is not None:
            return one.found_gone()
        facts = _facts(one, node)
        one.judged_on = known[one.key]
        if facts is not None and facts.metadata is not None:
            one.length_bytes = facts.metadata.length_bytes
        one.was_there = node is not None
        case = Case(one.job.request, facts, one.judged_on, one.job.absent_since_ms, one.job.believed)
        return judge(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _journaled(self, deletable: Sequence[OpenJob], nodes: Nodes) -> list[OpenJob]:
        """Make durable what is needed to undo the deletes; return those that may go."""
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
            entries.append(JournalEntry(one.job.request.ledger_id, one.path, node.data, node.version, acl, one.basis()))
        if entries:
            self._journal.write(entries)
        return ready

    def _acl(self, path: str, node: Znode, known: dict[str, bytes]) -> bytes:
        """BookKeeper gives every ledger its cluster's one ACL; only a changed one (acl_version) is asked for itself."""
        sample = path if node.acl_version else parent_of(path)
        if sample in known:
            return known[sample]
        acl = self._store.acl_of(path)
        if acl is None:
            return b""  # gone meanwhile: its delete will say so; it is no sample of others
        known[sample] = acl
        return acl

    def _absorb(self, guard: Guarded, result: GuardResult, known: SweepReferences) -> list[OpenJob]:
        """Draw the consequences of one transaction; return the members that need another look."""
        if result.status is GuardStatus.DELETED:
            return []
        if result.status in (GuardStatus.REFUSED, GuardStatus.NOT_EMPTY):
            return refused(guard.members, result)
        if result.status is GuardStatus.CHECK_FAILED:
            if result.path == self._rules.epoch[0]:
                raise FencedError("another instance of this service has taken over; stopping without deleting")
            known.reload({one.key for one in guard.members})
        return changed(guard.members, result)

    def _look_for_lost(self, sent: Sequence[OpenJob]) -> None:
        """Rounds ran out; but an answer that was lost may have been a yes."""
        if not sent:
            return
        for one, node in zip(sent, self._store.read_many([one.path for one in sent]), strict=True):
            if node is None:
                one.verdict = one.found_gone()

    def _verify(self, deleted: Sequence[OpenJob]) -> None:
        """Not found again, or it was not deleted."""
        for one, node in zip(deleted, self._store.read_many([one.path for one in deleted]), strict=True):
            if node is not None:
                one.later(Reason.STILL_THERE, f"{one.path} was found after its deletion")

    def _confirm_kept(self, kept: Sequence[OpenJob], known: SweepReferences) -> None:
        """Still there; or its owner gave it up meanwhile, and whoever deleted it had a right to.

        Compacted ledgers are left out: the cursor's znode names an old one for as long as it is not written again.
        """
        kept = [one for one in kept if one.job.request.component is not LedgerComponent.COMPACTED_LEDGER]
        nodes = self._store.read_many([one.path for one in kept])
        missing = [one for one, node in zip(kept, nodes, strict=True) if node is None]
        if missing:
            known.reload({one.key for one in missing})
        for one in missing:
            if refers_to(known[one.key], one.job.request.ledger_id):
                one.later(Reason.KEPT_AND_GONE, f"{one.key} refers to it, and {one.path} vanished during the sweep")

    def _sources(self, lead: OpenJob) -> str:
        if lead.judged_on is None:
            return ""
        is_too_little = kept_by_shrinkage(lead.judged_on, lead.job.believed, self._rules.policy) is not None
        return certificate(lead.judged_on, lead.job.believed if is_too_little else None)

    def _result(self, one: OpenJob, lead: OpenJob, known: SweepReferences) -> Swept:
        verdict = lead.verdict
        if verdict is None:
            raise AssertionError(f"no verdict for {one.path}")
        refreshed = known.was_stale(lead.key)
        sources = self._sources(lead)
        if one is not lead:
            if one.job.request != lead.job.request:
                why = Verdict(Outcome.RETRY, Reason.DUPLICATE, "another request for this ledger went first")
                return Swept(why, sources=sources)
            if verdict.outcome is Outcome.DELETED:
                why = Verdict(Outcome.ALREADY_GONE, Reason.DUPLICATE, "asked for twice in one batch")
                return Swept(why, sources=sources)
        since = self._first_sight(one.job) if verdict.reason in _NEEDS_SECOND_LOOK else None
        return Swept(verdict, refreshed, since, lead.length_bytes, sources)

    def _first_sight(self, job: Job) -> int:
        now_ms = self._clock.now_ms()
        earlier = job.absent_since_ms
        return earlier if earlier is not None and seen_before(earlier, self._rules.policy, now_ms=now_ms) else now_ms


def _is_in_use(one: OpenJob) -> bool:
    return one.verdict is not None and one.verdict.reason is Reason.IN_USE


def _facts(one: OpenJob, node: Znode | None) -> LedgerFacts | None:
    if node is None:
        return None
    ledger_id = one.job.request.ledger_id
    return facts_of(ledger_id, one.path, node.data, node.version, (node.ctime_ms, node.mtime_ms))
