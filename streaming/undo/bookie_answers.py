"""Asks bookies for entries of ledgers: before an undo whether they store them, and after it whether they read them.

If a bookie answers that it does not have an entry, we believe it only after it has returned another entry that
certainly exists: a control entry.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

from streaming.clients import CommandClients
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import MetadataStore, PlacedEntry, TopicAdmin, Znode
from streaming.terminal import some_of
from streaming.undo.undo_report import (
    GONE,
    HALF_STORED,
    NO_BOOKIE_READS,
    NO_ENTRIES_NAMED,
    NOT_CHECKED,
    NOT_READ,
    PARTLY_STORED,
    STORED,
    Undone,
    UndoResult,
)
from udfs.formats.bookie_info import http_addresses
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import bookies_of
from udfs.formats.ledger_placement import Placement, bookies_of_entry, placement_of
from udfs.paths import Layout, ledger_id_of
from udfs.records import LedgerMetadata, LedgerState

_FOLDERS_BELOW = {2: 1, 3: 3}  # digits of a folder's name below the root -> levels of folders below that
_LEDGERS = 5_000  # that are read at most in search of control entries
_READ_AT_ONCE = 500
# The entries for a bookie weigh up to _ENOUGH: an entry of a closed ledger weighs _OF_A_CLOSED, of an open ledger 1. So
# a bookie is asked for up to 8 entries of closed ledgers, because one may be missing there, or for up to 64 of open
# ledgers, because those may be empty. More entries would take hours at a bookie that answers slowly.
_ENOUGH = 64
_OF_A_CLOSED = 8
# The most control entries of our own topics, in all and of one partition. They are of several topics and partitions,
# because a ledger may be in tiered storage, or be trimmed right now.
_AT_MOST = 8
_OF_A_PARTITION = 2
_BOOKIES_SHOWN = 3  # in the reason of an unknown answer
_ENTRIES = 2  # that a ledger has at least; while it is being written, its last entry may not be readable


def stored_entries(
    clients: CommandClients, layout: Layout, root: str, entries: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[bool | None, str]]:
    """Return for each path whether bookies still store the ledger's first and last entry, and a text about it.

    Raises UnavailableError.

    Args:
        clients: the store and the bookies.
        layout: of the ledgers' znodes.
        root: of the ledgers' znodes.
        entries: the journal's, one for each path; the ledgers need no metadata.
    """
    control = partial(control_entries_on, clients.store, layout, root)
    placements: dict[str, tuple[int, Placement]] = {}
    for entry in entries:
        with suppress(FormatError):
            placement = placement_of(bytes(entry["data"]))
            if placement.metadata.last_entry_id >= 0:
                placements[entry["path"]] = entry["ledger_id"], placement

    def asked(of_path: Mapping[str, Sequence[int]]) -> dict[str, _Answers]:
        questions: dict[str, list[PlacedEntry]] = {}
        for path, numbers in of_path.items():
            ledger_id, placement = placements[path]
            questions[path] = [(ledger_id, number, bookies_of_entry(placement, number)) for number in numbers]
        stored = clients.bookies.stored([each for some in questions.values() for each in some], control)
        answers = iter(stored.answers)
        return {path: _Answers(some, [*islice(answers, len(some))], stored.faults) for path, some in questions.items()}

    first_and_last = asked({path: (0, placed.metadata.last_entry_id) for path, (_, placed) in placements.items()})
    found = {path: _told(of_both) for path, of_both in first_and_last.items()}
    # bookies collect garbage at different times: without these two entries, some may still have others
    others = asked({path: _on_each_bookie(placements[path][1]) for path, (_, told) in found.items() if told == GONE})
    for path, of_others in others.items():
        if True in of_others.answers:
            found[path] = False, PARTLY_STORED
        elif None in of_others.answers:
            found[path] = None, of_others.unknown()
    return {entry["path"]: found.get(entry["path"], (None, f"{NOT_CHECKED}: {NO_ENTRIES_NAMED}")) for entry in entries}


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers about some entries of a ledger."""

    questions: Sequence[PlacedEntry]
    answers: Sequence[bool | None]
    faults: Mapping[str, str]  # bookie -> why its answers are missing, or do not count

    def unknown(self) -> str:
        """Describe why some answers are unknown, with the bookies that have not given them."""
        asked = zip(self.questions, self.answers, strict=True)
        missing = {bookie for (*_entry, bookies), answer in asked if answer is None for bookie in bookies}
        faults = [f"bookie {bookie} {self.faults[bookie]}" for bookie in sorted(missing & self.faults.keys())]
        return f"{NOT_CHECKED}: {some_of(faults, _BOOKIES_SHOWN)}"


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


