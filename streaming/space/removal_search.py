"""Searches all ledgers for those with entries on a bookie that an operator wants to remove."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from streaming.coordination.identity import read_layout
from streaming.errors import ConfigError
from streaming.ports import Bookies, MetadataStore, Unreadable, Znode
from streaming.space.reading.ledger_reading import LedgerReading
from streaming.sweep.jobs import Limiter
from streaming.terminal import some_of
from udfs.formats.errors import FormatError
from udfs.formats.ledger_placement import Placement, placement_of
from udfs.paths import topic_of
from udfs.space.survival import UNSAFE, Effect, Survival, removal_of
from udfs.verdicts.finding_classes import Unclaimed, claim_of

_EXAMPLES = 5
_PROBLEMS = 1_000
_BOOKIES_SHOWN = 20


class Autorecovery(StrEnum):
    """Whether BookKeeper copies the ledgers of a dead bookie by itself. Programs read the values."""

    RUNS = "runs"
    DISABLED = "disabled"  # by an operator
    NO_AUDITOR = "no_auditor"  # no process of autorecovery runs
    UNKNOWN = "unknown"  # its znodes can't be read


@dataclass(slots=True, kw_only=True)
class AffectedTopic:
    """The ledgers of one topic to which the same happens."""

    effect: Effect
    topic: str  # persistent://tenant/ns/topic, of a partition its own name; "": their metadata name none
    ledgers: int = 0
    size_bytes: int = 0  # of one copy of the affected entries, without those of open ledgers
    open_ledgers: int = 0  # that are not closed, so that their size is not known
    written: int = 0  # of open_ledgers: those whose entries clients write to the bookie now
    not_copied: int = 0  # of ledgers: without their bookie, autorecovery can't copy these as things are now
    examples: list[int] = field(default_factory=list)  # ledger ids

    def add(self, ledger_id: int, removal: Survival) -> None:
        """Count a ledger."""
        self.ledgers += 1
        self.size_bytes += removal.size_bytes or 0
        self.open_ledgers += removal.size_bytes is None
        self.written += removal.is_written
        self.not_copied += removal.effect in UNSAFE or removal.missing_bookies > 0
        if len(self.examples) < _EXAMPLES:
            self.examples.append(ledger_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalReport:
    """The ledgers of a bookie, by what removing the bookie does to them."""

    bookie: str
    is_registered: bool
    remaining: tuple[str, ...]  # the registered bookies without it
    read_only: tuple[str, ...]  # those of `remaining` that take no copies
    absent: tuple[str, ...]  # other bookies that share ledgers with it and do not run
    ledgers: int  # whose metadata were read
    topics: tuple[AffectedTopic, ...]  # the worst effect first, then the most bytes
    largest_ensemble: int  # of these ledgers; a topic with such ledgers needs this many writable bookies
    missing_bookies: int  # how many writable bookies must be added before all ledgers can be copied
    autorecovery: Autorecovery
    problems: tuple[tuple[str, str], ...]  # a path, and why nothing is known at and below it; not all of them
    unread: int  # how many such paths there are

    @property
    def writable(self) -> int:
        """The number of bookies that take new ledgers afterwards."""
        return len(self.remaining) - len(self.read_only)

    @property
    def affected(self) -> int:
        """The number of ledgers with entries on the bookie."""
        return sum(topic.ledgers for topic in self.topics)

    @property
    def is_safe(self) -> bool:
        """Whether nothing would be lost, as far as all metadata show."""
        return not self.unread and not any(topic.effect in UNSAFE for topic in self.topics)


def report_of(store: MetadataStore, bookies: Bookies, root: str, bookie: str, pace: Limiter) -> RemovalReport:
    """Read all ledgers. Raises UnavailableError; ConfigError if no ensemble, registration or cookie names `bookie`."""
    registered = bookies.registered()
    search = _BookieSearch(bookie, frozenset(registered) - {bookie}, bookies.read_only())
    ledgers = LedgerReading(store, root, read_layout(store, root), pace)
    for ids, nodes in ledgers.batches(search.could_not_read):
        for ledger_id, node in zip(ids, nodes, strict=True):
            search.add(ledger_id, ledgers.path(ledger_id), node)
    if bookie not in registered and bookie not in search.named:
        cookies = store.children_many([f"{root}/cookies"])[0]
        known = {*registered, *search.named, *(cookies if isinstance(cookies, list) else ())}
        if bookie not in known:
            raise ConfigError(_unknown(bookie, known))
    return search.report(is_registered=bookie in registered, autorecovery=_autorecovery(store, root))


class _BookieSearch:
    """The ledgers that were read so far."""

    def __init__(self, bookie: str, remaining: frozenset[str], read_only: frozenset[str]) -> None:
        self.named: set[str] = set()  # by any ensemble
        self._bookie = bookie
        self._remaining = remaining
        self._read_only = remaining & read_only
        self._absent: set[str] = set()
        self._topics: dict[tuple[Effect, str], AffectedTopic] = {}
        self._problems: list[tuple[str, str]] = []
        self._unread = self._ledgers = self._missing_bookies = self._largest_ensemble = 0

    def add(self, ledger_id: int, path: str, node: Znode | Unreadable | None) -> None:
        """Note a ledger as it was read; None: it was deleted since it was listed."""
        if node is None:
            return
        if isinstance(node, Unreadable):
            self.could_not_read(path, node.detail)
            return
        try:
            placement = placement_of(node.data)
        except FormatError as error:
            self.could_not_read(path, str(error))
            return
        self._ledgers += 1
        members = {bookie for segment in placement.segments for bookie in segment.bookies}
        self.named |= members
        if self._bookie not in members:
            return
        removal = removal_of(placement, self._bookie, self._remaining, self._remaining - self._read_only)
        if removal is not None:
            self._absent |= members - self._remaining - {self._bookie}
            self._largest_ensemble = max(self._largest_ensemble, len(placement.segments[-1].bookies))
            self._missing_bookies = max(self._missing_bookies, removal.missing_bookies)
            topic = _topic(ledger_id, placement)
            key = removal.effect, topic
            self._topics.setdefault(key, AffectedTopic(effect=removal.effect, topic=topic)).add(ledger_id, removal)

    def could_not_read(self, path: str, detail: str) -> None:
        """Note a path at and below which nothing is known."""
        self._unread += 1
        if len(self._problems) < _PROBLEMS:
            self._problems.append((path, detail))

    def report(self, *, is_registered: bool, autorecovery: Autorecovery) -> RemovalReport:
        """Return the result."""
        order = list(Effect)
        return RemovalReport(
            bookie=self._bookie,
            is_registered=is_registered,
            remaining=tuple(sorted(self._remaining)),
            read_only=tuple(sorted(self._read_only)),
            absent=tuple(sorted(self._absent)),
            ledgers=self._ledgers,
            topics=tuple(
                sorted(self._topics.values(), key=lambda row: (order.index(row.effect), -row.size_bytes, row.topic))
            ),
            largest_ensemble=self._largest_ensemble,
            missing_bookies=self._missing_bookies,
            autorecovery=autorecovery,
            problems=tuple(self._problems),
            unread=self._unread,
        )


def _autorecovery(store: MetadataStore, root: str) -> Autorecovery:
    folder = f"{root}/underreplication"
    children, voters = store.children_many([folder, f"{folder}/auditorelection"])
    if isinstance(children, Unreadable) or isinstance(voters, Unreadable):
        return Autorecovery.UNKNOWN
    if "disable" in (children or ()):
        return Autorecovery.DISABLED
    return Autorecovery.RUNS if voters else Autorecovery.NO_AUDITOR


def _topic(ledger_id: int, placement: Placement) -> str:
    claim = claim_of(ledger_id, placement.metadata.custom_metadata)
    return "" if isinstance(claim, Unclaimed) else topic_of(claim.managed_ledger)


def _unknown(bookie: str, known: set[str]) -> str:
    listed = f"known are {some(sorted(known))}" if known else "no bookie is registered, and no ledger names one"
    return f"--before-removing {bookie}: no bookie has this id. Name it as ensembles do (host:port); {listed}"


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return some_of(names, _BOOKIES_SHOWN)
