"""Accounts: is every message that was read accounted for, and does every request that was put off still wait?

1. By position: each entry of a partition up to the committed position has its receipts, or waits in the table
   streaming.state.waiting. An entry that seems to have none is read before it counts as missing: a marker is no
   message.
2. By request: whose newest receipt says RETRY has a copy in the retry topic or among the waiting. Only the newest
   chunk's copies may still be on their way.
3. By ledger: one that held unread messages at the last look and is gone from the topic took them with it (TTL, backlog
   eviction, a topic deleted, or deleted and made anew). It is remembered until a person accepts that (`accept --gaps`).
What changes while it is looked at is read in the order in which messages move, so that a gap found is one. A topic that
can't be looked at is named, and hides no other's gaps.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.read import read
from streaming.config.settings import Settings
from streaming.errors import ReaperError, RefusedError, UnavailableError
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.reconcile.positions import Accounted, Known
from streaming.schemas import RETRY
from streaming.state.filesystem import open_filesystem
from streaming.state.tables import opened
from udfs import columns as c
from udfs.formats.internal_stats import Position, ledgers_of
from udfs.paths import base_topic, topic_of
from udfs.records import Outcome
from udfs.retry import MAX_DELAY_MS, ORIGIN_MESSAGE_ID
from udfs.units import DAY_MS

_FILE = "accounts.json"
_ACCEPTED = "accounts-accepted.json"  # partition -> ledgers; only `accept --gaps` writes it
_SHOWN = 3
_NOTHING: Position = (-1, -1)


@dataclass(frozen=True, slots=True)
class PartitionGaps:
    """One source partition, in entries: read (up to the committed position), unread, and read but unaccounted for.

    missing: (ledger, entry) of each. trimmed: ledgers that went with such messages, or unread ones, and which nobody
    has accepted.
    """

    partition: str
    read: int
    unread: int
    missing: tuple[Position, ...] = ()
    trimmed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Of all partitions. put_off: requests that wait for another try; lost: those of them that wait nowhere.

    unseen: topic or partition -> why it could not be looked at; is_refused: for want of rights, some of it.
    """

    partitions: tuple[PartitionGaps, ...]
    put_off: int
    lost: tuple[str, ...] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    is_refused: bool = False

    @property
    def gaps(self) -> list[str]:
        """What is not accounted for, in words; empty: all that was looked at is."""
        return list(self.gaps_by_kind.values())

    @property
    def gaps_by_kind(self) -> dict[tuple[str, str], str]:
        """(partition, kind) -> in words."""
        said = {
            (one.partition, "missing"): f"{one.partition}: {len(one.missing)} messages were read and have no receipt, "
            f"such as {_some(one.missing)}"
            for one in self.partitions
            if one.missing
        }
        said |= {
            (one.partition, "trimmed"): f"{one.partition}: ledgers {_some(one.trimmed)} vanished with unread messages "
            "in them (TTL, eviction?)"
            for one in self.partitions
            if one.trimmed
        }
        if self.lost:
            words = f"{len(self.lost)} requests were put off and wait nowhere, such as {_some(self.lost)}"
            said["", "lost"] = words
        return said

    @property
    def doubt(self) -> str:
        """What could not be looked at, in words; "": all was."""
        return "; ".join(f"{what} could not be looked at: {why}" for what, why in sorted(self.unseen.items()))

    @property
    def text(self) -> str:
        """The sum, in words."""
        entries = sum(one.read for one in self.partitions)
        unread = sum(one.unread for one in self.partitions)
        return f"{entries} entries read and accounted for, {unread} unread, {self.put_off} requests put off"


@dataclass(slots=True)
class PartitionEntries:
    """One partition as internalStats shows it beside the committed position: ledger -> entries, for each of three."""

    stored: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    unread: dict[int, int] = field(default_factory=dict)


def look(ledgers: Iterable[tuple[int, int]], committed: Position) -> PartitionEntries:
    """Tell read from unread in a partition's ledgers (id, entries)."""
    seen = PartitionEntries()
    for ledger, entries in ledgers:
        upto = entries if ledger < committed[0] else min(entries, committed[1] + 1) if ledger == committed[0] else 0
        seen.stored[ledger], seen.read[ledger] = entries, upto
        if entries > upto:
            seen.unread[ledger] = entries
    return seen


def missing_of(seen: PartitionEntries, known: Known) -> list[Position]:
    """Entries that were read and are not known, in order."""
    return [
        (ledger, entry)
        for ledger, upto in sorted(seen.read.items())
        for entry in _lacking(known.get(ledger, range(0)), upto)
    ]


def _lacking(known: range | set[int], upto: int) -> Iterable[int]:
    if isinstance(known, range):
        return range(len(known), upto)
    return (entry for entry in range(upto) if entry not in known)


def vanished(before: Mapping[int, int], seen: PartitionEntries, known: Known) -> list[int]:
    """Ledgers that held unread entries at the last look, are gone now, and were not read meanwhile."""
    return [
        ledger
        for ledger, entries in sorted(before.items())
        if ledger not in seen.stored and len(known.get(ledger, ())) < entries
    ]


