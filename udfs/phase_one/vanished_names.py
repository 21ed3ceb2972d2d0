"""The names in an owner's znode, and the names that have vanished since the last scan.

1. A znode that can't be parsed raises FormatError. Then no name has vanished: the names of the last scan stay.
2. A copy in BookKeeper that its list no longer needs (offload complete, bookkeeperDeleted) has vanished, although the
   list still names the ledger.
3. Each upload has its own name: another UUID for the same ledger means that the earlier upload has vanished.
4. A vanished name causes a request, never a verdict: the sweep judges it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from udfs.formats.managed_ledger import in_use_ids, parse_cursor, parse_managed_ledger
from udfs.formats.schema_locator import ledger_ids
from udfs.owners.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, DELAYED_BUCKET_PREFIX, bucket_id
from udfs.paths import (
    MANAGED_LEDGERS_ROOT,
    SCHEMAS_ROOT,
    SEGMENT_DOMAIN,
    checked_schema_id,
    encode_cursor,
    managed_ledger_name,
)
from udfs.phase_one.pip_186_requests import uploads_in
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete

_DOMAIN = "persistent"

Name = tuple[LedgerComponent, int, str]  # component, ledger id, UUID of the upload; "": in BookKeeper
Names = Mapping[Name, PendingDelete]
NamedThing = tuple[LedgerComponent, int, OffloadContext | None]


class ZnodeKind(StrEnum):
    """The kinds of znodes that refer to ledgers."""

    TOPIC = "topic"
    CURSOR = "cursor"
    SCHEMA = "schema"


def kind_of(path: str) -> ZnodeKind | None:
    """Return the kind of the znode at a path; None if it does not refer to ledgers, or the path is ambiguous."""
    if path.startswith(f"{SCHEMAS_ROOT}/"):
        return ZnodeKind.SCHEMA if path.count("/") == 4 else None
    parts = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").split("/")
    if not path.startswith(f"{MANAGED_LEDGERS_ROOT}/"):
        return None
    kinds = {
        kind
        # tenant/ns/persistent/…, tenant/cluster/ns/persistent/… of V1 names, and tenant/ns/segment/topic/…
        for domain, domain_at, topic_after in ((_DOMAIN, 2, 2), (_DOMAIN, 3, 2), (SEGMENT_DOMAIN, 2, 3))
        for after, kind in ((topic_after, ZnodeKind.TOPIC), (topic_after + 1, ZnodeKind.CURSOR))
        if len(parts) == domain_at + after and parts[domain_at] == domain
    }
    return kinds.pop() if len(kinds) == 1 else None


def is_nameable(path: str) -> bool:
    """Whether a request can name the owner at a path: its kind is clear, and its name is not too long."""
    try:
        return kind_of(path) is not None and bool(_owner_at(path))
    except ValueError:
        return False


def names_in(path: str, data: bytes) -> dict[Name, PendingDelete]:
    """Return every ledger and upload that a znode refers to, with the request that would delete it.

    Raises FormatError for content, and ValueError for a path, that Pulsar does not write.
    """
    kind = kind_of(path)
    if kind is ZnodeKind.SCHEMA:
        return named(path, ((LedgerComponent.SCHEMA_STORAGE, ledger_id, None) for ledger_id in ledger_ids(data)))
    if kind is ZnodeKind.TOPIC:
        return named(path, _topic(data))
    if kind is ZnodeKind.CURSOR:
        return named(path, _cursor(path.rpartition("/")[2], data))
    raise ValueError(f"{path[:200]!a} is no topic, cursor or schema")


def named(path: str, references: Iterable[NamedThing]) -> dict[Name, PendingDelete]:
    """Return the request for each reference in the znode at a path. Raises ValueError like names_in()."""
    owner, cursor, schema_id = _owner_at(path)
    names: dict[Name, PendingDelete] = {}
    for component, ledger_id, upload in references:
        names[component, ledger_id, upload.uuid if upload else ""] = PendingDelete(
            managed_ledger=owner,
            component=component,
            ledger_type=LedgerType.OFFLOAD_LEDGER if upload else LedgerType.LEDGER,
            ledger_id=ledger_id,
            cursor_name=cursor if component is LedgerComponent.MANAGED_CURSOR else None,
            schema_id=schema_id,
            offload_context=upload,
        )
    return names


def name_of(request: PendingDelete) -> Name:
    """Return the name of a request of names_in()."""
    return request.component, request.ledger_id, request.offload_context.uuid if request.offload_context else ""


def vanished(before: Names, after: Names) -> list[PendingDelete]:
    """Return requests for vanished names, oldest ledger first. An owner that is gone has no names."""
    return [before[name] for name in sorted(before.keys() - after.keys(), key=lambda name: (name[1], name))]


def _owner_at(path: str) -> tuple[str, str | None, str | None]:
    """Return the managed ledger, the cursor and the schema's id in a path. Raises ValueError."""
    if path.startswith(f"{SCHEMAS_ROOT}/"):
        schema_id = checked_schema_id(path.removeprefix(f"{SCHEMAS_ROOT}/"))
        tenant, namespace, encoded = schema_id.split("/")
        return managed_ledger_name(f"{tenant}/{namespace}/{_DOMAIN}/{encoded}"), None, schema_id
    name = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/")
    if kind_of(path) is ZnodeKind.CURSOR:
        topic, _, cursor = name.rpartition("/")
        if encode_cursor(cursor) != cursor:
            raise ValueError(f"{cursor[:200]!a} is not a cursor's name as brokers encode it")
        return managed_ledger_name(topic), cursor, None
    return managed_ledger_name(name), None, None


def _topic(data: bytes) -> Iterable[NamedThing]:
    for ledger_id in in_use_ids(data).ids:
        yield LedgerComponent.MANAGED_LEDGER, ledger_id, None
    for (ledger_id, _uuid), context in uploads_in(parse_managed_ledger(data)).items():
        yield LedgerComponent.MANAGED_LEDGER, ledger_id, context


def _cursor(cursor: str, data: bytes) -> Iterable[NamedThing]:
    info = parse_cursor(data)
    if info.cursors_ledger_id >= 0:
        yield LedgerComponent.MANAGED_CURSOR, info.cursors_ledger_id, None
    compacted = info.properties.get(COMPACTED_LEDGER_PROPERTY, -1)
    if cursor == COMPACTION_CURSOR and compacted >= 0:
        yield LedgerComponent.COMPACTED_LEDGER, compacted, None
    for name, value in info.cursor_properties.items():
        if name.startswith(DELAYED_BUCKET_PREFIX):
            yield LedgerComponent.DELAYED_INDEX_BUCKET, bucket_id(value), None
