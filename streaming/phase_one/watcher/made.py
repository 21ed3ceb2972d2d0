"""Ledgers that a broker made and that no list came to name: it died before it wrote the list, or the write failed.

1. After each whole look we list the ledgers with higher ids than any before. Those that no znode names are candidates.
   A broker that is about to write its list is the usual case: at the next look the list names them.
2. A candidate is asked about when it has been one for long enough and one of the brokers that ran when it was made has
   ended its session since. Which broker made a ledger is written nowhere, so any of them may have.
3. Before that, its own metadata must name an owner, and that owner's broker must not need it: the compacted ledger of a
   topic is often named by its broker alone.
4. What existed before the first look of all is the audit's.
5. What a list named between two looks and names no more is asked about already. Only a crash between these looks makes
   that a second request, which finds the ledger gone.
"""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

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

NOTE = "made"
BROKERS = "/loadbalance/brokers"
_MOST_CANDIDATES = 10_000  # more than that is no broker that died: the audit finds the rest
_FOLDERS_PER_READ = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ledger that no list names. since_ms: when we saw that first. brokers: sessions that there were then."""

    since_ms: int
    brokers: frozenset[str]


@dataclass(slots=True)
class Candidates:
    """What the note holds. newest_id: of all ledgers that were looked at; -1: none. brokers: sessions at that look."""

    newest_id: int = -1
    waiting: dict[int, Candidate] = field(default_factory=dict)
    brokers: frozenset[str] = frozenset()

    def text(self) -> bytes:
        """Return the note."""
        waiting = {ledger_id: [each.since_ms, sorted(each.brokers)] for ledger_id, each in self.waiting.items()}
        note = {"newest_id": self.newest_id, "waiting": waiting, "brokers": sorted(self.brokers)}
        return json.dumps(note).encode()


def candidates_of(note: bytes) -> Candidates:
    """Read a note."""
    known = json.loads(note)
    waiting = {
        int(each): Candidate(since_ms, frozenset(brokers)) for each, (since_ms, brokers) in known["waiting"].items()
    }
    return Candidates(int(known["newest_id"]), waiting, frozenset(known["brokers"]))


class MadeLedgers:
    """Looks for them. named: which of these (ledger id, "") a list names now."""

    def __init__(
        self,
        store: MetadataStore,
        reader: LedgerReader,
        loader: InUseLoader,
        named: Callable[[Set[LedgerName]], Set[LedgerName]],
        patience_ms: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._loader = loader
        self._named = named
        self._patience_ms = patience_ms

    def look(self, note: bytes | None, now_ms: int, asked: Set[int] = frozenset()) -> tuple[bytes, list[PendingDelete]]:
        """Return the new note, and requests for what is to be asked about; both are to be committed together.

        note None: nothing was ever looked at. asked: ledgers that have a request since the last look. Raises
        UnavailableError.
        """
        brokers = broker_sessions(self._store)
        if note is None:
            return Candidates(max(self._ids_above(-1), default=-1), brokers=brokers).text(), []
        known = candidates_of(note)
        fresh = self._ids_above(known.newest_id)
        # whoever made them ran at this look or at the one before, and may have ended in between
        waiting = known.waiting | {each: Candidate(now_ms, brokers | known.brokers) for each in fresh}
        names = self._named({(each, "") for each in waiting})
        waiting = {
            each: found for each, found in sorted(waiting.items()) if (each, "") not in names and each not in asked
        }
        due = [each for each, found in waiting.items() if self._is_due(found, brokers, now_ms)]
        requests, is_over = self._asked(due)
        left = {each: found for each, found in waiting.items() if each not in is_over}
        newest_id = max([known.newest_id, *fresh])
        return Candidates(newest_id, dict(list(left.items())[:_MOST_CANDIDATES]), brokers).text(), requests

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
        folders: Sequence[str] = find_folders(self._store, root, layout).paths
        if ledger_id >= 0:
            newest = _order(ledger_path(layout, root, ledger_id).rpartition("/")[0])
            folders = [folder for folder in folders if _order(folder) >= newest]
        found: list[int] = []
        for start in range(0, len(folders), _FOLDERS_PER_READ):
            part = folders[start : start + _FOLDERS_PER_READ]
            found += ids_in(root, part, self._store.children_many(part), [])
        return [each for each in found if each > ledger_id]


def broker_sessions(store: MetadataStore) -> frozenset[str]:
    """Return the sessions of the brokers that run now: name and when it began. Raises UnavailableError."""
    (names,) = store.children_many([BROKERS])
    paths = [f"{BROKERS}/{name}" for name in names] if isinstance(names, list) else []
    nodes: Mapping[str, Znode | Unreadable | None] = dict(zip(paths, store.read_many(paths), strict=True))
    return frozenset(f"{path}@{node.ctime_ms}" for path, node in nodes.items() if isinstance(node, Znode))


def _order(folder: str) -> tuple[int, str]:
    """A folder's place among all: the long form's ids are higher than the short form's."""
    return folder.count("/"), folder
