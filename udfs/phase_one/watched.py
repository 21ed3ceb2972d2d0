"""What the watcher compares: the names that an owner's znode holds, and those that have vanished since the last look.

1. A znode that can't be parsed raises FormatError. Then nothing of it has vanished: the last look stays what is known.
2. A copy in BookKeeper that its list needs no more (offload complete, bookkeeperDeleted) has vanished, although the
   list names the ledger still.
3. An upload is a name of its own: another UUID for the same ledger means that the earlier upload has vanished.
4. What has vanished is a request, never a verdict: the sweep judges it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from udfs.formats.managed_ledger import in_use_ids, parse_cursor, parse_managed_ledger
from udfs.formats.schema_locator import ledger_ids
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, checked_schema_id, managed_ledger_name
from udfs.phase_one.requests import uploads_in
from udfs.records import LedgerComponent, LedgerType, PendingDelete
from udfs.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, DELAYED_BUCKET_PREFIX

_DOMAIN = "persistent"

Name = tuple[LedgerComponent, int, str]  # component, ledger id, UUID of the upload; "": in BookKeeper
Names = Mapping[Name, PendingDelete]


class Kind(StrEnum):
    """What a znode is that refers to ledgers."""

    TOPIC = "topic"
    CURSOR = "cursor"
    SCHEMA = "schema"


def kind_of(path: str) -> Kind | None:
    """Return what stands at a path; None where nothing that refers to ledgers does, or where that can't be told."""
    if path.startswith(f"{SCHEMAS_ROOT}/"):
        return Kind.SCHEMA if path.count("/") == 4 else None
    parts = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").split("/")
    if not path.startswith(f"{MANAGED_LEDGERS_ROOT}/"):
        return None
    kinds = {
        kind
        for domain_at in (2, 3)  # tenant/ns/persistent/…, and tenant/cluster/ns/persistent/… of V1 names
        for behind, kind in ((2, Kind.TOPIC), (3, Kind.CURSOR))
        if len(parts) == domain_at + behind and parts[domain_at] == _DOMAIN
    }
    return kinds.pop() if len(kinds) == 1 else None


def names_in(path: str, data: bytes) -> dict[Name, PendingDelete]:
    """Return every ledger and upload that a znode refers to, with the request that would delete it.

    Raises FormatError where the content, and ValueError where the path, is not what Pulsar writes.
    """
    kind = kind_of(path)
    if kind is Kind.SCHEMA:
        return _named(_schema(checked_schema_id(path.removeprefix(f"{SCHEMAS_ROOT}/")), data))
    if kind is Kind.TOPIC:
        return _named(_topic(managed_ledger_name(path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/")), data))
    if kind is Kind.CURSOR:
        topic, _, cursor = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").rpartition("/")
        return _named(_cursor(managed_ledger_name(topic), cursor, data))
    raise ValueError(f"{path[:200]!a} is no topic, cursor or schema")


def vanished(before: Names, after: Names) -> list[PendingDelete]:
    """Return requests for what is no longer named, the oldest ledger first. An owner that is gone names nothing."""
    return [before[name] for name in sorted(before.keys() - after.keys(), key=lambda name: (name[1], name))]


def _named(requests: Iterable[PendingDelete]) -> dict[Name, PendingDelete]:
    return {
        (each.component, each.ledger_id, each.offload_context.uuid if each.offload_context else ""): each
        for each in requests
    }


def _schema(schema_id: str, data: bytes) -> Iterable[PendingDelete]:
    tenant, namespace, encoded = schema_id.split("/")
    owner = managed_ledger_name(f"{tenant}/{namespace}/{_DOMAIN}/{encoded}")
    for ledger_id in ledger_ids(data):
        yield PendingDelete(owner, LedgerComponent.SCHEMA_STORAGE, LedgerType.LEDGER, ledger_id, schema_id=schema_id)


def _topic(owner: str, data: bytes) -> Iterable[PendingDelete]:
    component = LedgerComponent.MANAGED_LEDGER
    for ledger_id in in_use_ids(data).ids:
        yield PendingDelete(owner, component, LedgerType.LEDGER, ledger_id)
    for (ledger_id, _uuid), context in uploads_in(parse_managed_ledger(data)).items():
        yield PendingDelete(owner, component, LedgerType.OFFLOAD_LEDGER, ledger_id, offload_context=context)


def _cursor(owner: str, cursor: str, data: bytes) -> Iterable[PendingDelete]:
    info = parse_cursor(data)
    if info.cursors_ledger_id >= 0:
        yield PendingDelete(
            owner, LedgerComponent.MANAGED_CURSOR, LedgerType.LEDGER, info.cursors_ledger_id, cursor_name=cursor
        )
    compacted = info.properties.get(COMPACTED_LEDGER_PROPERTY, -1)
    if cursor == COMPACTION_CURSOR and compacted >= 0:
        yield PendingDelete(owner, LedgerComponent.COMPACTED_LEDGER, LedgerType.LEDGER, compacted)
    for name, value in info.cursor_properties.items():
        if name.startswith(DELAYED_BUCKET_PREFIX) and value.isdecimal():
            yield PendingDelete(owner, LedgerComponent.DELAYED_INDEX_BUCKET, LedgerType.LEDGER, int(value))
