"""Finds ledgers that a broker created but never listed: it died before it wrote the list, or the write failed.

1. After each complete scan we list the ledgers with higher ids than those of earlier scans. Ledgers that no znode names
   are candidates. Usually the broker is about to write its list, and the next scan finds the ledger in it.
2. A candidate gets a request after it has been a candidate for long enough, if one of the brokers that ran at its
   creation has ended its session since.
3. In addition, the ledger's own metadata must name an owner, and this owner must not refer to the ledger, according to
   its znodes and its broker.
4. Above the limit we read every candidate and drop those that are gone or named by their own topic's cursors. If there
   are still too many, each tenant keeps the same number. The rest is left to the audit, with an alarm.
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
from streaming.phase_one.watcher.request_outbox import LedgerName
from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.owners.references import key_of
from udfs.paths import BROKERS, ledger_path
from udfs.records import LedgerFacts, PendingDelete, Presence
from udfs.verdicts.finding_classes import claim_of
from udfs.verdicts.judge import refers_to

log = logging.getLogger("ledger-reaper")

NOTE = "made"  # its name in the watcher's state
_MOST_CANDIDATES = 10_000  # more are not the result of a broker's death
_FOLDERS_PER_READ = 64
_MOST_SCANS_BEHIND = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ledger that no list names."""

    since_ms: int  # when we first noticed it
    brokers: frozenset[str]  # the brokers' sessions at that time


@dataclass(slots=True, kw_only=True)
class Candidates:
    """The content of the note."""

    newest_id: int = -1  # highest id of all listed ledgers; -1: none
    waiting: dict[int, Candidate] = field(default_factory=dict)
    brokers: frozenset[str] = frozenset()  # sessions at the last scan
    from_id: int | None = None  # the next scan lists ledgers above it; None: above newest_id (older versions' notes)
    behind: int = 0  # number of scans in a row that could not list everything
    seen: frozenset[int] = frozenset()  # ledgers above from_id that earlier scans found: not new

    def text(self) -> bytes:
        """Return the note."""
        # many candidates share few sets of sessions, so each set is written once
        sets = {candidate.brokers: 0 for candidate in self.waiting.values()}
        sets = {brokers: number for number, brokers in enumerate(sets)}
        note = {
            "newest_id": self.newest_id,
            "from_id": self.from_id,
            "behind": self.behind,
            "seen": _ranges(self.seen),
            "waiting": {
                ledger_id: [candidate.since_ms, sets[candidate.brokers]]
                for ledger_id, candidate in self.waiting.items()
            },
            "sets": [sorted(brokers) for brokers in sets],
            "brokers": sorted(self.brokers),
        }
        return json.dumps(note).encode()


def candidates_of(note: bytes) -> Candidates:
    """Parse a note. In notes of older versions, each candidate has its own set of sessions."""
    fields = json.loads(note)
    sets = [frozenset(brokers) for brokers in fields.get("sets", ())]
    waiting = {
        int(ledger_id): Candidate(since_ms, sets[brokers] if isinstance(brokers, int) else frozenset(brokers))
        for ledger_id, (since_ms, brokers) in fields["waiting"].items()
    }
    return Candidates(
        newest_id=int(fields["newest_id"]),
        waiting=waiting,
        brokers=frozenset(fields["brokers"]),
        from_id=fields.get("from_id"),
        behind=int(fields.get("behind", 0)),
        seen=frozenset(chain.from_iterable(range(first, last + 1) for first, last in fields.get("seen", ()))),
    )


class NamedLedgers(Protocol):
    """The ledgers that lists and cursors name."""

    def __call__(self, names: Set[LedgerName], /) -> Set[LedgerName]:
        """Return which of these (ledger id, "") a broker has written into any list or cursor."""
        ...

    def by_own_cursors(self, claims: Mapping[int, str], /) -> Set[int]:
        """Return which of these (id -> the managed ledger in its metadata) a cursor of that topic names."""
        ...


