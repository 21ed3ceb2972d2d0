"""ZooKeeper transactions that delete ledgers only if nothing has changed since we judged them, and their failures."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Unreadable, Znode
from streaming.sweep.jobs import LedgerJob, Limiter
from udfs.records import Reason

_DELETES_PER_GUARD = 100  # in a transaction; a bigger transaction is hardly faster, and a conflict costs more

Nodes = Mapping[str, Znode | Unreadable | None]


@dataclass(frozen=True, slots=True)
class GuardedJobs:
    """One transaction, and the jobs whose ledgers it deletes."""

    batch: GuardedDelete
    members: Sequence[LedgerJob]


def guards_of(deletable: Sequence[LedgerJob], nodes: Nodes, epoch: tuple[str, int]) -> list[GuardedJobs]:
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


def read_node(nodes: Nodes, path: str) -> Znode:
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


_RETRY_REASONS = {
    GuardStatus.CHECK_FAILED: Reason.OWNER_CHANGED,
    GuardStatus.GONE: Reason.LEDGER_CHANGED,
    GuardStatus.CHANGED: Reason.LEDGER_CHANGED,
    GuardStatus.UNKNOWN: Reason.STORE_UNAVAILABLE,
}
