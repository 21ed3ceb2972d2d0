"""Accounts: is every message that was read accounted for, and does every request that was put off still wait?

1. By position: each entry of a partition up to the committed position has its receipts, or waits in streaming.waiting.
   An entry that seems to have none is read before it counts as missing: a marker is no message.
2. By request: whose newest receipt says RETRY has a copy in the retry topic or among the waiting. Only the newest
   chunk's copies may still be on their way.
3. By ledger: one that held unread messages at the last look and is gone from the topic took them with it (TTL, backlog
   eviction, a topic deleted, or deleted and made anew).
What changes while it is looked at is read in the order in which messages move, so that a gap found is one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.dataset as ds

from streaming import columns as c
from streaming.accounted import Accounted
from streaming.adapters.pulsar_admin import PulsarAdmin
from streaming.adapters.pulsar_read import Position, read
from streaming.backlog import ledgers_of
from streaming.checkpoints import committed_positions, location_of
from streaming.config import Settings
from streaming.errors import UnavailableError
from streaming.journal import open_filesystem
from streaming.queries import queries_of
from streaming.tables import opened
from streaming.worker import RETRY
from udfs.paths import base_topic
from udfs.records import Outcome
from udfs.retry import MAX_DELAY_MS, ORIGIN_MESSAGE_ID

_FILE = "accounts.json"
_DAY_MS = 24 * 3600 * 1000
_SHOWN = 3
_NOTHING: Position = (-1, -1)


@dataclass(frozen=True, slots=True)
class Account:
    """One source partition, in entries: read (up to the committed position), unread, and read but unaccounted for.

    missing: (ledger, entry) of each. trimmed: ledgers that went with unread messages in them.
    """

    partition: str
    read: int
    unread: int
    missing: tuple[Position, ...] = ()
    trimmed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounts:
    """Of all partitions. put_off: requests that wait for another try; lost: those of them that wait nowhere."""

    partitions: tuple[Account, ...]
    put_off: int
    lost: tuple[str, ...] = ()

    @property
    def gaps(self) -> list[str]:
        """What is not accounted for, in words; empty: all is."""
        said = [
            f"{one.partition}: {len(one.missing)} messages were read and have no receipt, such as {_some(one.missing)}"
            for one in self.partitions
            if one.missing
        ]
        said += [
            f"{one.partition}: ledgers {_some(one.trimmed)} vanished with unread messages in them (TTL, eviction?)"
            for one in self.partitions
            if one.trimmed
        ]
        if self.lost:
            said.append(f"{len(self.lost)} requests were put off and wait nowhere, such as {_some(self.lost)}")
        return said

    @property
    def text(self) -> str:
        """The sum, in words."""
        entries = sum(one.read for one in self.partitions)
        unread = sum(one.unread for one in self.partitions)
        return f"{entries} entries read and accounted for, {unread} unread, {self.put_off} requests put off"


@dataclass(slots=True)
class Look:
    """One partition as internalStats shows it beside the committed position: ledger -> entries, for each of three."""

    stored: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    unread: dict[int, int] = field(default_factory=dict)


def look(ledgers: Iterable[tuple[int, int]], committed: Position) -> Look:
    """Tell read from unread in a partition's ledgers (id, entries)."""
    seen = Look()
    for ledger, entries in ledgers:
        upto = entries if ledger < committed[0] else min(entries, committed[1] + 1) if ledger == committed[0] else 0
        seen.stored[ledger], seen.read[ledger] = entries, upto
        if entries > upto:
            seen.unread[ledger] = entries
    return seen


def missing_of(seen: Look, known: Mapping[int, set[int]]) -> list[Position]:
    """Entries that were read and are not known, in order."""
    return [
        (ledger, entry)
        for ledger, upto in sorted(seen.read.items())
        if len(known.get(ledger, ())) < upto or not known[ledger].issuperset(range(upto))
        for entry in range(upto)
        if entry not in known.get(ledger, ())
    ]


def vanished(before: Mapping[int, int], seen: Look, known: Mapping[int, set[int]]) -> list[int]:
    """Ledgers that held unread entries at the last look, are gone now, and were not read meanwhile."""
    return [
        ledger
        for ledger, entries in sorted(before.items())
        if ledger not in seen.stored and len(known.get(ledger, ())) < entries
    ]


def accounts_of(
    settings: Settings, admin: PulsarAdmin, now_ms: int, *, matched: Sequence[str] = (), remembers: bool = False
) -> Accounts:
    """Look at everything that is still stored. remembers: keep what is unread now for the next look (the service does).

    matched: request topics beside the listed ones. Raises UnavailableError.
    """
    put_off = _put_off(settings, now_ms)
    committed: dict[str, Position] = {}
    last: dict[str, Position] = {}
    for query in queries_of(settings, matched):
        committed |= committed_positions(location_of(settings, query.name))
        for topic in query.topics:
            last |= admin.last_positions(topic) if admin.partitions(topic) else {}
    lost = _not_waiting(settings, put_off, committed, last, now_ms)
    before, unread, found = _recall(settings), {}, []
    oldest_ms = now_ms - settings.state.receipts_days * _DAY_MS
    for partition in last:
        seen = look(_ledgers(admin, partition), committed.get(partition, _NOTHING))
        unread[partition] = seen.unread
        found.append(_account(settings, partition, seen, before.get(partition, {}), oldest_ms))
    for partition in before.keys() - last.keys():
        if admin.partitions(base_topic(partition)) is not None:
            unread[partition] = before[partition]  # nobody reads it now, but it is there
        elif before[partition]:
            gone = vanished(before[partition], Look(), Accounted(settings.state.dir, partition).entries())
            found.append(Account(partition, 0, 0, trimmed=tuple(gone)))
    if remembers:
        _remember(settings, unread)
    return Accounts(tuple(found), len(put_off), tuple(sorted(lost)))


