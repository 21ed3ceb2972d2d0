"""The znodes that name a topic's ledgers: its ledger list, and a znode for each durable cursor.

1. Anything doubtful is a FormatError. A list without ledgers counts as empty only if it has no unknown fields either.
2. Fields of newer Pulsar versions are ignored, unless they could refer to storage (in offload contexts).
3. If a list has two entries for a ledger, the ledger is in use if it is in use by either entry.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from udfs.formats.compression import Compression, unwrap, wrap
from udfs.formats.errors import FormatError
from udfs.formats.java_uuid import uuid_halves, uuid_text
from udfs.proto import managed_ledger_pb2 as pb

_Info = TypeVar("_Info", pb.ManagedLedgerInfo, pb.ManagedCursorInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadState:
    """The objects to which a ledger was offloaded."""

    uuid: str | None  # None: only segments (of a streaming offload) name objects
    complete: bool = False
    bookkeeper_deleted: bool = False
    timestamp_ms: int = 0
    driver_name: str = ""
    driver_properties: Mapping[str, str] = field(default_factory=dict)
    segment_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """An entry of a topic's list."""

    ledger_id: int
    entries: int | None = None  # None: the ledger is being written
    size_bytes: int = 0
    timestamp_ms: int = 0
    offload: OffloadState | None = None


