"""Space: what audits asked for, what the service deleted, what bookies gave back, and why the rest is on disk still.

A deleted ledger's bytes stay in entry logs, among other ledgers' bytes, until the bookie rewrites or drops those.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_

import pyarrow.dataset as ds

from streaming.adapters.bookkeeper.http import BookieDisk, look
from streaming.audit.place import Place
from streaming.audit.publication.send import plans
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.state import receipts
from udfs import columns as c
from udfs.records import LedgerType, Outcome

FILE = "bookies.json"
_BOOKIE_SECONDS = 5.0  # a bookie that is slower has other worries than our report
_BOOKIES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes. Deleted: as the ledgers' own metadata said, one copy each. reclaimed: on all bookies, all copies.

    reclaimed and deleted_since are counted since the first audit that asked the bookies; since_ms 0: this is the first.
    reclaimed_ever: since each bookie was started. bookies: how many answered; unasked: what those said that did not.
    why: what keeps the rest on disk, in words.
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
        """Whether there is anything to tell."""
        return any((self.requested, self.deleted_ledgers, self.deleted_objects, self.bookies))

    @property
    def held(self) -> int:
        """What bookies did not give back yet; more, where there are several copies or brokers deleted as well."""
        return max(0, self.deleted_since - self.reclaimed)

    def lines(self) -> list[tuple[str, int]]:
        """What to show: (what, bytes)."""
        shown = [
            ("asked for by audits", self.requested),
            ("deleted in BookKeeper (one copy each)", self.deleted_ledgers),
            ("deleted in tiered storage", self.deleted_objects),
        ]
        if self.since_ms and self.bookies:
            since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
            shown.append((f"deleted in BookKeeper since {since} (one copy each)", self.deleted_since))
            shown.append((f"given back by bookies since {since} (all copies)", self.reclaimed))
            shown.append(("deleted since then and still on disk, at least", self.held))
        if self.bookies:
            shown.append(("given back by bookies since each was started (all copies)", self.reclaimed_ever))
            shown.append(("in entry logs now, those being written left out (all copies)", self.entry_logs))
        return shown


def account(settings: Settings, place: Place, bookies: Sequence[str], now_ms: int) -> Space:
    """Add up, ask the bookies, and remember their answers for the next time. Raises UnavailableError."""
    before = _read(place)
    since_ms = before.since_ms if before else 0
    deleted = [_deleted(settings, kind, 0) for kind in (LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER)]
    disks, unasked = _ask(bookies)
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
    """Bytes given back between two looks; a bookie that was started anew counts from nothing."""
    known = {disk.url: disk.reclaimed_bytes for disk in before}
    return sum(
        disk.reclaimed_bytes - known[disk.url] if disk.reclaimed_bytes >= known[disk.url] else disk.reclaimed_bytes
        for disk in now
        if disk.url in known
    )


def reasons(disks: Sequence[BookieDisk]) -> list[str]:
    """Why deleted bytes may be on disk still, as these bookies are configured."""
    said = []
    waits = [disk.gc_wait_seconds for disk in disks if disk.gc_wait_seconds]
    if waits:
        said.append(f"Bookies look for deleted ledgers every {max(waits)} s (gcWaitTime): the newest are not seen yet.")
    majors = [disk.major_threshold for disk in disks if disk.major_threshold]
    if majors:
        share = min(majors)
        said.append(
            f"An entry log is rewritten when less than {share:.0%} of it is in use (majorCompactionThreshold): "
            f"garbage up to {1 - share:.0%} of a log stays until more of it is deleted. A log without any live "
            "ledger goes at once."
        )
    if disks:
        said.append("The entry log that a bookie is writing to is never touched.")
    return said


@dataclass(frozen=True, slots=True)
class Seen:
    """What audits saw of the bookies. reclaimed: bytes given back since the first; disks: each one's last answer."""

    since_ms: int
    reclaimed: int
    disks: tuple[BookieDisk, ...]


def seen_now(before: Seen | None, disks: Sequence[BookieDisk], now_ms: int) -> Seen:
    """Add what bookies answer now; one that does not answer is counted on when it does again."""
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
        return None  # of another version: counting begins anew


def _ask(bookies: Sequence[str]) -> tuple[list[BookieDisk], list[str]]:
    def ask(url: str) -> BookieDisk | str:
        try:
            return look(url, _BOOKIE_SECONDS)
        except UnavailableError as error:
            return str(error)

    with ThreadPoolExecutor(_BOOKIES_AT_ONCE) as pool:
        answers = list(pool.map(ask, bookies))
    return [each for each in answers if isinstance(each, BookieDisk)], [
        each for each in answers if isinstance(each, str)
    ]


def _deleted(settings: Settings, kind: LedgerType, since_ms: int) -> int:
    conditions = (
        ds.field(c.OUTCOME) == str(Outcome.DELETED),
        ds.field(c.LEDGER_TYPE) == str(kind),
        ds.field(c.AT_MS) >= since_ms,
    )
    return receipts.total(settings.state.dir, reduce(and_, conditions), c.BYTES)
