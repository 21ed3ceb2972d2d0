"""Restores the metadata of deleted ledgers, with the exact bytes of the journal, and never over an existing znode.

A delete removes the metadata only; the bookies notice at their next garbage collection and then drop the entries.
Nothing in ZooKeeper shows whether that has happened, so we ask the bookies of the ledger's first and last entry whether
they still store these entries; this needs no metadata. If all answer no, we ask each of the ledger's bookies for a few
other entries, and if none has any, nothing is restored. Otherwise we restore the metadata and let the bookies read the
first and the last entry as clients do. The metadata stay, whatever the bookies answer: without them, a bookie that
still has entries would drop them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow.dataset as ds

from streaming.clients import CommandClients
from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.live_store import require_live_store
from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.state import journal, receipts
from streaming.undo.bookie_answers import read_entries, stored_entries
from streaming.undo.undo_report import (
    GONE,
    Undone,
    UndoReport,
    UndoResult,
    UndoSelection,
)
from udfs import columns as c
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata
from udfs.owners.named_owner import BUCKET_TOPIC, COMPACTED_TOPIC, MANAGED_LEDGER, SCHEMA_ID
from udfs.paths import Layout, base_topic, ledger_id_of, managed_ledger_name, schema_id_of, topic_of
from udfs.records import Outcome

_READ_AT_ONCE = 500


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
    entries = selected_ledgers(settings, selection)
    created: dict[str, Znode] = {}
    results = list(_restore_removed(clients, settings, layout, entries, None if dry_run else created))
    report = UndoReport(read_entries(settings, clients, results, created))
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


def selected_ledgers(settings: Settings, selection: UndoSelection) -> list[Mapping[str, Any]]:
    """Return the newest journal entry of each selected ledger. Raises ConfigError if there is none."""
    where = journal.JournalQuery(where=condition_of(selection))
    entries = newest_of(journal.entries(settings.state_dir, where), selection.topic)
    if not entries:
        raise ConfigError(
            f"the journal in {settings.state.dir} has no such ledger: it keeps the deletes of this service for "
            f"{settings.state.journal_days} days"
        )
    return entries


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
    root = settings.zookeeper.ledgers_root
    for start in range(0, len(entries), _READ_AT_ONCE):
        batch = entries[start : start + _READ_AT_ONCE]
        nodes = store.read_many([entry["path"] for entry in batch])
        faults = [_fault(entry, node, root, layout) for entry, node in zip(batch, nodes, strict=True)]
        absent = [entry for entry, (status, _) in zip(batch, faults, strict=True) if status is Undone.PUT_BACK]
        stored = stored_entries(clients, layout, root, absent)
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