@dataclass(frozen=True, slots=True)
class ManagedLedgerInfo:
    """A topic's list of ledgers, in its order, and its properties."""

    ledgers: tuple[LedgerInfo, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


class AcknowledgedRange(NamedTuple):
    """Entries that are acknowledged although an earlier entry is not: after `lower`, up to and including `upper`."""

    lower: tuple[int, int]  # (ledger, entry)
    upper: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedCursorInfo:
    """A cursor's znode."""

    cursors_ledger_id: int  # -1: the cursor has no ledger
    # the mark-delete position; -1:-1: the znode contains none
    mark_delete_ledger_id: int = -1
    mark_delete_entry_id: int = -1
    last_active_ms: int = 0
    properties: Mapping[str, int] = field(default_factory=dict)
    cursor_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListedLedgers:
    """The ledgers of a topic's list. Both arrays are array('q'), ascending, without duplicates."""

    ids: "array[int]"  # in use in BookKeeper
    bookkeeper_free: "array[int]"  # needed in tiered storage only
    offloads: tuple[tuple[int, str], ...]  # (ledger id, uuid) of all uploads, complete or not
    newest_id: int  # the highest id; -1: the list is empty


def in_use_ids(data: bytes) -> ListedLedgers:
    """Return the ledgers that a topic's znode refers to. Raises FormatError. Empty data are an empty list."""
    info = _ledger_message(data)
    kept: list[int] = []
    free: set[int] = set()
    offloads: list[tuple[int, str]] = []
    for ledger in info.ledgerInfo:  # this may run a hundred thousand times, so it reads each field once
        ledger_id = ledger.ledgerId
        if not ledger.HasField("offloadContext"):
            kept.append(ledger_id)
            continue
        context = ledger.offloadContext
        offloads += [(ledger_id, uuid) for uuid in _uuids(context)]
        if context.complete and context.bookkeeperDeleted:
            free.add(ledger_id)
        else:
            kept.append(ledger_id)
    ids = array("q", sorted(set(kept)))
    bookkeeper_free = array("q", sorted(free.difference(kept)))
    if min(ids[:1] + bookkeeper_free[:1], default=0) < 0:
        raise FormatError("a list of ledgers names a negative ledger id")
    newest_id = max(ids[-1:] + bookkeeper_free[-1:], default=-1)
    return ListedLedgers(ids, bookkeeper_free, tuple(offloads), newest_id)


def parse_managed_ledger(data: bytes) -> ManagedLedgerInfo:
    """Parse a topic's znode in full. Raises FormatError. Empty data are an empty list."""
    info = _ledger_message(data)
    ledgers = tuple(_ledger_info(ledger) for ledger in info.ledgerInfo)
    return ManagedLedgerInfo(ledgers, _texts((entry.key, entry.value) for entry in info.properties))


def parse_cursor(data: bytes) -> ManagedCursorInfo:
    """Parse a cursor's znode. Raises FormatError, also for empty data."""
    info = _message(pb.ManagedCursorInfo, unwrap(data))
    _unknown_numbers(info)
    if info.cursorsLedgerId < -1:
        raise FormatError(f"cursor names ledger {info.cursorsLedgerId}")
    marked = info.HasField("markDeleteLedgerId") and info.HasField("markDeleteEntryId")
    return ManagedCursorInfo(
        cursors_ledger_id=info.cursorsLedgerId,
        mark_delete_ledger_id=info.markDeleteLedgerId if marked else -1,
        mark_delete_entry_id=info.markDeleteEntryId if marked else -1,
        last_active_ms=info.lastActive,
        properties=_unique((_text(entry.name), entry.value) for entry in info.properties),
        cursor_properties=_texts((entry.name, entry.value) for entry in info.cursorProperties),
    )


def acknowledged_ranges(data: bytes) -> tuple[AcknowledgedRange, ...]:
    """Return the ranges of a cursor's znode, which may have megabytes of them. Raises FormatError."""
    try:
        message = pb.AcknowledgedRanges.FromString(unwrap(data))
    except DecodeError as error:
        raise FormatError(f"znode is no ManagedCursorInfo: {error}") from None
    if not message.IsInitialized():
        raise FormatError("ManagedCursorInfo has no value for a required field")
    ends = ((each.lowerEndpoint, each.upperEndpoint) for each in message.individualDeletedMessages)
    return tuple(
        AcknowledgedRange((lower.ledgerId, lower.entryId), (upper.ledgerId, upper.entryId)) for lower, upper in ends
    )


def serialize_managed_ledger(info: ManagedLedgerInfo, compression: Compression = Compression.NONE) -> bytes:
    """Write a topic's znode as a broker does."""
    message = pb.ManagedLedgerInfo(
        ledgerInfo=[_ledger_pb(ledger) for ledger in info.ledgers], properties=_key_values(info.properties)
    )
    return wrap(message.SerializeToString(), compression)


def serialize_cursor(
    info: ManagedCursorInfo,
    compression: Compression = Compression.NONE,
    *,
    acknowledged: Iterable[AcknowledgedRange] = (),
) -> bytes:
    """Write a cursor's znode as a broker does."""
    message = pb.ManagedCursorInfo(
        cursorsLedgerId=info.cursors_ledger_id,
        markDeleteLedgerId=info.mark_delete_ledger_id,
        markDeleteEntryId=info.mark_delete_entry_id,
        lastActive=info.last_active_ms,
        properties=[pb.LongProperty(name=name, value=value) for name, value in info.properties.items()],
        cursorProperties=[pb.StringProperty(name=name, value=value) for name, value in info.cursor_properties.items()],
    )
    ranges = pb.AcknowledgedRanges()
    for (ledger, entry), (upper_ledger, upper_entry) in acknowledged:
        ranges.individualDeletedMessages.add(
            lowerEndpoint=pb.NestedPositionInfo(ledgerId=ledger, entryId=entry),
            upperEndpoint=pb.NestedPositionInfo(ledgerId=upper_ledger, entryId=upper_entry),
        )
    return wrap(message.SerializeToString() + ranges.SerializeToString(), compression)


def _message(kind: type[_Info], raw: bytes) -> _Info:
    try:
        message = kind.FromString(raw)
    except DecodeError as error:
        raise FormatError(f"znode is no {kind.DESCRIPTOR.name}: {error}") from None
    # FromString does not check that required fields are present.
    if not message.IsInitialized():
        raise FormatError(f"{kind.DESCRIPTOR.name} has no value for a required field")
    return message


def _ledger_message(data: bytes) -> pb.ManagedLedgerInfo:
    raw = unwrap(data)
    info = _message(pb.ManagedLedgerInfo, raw)
    info.DiscardUnknownFields()
    # Nearly always nothing was discarded, at any depth. Comparing sizes shows that without a loop in Python.
    if info.ByteSize() != len(raw):
        _refuse_unknown_references(_message(pb.ManagedLedgerInfo, raw))
    return info


def _unknown_numbers(message: Message) -> set[int]:
    """Return the numbers of the fields that this version does not know.

    Raises FormatError for a known field of the wrong type, which the parser treats as unknown.
    """
    unknown = UnknownFieldSet(message)
    numbers = {unknown[index].field_number for index in range(len(unknown))}
    misread = numbers.intersection(message.DESCRIPTOR.fields_by_number)
    if misread:
        raise FormatError(f"field {min(misread)} of {message.DESCRIPTOR.name} has another type than it should")
    return numbers


def _refuse_unknown_references(info: pb.ManagedLedgerInfo) -> None:
    if _unknown_numbers(info) and not info.ledgerInfo:
        raise FormatError("ManagedLedgerInfo has no ledgers, but fields unknown to this version")
    for ledger in info.ledgerInfo:
        _unknown_numbers(ledger)
        if ledger.HasField("offloadContext"):
            for part in (ledger.offloadContext, *ledger.offloadContext.offloadSegment):
                if _unknown_numbers(part):
                    raise FormatError(
                        f"ledger {ledger.ledgerId} has an offload context of a newer Pulsar version, "
                        "which may refer to unknown objects"
                    )


def _uuids(context: pb.OffloadContext) -> list[str]:
    uuids = [_uuid(context), *map(_uuid, context.offloadSegment)]
    return [uuid for uuid in uuids if uuid is not None]


def _uuid(part: pb.OffloadContext | pb.OffloadSegment) -> str | None:
    has_msb, has_lsb = part.HasField("uidMsb"), part.HasField("uidLsb")
    if has_msb != has_lsb:
        raise FormatError("an offload context contains half of a UUID")
    return uuid_text(part.uidMsb, part.uidLsb) if has_msb else None


def _ledger_info(ledger: pb.ManagedLedgerInfo.LedgerInfo) -> LedgerInfo:
    if ledger.ledgerId < 0:
        raise FormatError("a list of ledgers names a negative ledger id")
    return LedgerInfo(
        ledger_id=ledger.ledgerId,
        entries=ledger.entries if ledger.HasField("entries") else None,
        size_bytes=ledger.size,
        timestamp_ms=ledger.timestamp,
        offload=_offload_state(ledger.offloadContext) if ledger.HasField("offloadContext") else None,
    )


def _offload_state(context: pb.OffloadContext) -> OffloadState:
    driver = context.driverMetadata
    segment_uuids = map(_uuid, context.offloadSegment)
    return OffloadState(
        uuid=_uuid(context),
        complete=context.complete,
        bookkeeper_deleted=context.bookkeeperDeleted,
        timestamp_ms=context.timestamp,
        driver_name=_text(driver.name),
        driver_properties=_texts((entry.key, entry.value) for entry in driver.properties),
        segment_uuids=tuple(uuid for uuid in segment_uuids if uuid is not None),
    )


def _texts(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return _unique((_text(name), _text(value)) for name, value in pairs)


_Value = TypeVar("_Value")


def _unique(pairs: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Build a map. Refuse a second value for a name: a map of names would hide one of the two references."""
    unique: dict[str, _Value] = {}
    for name, value in pairs:
        if name in unique:
            raise FormatError(f"property {name[:100]!a} appears twice")
        unique[name] = value
    return unique


def _text(value: str) -> str:
    # The parser returns a string field that is not UTF-8 as bytes.
    if not isinstance(value, str):
        raise FormatError("a text is not UTF-8")
    return value


def _ledger_pb(ledger: LedgerInfo) -> pb.ManagedLedgerInfo.LedgerInfo:
    message = pb.ManagedLedgerInfo.LedgerInfo(
        ledgerId=ledger.ledger_id, entries=ledger.entries, size=ledger.size_bytes or None, timestamp=ledger.timestamp_ms
    )
    if ledger.offload is not None:
        message.offloadContext.CopyFrom(_offload_pb(ledger.offload))
    return message


def _offload_pb(state: OffloadState) -> pb.OffloadContext:
    message = pb.OffloadContext(
        complete=state.complete,
        bookkeeperDeleted=state.bookkeeper_deleted,
        timestamp=state.timestamp_ms,
        driverMetadata=pb.OffloadDriverMetadata(
            name=state.driver_name, properties=_key_values(state.driver_properties)
        ),
    )
    if state.uuid is not None:
        message.uidMsb, message.uidLsb = uuid_halves(state.uuid)
    for segment_uuid in state.segment_uuids:
        msb, lsb = uuid_halves(segment_uuid)
        message.offloadSegment.add(uidMsb=msb, uidLsb=lsb)
    return message


def _key_values(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