def _told(of_both: _Answers) -> tuple[bool | None, str]:
    first, last = of_both.answers
    if first is None or last is None:
        return None, of_both.unknown()
    if first and last:
        return True, STORED
    return False, HALF_STORED if first or last else GONE


def read_entries(
    settings: Settings, clients: CommandClients, results: Sequence[UndoResult], created: Mapping[str, Znode]
) -> list[UndoResult]:
    """Let bookies read the entries of restored ledgers, and return the results after that, in the same order.

    The metadata stay, whatever bookies answer. Raises UnavailableError.

    Args:
        settings: for the topics of control entries.
        clients: the bookies and the admin API.
        results: of all ledgers; only those with PUT_BACK are checked.
        created: path -> new znode.
    """
    back = [result for result in results if result.status is Undone.PUT_BACK and result.last_entry_id >= 0]
    if not back:
        return list(results)
    registered = clients.bookies.registered()
    urls, control = http_addresses(registered), partial(own_control_entries, settings, clients.pulsar.admin)

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
        unread = f"its metadata are back; {result.detail}, {NOT_READ}"
        return replace(result, detail=unread if result.has_entries is None else result.detail)
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


def control_entries_on(
    store: MetadataStore, layout: Layout, root: str, bookies: frozenset[str]
) -> Iterator[PlacedEntry]:
    """Yield entries of ledgers that exist: (ledger id, entry id, its bookies), newest first. Raises UnavailableError.

    It stops when it has read enough ledgers, or has named each of `bookies` often enough.
    """
    named = dict.fromkeys(bookies, 0)
    found = ((ledger_id_of(layout, root, path), path) for path in _newest(store, root, None))
    ledgers = islice(((ledger_id, path) for ledger_id, path in found if ledger_id is not None), _LEDGERS)
    while some := list(islice(ledgers, _READ_AT_ONCE)):
        for (ledger_id, _), node in zip(some, store.read_many([path for _, path in some]), strict=True):
            if not isinstance(node, Znode):
                continue
            with suppress(FormatError):
                placement = placement_of(node.data)
                weight = _OF_A_CLOSED if placement.metadata.state is LedgerState.CLOSED else 1
                for entry in _entries(placement.metadata):
                    on = bookies_of_entry(placement, entry)
                    if any(named.get(bookie, _ENOUGH) < _ENOUGH for bookie in on):
                        named |= {bookie: named[bookie] + weight for bookie in bookies.intersection(on)}
                        yield ledger_id, entry, on
        if all(times >= _ENOUGH for times in named.values()):
            return


def _entries(metadata: LedgerMetadata) -> tuple[int, ...]:
    if metadata.state is not LedgerState.CLOSED:
        return (0,)  # unless the ledger is empty
    return (0, metadata.last_entry_id) if metadata.last_entry_id >= 0 else ()


def _by_number(name: str) -> tuple[int, str]:
    # ids beyond 31 bits are in longer folders ("000" besides "00"), and ids of more digits sort after others
    return len(name), name


def _newest(store: MetadataStore, parent: str, levels: int | None) -> Iterator[str]:
    """Yield the paths of leaves, newest first. levels: of folders below `parent`; None: `parent` is the root."""
    listed = store.children_many([parent])[0]
    for name in sorted(listed, key=_by_number, reverse=True) if isinstance(listed, list) else ():
        path = f"{parent}/{name}"
        if levels == 0:
            yield path
        elif name.isdecimal():
            below = _FOLDERS_BELOW.get(len(name)) if levels is None else levels - 1
            if below is not None:
                yield from _newest(store, path, below)


def own_control_entries(settings: Settings, admin: TopicAdmin) -> list[tuple[int, int]]:
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
