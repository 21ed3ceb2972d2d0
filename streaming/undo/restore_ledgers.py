"""Restores the metadata of deleted ledgers, with the exact bytes of the journal, and never over an existing znode.

A delete removes the metadata only; the bookies notice at their next garbage collection and then drop the entries.
Nothing in ZooKeeper shows whether that has happened, so we ask the bookies of the ledger's first and last entry whether
they still store these entries; this needs no metadata. If all answer no, we ask each of the ledger's bookies for a few
other entries, and if none has any, nothing is restored. Otherwise we restore the metadata and let the bookies read the
first and the last entry as clients do. The metadata stay, whatever the bookies answer: without them, a bookie that
still has entries would drop them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import islice, pairwise
from operator import and_
from typing import Any

import pyarrow.dataset as ds

from streaming.clients import CommandClients
from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.live_store import require_live_store
from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.ports import (
    Bookies,
    MetadataStore,
    PlacedEntry,
    TopicAdmin,
    Unreadable,
    Znode,
)
from streaming.state import journal, receipts
from streaming.undo.control_ledgers import entries_on
from streaming.undo.undo_report import (
    GONE,
    HALF_STORED,
    NO_BOOKIE_READS,
    NOT_CHECKED,
    NOT_READ,
    PARTLY_STORED,
    STORED,
    Undone,
    UndoReport,
    UndoResult,
    UndoSelection,
)
from udfs import columns as c
from udfs.formats.bookie_info import http_addresses
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import bookies_of, parse_ledger_metadata
from udfs.formats.ledger_placement import Placement, bookies_of_entry, placement_of
from udfs.owners.named_owner import BUCKET_TOPIC, COMPACTED_TOPIC, MANAGED_LEDGER, SCHEMA_ID
from udfs.paths import Layout, base_topic, ledger_id_of, managed_ledger_name, schema_id_of, topic_of
from udfs.records import Outcome

_READ_AT_ONCE = 500
# The most control entries, in all and of one partition. They are of several topics and partitions, because a ledger may
# be in tiered storage, or be trimmed right now.
_AT_MOST = 8
_OF_A_PARTITION = 2
_ENTRIES = 2  # that a ledger has at least; while it is being written, its last entry may not be readable


def undo_ledgers(
    settings: Settings, clients: CommandClients, selection: UndoSelection, *, dry_run: bool = False
) -> UndoReport:
    """Restore the selected ledgers. Raises ConfigError if none is in the journal, UnavailableError, SafetyError.

    A ledger that exists is left unchanged, so a second call does nothing more.
    """
    store = clients.store
    require_live_store(store, clients.pulsar.admin.metadata_stores)
    identity.compare(identity.of_cluster(settings, store, clients.pulsar.admin), settings.state_dir)
    layout = identity.read_layout(store, settings.zookeeper.ledgers_root)
    entries = newest_of(
        journal.entries(settings.state_dir, journal.JournalQuery(where=condition_of(selection))), selection.topic
    )
    if not entries:
        raise ConfigError(
            f"the journal in {settings.state.dir} has no such ledger: it keeps the deletes of this service for "
            f"{settings.state.journal_days} days"
        )
    created: dict[str, Znode] = {}
    results = list(_restore_removed(clients, settings, layout, entries, None if dry_run else created))
    report = UndoReport(_checked(settings, clients, results, created))
    report.waiting = _waiting_ledgers(settings, report)
    return report


def restorable(settings: Settings, clients: CommandClients, ledger_ids: Collection[int]) -> dict[int, UndoResult]:
    """Return what `undo` would do with those of the ledgers that the journal has, and change nothing.

    Raises UnavailableError, ConfigError, and SafetyError if the journal is another cluster's.
    """
    store = clients.store
    identity.compare(identity.of_cluster(settings, store, clients.pulsar.admin), settings.state_dir)
    layout = identity.read_layout(store, settings.zookeeper.ledgers_root)
    where = ds.field("ledger_id").isin(sorted(ledger_ids))
    entries = newest_of(journal.entries(settings.state_dir, journal.JournalQuery(where=where)))
    return {each.ledger_id: each for each in _restore_removed(clients, settings, layout, entries, None)}


def newest_of(entries: Iterable[Mapping[str, Any]], topic: str = "") -> list[Mapping[str, Any]]:
    """Return the newest journal entry of each path, by ascending ledger id; with a topic, only for its ledgers."""
    newest: dict[str, Mapping[str, Any]] = {}
    names = _names_of(topic) if topic else None
    for entry in entries:
        if names is not None and not names & set(_owner_names(entry)):
            continue
        newest_yet = newest.get(entry["path"])
        if newest_yet is None or entry["at_ms"] >= newest_yet["at_ms"]:
            newest[entry["path"]] = entry
    return sorted(newest.values(), key=lambda entry: int(entry["ledger_id"]))


def condition_of(selection: UndoSelection) -> ds.Expression | None:
    """Return a condition on the journal's rows. It ignores the topic, which no column has: see newest_of."""
    conditions = []
    if selection.ledger_id is not None:
        conditions.append(ds.field("ledger_id") == selection.ledger_id)
    if selection.since_ms:
        conditions.append(ds.field("at_ms") >= selection.since_ms)
    return reduce(and_, conditions) if conditions else None


