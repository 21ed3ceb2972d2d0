"""Space: the bytes that audits asked to delete, that the service deleted, and that bookies freed on their disks.

A bookie frees the bytes of a deleted ledger later: they stay in entry logs, which are files that many ledgers share,
until the bookie rewrites or removes these. bookies.json, next to the findings, has the last answer of each bookie.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_

import pyarrow.dataset as ds

from streaming.audit.output import Output
from streaming.audit.publication.publication_plan import plans
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import Bookies
from streaming.state import receipts
from udfs import columns as c
from udfs.formats.bookie_disk import BookieDisk
from udfs.records import LedgerType, Outcome

FILE = "bookies.json"
WHY_ON_DISK = (
    "A bookie keeps many ledgers in one file, an entry log, and frees the space of a deleted ledger later. So deleted "
    "bytes may still be on the disks:"
)
_BOOKIES_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The space, in bytes. Deleted bytes are those of one copy, freed bytes those of all copies."""

    requested: int
    deleted_ledgers: int  # by the length in each ledger's own metadata
    deleted_objects: int
    since_ms: int  # when an audit read the bookies for the first time; 0 in that audit itself
    deleted_since: int
    reclaimed: int  # since since_ms
    entry_logs: int
    reclaimed_ever: int = 0  # since the start of each bookie
    bookies: int = 0  # how many answered
    why: tuple[str, ...] = ()  # sentences that explain why deleted bytes stay on the disks
    unasked: tuple[str, ...] = ()  # the errors of the bookies that did not answer

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show."""
        return any((self.requested, self.deleted_ledgers, self.deleted_objects, self.bookies))

    @property
    def held(self) -> int:
        """Return a lower bound of the deleted bytes that are not freed yet.

        Deleted bytes count one copy; freed bytes count all copies, also of ledgers that brokers deleted.
        """
        return max(0, self.deleted_since - self.reclaimed)

    def lines(self) -> list[tuple[str, int]]:
        """Return the lines to show: a label and its bytes."""
        shown = [
            ("audits requested the deletion of", self.requested),
            ("the service deleted in BookKeeper (one copy of each ledger)", self.deleted_ledgers),
            ("the service deleted in tiered storage", self.deleted_objects),
        ]
        if self.since_ms and self.bookies:
            since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
            shown.append((f"the service deleted in BookKeeper since {since}", self.deleted_since))
            shown.append((f"bookies freed on their disks since {since} (all copies)", self.reclaimed))
            shown.append(("deleted since then and still on the disks, at least", self.held))
        if self.bookies:
            shown.append(("bookies freed on their disks since each was started (all copies)", self.reclaimed_ever))
            shown.append(("bookies hold in finished entry logs now (all copies)", self.entry_logs))
        return shown


def account(settings: Settings, output: Output, bookies: Bookies, urls: Sequence[str], now_ms: int) -> Space:
    """Read the bookies, add everything up, and store their answers for the next audit. Raises UnavailableError."""
    content = output.read(FILE)
    before = parse_seen(content) if content is not None else None
    since_ms = before.since_ms if before else 0
    deleted = [_deleted(settings, ledger_type, 0) for ledger_type in (LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER)]
    disks, unasked = _read_disks(bookies, urls)
    seen = seen_now(before, disks, now_ms)
    if disks:
        output.write(FILE, json.dumps(asdict(seen), indent=2).encode())
    return Space(
        requested=sum(plan.size_bytes for plan in plans(output)),
        deleted_ledgers=deleted[0],
        deleted_objects=deleted[1],
        since_ms=since_ms,
        deleted_since=_deleted(settings, LedgerType.LEDGER, since_ms) if since_ms else 0,
        reclaimed=seen.reclaimed,
        entry_logs=sum(disk.entry_log_bytes for disk in disks),
        reclaimed_ever=sum(disk.reclaimed_bytes for disk in disks),
        bookies=len(disks),
        why=tuple(reasons(disks)),
        unasked=tuple(unasked),
    )


def reclaimed_between(before: Iterable[BookieDisk], now: Iterable[BookieDisk]) -> int:
    """Return the bytes that bookies freed between two reads; a restart of a bookie resets its counter to 0."""
    old = {disk.url: disk.reclaimed_bytes for disk in before}
    return sum(
        disk.reclaimed_bytes - old[disk.url] if disk.reclaimed_bytes >= old[disk.url] else disk.reclaimed_bytes
        for disk in now
        if disk.url in old
    )


def reasons(disks: Sequence[BookieDisk]) -> list[str]:
    """Explain why deleted bytes may still be on the disks, from these bookies' own configuration."""
    sentences = []
    waits = [disk.gc_wait_seconds for disk in disks if disk.gc_wait_seconds]
    if waits:
        sentences.append(
            f"Bookies search for deleted ledgers every {max(waits)} s (gcWaitTime), so the latest deletes may not "
            "count as freed yet."
        )
    majors = [disk.major_threshold for disk in disks if disk.major_threshold]
    if majors:
        share = min(majors)
        sentences.append(
            f"A bookie rewrites an entry log when less than {share:.0%} of it is in use (majorCompactionThreshold), so "
            f"up to {1 - share:.0%} of a log may be garbage. It removes the whole log if no ledger in it is live."
        )
    if disks:
        sentences.append("A bookie never rewrites or removes the entry log that it is writing to.")
    return sentences


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the bookies as audits have read it."""

    since_ms: int  # the first audit
    reclaimed: int  # bytes freed since then
    disks: tuple[BookieDisk, ...]  # the last answers


def parse_seen(content: bytes) -> Seen | None:
    """Parse bookies.json; None: another version wrote it, so counting starts again."""
    try:
        fields = json.loads(content)
        disks = tuple(BookieDisk(**disk | {"faults": tuple(disk.get("faults", ()))}) for disk in fields["disks"])
        return Seen(fields["since_ms"], fields["reclaimed"], disks)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def seen_now(before: Seen | None, disks: Sequence[BookieDisk], now_ms: int) -> Seen:
    """Add the bookies' current answers."""
    # a bookie counts since its own start, so the first audit only records the counters
    if before is None:
        return Seen(now_ms, 0, tuple(disks))
    # a bookie that does not answer now keeps its last counter, and is counted when it answers again
    newest = {disk.url: disk for disk in (*before.disks, *disks)}
    return Seen(before.since_ms, before.reclaimed + reclaimed_between(before.disks, disks), tuple(newest.values()))


def _read_disks(bookies: Bookies, urls: Sequence[str]) -> tuple[list[BookieDisk], list[str]]:
    def read_disk(url: str) -> BookieDisk | str:
        try:
            return bookies.disk(url)
        except UnavailableError as error:
            return str(error)

    with ThreadPoolExecutor(_BOOKIES_AT_ONCE) as pool:
        answers = list(pool.map(read_disk, urls))
    return [answer for answer in answers if isinstance(answer, BookieDisk)], [
        answer for answer in answers if isinstance(answer, str)
    ]


def _deleted(settings: Settings, ledger_type: LedgerType, since_ms: int) -> int:
    conditions = (
        ds.field(c.OUTCOME) == str(Outcome.DELETED),
        ds.field(c.LEDGER_TYPE) == str(ledger_type),
        ds.field(c.AT_MS) >= since_ms,
    )
    return receipts.total(settings.state_dir, reduce(and_, conditions), c.BYTES)
