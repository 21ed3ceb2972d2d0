"""Space: what audits requested, what the service deleted, and what the bookies have freed on their disks since.

A bookie frees the bytes of a deleted ledger later: they stay in entry logs, files that many ledgers share, until it
rewrites or removes those. bookies.json, beside the findings, remembers what each bookie said before.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_

import pyarrow.dataset as ds

from streaming.audit.place import Place
from streaming.audit.publication.plan import plans
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


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes. Deleted ledgers count one copy each, as their own metadata gives the length; reclaimed counts all copies.

    reclaimed and deleted_since count from the first audit that asked the bookies; since_ms is 0 in this first one.
    reclaimed_ever counts from the start of each bookie. bookies: how many answered. unasked: the errors of the others.
    why: sentences that say what keeps deleted bytes on the disks.
    """

    requested: int
    deleted_ledgers: int
    deleted_objects: int
    since_ms: int
    deleted_since: int
    reclaimed: int
    entry_logs: int
    reclaimed_ever: int = 0
    bookies: int = 0
    why: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show."""
        return any((self.requested, self.deleted_ledgers, self.deleted_objects, self.bookies))

    @property
    def held(self) -> int:
        """At least so much the bookies have not freed yet; several copies, and what brokers deleted, make it more."""
        return max(0, self.deleted_since - self.reclaimed)

    def lines(self) -> list[tuple[str, int]]:
        """Return the lines to show: what is counted, and its bytes."""
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


def account(settings: Settings, place: Place, bookies: Bookies, urls: Sequence[str], now_ms: int) -> Space:
    """Ask the bookies, add everything up, and remember their answers for the next audit. Raises UnavailableError."""
    before = _read(place)
    since_ms = before.since_ms if before else 0
    deleted = [_deleted(settings, kind, 0) for kind in (LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER)]
    disks, unasked = _ask(bookies, urls)
    seen = seen_now(before, disks, now_ms)
    if disks:
        place.write(FILE, json.dumps(asdict(seen), indent=2).encode())
    return Space(
        requested=sum(plan.size_bytes for plan in plans(place)),
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
    """Return the bytes that bookies freed between two looks; a bookie's counter starts at 0 whenever it is started."""
    known = {disk.url: disk.reclaimed_bytes for disk in before}
    return sum(
        disk.reclaimed_bytes - known[disk.url] if disk.reclaimed_bytes >= known[disk.url] else disk.reclaimed_bytes
        for disk in now
        if disk.url in known
    )


def reasons(disks: Sequence[BookieDisk]) -> list[str]:
    """Say why deleted bytes may still be on the disks, by these bookies' own configuration."""
    sentences = []
    waits = [disk.gc_wait_seconds for disk in disks if disk.gc_wait_seconds]
    if waits:
        sentences.append(
            f"Bookies look for deleted ledgers every {max(waits)} s (gcWaitTime), so the latest may not count yet."
        )
    majors = [disk.major_threshold for disk in disks if disk.major_threshold]
    if majors:
        share = min(majors)
        sentences.append(
            f"A bookie rewrites an entry log when less than {share:.0%} of it is in use (majorCompactionThreshold), so "
            f"up to {1 - share:.0%} of a log may be garbage. It removes a log without any live ledger as a whole."
        )
    if disks:
        sentences.append("A bookie never rewrites or removes the entry log that it is writing to.")
    return sentences


@dataclass(frozen=True, slots=True)
class Seen:
    """What audits have learnt of the bookies. reclaimed: bytes freed since the first audit; disks: the last answers."""

    since_ms: int
    reclaimed: int
    disks: tuple[BookieDisk, ...]


def seen_now(before: Seen | None, disks: Sequence[BookieDisk], now_ms: int) -> Seen:
    """Add what bookies answer now. A bookie that does not answer is counted when it answers again."""
    if before is None:
        return Seen(now_ms, 0, tuple(disks))
    known = {disk.url: disk for disk in (*before.disks, *disks)}
    return Seen(before.since_ms, before.reclaimed + reclaimed_between(before.disks, disks), tuple(known.values()))


def _read(place: Place) -> Seen | None:
    content = place.read(FILE)
    if content is None:
        return None
    try:
        fields = json.loads(content)
        disks = tuple(BookieDisk(**disk) for disk in fields["disks"])
        return Seen(fields["since_ms"], fields["reclaimed"], disks)
    except (ValueError, KeyError, TypeError):
        return None  # another version wrote it, so counting begins again


def _ask(bookies: Bookies, urls: Sequence[str]) -> tuple[list[BookieDisk], list[str]]:
    def ask(url: str) -> BookieDisk | str:
        try:
            return bookies.disk(url)
        except UnavailableError as error:
            return str(error)

    with ThreadPoolExecutor(_BOOKIES_AT_ONCE) as pool:
        answers = list(pool.map(ask, urls))
    return [each for each in answers if isinstance(each, BookieDisk)], [
        each for each in answers if isinstance(each, str)
    ]


def _deleted(settings: Settings, kind: LedgerType, since_ms: int) -> int:
    conditions = (
        ds.field(c.OUTCOME) == str(Outcome.DELETED),
        ds.field(c.LEDGER_TYPE) == str(kind),
        ds.field(c.AT_MS) >= since_ms,
    )
    return receipts.total(settings.state_dir, reduce(and_, conditions), c.BYTES)
