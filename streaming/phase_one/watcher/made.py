"""Ledgers that a broker made and that no list came to name: it died before it wrote the list, or the write failed.

1. After each whole look we list the ledgers with higher ids than any before. Those that no znode names are candidates.
   A broker that is about to write its list is the usual case: at the next look the list names them.
2. A candidate is asked about when it has been one for long enough and one of the brokers that ran when it was made has
   ended its session since. Which broker made a ledger is written nowhere, so any of them may have.
3. Before that, its own metadata must name an owner, and that owner's broker must not need it: the compacted ledger of a
   topic is often named by its broker alone.
4. What existed before the first look of all is the audit's.
5. A ledger that is written after one with a higher id is found by the next look, which begins at what was the highest
   one look earlier. Where a folder could not be listed, the next looks begin where that one did, for an hour.
6. More candidates than we keep are looked at: those that are gone, or that their own topic's cursors name, leave. Of
   what is still too many, tenants keep the same number each. The rest is the audit's, which an alarm says.
7. What a list named between two looks and names no more is asked about already, as the requests that wait say after a
   crash. Only one that was made, dropped and asked about since the last look, before a crash, has a second request,
   which finds the ledger gone.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from streaming.audit.walk.listing import find_folders, ids_in
from streaming.audit.walk.suspects import LedgerReader
from streaming.in_use.loader import InUseLoader
from streaming.phase_one.watcher.outbox import LedgerName
from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.audit import claim_of
from udfs.judge import refers_to
from udfs.paths import ledger_path
from udfs.records import LedgerFacts, PendingDelete, Presence
from udfs.references import key_of

log = logging.getLogger("ledger-reaper")

NOTE = "made"
BROKERS = "/loadbalance/brokers"
_MOST_CANDIDATES = 10_000  # more than that is no broker that died
_FOLDERS_PER_READ = 64
_MOST_LOOKS_BEHIND = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ledger that no list names. since_ms: when we saw that first. brokers: sessions that there were then."""

    since_ms: int
    brokers: frozenset[str]


@dataclass(slots=True)
class Candidates:
    """What the note holds. newest_id: of all ledgers that were looked at; -1: none. brokers: sessions at that look.

    from_id: the next look begins above it; None: at newest_id (notes of older versions). behind: how many looks could
    not list everything, up to now. seen: those above from_id that a look has seen; what a list named then is no news.
    """

    newest_id: int = -1
    waiting: dict[int, Candidate] = field(default_factory=dict)
    brokers: frozenset[str] = frozenset()
    from_id: int | None = None
    behind: int = 0
    seen: frozenset[int] = frozenset()

    def text(self) -> bytes:
        """Return the note. Candidates have few different sets of sessions, so each set is written once."""
        sets = {each.brokers: 0 for each in self.waiting.values()}
        sets = {brokers: number for number, brokers in enumerate(sets)}
        note = {
            "newest_id": self.newest_id,
            "from_id": self.from_id,
            "behind": self.behind,
            "seen": _ranges(self.seen),
            "waiting": {each: [found.since_ms, sets[found.brokers]] for each, found in self.waiting.items()},
            "sets": [sorted(brokers) for brokers in sets],
            "brokers": sorted(self.brokers),
        }
        return json.dumps(note).encode()


def candidates_of(note: bytes) -> Candidates:
    """Read a note, also one of an older version, in which each candidate has its sessions."""
    known = json.loads(note)
    sets = [frozenset(brokers) for brokers in known.get("sets", ())]
    waiting = {
        int(each): Candidate(since_ms, sets[brokers] if isinstance(brokers, int) else frozenset(brokers))
        for each, (since_ms, brokers) in known["waiting"].items()
    }
    from_id, behind = known.get("from_id"), int(known.get("behind", 0))
    seen = frozenset(chain.from_iterable(range(first, last + 1) for first, last in known.get("seen", ())))
    return Candidates(int(known["newest_id"]), waiting, frozenset(known["brokers"]), from_id, behind, seen)


class Named(Protocol):
    """What lists and cursors name."""

    def __call__(self, wanted: Set[LedgerName], /) -> Set[LedgerName]:
        """Return which of these (ledger id, "") a broker has any list or cursor name."""
        ...

    def by_own_cursors(self, claims: Mapping[int, str], /) -> Set[int]:
        """Return which of these (id -> the managed ledger that it claims) a cursor of that topic names."""
        ...


