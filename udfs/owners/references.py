"""Finds a ledger's owner (the znode that could refer to it), and unites what that znode and the broker refer to.

Rules:
1. A ledger is in use if either of the two sources, ZooKeeper or the broker, names it.
2. If a part could not be read or parsed, the whole reference is UNREADABLE, never empty.
3. An owner is GONE only if its znode is absent and the brokers, when asked, confirm that.
4. A ledger whose list entry has "offload complete, bookkeeperDeleted" is not in use in BookKeeper, although ZooKeeper
   and the broker both list it (the broker's answer does not show bookkeeperDeleted).
5. No broker remembers a topic that no broker has loaded: only its znodes name what it refers to. They name all of it,
   except for the compacted ledger, which they name only if the topic was closed in an orderly way.
6. newest_id counts the ids that a znode names, not those that the broker knows: the broker may know a ledger before it
   writes the list. Delayed-delivery buckets have no newest id, because each cursor writes its own, in any order.
7. A cursor of a segment is GONE without its znode if the segment's list exists. The delete then checks the list's
   version.
8. If the broker does not show what it knows of a loaded topic (a segment), a ledger that no znode names may be in use.
   Offloaded copies and buckets do not depend on this, because no broker shows more of them than the znodes.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import ManagedCursorInfo, in_use_ids, parse_cursor
from udfs.formats.schema_locator import ledger_ids
from udfs.paths import MAX_LEDGER_ID, cursor_path, managed_ledger_path, schema_path, segment_of
from udfs.records import BrokerView, Counts, LedgerComponent, PendingDelete, Presence, Reference

COMPACTION_CURSOR = "__compaction"
COMPACTED_LEDGER_PROPERTY = "CompactedTopicLedger"
DELAYED_BUCKET_PREFIX = "#pulsar.internal.delayed.bucket"

_KIND_OF = {
    LedgerComponent.MANAGED_LEDGER: "data",
    LedgerComponent.MANAGED_CURSOR: "cursor",
    LedgerComponent.SCHEMA_STORAGE: "schema",
    LedgerComponent.COMPACTED_LEDGER: "compacted",
    LedgerComponent.DELAYED_INDEX_BUCKET: "buckets",
    LedgerComponent.TRANSACTION_SNAPSHOT: "data",  # its owner is the topic whose transactions were aborted
    LedgerComponent.SEGMENT: "data",
}
_Named = tuple[set[int], set[int], int]  # ids that znodes name, ids that the broker names (-1: none), newest_id


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The parts of a reference key."""

    kind: str  # data, cursor, schema, compacted or buckets
    name: str
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class ZnodeRead:
    """A znode as it was read."""

    path: str
    data: bytes | None = None  # None: it does not exist, or could not be read
    version: int = -1
    error: str = ""  # why it could not be read


def key_of(request: PendingDelete) -> str:
    """Return the reference key, `<kind>:<owner>`, which names the owner that could refer to the request's ledger."""
    kind = _KIND_OF[request.component]
    if kind == "schema":
        return f"schema:{request.schema_id}"
    if kind == "cursor":
        return f"cursor:{request.managed_ledger}/{request.cursor_name}"
    return f"{kind}:{request.managed_ledger}"


def owner_of(key: str) -> KeyOwner:
    """Take a key apart. Raises ValueError for a key that key_of does not return."""
    kind, _, name = key.partition(":")
    if kind not in _KIND_OF.values() or not name:
        raise ValueError(f"not a reference key: {key!r}")
    if kind == "cursor":
        name, _, cursor = name.rpartition("/")
        return KeyOwner(kind, name, cursor)
    return KeyOwner(kind, name)


def tenant_of_key(key: str) -> str:
    """Return the tenant of a key's owner. Raises ValueError for a key that key_of does not return."""
    return owner_of(key).name.partition("/")[0]


def fixed_paths(owner: KeyOwner) -> tuple[str, ...]:
    """Return the znodes to read for this owner. Buckets need every cursor (child of the first path) as well.

    A segment's cursor needs the segment's list: without it, a broker may create the segment with its cursors again.
    """
    if owner.kind == "schema":
        return (schema_path(owner.name),)
    if owner.kind == "cursor":
        lists = () if segment_of(owner.name) is None else (managed_ledger_path(owner.name),)
        return (cursor_path(owner.name, owner.cursor), *lists)
    if owner.kind == "compacted":
        return (managed_ledger_path(owner.name), cursor_path(owner.name, COMPACTION_CURSOR))
    return (managed_ledger_path(owner.name),)


