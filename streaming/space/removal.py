"""`audit --verify-only --before-removing BOOKIE`: what would be lost, or have too few copies, without the bookie.

Reads the metadata of every ledger, without Spark, and asks no bookie: the result is that of the metadata. The rule is
in udfs/space/removal.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from rich.table import Table
from rich.text import Text

from streaming.clients import command_clients
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.errors import ConfigError, SafetyError
from streaming.ports import Bookies, MetadataStore, Unreadable, Znode
from streaming.space.ledgers import LedgerReading
from streaming.sweep.jobs import Limiter
from streaming.sweep.pace import Pace
from streaming.terminal import Terminal, cell, count_of, say, say_json, size_text
from udfs.formats.errors import FormatError
from udfs.formats.ledger_placement import Placement, placement_of
from udfs.paths import topic_of
from udfs.space.removal import UNSAFE, Effect, Removal, removal_of
from udfs.verdicts.finding_classes import Unclaimed, claim_of

_EXAMPLES = 5
_PROBLEMS = 1_000
_TOPICS_SHOWN = 40
_BOOKIES_SHOWN = 20
_PROBLEMS_SHOWN = 5
_MEANING = {
    Effect.LOST: "some entries have no copy on another running bookie",
    Effect.UNRECOVERABLE: "open, and too few bookies are left to close it after a failure",
    Effect.BELOW_ACK_QUORUM: "fewer copies than its ack quorum until they are replicated again",
    Effect.UNDER_REPLICATED: "fewer copies than its write quorum until they are replicated again",
}


@dataclass(slots=True, kw_only=True)
class AffectedTopic:
    """The ledgers of one topic to which the same happens."""

    effect: Effect
    topic: str  # persistent://tenant/ns/topic, of a partition its own name; "": their metadata name none
    ledgers: int = 0
    size_bytes: int = 0  # of one copy of the affected entries, without those of open ledgers
    open_ledgers: int = 0  # that are not closed, so that their size is not known
    written: int = 0  # of open_ledgers: clients write to the bookie now
    examples: list[int] = field(default_factory=list)  # ledger ids

    def add(self, ledger_id: int, removal: Removal) -> None:
        """Count a ledger."""
        self.ledgers += 1
        self.size_bytes += removal.size_bytes or 0
        self.open_ledgers += removal.size_bytes is None
        self.written += removal.is_written
        if len(self.examples) < _EXAMPLES:
            self.examples.append(ledger_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalReport:
    """The ledgers of a bookie, by what removing the bookie does to them."""

    bookie: str
    is_registered: bool
    remaining: tuple[str, ...]  # the registered bookies without it
    absent: tuple[str, ...]  # other bookies that share ledgers with it and do not run
    ledgers: int  # whose metadata were read
    topics: tuple[AffectedTopic, ...]  # the worst effect first, then the most bytes
    needs: int  # the largest ensemble of an affected ledger; BookKeeper replicates it again only with so many bookies
    problems: tuple[tuple[str, str], ...]  # a path, and why nothing is known at and below it; not all of them
    unread: int  # how many there are

    @property
    def affected(self) -> int:
        """The number of ledgers with entries on the bookie."""
        return sum(topic.ledgers for topic in self.topics)

    @property
    def is_safe(self) -> bool:
        """Whether nothing would be lost, as far as all metadata show."""
        return not self.unread and not any(topic.effect in UNSAFE for topic in self.topics)


def before_removing(settings: Settings, bookie: str, *, as_json: bool, reads_per_second: float) -> None:
    """Print what would happen without the bookie.

    Raises SafetyError if something would be lost or could not be read, ConfigError for an unknown bookie,
    UnavailableError.
    """
    root = settings.zookeeper.ledgers_root
    with command_clients(settings) as clients:
        report = report_of(clients.store, clients.bookies, root, bookie, Pace(reads_per_second))
    conclude(report, as_json=as_json)


def conclude(report: RemovalReport, *, as_json: bool) -> None:
    """Print the result. Raises SafetyError if something would be lost or could not be read."""
    if as_json:
        for fields in documents(report):
            say_json(fields)
    else:
        _show(Terminal(), report)
    if not report.is_safe:
        raise SafetyError(_verdict(report))


def report_of(store: MetadataStore, bookies: Bookies, root: str, bookie: str, pace: Limiter) -> RemovalReport:
    """Read all ledgers. Raises ConfigError if no one knows the bookie, UnavailableError."""
    registered = bookies.registered()
    search = _Search(bookie, frozenset(registered) - {bookie})
    ledgers = LedgerReading(store, root, read_layout(store, root), pace)
    for ids, nodes in ledgers.batches(search.could_not_read):
        for ledger_id, node in zip(ids, nodes, strict=True):
            search.add(ledger_id, ledgers.path(ledger_id), node)
    if bookie not in registered and bookie not in search.named:
        cookies = store.children_many([f"{root}/cookies"])[0]
        known = {*registered, *search.named, *(cookies if isinstance(cookies, list) else ())}
        if bookie not in known:
            raise ConfigError(_unknown(bookie, known))
    return search.report(is_registered=bookie in registered)


def documents(report: RemovalReport) -> Iterator[dict[str, Any]]:
    """Yield the objects of --json: the affected topics, and last the totals."""
    for topic in report.topics:
        yield {
            "effect": str(topic.effect),
            "topic": topic.topic,
            "ledgers": topic.ledgers,
            "bytes": topic.size_bytes,
            "open_ledgers": topic.open_ledgers,
            "written_now": topic.written,
            "examples": topic.examples,
        }
    totals = {str(effect): sum(row.ledgers for row in report.topics if row.effect is effect) for effect in Effect}
    yield {
        "bookie": report.bookie,
        "registered": report.is_registered,
        "safe": report.is_safe,
        "ledgers_read": report.ledgers,
        "ledgers_on_bookie": report.affected,
        "ledgers_by_effect": totals,
        "remaining_bookies": list(report.remaining),
        "absent_bookies": list(report.absent),
        "bookies_needed": report.needs,
        "unread": report.unread,
        "problems": [{"path": path, "detail": detail} for path, detail in report.problems],
        "commands": commands(report),
    }


def commands(report: RemovalReport) -> list[str]:
    """Return what the operator does, in order, so that the bookie can be removed without a loss."""
    if not report.affected:
        return [_decommission(report)] if not report.is_registered else [_stop(report), _decommission(report)]
    steps = []
    missing = report.needs - len(report.remaining)
    if missing > 0:
        steps.append(f"start {count_of(missing, 'more bookie')}: an ensemble needs {report.needs}")
    if any(topic.effect in UNSAFE for topic in report.topics):
        # recover reads from the bookie as long as it runs; decommissionbookie refuses a bookie that runs
        if report.absent:
            steps.append(f"start the bookies that do not run, if they still have their data: {_some(report.absent)}")
        if not report.is_registered:
            steps.append(f"start {report.bookie} again: only its disks have the data")
        steps.append(
            'make it read-only, so that no new ledger is placed there: PUT {"readOnly": true} to its HTTP API, '
            "/api/v1/bookie/state/readonly"
        )
        steps.append(
            f"bookkeeper shell recover -f {quote(report.bookie)}   (while it runs: it copies the bookie's ledgers to "
            "others, and closes those that clients are writing to; their clients then write to new ones)"
        )
        steps.append("repeat this command")
    return [*steps, *([_stop(report)] if report.is_registered else []), _decommission(report)]


class _Search:
    """The ledgers that were read so far."""

    def __init__(self, bookie: str, remaining: frozenset[str]) -> None:
        self.named: set[str] = set()  # by any ensemble
        self._bookie = bookie
        self._remaining = remaining
        self._absent: set[str] = set()
        self._topics: dict[tuple[Effect, str], AffectedTopic] = {}
        self._problems: list[tuple[str, str]] = []
        self._unread = self._ledgers = self._needs = 0

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
        removal = removal_of(placement, self._bookie, self._remaining) if self._bookie in members else None
        if removal is not None:
            self._absent |= members - self._remaining - {self._bookie}
            self._needs = max(self._needs, len(placement.segments[0].bookies))
            topic = _topic(ledger_id, placement)
            key = removal.effect, topic
            self._topics.setdefault(key, AffectedTopic(effect=removal.effect, topic=topic)).add(ledger_id, removal)

    def could_not_read(self, path: str, detail: str) -> None:
        """Note a path at and below which nothing is known."""
        self._unread += 1
        if len(self._problems) < _PROBLEMS:
            self._problems.append((path, detail))

    def report(self, *, is_registered: bool) -> RemovalReport:
        """Return the result."""
        order = list(Effect)
        return RemovalReport(
            bookie=self._bookie,
            is_registered=is_registered,
            remaining=tuple(sorted(self._remaining)),
            absent=tuple(sorted(self._absent)),
            ledgers=self._ledgers,
            topics=tuple(
                sorted(self._topics.values(), key=lambda row: (order.index(row.effect), -row.size_bytes, row.topic))
            ),
            needs=self._needs,
            problems=tuple(self._problems),
            unread=self._unread,
        )


def _topic(ledger_id: int, placement: Placement) -> str:
    claim = claim_of(ledger_id, placement.metadata.custom_metadata)
    return "" if isinstance(claim, Unclaimed) else topic_of(claim.managed_ledger)


def _unknown(bookie: str, known: set[str]) -> str:
    listed = f"known are {_some(sorted(known))}" if known else "no bookie is registered, and no ledger names one"
    return f"--before-removing {bookie}: no bookie has this id. Name it as ensembles do (host:port); {listed}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _BOOKIES_SHOWN} more" if len(names) > _BOOKIES_SHOWN else ""
    return ", ".join(names[:_BOOKIES_SHOWN]) + more


def _stop(report: RemovalReport) -> str:
    return f"stop {report.bookie}, and keep its disks"


def _decommission(report: RemovalReport) -> str:
    command = f"bookkeeper shell decommissionbookie -bookieid {quote(report.bookie)}"
    return f"{command}   (waits until its ledgers are on other bookies)"


def _verdict(report: RemovalReport) -> str:
    unsafe = sum(topic.ledgers for topic in report.topics if topic.effect in UNSAFE)
    faults = []
    if unsafe:
        faults.append(f"{count_of(unsafe, 'ledger')} would lose data, or could not be closed, without {report.bookie}")
    if report.unread:
        path, detail = report.problems[0]
        faults.append(f"{count_of(report.unread, 'path')} could not be read, such as {path}: {detail}")
    return "; ".join(faults)


def _show(console: Terminal, report: RemovalReport) -> None:
    state = "" if report.is_registered else " (it does not run)"
    say(
        f"If bookie {report.bookie}{state} were removed now. Its ledgers by the metadata of {report.ledgers:,}; nothing"
    )
    say("was changed, and no bookie was asked whether it still has its entries.")
    if report.affected:
        console.print(_effects(report))
        for line in _topics(report):
            console.print(cell(line), soft_wrap=True)
        written = sum(topic.written for topic in report.topics)
        if written:
            say(f"Clients write to {count_of(written, 'open ledger')} on it now; its size counts once it is closed.")
    else:
        say("No ledger has an entry on it.")
    if report.absent:
        say(f"These bookies share ledgers with it and do not run; their copies do not count: {_some(report.absent)}")
    for path, detail in report.problems[:_PROBLEMS_SHOWN]:
        say(f"Not read: {path}: {detail}")
    say("To remove it without a loss:")
    for number, command in enumerate(commands(report), start=1):
        say(f"  {number}. {command}")


def _effects(report: RemovalReport) -> Table:
    table = Table(title="Ledgers on it", title_justify="left")
    table.add_column("effect", no_wrap=True)
    for name in ("ledgers", "bytes of one copy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("meaning", overflow="fold")
    for effect in Effect:
        rows = [topic for topic in report.topics if topic.effect is effect]
        if rows:
            ledgers, size = sum(row.ledgers for row in rows), sum(row.size_bytes for row in rows)
            shown = Text(str(effect), style="bold red" if effect in UNSAFE else "yellow")
            table.add_row(shown, f"{ledgers:,}", size_text(size), _MEANING[effect])
    return table


def _topics(report: RemovalReport) -> Iterator[str]:
    """Yield a line for each topic, whose name is last and never cut."""
    more = f" (the first {_TOPICS_SHOWN}; --json has all)" if len(report.topics) > _TOPICS_SHOWN else ""
    yield f"Topics with ledgers on it{more}"
    for row in report.topics[:_TOPICS_SHOWN]:
        counts = f"{count_of(row.ledgers, 'ledger')}, {row.open_ledgers:,} open, {size_text(row.size_bytes)}"
        yield f"{row.effect}: {counts}, such as {', '.join(map(str, row.examples))}: {row.topic or '(no topic)'}"