def _account(settings: Settings, partition: str, seen: Look, before: Mapping[int, int], oldest_ms: int) -> Account:
    accounted = Accounted(settings.state.dir, partition)
    known = accounted.entries()
    missing = missing_of(seen, known)
    return Account(
        partition,
        sum(seen.read.values()),
        sum(entries - seen.read[ledger] for ledger, entries in seen.unread.items()),
        tuple(_confirmed(settings, partition, missing, accounted, oldest_ms)),
        tuple(vanished(before, seen, known)),
    )


def _confirmed(
    settings: Settings, partition: str, missing: list[Position], accounted: Accounted, oldest_ms: int
) -> Iterator[Position]:
    """Those of the entries that do hold messages without a receipt, as young as receipts are kept."""
    if not missing:
        return
    messages, wanted = accounted.messages(), set(missing)
    first, last = missing[0], missing[-1]
    for message in read(settings.pulsar, {partition: last}, after={partition: (first[0], first[1] - 1)}):
        here = (message.ledger_id, message.entry_id)
        is_known = (*here, message.batch_index) in messages
        if here in wanted and not is_known and message.publish_ms >= oldest_ms:
            wanted.discard(here)
            yield here


def _ledgers(admin: PulsarAdmin, partition: str) -> list[tuple[int, int]]:
    stats = admin.internal_stats(partition)
    try:
        return ledgers_of(stats)
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"internalStats of {partition} are of a form not known: {error!r}") from error


def _put_off(settings: Settings, now_ms: int) -> dict[str, int]:
    """Request -> chunk of its newest receipt, where that says RETRY; but for the newest chunk's.

    A retry waits a week at most: an older receipt is nobody's newest, or was an alarm a week ago.
    """
    table = opened(settings.state.dir, "receipts")
    if table is None:
        return {}
    since = ds.field(c.AT_MS) >= now_ms - MAX_DELAY_MS - _DAY_MS
    retried = (ds.field(c.OUTCOME) == str(Outcome.RETRY)) | (ds.field(c.QUERY) == RETRY)
    latest: dict[str, tuple[int, str]] = {}
    columns = [c.ORIGIN_MESSAGE_ID, c.CHUNK, c.OUTCOME]
    for batch in table.to_pyarrow_dataset().to_batches(filter=since & retried, columns=columns):
        for origin, chunk, outcome in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            latest[origin] = max(latest.get(origin, (0, "")), (chunk, outcome))
    newest = max((chunk for chunk, _ in latest.values()), default=0)
    return {origin: chunk for origin, (chunk, what) in latest.items() if what == Outcome.RETRY and chunk < newest}


def _not_waiting(
    settings: Settings,
    put_off: Mapping[str, int],
    committed: Mapping[str, Position],
    last: Mapping[str, Position],
    now_ms: int,
) -> set[str]:
    """Requests put off that are neither unread in the retry topic nor among the waiting, nor worked off since."""
    if not put_off:
        return set()
    retry = f"{settings.topics.retry}-partition-"
    unread = {
        partition: at
        for partition, at in last.items()
        if partition.startswith(retry) and committed.get(partition, _NOTHING) < at
    }
    after = {partition: at for partition, at in committed.items() if partition in unread}
    missing = set(put_off)
    missing -= {each.properties.get(ORIGIN_MESSAGE_ID, "") for each in read(settings.pulsar, unread, after=after)}
    missing -= set(_held_origins(settings))
    still = _put_off(settings, now_ms) if missing else {}
    return {origin for origin in missing if still.get(origin) == put_off[origin]}


def _held_origins(settings: Settings) -> Iterator[str]:
    table = opened(settings.state.dir, "waiting")
    if table is not None:
        for batch in table.to_pyarrow_dataset().to_batches(columns=[c.MESSAGE_PROPERTIES]):
            for properties in batch.column(0).to_pylist():
                yield dict(properties or ()).get(ORIGIN_MESSAGE_ID) or ""


def _recall(settings: Settings) -> dict[str, dict[int, int]]:
    filesystem, root = open_filesystem(settings.state.dir)
    try:
        with filesystem.open_input_stream(f"{root}/{_FILE}") as stream:
            known: dict[str, dict[str, int]] = json.loads(stream.read())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{root}/{_FILE} can't be read: {error}; remove it to begin anew") from error
    return {partition: {int(ledger): n for ledger, n in each.items()} for partition, each in known.items()}


def _remember(settings: Settings, unread: Mapping[str, Mapping[int, int]]) -> None:
    filesystem, root = open_filesystem(settings.state.dir)
    try:
        with filesystem.open_output_stream(f"{root}/.{_FILE}") as out:
            out.write(json.dumps(unread).encode())
        filesystem.move(f"{root}/.{_FILE}", f"{root}/{_FILE}")
    except OSError as error:
        raise UnavailableError(f"{root}/{_FILE} can't be written: {error}") from error


def _some(things: Iterable[object]) -> str:
    shown = [f"{each[0]}:{each[1]}" if isinstance(each, tuple) else str(each) for each in things]
    return ", ".join(shown[:_SHOWN])
