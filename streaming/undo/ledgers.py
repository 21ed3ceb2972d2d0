"""Puts the metadata of deleted ledgers back, byte by byte as the journal has it, and never over one that exists.

A delete takes the metadata only; the bookies notice at their next garbage collection and then drop the entries.
Nothing in ZooKeeper tells whether that has happened, so we put the metadata back and have the bookies read the ledger's
first and last entry. Where none answers, the command tells the operator how to look.
If no bookie can read them, and each that the metadata names is there, the metadata points to nothing: we take it away
again. If one is away, it may still hold the entries, and would drop them without the metadata: so that stays. Nor do we
believe a bookie that can't read what is surely there, either (streaming.undo.control).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial, reduce
from operator import and_
from typing import Any

import pyarrow.dataset as ds

from streaming.adapters.bookkeeper import bookies
from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.ports import GuardedDelete, GuardStatus, MetadataStore, TopicAdmin, Unreadable, Znode
from streaming.state import journal, receipts
from streaming.undo.control import control_entries
from udfs import columns as c
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import bookies_of, parse_ledger_metadata
from udfs.ownership import BUCKET_TOPIC, COMPACTED_TOPIC, MANAGED_LEDGER, SCHEMA_ID
from udfs.paths import Layout, base_topic, ledger_id_of, managed_ledger_name, schema_id_of, topic_of
from udfs.records import Outcome

NOT_CHECKED = "not checked whether the bookies still have its entries: they can be asked only once it is back"
NOT_READ = "no bookie that reads what is surely there answered whether its data are there"
_READ_AT_ONCE = 500
_BOOKIE_SECONDS = 5.0


class Undone(StrEnum):
    """What became of one ledger's metadata."""

    PUT_BACK = "PUT_BACK"  # and read back: same bytes, same ACL; detail says what is known of the data
    TOO_LATE = "TOO_LATE"  # no bookie has its entries any more: we took the metadata away again, as detail says
    UNREADABLE = "UNREADABLE"  # the metadata is back; no bookie can read its entries, but not all bookies are there
    WOULD_PUT_BACK = "WOULD_PUT_BACK"  # dry run
    EXISTS = "EXISTS"  # never deleted, put back already, or made again: we leave it as it is
    FAILED = "FAILED"  # detail says why


@dataclass(frozen=True, slots=True)
class Result:
    """One ledger. deleted_ms: when the journal was written, just before the delete."""

    ledger_id: int
    path: str
    owner: str
    deleted_ms: int
    status: Undone
    last_entry_id: int = -1
    detail: str = ""


@dataclass(slots=True)
class UndoReport:
    """What a run did. waiting: ids of ledgers that a waiting request still asks us to delete."""

    results: list[Result] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def count(self, status: Undone) -> int:
        """How many ended so."""
        return sum(1 for each in self.results if each.status is status)


@dataclass(frozen=True, slots=True)
class UndoSelection:
    """Which deletes to undo: those that meet every field that is set.

    topic: any form of its name; a partitioned topic means all its partitions.
    """

    ledger_id: int | None = None
    topic: str = ""
    since_ms: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was chosen."""
        return self == UndoSelection()


def undo(
    settings: Settings, store: MetadataStore, admin: TopicAdmin, wanted: UndoSelection, *, dry_run: bool = False
) -> UndoReport:
    """Put back what was chosen. Raises ConfigError when the journal has none of it, UnavailableError, SafetyError.

    A ledger that exists is left alone, so a second call does nothing more.
    """
    identity.compare(identity.of_cluster(settings, store, admin), settings.state_dir)
    layout = identity.read_layout(store, settings.zookeeper.ledgers_root)
    entries = newest_of(
        journal.entries(settings.state_dir, journal.JournalQuery(where=condition_of(wanted))), wanted.topic
    )
    if not entries:
        raise ConfigError(
            f"the journal in {settings.state.dir} has nothing of the kind: it keeps {settings.state.journal_days} "
            "days, and only what this service deleted"
        )
    made: dict[str, Znode] = {}
    results = list(_put_back_all(store, settings, layout, entries, None if dry_run else made))
    report = UndoReport(_with_data(store, settings, admin, results, made))
    report.waiting = _still_asked_for(settings, report)
    return report


def newest_of(entries: Iterable[Mapping[str, Any]], topic: str = "") -> list[Mapping[str, Any]]:
    """One journal entry a path, the newest, of the topic if one is named; by ledger id."""
    newest: dict[str, Mapping[str, Any]] = {}
    names = _names_of(topic) if topic else None
    for entry in entries:
        if names is not None and not names & set(_owner_names(entry)):
            continue
        known = newest.get(entry["path"])
        if known is None or entry["at_ms"] >= known["at_ms"]:
            newest[entry["path"]] = entry
    return sorted(newest.values(), key=lambda entry: int(entry["ledger_id"]))


def condition_of(wanted: UndoSelection) -> ds.Expression | None:
    """The journal's rows that may be meant. It has no column for the topic: the metadata in each row names it."""
    conditions = []
    if wanted.ledger_id is not None:
        conditions.append(ds.field("ledger_id") == wanted.ledger_id)
    if wanted.since_ms:
        conditions.append(ds.field("at_ms") >= wanted.since_ms)
    return reduce(and_, conditions) if conditions else None


