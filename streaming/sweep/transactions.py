"""From deletable ledgers to transactions that carry their proof, and from what became of those to what is next."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Unreadable, Znode
from streaming.sweep.jobs import Limiter, OpenJob
from udfs.records import Reason

_DELETES_PER_GUARD = 100  # facts: 50 to 200 a transaction; a bigger one only makes a conflict dearer

Nodes = Mapping[str, Znode | Unreadable | None]


@dataclass(frozen=True, slots=True)
class Guarded:
    """One transaction and the jobs it deletes for."""

    batch: GuardedDelete
    members: Sequence[OpenJob]


def guards_of(deletable: Sequence[OpenJob], nodes: Nodes, epoch: tuple[str, int]) -> list[Guarded]:
    """Group by owner: each transaction stands or falls with the versions that its members were judged on.

    All are made before the first is sent: an owner read again in between must not lend its new version to old verdicts.
    """
    groups: defaultdict[tuple[str, tuple[tuple[str, int], ...]], list[OpenJob]] = defaultdict(list)
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
    """What is sent together: at most limiter.at_once deletes, but a transaction is never cut."""
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
    """The znode as it was judged."""
    node = nodes[path]
    if not isinstance(node, Znode):
        raise AssertionError(f"{path} was judged deletable without having been read")
    return node


def changed(members: Sequence[OpenJob], result: GuardResult) -> list[OpenJob]:
    """Something was not as it was read, or nobody knows: all look again."""
    for one in members:
        if result.status is GuardStatus.UNKNOWN:
            one.allowed = one.verdict
        one.later(_WHY_AGAIN[result.status], f"{result.status} at {result.path or one.path}")
    return list(members)


def refused(members: Sequence[OpenJob], result: GuardResult) -> list[OpenJob]:
    """One that can't be deleted (the right to is its parent's) fails the transaction; the others go again."""
    culprits = {one.path for one in members if one.path == result.path}
    if culprits and result.status is GuardStatus.REFUSED:
        culprits = {one.path for one in members if parent_of(one.path) == parent_of(result.path)}
    for one in members:
        one.later(Reason.STORE_REFUSED, f"ZooKeeper: {result.status} at {result.path or one.path}")
    return [one for one in members if one.path not in culprits] if culprits else []


def parent_of(path: str) -> str:
    """The parent's path."""
    return path.rpartition("/")[0]


_WHY_AGAIN = {
    GuardStatus.CHECK_FAILED: Reason.OWNER_CHANGED,
    GuardStatus.GONE: Reason.LEDGER_CHANGED,
    GuardStatus.CHANGED: Reason.LEDGER_CHANGED,
    GuardStatus.UNKNOWN: Reason.STORE_UNAVAILABLE,
}