class MadeLedgers:
    """Looks for them. left_to_audit: how many the last look left out."""

    def __init__(
        self,
        store: MetadataStore,
        reader: LedgerReader,
        loader: InUseLoader,
        named: Named,
        patience_ms: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._loader = loader
        self._named = named
        self._patience_ms = patience_ms
        self._unlisted = 0
        self.left_to_audit = 0

    def look(self, note: bytes | None, now_ms: int, asked: Set[int] = frozenset()) -> tuple[bytes, list[PendingDelete]]:
        """Return the new note, and requests for what is to be asked about; both are to be committed together.

        note None: nothing was ever looked at. asked: ledgers that have a request since the last look. Raises
        UnavailableError.
        """
        brokers = broker_sessions(self._store)
        if note is None:
            return Candidates(max(self._ids_above(-1), default=-1), brokers=brokers).text(), []
        known = candidates_of(note)
        from_id = known.newest_id if known.from_id is None else known.from_id
        above = self._ids_above(from_id)
        fresh = [each for each in above if each not in known.seen]
        # whoever made them ran at this look or at the one before, and may have ended in between
        waiting = {each: Candidate(now_ms, brokers | known.brokers) for each in fresh} | known.waiting
        names = self._named({(each, "") for each in waiting})
        waiting = {
            each: found for each, found in sorted(waiting.items()) if (each, "") not in names and each not in asked
        }
        due = [each for each, found in waiting.items() if self._is_due(found, brokers, now_ms)]
        requests, is_over = self._asked(due)
        left = {each: found for each, found in waiting.items() if each not in is_over}
        self.left_to_audit = 0
        if len(left) > _MOST_CANDIDATES:
            left = self._most_that_count(left)
        newest_id = max([known.newest_id, *fresh])
        behind = known.behind + 1 if self._unlisted else 0
        if behind == _MOST_LOOKS_BEHIND + 1:
            log.error("ALARM: folders of ledgers can't be listed for an hour: what was made in them is the audit's")
        if behind == 0 or behind > _MOST_LOOKS_BEHIND:
            from_id = known.newest_id
        seen = frozenset(each for each in known.seen.union(above) if each > from_id)
        return Candidates(newest_id, left, brokers, from_id, behind, seen).text(), requests

    def _most_that_count(self, waiting: Mapping[int, Candidate]) -> dict[int, Candidate]:
        """Look at all of them; leave out what is gone or named, and the newest of each tenant that has too many."""
        facts = dict(zip(waiting, self._reader.facts(list(waiting)), strict=True))
        owners: dict[int, str] = {}
        for ledger_id, found in facts.items():
            if isinstance(found, LedgerFacts) and found.metadata is not None:
                claim = claim_of(ledger_id, found.metadata.custom_metadata)
                owners[ledger_id] = claim.managed_ledger if isinstance(claim, PendingDelete) else ""
        named = self._named.by_own_cursors(owners)
        by_tenant: dict[str, list[int]] = defaultdict(list)
        for ledger_id, found in facts.items():
            if found is not None and ledger_id not in named:
                by_tenant[owners.get(ledger_id, "").partition("/")[0]].append(ledger_id)
        kept = set(shared(list(by_tenant.values()), _MOST_CANDIDATES))
        self.left_to_audit = sum(map(len, by_tenant.values())) - len(kept)
        if self.left_to_audit:
            log.error(
                "ALARM: %d ledgers that no list names are too many to wait for: the audit finds them",
                self.left_to_audit,
            )
        return {each: found for each, found in waiting.items() if each in kept}

    def _is_due(self, candidate: Candidate, brokers: frozenset[str], now_ms: int) -> bool:
        return now_ms - candidate.since_ms >= self._patience_ms and bool(candidate.brokers - brokers)

    def _asked(self, ledger_ids: Sequence[int]) -> tuple[list[PendingDelete], set[int]]:
        """Return requests, and of which ledgers nothing more is to be found out."""
        claims: dict[int, PendingDelete] = {}
        is_over: set[int] = set()
        for ledger_id, facts in zip(ledger_ids, self._reader.facts(ledger_ids), strict=True):
            if facts is None:
                is_over.add(ledger_id)  # it is gone
            elif isinstance(facts, LedgerFacts) and facts.metadata is not None:
                claim = claim_of(ledger_id, facts.metadata.custom_metadata)
                if isinstance(claim, PendingDelete):
                    claims[ledger_id] = claim
                else:
                    is_over.add(ledger_id)  # not Pulsar's, or nobody can be asked about it
        references = self._loader.load(key_of(claim) for claim in claims.values())
        requests = []
        for ledger_id, claim in claims.items():
            reference = references[key_of(claim)]
            if reference.presence is not Presence.UNREADABLE:
                is_over.add(ledger_id)
                if not refers_to(reference, ledger_id):
                    requests.append(claim)
        return requests, is_over

    def _ids_above(self, ledger_id: int) -> list[int]:
        root, layout = self._reader.root, self._reader.layout
        listed = find_folders(self._store, root, layout)
        folders: Sequence[str] = listed.paths
        unlisted = len(listed.problems)
        if ledger_id >= 0:
            newest = _order(ledger_path(layout, root, ledger_id).rpartition("/")[0])
            folders = [folder for folder in folders if _order(folder) >= newest]
        found: list[int] = []
        for start in range(0, len(folders), _FOLDERS_PER_READ):
            part = folders[start : start + _FOLDERS_PER_READ]
            names = self._store.children_many(part)
            unlisted += sum(isinstance(each, Unreadable) for each in names)
            found += ids_in(root, part, names, [])
        self._unlisted = unlisted
        return [each for each in found if each > ledger_id]


def shared(lists: Sequence[list[int]], most: int) -> list[int]:
    """Return the first ones of each list, so many in all; whoever has less than his share leaves the rest to others."""
    kept: list[int] = []
    for left, ids in zip(range(len(lists), 0, -1), sorted(lists, key=len), strict=True):
        kept += ids[: (most - len(kept)) // left]
    return kept


def _ranges(ids: Set[int]) -> list[list[int]]:
    """Return them as [first, last] each: mostly they are in a row."""
    found: list[list[int]] = []
    for each in sorted(ids):
        if found and found[-1][1] == each - 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return found


def broker_sessions(store: MetadataStore) -> frozenset[str]:
    """Return the sessions of the brokers that run now: name and when it began. Raises UnavailableError."""
    (names,) = store.children_many([BROKERS])
    paths = [f"{BROKERS}/{name}" for name in names] if isinstance(names, list) else []
    nodes: Mapping[str, Znode | Unreadable | None] = dict(zip(paths, store.read_many(paths), strict=True))
    return frozenset(f"{path}@{node.ctime_ms}" for path, node in nodes.items() if isinstance(node, Znode))


def _order(folder: str) -> tuple[int, str]:
    """A folder's place among all: the long form's ids are higher than the short form's."""
    return folder.count("/"), folder