def _names_of(topic: str) -> set[str]:
    full = topic_from(topic, "--topic")
    return {full, schema_id_of(full)}


def _owner_names(entry: Mapping[str, Any]) -> Iterator[str]:
    """Names of the owner, as the ledger itself gives them: topic, its base topic, or schema id."""
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


def _put_back_all(
    store: MetadataStore,
    settings: Settings,
    layout: Layout,
    entries: list[Mapping[str, Any]],
    made: dict[str, Znode] | None,
) -> Iterator[Result]:
    """Put back what can be. made: gets each znode that this made, by its path; None: a dry run."""
    for start in range(0, len(entries), _READ_AT_ONCE):
        some = entries[start : start + _READ_AT_ONCE]
        nodes = store.read_many([entry["path"] for entry in some])
        for entry, node in zip(some, nodes, strict=True):
            status, detail = _fault(entry, node, settings.zookeeper.ledgers_root, layout)
            if status is Undone.PUT_BACK:
                # the bookies answer only for a ledger that exists, so a dry run can't ask them for its entries
                status, detail = (Undone.WOULD_PUT_BACK, NOT_CHECKED) if made is None else _put_back(store, entry, made)
            yield _result(entry, status, detail)


def _fault(entry: Mapping[str, Any], node: Znode | Unreadable | None, root: str, layout: Layout) -> tuple[Undone, str]:
    """Return PUT_BACK where no reason stands against it, else the reason."""
    if isinstance(node, Unreadable):
        return Undone.FAILED, f"{entry['path']} can't be read: {node.detail}"
    if node is not None:
        same = "as it was" if node.data == entry["data"] else "with other metadata than the journal's"
        return Undone.EXISTS, f"the ledger exists, {same}; nothing to put back"
    if ledger_id_of(layout, root, str(entry["path"])) != entry["ledger_id"]:
        return Undone.FAILED, f"{entry['path']} is not where this cluster keeps ledger {entry['ledger_id']}"
    try:
        parse_ledger_metadata(bytes(entry["data"]))
    except FormatError as error:
        return Undone.FAILED, f"the journal's bytes are no ledger metadata: {error}"
    return Undone.PUT_BACK, ""


def _put_back(store: MetadataStore, entry: Mapping[str, Any], known: dict[str, Znode]) -> tuple[Undone, str]:
    """Create (never overwrite) and read back."""
    path, data, acl = str(entry["path"]), bytes(entry["data"]), bytes(entry["acl"])
    try:
        made = store.create(path, data, acl=acl, parents=True)
        node = store.read_many([path])[0]
        found_acl = store.acl_of(path)
    except UnavailableError:
        raise
    except (ReaperError, ValueError) as error:
        return Undone.FAILED, str(error)
    if not isinstance(node, Znode) or node.data != data or found_acl != acl:
        return Undone.FAILED, f"{path} does not read back as the journal has it: look at it before anything else"
    if not made:
        return Undone.EXISTS, "somebody else put it back meanwhile"
    known[path] = node
    return Undone.PUT_BACK, ""


def _result(entry: Mapping[str, Any], status: Undone, detail: str) -> Result:
    try:
        last_entry_id = parse_ledger_metadata(bytes(entry["data"])).last_entry_id
    except FormatError:
        last_entry_id = -1
    owner = next(_owner_names(entry), "")
    return Result(
        int(entry["ledger_id"]), str(entry["path"]), owner, int(entry["at_ms"]), status, last_entry_id, detail
    )