def reconcile(
    settings: Settings, admin: PulsarAdmin, now_ms: int, *, matched: Sequence[str] = (), remembers: bool = False
) -> Reconciliation:
    """Look at everything that is still stored. remembers: keep what is unread now for the next look (the service does).

    matched: request topics beside the listed ones. Raises UnavailableError where nothing can be looked at.
    """
    unseen = _Unseen(admin)
    put_off = _put_off(settings, now_ms)
    committed: dict[str, Position] = {}
    last: dict[str, Position] = {}
    for query in queries_of(settings, matched):
        with unseen.looking(*map(topic_of, query.topics)):
            done = committed_positions(location_of(settings, query.name))
            ends = [admin.last_positions(topic) for topic in query.topics if admin.partitions(topic)]
            committed |= done
            last |= {partition: end for each in ends for partition, end in each.items()}
    lost: set[str] = set()
    retry = topic_of(settings.topics.retry)
    if retry not in unseen.why:
        with unseen.looking(retry):
            lost = _not_waiting(settings, put_off, committed, last, now_ms)
    before, found = _recall(settings), []
    unread = {partition: dict(each) for partition, each in before.items()}  # of what is not seen now
    oldest_ms = now_ms - settings.state.receipts_days * DAY_MS
    for partition in last:
        with unseen.looking(partition):
            seen = look(_ledgers(admin, partition), committed.get(partition, _NOTHING))
            old = before.get(partition, {})
            account = _account(settings, partition, seen, old, oldest_ms)
            found.append(account)
            unread[partition] = _worth_remembering(account, seen, old)
    for partition in before.keys() - last.keys():
        topic = base_topic(partition)
        with unseen.looking(topic):
            # where there is such a topic, nobody reads it now, but it is there
            if topic not in unseen.why and admin.partitions(topic) is None:
                old = before[partition]
                known = Accounted(settings.state.dir, partition, old).entries()
                unread[partition] = {ledger: old[ledger] for ledger in vanished(old, PartitionEntries(), known)}
                if unread[partition]:
                    found.append(PartitionGaps(partition, 0, 0, trimmed=tuple(unread[partition])))
    if remembers:
        _write(settings, _FILE, {partition: each for partition, each in unread.items() if each})
    return Reconciliation(tuple(found), len(put_off), tuple(sorted(lost)), unseen.why, unseen.is_refused)


def accept_gaps(settings: Settings, admin: PulsarAdmin, now_ms: int, *, matched: Sequence[str] = ()) -> list[str]:
    """A person has seen to the messages that went with their ledgers: no alarm for those any more; says which."""
    accounts = reconcile(settings, admin, now_ms, matched=matched)
    gaps = {one.partition: one.trimmed for one in accounts.partitions if one.trimmed}
    accepted = _accepted(settings)
    added = {partition: sorted({*accepted.get(partition, ()), *ledgers}) for partition, ledgers in gaps.items()}
    _write(settings, _ACCEPTED, {**accepted, **added})
    return [f"{partition}: ledgers {', '.join(map(str, ledgers))}" for partition, ledgers in gaps.items()]


class _Unseen:
    """Notes what could not be looked at, as long as the cluster answers at all."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin
        self.why: dict[str, str] = {}
        self.is_refused = False

    @contextlib.contextmanager
    def looking(self, *what: str) -> Iterator[None]:
        """Go on behind the block where it fails. Raises what it raised where no broker answers."""
        try:
            yield
        except ReaperError as error:
            try:
                self._admin.clusters()
            except ReaperError:
                raise error from None
            self.why |= dict.fromkeys(what, str(error))
            self.is_refused |= isinstance(error, RefusedError)


def _worth_remembering(account: PartitionGaps, seen: PartitionEntries, before: Mapping[int, int]) -> dict[int, int]:
    """Ledger -> entries: those with unread entries, and those with a gap, which must not go with the ledger."""
    gaps = {ledger: seen.read[ledger] for ledger, _ in account.missing}
    return gaps | seen.unread | {ledger: before[ledger] for ledger in account.trimmed}


def _account(
    settings: Settings, partition: str, seen: PartitionEntries, before: Mapping[int, int], oldest_ms: int
) -> PartitionGaps:
    read = {ledger for ledger, entries in seen.read.items() if entries}
    accounted = Accounted(settings.state.dir, partition, read | (before.keys() - seen.stored.keys()))
    known = accounted.entries()
    missing = missing_of(seen, known)
    return PartitionGaps(
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
    messages, wanted = accounted.messages({ledger for ledger, _ in missing}), set(missing)
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
    since = ds.field(c.AT_MS) >= now_ms - MAX_DELAY_MS - DAY_MS
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
    """Partition -> ledger -> entries, of the last look; without what a person has accepted since."""
    known: Mapping[str, Mapping[str, int]] = _read_json(settings, _FILE)
    accepted = _accepted(settings)
    return {
        partition: {int(ledger): n for ledger, n in each.items() if int(ledger) not in accepted.get(partition, ())}
        for partition, each in known.items()
    }


def _accepted(settings: Settings) -> Mapping[str, Sequence[int]]:
    known: Mapping[str, Sequence[int]] = _read_json(settings, _ACCEPTED)
    return known


def _read_json(settings: Settings, name: str) -> Any:
    filesystem, root = open_filesystem(settings.state.dir)
    try:
        with filesystem.open_input_stream(f"{root}/{name}") as stream:
            return json.loads(stream.read())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{root}/{name} can't be read: {error}; remove it to begin anew") from error


def _write(settings: Settings, name: str, known: Mapping[str, Any]) -> None:
    filesystem, root = open_filesystem(settings.state.dir)
    try:
        with filesystem.open_output_stream(f"{root}/.{name}") as out:
            out.write(json.dumps(known).encode())
        filesystem.move(f"{root}/.{name}", f"{root}/{name}")
    except OSError as error:
        raise UnavailableError(f"{root}/{name} can't be written: {error}") from error


def _some(things: Iterable[object]) -> str:
    shown = [f"{each[0]}:{each[1]}" if isinstance(each, tuple) else str(each) for each in things]
    return ", ".join(shown[:_SHOWN])