def reference_of(key: str, seen: Sequence[ZnodeRead], broker: BrokerView | None, *, read_at_ms: int) -> Reference:
    """Unite the answers of ZooKeeper and the broker about an owner.

    Args:
        key: the owner's reference key.
        seen: the owner's znodes; the first shows whether the owner exists.
        broker: None: no question to the broker was needed, or the configuration forbids asking; an absent owner is
            then UNREADABLE.
        read_at_ms: when both were read.
    """
    unreadable = [s for s in seen if s.error]
    if unreadable:
        return _unreadable(key, read_at_ms, f"{unreadable[0].path}: {unreadable[0].error}")
    if broker is not None and broker.presence is Presence.UNREADABLE:
        return replace(_unreadable(key, read_at_ms, f"broker: {broker.detail}"), is_unavailable=broker.is_unavailable)
    if seen[0].data is None:
        return _absent(key, seen, broker, read_at_ms)
    try:
        return _present(key, seen, broker, read_at_ms)
    except FormatError as error:
        return _unreadable(key, read_at_ms, f"{seen[0].path}: {error}")


def _absent(key: str, seen: Sequence[ZnodeRead], broker: BrokerView | None, read_at_ms: int) -> Reference:
    if broker is None:
        return _unreadable(key, read_at_ms, "znode absent, and the broker was not asked")
    owner = owner_of(key)
    if broker.is_hidden:  # the broker may be about to write a cursor whose znode is absent
        return _hidden(key, read_at_ms, "znode absent, and the broker does not show its cursors")
    lists = seen[1:] if owner.kind == "cursor" else ()  # a segment's
    is_deleted = (
        owner.kind == "cursor" and owner.cursor not in broker.cursors and all(s.data is not None for s in lists)
    )
    if broker.presence is Presence.PRESENT and not is_deleted:
        return _unreadable(key, read_at_ms, "znode absent, but the broker knows the owner")
    # a broker that loads the segment, and so may create the cursor again, writes the list first
    checks = tuple((s.path, s.version) for s in lists if s.data is not None)
    return Reference(key=key, presence=Presence.GONE, read_at_ms=read_at_ms, checks=checks)


def _present(key: str, seen: Sequence[ZnodeRead], broker: BrokerView | None, read_at_ms: int) -> Reference:
    owner = owner_of(key)
    checks = tuple((s.path, s.version) for s in seen if s.data is not None)
    is_hidden = broker is not None and broker.is_hidden
    if owner.kind == "data":
        return _data(key, seen[0], broker, read_at_ms)
    if owner.kind == "compacted" and is_hidden:
        return _hidden(key, read_at_ms, "the broker does not show its compacted ledger, which only the broker knows")
    written, remembered, newest_id = _ids_of[owner.kind](owner, seen, broker)
    ids = array("q", sorted({*written, *remembered} - {-1}))
    counts = Counts(len(written - {-1}), -1 if _is_silent(broker) else len(remembered - {-1}))
    return Reference(
        key=key,
        presence=Presence.PRESENT,
        read_at_ms=read_at_ms,
        checks=checks,
        in_use=ids,
        newest_id=newest_id,
        counts=counts,
        is_hidden=is_hidden and owner.kind == "cursor",
    )


def _data(key: str, seen: ZnodeRead, broker: BrokerView | None, read_at_ms: int) -> Reference:
    listed = in_use_ids(seen.data or b"")
    in_use = listed.ids
    if broker is not None:
        extra = set(broker.ledgers).difference(listed.ids, listed.bookkeeper_free)
        if extra:
            in_use = array("q", sorted([*listed.ids, *extra]))
    checks = ((seen.path, seen.version),)
    remembered = -1 if broker is None or _is_silent(broker) else len(broker.ledgers)
    counts = Counts(len(listed.ids) + len(listed.bookkeeper_free), remembered)
    offloads = frozenset(listed.offloads)
    return Reference(
        key=key,
        presence=Presence.PRESENT,
        read_at_ms=read_at_ms,
        checks=checks,
        in_use=in_use,
        newest_id=listed.newest_id,
        offloads=offloads,
        counts=counts,
        given_up=listed.bookkeeper_free,
        is_hidden=broker is not None and broker.is_hidden,
    )


def _is_silent(broker: BrokerView | None) -> bool:
    """Whether no broker's memory is available to compare with."""
    return broker is None or not broker.is_loaded or broker.is_hidden


def _cursor_ids(owner: KeyOwner, seen: Sequence[ZnodeRead], broker: BrokerView | None) -> _Named:
    written = parse_cursor(seen[0].data or b"").cursors_ledger_id
    remembered = broker.cursors.get(owner.cursor, -1) if broker is not None else -1
    return {written}, {remembered}, written


def _schema_ids(_owner: KeyOwner, seen: Sequence[ZnodeRead], _broker: BrokerView | None) -> _Named:
    """Return the ids of the locator alone: a broker reads its schemaLedgers from the same znode."""
    written = ledger_ids(seen[0].data or b"")
    return set(written), set(), max(written)