def _with_data(
    store: MetadataStore,
    settings: Settings,
    admin: TopicAdmin,
    results: Sequence[Result],
    made: Mapping[str, Znode],
) -> list[Result]:
    """Look for the data of what was put back, and take back what points to nothing."""
    back = [each for each in results if each.status is Undone.PUT_BACK and each.last_entry_id >= 0]
    if not back:
        return list(results)
    there = bookies.registered(store, settings.zookeeper.ledgers_root)
    control = partial(control_entries, settings, admin)
    found = dict(zip((each.path for each in back), _readable(there, back, control), strict=True))
    # a second look, since a bookie that is busy answers as one that has lost the entries
    gone = [each for each in back if found[each.path] is False]
    found |= zip((each.path for each in gone), _readable(there, gone, control), strict=True)
    looked = {each.path: judged(each, found[each.path], _away(made[each.path], there)) for each in back}
    for path, result in looked.items():
        if result.status is Undone.TOO_LATE:
            looked[path] = replace(result, detail=f"{result.detail}; {_take_back(store, path, made[path])}")
    return [looked.get(each.path, each) for each in results]


def _readable(
    there: Mapping[str, str], results: Sequence[Result], control: Callable[[], Sequence[tuple[int, int]]]
) -> list[bool | None]:
    """Whether the first or the last entry of each can be read; None: nobody knows."""
    urls = tuple(dict.fromkeys(address for address in there.values() if address))
    entries = [(each.ledger_id, entry) for each in results for entry in (0, each.last_entry_id)]
    answers = bookies.readable(urls, entries, control, _BOOKIE_SECONDS)
    return [_any_of(*both) for both in zip(answers[::2], answers[1::2], strict=True)]


def _any_of(first: bool | None, last: bool | None) -> bool | None:
    return True if first or last else None if first is None or last is None else False


def _away(node: Znode, there: Mapping[str, str]) -> list[str]:
    """Bookies that the ledger's metadata name, and that are not there now."""
    return sorted(bookies_of(node.data) - there.keys())


def judged(result: Result, is_there: bool | None, away: Sequence[str] = ()) -> Result:
    """Say what is known of the data. is_there None: nobody knows. away: its bookies that are not there."""
    if is_there is None:
        return replace(result, detail=NOT_READ)
    if is_there:
        return replace(result, detail="its entries were read from the bookies")
    if away:
        detail = f"no bookie can read its entries now, and {', '.join(away)}, which may hold them, is not there"
        return replace(result, status=Undone.UNREADABLE, detail=detail)
    return replace(result, status=Undone.TOO_LATE, detail="no bookie can read its entries")


def _take_back(store: MetadataStore, path: str, made: Znode) -> str:
    """Take away a ledger's znode that we made, unless somebody has changed it since; return in words what is so now."""
    node = store.read_many([path])[0]
    if node is None:
        return "somebody took its metadata away meanwhile"
    if node != made:
        return "somebody has changed its metadata since we put it back, so it stays"
    # Allowed here: this run made the znode a moment ago, with this version, and no bookie has what it points to.
    (result,) = store.delete_guarded([GuardedDelete((), ((path, made.version),))])
    if result.status in (GuardStatus.DELETED, GuardStatus.GONE):
        return "its metadata was taken away again"
    return f"its metadata could not be taken away again ({result.status}): it points to nothing"


def _still_asked_for(settings: Settings, report: UndoReport) -> list[int]:
    """Ledgers with a request that has no final receipt: it would delete them again."""
    ids = [each.ledger_id for each in report.results]
    columns = [c.LEDGER_ID, c.ORIGIN_MESSAGE_ID, c.OUTCOME]
    open_requests: set[tuple[int, str]] = set()
    final: set[tuple[int, str]] = set()
    for row in receipts.rows(settings.state_dir, ds.field(c.LEDGER_ID).isin(ids), columns=columns):
        key = (row[c.LEDGER_ID], row[c.ORIGIN_MESSAGE_ID])
        (open_requests if row[c.OUTCOME] == Outcome.RETRY else final).add(key)
    return sorted({ledger_id for ledger_id, _ in open_requests - final})
