"""ZooKeeper transactions that delete ledgers only if nothing changed since we judged them; and what to do if it did."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Unreadable, Znode
from streaming.sweep.jobs import LedgerJob, Limiter
from udfs.records import Reason

_DELETES_PER_GUARD = 100  # a bigger transaction is hardly faster, and a conflict costs more

Nodes = Mapping[str, Znode | Unreadable | None]


@dataclass(frozen=True, slots=True)
class Guarded:
    """One transaction and the jobs it deletes for."""

    batch: GuardedDelete
    members: Sequence[LedgerJob]


def guards_of(deletable: Sequence[LedgerJob], nodes: Nodes, epoch: tuple[str, int]) -> list[Guarded]:
    """Group the deletes by owner: a transaction checks the versions that all its members were judged on.

    All transactions are made before the first is sent. An owner that is read again in between has a new version, and
    verdicts that rest on the old one must not be carried out with the new one.
    """
    groups: defaultdict[tuple[str, tuple[tuple[str, int], ...]], list[LedgerJob]] = defaultdict(list)
    for one in deletable:
        groups[one.key, one.basis().checks].append(one)
    guards = []
    for (_key, checks), members in groups.items():
        for start in range(0, len(members), _DELETES_PER_GUARD):
            part = members[start : start + _DELETES_PER_GUARD]
            deletes = tuple((one.path, read_node(nodes, one.path).version) for one in part)
            guards.append(Guarded(GuardedDelete((epoch, *checks), deletes), part))
    return guards


def portions(guards: Sequence[Guarded], limiter: Limiter | None) -> Iterable[list[Guarded]]:
    """Divide the transactions into what is sent together: at most limiter.at_once deletes, no transaction cut."""
    portion: list[Guarded] = []
    size = 0
    for guard in guards:
        if portion and limiter is not None and size + len(guard.members) > limiter.at_once:
            yield portion
            portion, size = [], 0
        portion.append(guard)
        size += len(guard.members)
    if portion:
        yield portion


def read_node(nodes: Nodes, path: str) -> Znode:
    """Return the znode as it was judged."""
    node = nodes[path]
    if not isinstance(node, Znode):
        raise AssertionError(f"{path} was judged deletable without having been read")
    return node


def changed(members: Sequence[LedgerJob], result: GuardResult) -> list[LedgerJob]:
    """Return the members, all to be judged again: a znode was not as we read it, or the answer got lost."""
    for one in members:
        if result.status is GuardStatus.UNKNOWN:
            one.sent = one.verdict
        one.later(_WHY_AGAIN[result.status], f"{result.status} at {result.path or one.path}")
    return list(members)


def refused(members: Sequence[LedgerJob], result: GuardResult) -> list[LedgerJob]:
    """Return the members that may go again: one ledger that can't be deleted makes the whole transaction fail.

    The right to delete a znode is its parent's, so all ledgers below the same parent are left out.
    """
    culprits = {one.path for one in members if one.path == result.path}
    if culprits and result.status is GuardStatus.REFUSED:
        culprits = {one.path for one in members if parent_of(one.path) == parent_of(result.path)}
    for one in members:
        one.later(Reason.STORE_REFUSED, f"ZooKeeper: {result.status} at {result.path or one.path}")
    return [one for one in members if one.path not in culprits] if culprits else []


def parent_of(path: str) -> str:
    """Return the path of the parent."""
    return path.rpartition("/")[0]


_WHY_AGAIN = {
    GuardStatus.CHECK_FAILED: Reason.OWNER_CHANGED,
    GuardStatus.GONE: Reason.LEDGER_CHANGED,
    GuardStatus.CHANGED: Reason.LEDGER_CHANGED,
    GuardStatus.UNKNOWN: Reason.STORE_UNAVAILABLE,
}