def _compacted_ids(owner: KeyOwner, seen: Sequence[ZnodeRead], broker: BrokerView | None) -> _Named:
    """Return the compacted ledgers that znodes and broker name; of a loaded topic only the broker knows them all."""
    if broker is None or broker.presence is not Presence.PRESENT:
        # the property may be in the cursor ledger's last entry, which we do not read
        raise FormatError(f"the compacted ledger of {owner.name} is known to its broker only, which did not answer")
    if not broker.is_loaded:
        return _compacted_ids_unloaded(owner, seen[1:])
    # A broker that was frozen may answer for a topic that another broker has taken over. It does not know the ledger
    # that the other broker started then, as brokers do whenever they open a topic.
    newest_id = in_use_ids(seen[0].data or b"").newest_id
    if newest_id >= 0 and newest_id not in broker.ledgers:
        raise FormatError(f"the broker of {owner.name} does not know ledger {newest_id}, which its list names")
    # A broker may answer before it has opened the cursor (lazyCursorRecovery), and then knows no compacted ledger yet.
    cursors = [cursor.data for cursor in seen[1:] if cursor.data is not None]
    if cursors and COMPACTION_CURSOR not in broker.cursors:
        raise FormatError(f"the broker of {owner.name} has not opened its cursor {COMPACTION_CURSOR} yet")
    remembered = {broker.compacted_ledger, broker.compacted_by_cursor}
    written = {-1, *(parse_cursor(data).properties.get(COMPACTED_LEDGER_PROPERTY, -1) for data in cursors)}
    return written, remembered, max(written | remembered)


def _compacted_ids_unloaded(owner: KeyOwner, cursors: Sequence[ZnodeRead]) -> _Named:
    """Return the compacted ledger that the cursor's znode names, if the cursor was closed when the topic was unloaded.

    A broker that loads the topic gives the cursor a ledger, and writes the cursor's znode for that, before it names
    another compacted ledger there. So the versions in the delete's transaction guard this reference.
    """
    written = compacted_by_znodes([cursor.data for cursor in cursors if cursor.data is not None])
    if written is None:
        raise FormatError(f"a cursor ledger holds the compacted ledger of {owner.name}, which no broker has loaded")
    return {written}, set(), written


def compacted_by_znodes(compaction_cursors: Sequence[bytes]) -> int | None:
    """Return the compacted ledger of a topic that no broker has loaded; -1: none; None: its znodes do not name it.

    compaction_cursors: the znode of its cursor __compaction, if there is one. Raises FormatError.
    """
    cursors = [parse_cursor(data) for data in compaction_cursors]
    if any(cursor.cursors_ledger_id != -1 for cursor in cursors):
        return None
    return max((cursor.properties.get(COMPACTED_LEDGER_PROPERTY, -1) for cursor in cursors), default=-1)


def named_by_cursor(cursor: ManagedCursorInfo) -> Iterator[tuple[LedgerComponent, int]]:
    """Yield each ledger that a cursor names, with its component. Raises FormatError."""
    ids = {
        LedgerComponent.MANAGED_CURSOR: cursor.cursors_ledger_id,
        LedgerComponent.COMPACTED_LEDGER: cursor.properties.get(COMPACTED_LEDGER_PROPERTY, -1),
    }
    yield from ((component, ledger_id) for component, ledger_id in ids.items() if ledger_id != -1)
    for ledger_id in _buckets_in(cursor.cursor_properties.items()):
        yield LedgerComponent.DELAYED_INDEX_BUCKET, ledger_id


def _bucket_ids(_owner: KeyOwner, seen: Sequence[ZnodeRead], _broker: BrokerView | None) -> _Named:
    ids: set[int] = set()
    for cursor in seen[1:]:
        if cursor.data is None:
            raise FormatError(f"{cursor.path} was listed, and missing a moment later")
        ids.update(_buckets_in(parse_cursor(cursor.data).cursor_properties.items()))
    return ids, set(), -1


def _buckets_in(properties: Iterable[tuple[str, str]]) -> Iterable[int]:
    for name, value in properties:
        if name.startswith(DELAYED_BUCKET_PREFIX):
            yield bucket_id(value)


def bucket_id(value: str) -> int:
    """Return the ledger that a delayed bucket's property names. Raises FormatError.

    Any subscriber can write properties of its cursor, so `value` may be any text.
    """
    try:
        ledger_id = int(value)
    except ValueError as error:
        raise FormatError(f"a delayed bucket names no ledger id: {value[:40]!a}") from error
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise FormatError(f"a delayed bucket names no ledger id: {value[:40]!a}")
    return ledger_id


def _hidden(key: str, read_at_ms: int, detail: str) -> Reference:
    return replace(_unreadable(key, read_at_ms, detail), is_hidden=True)


def _unreadable(key: str, read_at_ms: int, detail: str) -> Reference:
    return Reference(key=key, presence=Presence.UNREADABLE, read_at_ms=read_at_ms, detail=detail)


_ids_of = {"cursor": _cursor_ids, "schema": _schema_ids, "compacted": _compacted_ids, "buckets": _bucket_ids}
