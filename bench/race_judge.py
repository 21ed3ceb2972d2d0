"""The judge of the race: which of the ledgers that a contestant named, or deleted, were leaked, and which in use.

The judge reads BookKeeper's list, from a bookie, and the znodes of topics, cursors and schemas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import NoNodeError

from streaming.sandbox import ledger_list
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts.part_clients import zookeeper
from udfs.formats import schema_locator
from udfs.formats.managed_ledger import parse_cursor, parse_managed_ledger
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT

DATA, CURSOR, SCHEMA, COMPACTED, BUCKET = "data", "cursor", "schema", "compacted", "bucket"
KINDS = (DATA, CURSOR, SCHEMA, COMPACTED, BUCKET)


@dataclass(frozen=True, slots=True)
class State:
    """The ledgers of a cluster at a moment."""

    existing: frozenset[int]
    used: Mapping[int, str]  # the referenced ledgers, with their kind

    @property
    def lost(self) -> frozenset[int]:
        """The ledgers that something refers to, and that do not exist."""
        return frozenset(self.used.keys() - self.existing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How good a search was. Counts are by kind of ledger."""

    orphans: Counter[str]  # leaked ledgers that the contestant named
    missed: Counter[str]
    false: Counter[str]  # named, and in use both before and after the search
    false_young: Counter[str]  # named, created during the search, and in use after it
    neither: int = 0  # named, and referenced at one of the two moments only: the broker created or trimmed them

    @property
    def all_false(self) -> int:
        """How many ledgers in use were named."""
        return self.false.total() + self.false_young.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The result of a removal. Counts are by kind of ledger."""

    orphans: Counter[str]  # leaked ledgers that are gone
    left: Counter[str]
    destroyed: Counter[str] = field(default_factory=Counter)  # referenced before and after, and gone


def judge_search(named: Set[int], leaked: Mapping[int, str], before: State, after: State) -> Found:
    """Compare the ledgers that a contestant called orphans with the references before and after its search.

    Args:
        leaked: the leaked ledgers with their kind. A leaked ledger that a broker has removed since is left out.
    """
    still_leaked = {ledger_id: kind for ledger_id, kind in leaked.items() if ledger_id in after.existing}
    in_use = before.used.keys() & after.used.keys()
    young = after.used.keys() - before.used.keys() - before.existing
    false, false_young = named & in_use, named & young
    return Found(
        orphans=_by_kind(named, still_leaked),
        missed=_by_kind(still_leaked.keys() - named, still_leaked),
        false=_by_kind(false, after.used),
        false_young=_by_kind(false_young, after.used),
        neither=len(named - false - false_young - leaked.keys()),
    )


def judge_removal(leaked: Mapping[int, str], before: State, after: State) -> Removed:
    """Count the leaked ledgers that are gone, and the ledgers that are gone although they are referenced.

    Ledgers that were lost before the removal do not count.
    """
    there = {ledger_id: kind for ledger_id, kind in leaked.items() if ledger_id in before.existing}
    return Removed(
        orphans=_by_kind(there.keys() - after.existing, there),
        left=_by_kind(there.keys() & after.existing, there),
        destroyed=_by_kind(after.lost - before.lost, after.used),
    )


def _by_kind(ids: Iterable[int], kinds: Mapping[int, str]) -> Counter[str]:
    return Counter(kinds[ledger_id] for ledger_id in ids if ledger_id in kinds)


def read_state(cluster: Cluster, compacted: Mapping[int, str]) -> State:
    """Read all references, then BookKeeper's list, then all references again; count only references of both reads.

    A ledger that the broker trims between the reads would otherwise look lost.

    Args:
        compacted: ledgers of compacted topics, which no znode names; no topic is compacted during the race.
    """
    earlier = references(cluster)
    existing = frozenset(ledger_list.listed_by_bookie(cluster))
    later = references(cluster)
    used = {ledger_id: kind for ledger_id, kind in later.items() if ledger_id in earlier}
    return State(existing, {**used, **compacted})


def references(cluster: Cluster) -> dict[int, str]:
    """Return the ledgers that lists, cursors and schemas name, with their kind."""
    used: dict[int, str] = {}
    with zookeeper(cluster.addresses.zookeeper) as client:
        for path, data in _below(client, MANAGED_LEDGERS_ROOT):
            names = path.partition("/persistent/")[2].split("/")
            if not data or not names[0]:
                continue
            if len(names) == 1:
                used |= {ledger.ledger_id: DATA for ledger in parse_managed_ledger(data).ledgers}
            else:
                used |= _of_cursor(data)
        for _path, data in _below(client, SCHEMAS_ROOT):
            used |= dict.fromkeys(schema_locator.ledger_ids(data), SCHEMA) if data else {}
    return used


def _of_cursor(data: bytes) -> dict[int, str]:
    cursor = parse_cursor(data)
    buckets = {
        int(value): BUCKET
        for name, value in cursor.cursor_properties.items()
        if name.startswith(ledger_list.BUCKET_PREFIX)
    }
    return {cursor.cursors_ledger_id: CURSOR, **buckets} if cursor.cursors_ledger_id >= 0 else buckets


def _below(client: Any, root: str) -> Iterator[tuple[str, bytes]]:
    """Yield (path, data) of every znode below the root, level by level."""
    level = [root]
    while level:
        listed = [(path, client.get_children_async(path)) for path in level]
        level = [f"{path}/{child}" for path, answer in listed for child in _answer(answer, [])]
        for path, read in [(path, client.get_async(path)) for path in level]:
            yield path, _answer(read, (b"", None))[0]


def _answer(pending: Any, missing: Any) -> Any:
    try:
        return pending.get()
    except NoNodeError:  # deleted meanwhile
        return missing