def _names_of(topic: str) -> set[str]:
    full = topic_from(topic, "--topic")
    return {full, schema_id_of(full)}


def _owner_names(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the owner's names according to the ledger's metadata: topic and its base topic, or schema id."""
    try:
        custom = parse_ledger_metadata(bytes(entry["data"])).custom_metadata
    except FormatError:
        return
    if SCHEMA_ID in custom:
        yield custom[SCHEMA_ID].decode("utf-8", "replace")
    for key in (MANAGED_LEDGER, COMPACTED_TOPIC, BUCKET_TOPIC):
        if key in custom:
            try:
                full = topic_of(managed_ledger_name(custom[key].decode("utf-8", "replace")))
            except ValueError:
                continue
            yield full
            yield base_topic(full)


def _restore_removed(
    clients: CommandClients,
    settings: Settings,
    layout: Layout,
    entries: list[Mapping[str, Any]],
    created: dict[str, Znode] | None,
) -> Iterator[UndoResult]:
    """Restore each ledger if nothing prevents it, and add each new znode to `created`; None: a dry run."""
    store = clients.store
    control = partial(entries_on, store, layout, settings.zookeeper.ledgers_root)
    for start in range(0, len(entries), _READ_AT_ONCE):
        batch = entries[start : start + _READ_AT_ONCE]
        nodes = store.read_many([entry["path"] for entry in batch])
        faults = [
            _fault(entry, node, settings.zookeeper.ledgers_root, layout)
            for entry, node in zip(batch, nodes, strict=True)
        ]
        absent = [entry for entry, (status, _) in zip(batch, faults, strict=True) if status is Undone.PUT_BACK]
        stored = _stored(clients.bookies, control, absent)
        for entry, (status, detail) in zip(batch, faults, strict=True):
            if status is not Undone.PUT_BACK:
                yield _result(entry, status, detail)
                continue
            has_entries, told = stored[entry["path"]]
            if told != GONE and created is not None:
                result = _result(entry, *_put_back(store, entry, created))
            else:
                result = _result(entry, Undone.TOO_LATE if told == GONE else Undone.WOULD_PUT_BACK, "")
            yield replace(result, has_entries=has_entries, detail=result.detail or told)


def _stored(
    bookies: Bookies, control: Callable[[frozenset[str]], Iterable[PlacedEntry]], entries: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[bool | None, str]]:
    """Return for each path whether bookies still store the ledger's first and last entry, and a text about it."""
    placements: dict[str, tuple[int, Placement]] = {}
    for entry in entries:
        with suppress(FormatError):
            placement = placement_of(bytes(entry["data"]))
            if placement.metadata.last_entry_id >= 0:
                placements[entry["path"]] = entry["ledger_id"], placement

    def asked(of_path: Mapping[str, Sequence[int]]) -> dict[str, list[bool | None]]:
        questions = []
        for path, numbers in of_path.items():
            ledger_id, placement = placements[path]
            questions += [(ledger_id, number, bookies_of_entry(placement, number)) for number in numbers]
        answers = iter(bookies.stored(questions, control))
        return {path: list(islice(answers, len(numbers))) for path, numbers in of_path.items()}

    first_and_last = asked({path: (0, placed.metadata.last_entry_id) for path, (_, placed) in placements.items()})
    found = {path: _told(first, last) for path, (first, last) in first_and_last.items()}
    # bookies collect garbage at different times: without these two entries, some may still have others
    others = asked({path: _on_each_bookie(placements[path][1]) for path, (_, told) in found.items() if told == GONE})
    for path, answers in others.items():
        if True in answers:
            found[path] = False, PARTLY_STORED
        elif None in answers:
            found[path] = None, NOT_CHECKED
    return {entry["path"]: found.get(entry["path"], (None, NOT_CHECKED)) for entry in entries}


def _on_each_bookie(placement: Placement) -> list[int]:
    """Return entries for which every bookie of every ensemble is asked; none if the first and last suffice for that."""
    size = len(placement.segments[0].bookies)
    if len(placement.segments) == 1 and placement.write_quorum == size:
        return []
    last = placement.metadata.last_entry_id
    starts = [segment.first_entry_id for segment in placement.segments]
    entries: set[int] = set()
    for start, end in pairwise((*starts, last + 1)):
        entries |= {*range(start, min(start + size, end)), *range(max(start, end - size), end)}
    return sorted(entry for entry in entries if entry <= last)


def _told(first: bool | None, last: bool | None) -> tuple[bool | None, str]:
    if first is None or last is None:
        return None, NOT_CHECKED
    if first and last:
        return True, STORED
    return False, HALF_STORED if first or last else GONE


def _fault(entry: Mapping[str, Any], node: Znode | Unreadable | None, root: str, layout: Layout) -> tuple[Undone, str]:
    """Return PUT_BACK if nothing prevents it, else the status and the reason."""
    if isinstance(node, Unreadable):
        return Undone.FAILED, f"{entry['path']} can't be read: {node.detail}"
    if node is not None:
        same = "unchanged" if node.data == entry["data"] else "with other metadata than the journal's"
        return Undone.EXISTS, f"the ledger exists, {same}; nothing to put back"
    if ledger_id_of(layout, root, str(entry["path"])) != entry["ledger_id"]:
        return Undone.FAILED, f"{entry['path']} is not where this cluster keeps ledger {entry['ledger_id']}"
    try:
        parse_ledger_metadata(bytes(entry["data"]))
    except FormatError as error:
        return Undone.FAILED, f"the journal's bytes are no ledger metadata: {error}"
    return Undone.PUT_BACK, ""


def _put_back(store: MetadataStore, entry: Mapping[str, Any], created: dict[str, Znode]) -> tuple[Undone, str]:
    """Create the znode (never overwrite it) and read it back."""
    path, data, acl = str(entry["path"]), bytes(entry["data"]), bytes(entry["acl"])
    try:
        is_ours = store.create(path, data, acl=acl, parents=True)
        node = store.read_many([path])[0]
        acl_now = store.acl_of(path)
    except UnavailableError:
        raise
    except (ReaperError, ValueError) as error:
        return Undone.FAILED, str(error)
    if not isinstance(node, Znode) or node.data != data or acl_now != acl:
        return Undone.FAILED, f"{path} does not have the journal's content after its creation: check it first"
    if not is_ours:
        return Undone.EXISTS, "another client restored it at the same time"
    created[path] = node
    return Undone.PUT_BACK, ""


def _result(entry: Mapping[str, Any], status: Undone, detail: str) -> UndoResult:
    try:
        last_entry_id = parse_ledger_metadata(bytes(entry["data"])).last_entry_id
    except FormatError:
        last_entry_id = -1
    owner = next(_owner_names(entry), "")
    return UndoResult(
        ledger_id=int(entry["ledger_id"]),
        path=str(entry["path"]),
        owner=owner,
        deleted_ms=int(entry["at_ms"]),
        status=status,
        last_entry_id=last_entry_id,
        detail=detail,
    )


def _checked(
    settings: Settings, clients: CommandClients, results: Sequence[UndoResult], created: Mapping[str, Znode]
) -> list[UndoResult]:
    """Let bookies read the entries of restored ledgers. The metadata stay, whatever bookies answer."""
    back = [result for result in results if result.status is Undone.PUT_BACK and result.last_entry_id >= 0]
    if not back:
        return list(results)
    registered = clients.bookies.registered()
    urls, control = http_addresses(registered), partial(control_entries, settings, clients.pulsar.admin)

    def are_readable(results: Sequence[UndoResult]) -> dict[str, bool | None]:
        entries = [(result.ledger_id, entry) for result in results for entry in (0, result.last_entry_id)]
        # a bookie that can't read control entries is not believed
        answers = clients.bookies.readable(urls, entries, control)
        both = zip(answers[::2], answers[1::2], strict=True)
        return {result.path: _any_of(*pair) for result, pair in zip(results, both, strict=True)}

    readable = are_readable(back)
    # a second check, because a busy bookie answers like a bookie that has lost the entries
    gone = [result for result in back if readable[result.path] is False]
    readable |= are_readable(gone)
    checked = {
        result.path: judged(result, readable[result.path], _away(created[result.path], registered)) for result in back
    }
    return [checked.get(result.path, result) for result in results]


def control_entries(settings: Settings, admin: TopicAdmin) -> list[tuple[int, int]]:
    """Return (ledger, 0) for some ledgers of our own topics; none if no broker reports any.

    These entries certainly exist: a bookie must read them before we believe that it can't read another entry. A bookie
    answers 500 both if a ledger has no such entry and if the bookie can't read any ledger, for example because
    BookKeeper requires a password.
    """
    topics = settings.topics
    entries: list[tuple[int, int]] = []
    for topic in (*topics.deduplicated, *topics.requests):
        for partition in _partitions(admin, topic):
            if len(entries) >= _AT_MOST:
                return entries[:_AT_MOST]
            entries += islice(_of(admin, partition), _OF_A_PARTITION)
    return entries[:_AT_MOST]


def _partitions(admin: TopicAdmin, topic: str) -> list[str]:
    try:
        return sorted(admin.last_positions(topic)) if admin.partitions(topic) is not None else []
    except ReaperError:
        return []


def _of(admin: TopicAdmin, partition: str) -> list[tuple[int, int]]:
    # newest first, because the oldest ledgers may be in tiered storage only
    try:
        ledgers = admin.internal_stats(partition).ledgers
    except ReaperError:
        return []
    return [(ledger, 0) for ledger, entries in sorted(ledgers, reverse=True) if entries >= _ENTRIES]


def _any_of(first: bool | None, last: bool | None) -> bool | None:
    """Return whether the first or the last entry of a ledger can be read; None: unknown."""
    return True if first or last else None if first is None or last is None else False


def _away(node: Znode, registered: Mapping[str, str]) -> list[str]:
    """Return the bookies that the ledger's metadata names and that are not registered now."""
    return sorted(bookies_of(node.data) - registered.keys())


def judged(result: UndoResult, is_readable: bool | None, away: Sequence[str] = ()) -> UndoResult:
    """Return the result after a check of the ledger's entries.

    Args:
        result: of the ledger.
        is_readable: whether a bookie can read its entries; None: unknown.
        away: its bookies that are not registered.
    """
    if is_readable is None:
        return replace(result, detail=NOT_READ if result.has_entries is None else result.detail)
    if is_readable:
        read = "its entries were read from the bookies"
        return replace(result, detail=result.detail if result.has_entries is False else read)
    if result.has_entries is not None:
        return replace(result, status=Undone.UNREADABLE, detail=f"no client can read its entries now; {result.detail}")
    if away:
        detail = f"no bookie can read its entries now, and bookies that may have them are away: {', '.join(away)}"
        return replace(result, status=Undone.UNREADABLE, detail=detail)
    # all of them may have forgotten the address of the bookie that has the entries (BookKeeper issue 4172: after it
    # became read-only, or writable again)
    return replace(result, status=Undone.UNREADABLE, detail=NO_BOOKIE_READS)


def _waiting_ledgers(settings: Settings, report: UndoReport) -> list[int]:
    """Return the ledgers with a request that has no final receipt, and would delete them again."""
    ids = [result.ledger_id for result in report.results]
    columns = [c.LEDGER_ID, c.ORIGIN_MESSAGE_ID, c.OUTCOME]
    open_requests: set[tuple[int, str]] = set()
    final: set[tuple[int, str]] = set()
    for row in receipts.rows(settings.state_dir, ds.field(c.LEDGER_ID).isin(ids), columns=columns):
        key = (row[c.LEDGER_ID], row[c.ORIGIN_MESSAGE_ID])
        (open_requests if row[c.OUTCOME] == Outcome.RETRY else final).add(key)
    return sorted({ledger_id for ledger_id, _ in open_requests - final})