class UnlistedLedgers:
    """Finds unlisted ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        reader: LedgerReader,
        loader: InUseLoader,
        named: NamedLedgers,
        patience_ms: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._loader = loader
        self._named = named
        self._patience_ms = patience_ms
        self._unlisted = 0
        self.left_to_audit = 0  # candidates that the last scan left out

    def scan(
        self, note: bytes | None, now_ms: int, requested: Set[int] = frozenset()
    ) -> tuple[bytes, list[PendingDelete]]:
        """Return the new note, and requests for unlisted ledgers; commit both together. Raises UnavailableError.

        Args:
            note: of the last scan; None: this is the very first.
            now_ms: the time, in ms since 1970.
            requested: ledgers that have got a request since the last scan.
        """
        brokers = broker_sessions(self._store)
        if note is None:
            # ledgers from before the very first scan are left to the audit
            return Candidates(newest_id=max(self._ids_above(-1), default=-1), brokers=brokers).text(), []
        before = candidates_of(note)
        from_id = before.newest_id if before.from_id is None else before.from_id
        above = self._ids_above(from_id)
        fresh = [ledger_id for ledger_id in above if ledger_id not in before.seen]
        # the broker that created a ledger ran at this scan or at the scan before, and may have ended in between
        waiting = {ledger_id: Candidate(now_ms, brokers | before.brokers) for ledger_id in fresh} | before.waiting
        named = self._named({(ledger_id, "") for ledger_id in waiting})
        waiting = {
            ledger_id: candidate
            for ledger_id, candidate in sorted(waiting.items())
            # A ledger that vanished from a list between two scans has a request already. Only a ledger that was
            # created, dropped and requested since the last scan, before a crash, gets a second request, which finds
            # the ledger gone.
            if (ledger_id, "") not in named and ledger_id not in requested
        }
        due = [ledger_id for ledger_id, candidate in waiting.items() if self._is_due(candidate, brokers, now_ms)]
        requests, settled = self._requests_for(due)
        remaining = {ledger_id: candidate for ledger_id, candidate in waiting.items() if ledger_id not in settled}
        self.left_to_audit = 0
        if len(remaining) > _MOST_CANDIDATES:
            remaining = self._within_limit(remaining)
        behind = before.behind + 1 if self._unlisted else 0
        if behind == _MOST_SCANS_BEHIND + 1:
            log.error("ALARM: folders of ledgers can't be listed for an hour: only the audit finds the ledgers in them")
        # The next scan starts above the highest id of the previous scan, not of this scan: a ledger may be written
        # after a ledger with a higher id. If a folder can't be listed, the next scans start at the same id again, for
        # an hour.
        if behind == 0 or behind > _MOST_SCANS_BEHIND:
            from_id = before.newest_id
        after = Candidates(
            newest_id=max([before.newest_id, *fresh]),
            waiting=remaining,
            brokers=brokers,
            from_id=from_id,
            behind=behind,
            seen=frozenset(ledger_id for ledger_id in before.seen.union(above) if ledger_id > from_id),
        )
        return after.text(), requests

    def _within_limit(self, waiting: Mapping[int, Candidate]) -> dict[int, Candidate]:
        """Read all candidates; drop those that are gone or named, and the newest of each tenant with too many."""
        facts = dict(zip(waiting, self._reader.facts(list(waiting)), strict=True))
        owners: dict[int, str] = {}
        for ledger_id, ledger in facts.items():
            if isinstance(ledger, LedgerFacts) and ledger.metadata is not None:
                claim = claim_of(ledger_id, ledger.metadata.custom_metadata)
                owners[ledger_id] = claim.managed_ledger if isinstance(claim, PendingDelete) else ""
        named = self._named.by_own_cursors(owners)
        by_tenant: dict[str, list[int]] = defaultdict(list)
        for ledger_id, ledger in facts.items():
            if ledger is not None and ledger_id not in named:
                by_tenant[owners.get(ledger_id, "").partition("/")[0]].append(ledger_id)
        kept = set(shared(list(by_tenant.values()), _MOST_CANDIDATES))
        self.left_to_audit = sum(map(len, by_tenant.values())) - len(kept)
        if self.left_to_audit:
            log.error(
                "ALARM: %d unlisted ledgers are above the limit: only the audit finds them",
                self.left_to_audit,
            )
        return {ledger_id: candidate for ledger_id, candidate in waiting.items() if ledger_id in kept}

    def _is_due(self, candidate: Candidate, brokers: frozenset[str], now_ms: int) -> bool:
        # no record shows which broker created a ledger, so it may be any that ran then
        return now_ms - candidate.since_ms >= self._patience_ms and bool(candidate.brokers - brokers)

    def _requests_for(self, ledger_ids: Sequence[int]) -> tuple[list[PendingDelete], set[int]]:
        """Return requests, and the ledgers that need no further check."""
        claims: dict[int, PendingDelete] = {}
        settled: set[int] = set()
        for ledger_id, facts in zip(ledger_ids, self._reader.facts(ledger_ids), strict=True):
            if facts is None:
                settled.add(ledger_id)  # the ledger is gone
            elif isinstance(facts, LedgerFacts) and facts.metadata is not None:
                claim = claim_of(ledger_id, facts.metadata.custom_metadata)
                if isinstance(claim, PendingDelete):
                    claims[ledger_id] = claim
                else:
                    settled.add(ledger_id)  # not Pulsar's, or no request can name its owner
        # with the brokers: often only the broker names the compacted ledger of a topic
        references = self._loader.load(key_of(claim) for claim in claims.values())
        requests = []
        for ledger_id, claim in claims.items():
            reference = references[key_of(claim)]
            if reference.presence is not Presence.UNREADABLE:
                settled.add(ledger_id)
                if not refers_to(reference, ledger_id):
                    requests.append(claim)
        return requests, settled

    def _ids_above(self, ledger_id: int) -> list[int]:
        root, layout = self._reader.root, self._reader.layout
        listed = find_folders(self._store, root, layout)
        folders: Sequence[str] = listed.paths
        unlisted = len(listed.problems)
        if ledger_id >= 0:
            newest = _order(ledger_path(layout, root, ledger_id).rpartition("/")[0])
            folders = [folder for folder in folders if _order(folder) >= newest]
        ids: list[int] = []
        for start in range(0, len(folders), _FOLDERS_PER_READ):
            batch = folders[start : start + _FOLDERS_PER_READ]
            names = self._store.children_many(batch)
            unlisted += sum(isinstance(children, Unreadable) for children in names)
            ids += ids_in(root, batch, names, [])
        self._unlisted = unlisted
        return [listed_id for listed_id in ids if listed_id > ledger_id]


def shared(lists: Sequence[list[int]], most: int) -> list[int]:
    """Return the first ids of each list, `most` in all; lists with less than their share leave the rest to others."""
    kept: list[int] = []
    for left, ids in zip(range(len(lists), 0, -1), sorted(lists, key=len), strict=True):
        kept += ids[: (most - len(kept)) // left]
    return kept


def _ranges(ids: Set[int]) -> list[list[int]]:
    """Return the ids as ranges [first, last], which are few because most ids are consecutive."""
    ranges: list[list[int]] = []
    for ledger_id in sorted(ids):
        if ranges and ranges[-1][1] == ledger_id - 1:
            ranges[-1][1] = ledger_id
        else:
            ranges.append([ledger_id, ledger_id])
    return ranges


def broker_sessions(store: MetadataStore) -> frozenset[str]:
    """Return the sessions of the running brokers: path and creation time. Raises UnavailableError."""
    (names,) = store.children_many([BROKERS])
    paths = [f"{BROKERS}/{name}" for name in names] if isinstance(names, list) else []
    nodes: Mapping[str, Znode | Unreadable | None] = dict(zip(paths, store.read_many(paths), strict=True))
    return frozenset(f"{path}@{node.ctime_ms}" for path, node in nodes.items() if isinstance(node, Znode))


def _order(folder: str) -> tuple[int, str]:
    return folder.count("/"), folder  # the ids of the long layout are higher than those of the short layout
