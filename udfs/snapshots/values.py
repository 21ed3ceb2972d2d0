"""Messages of a compacted snapshot topic, decoded and checked.

A publisher on a system topic chooses key, schema, bytes and the null flag. So a message counts as a value only if the
key has the form of this topic's keys, the schema is the brokers', all bytes decode, and the value names the topic and
the number of its key. Any other message gets a Fault: it is reported and left alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.paths import namespace_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import (
    Index,
    NotOursError,
    Segment,
    Snapshot,
    decode_index,
    decode_segment,
    decode_snapshot,
)
from udfs.snapshots.keys import SnapshotKind, is_topic, part_key_of, segment_key_of
from udfs.undelivered import UndeliveredMessage

AnyValue: TypeAlias = Snapshot | Segment | Index
_LONGEST_DETAIL = 300
_KEPT = (SnapshotKind.PARTS, SnapshotKind.INDEX)
READ_WHOLE = (SnapshotKind.INDEX, SnapshotKind.SINGLE)  # a broker that loads a topic reads all messages of these topics
_LONGEST_KEY = 4200  # of a key in reports: a topic's longest name, and a number before it


class Fault(StrEnum):
    """Why a message is no value of its topic."""

    ODD_KEY = "ODD_KEY"  # no key of this kind, or the key of a topic in another namespace
    FOREIGN_SCHEMA = "FOREIGN_SCHEMA"  # sent with a schema that is no broker's
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"  # sent with a schema that may be, or have been, another version of Pulsar's
    UNREADABLE = "UNREADABLE"  # cut off, compressed or encoded in a way that can't be read
    OTHER_NAME = "OTHER_NAME"  # the value names another topic, or another number, than its key


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReadValue:
    """One message."""

    kind: SnapshotKind
    key: str
    topic: str  # the owner that the key names; "" for an odd key
    position: Position
    publish_ms: int
    size_bytes: int  # of the value, decompressed
    sequence: int = -1  # the number in a segment's key; -1 for other kinds
    is_null: bool = False
    fault: Fault | None = None
    detail: str = ""
    value: AnyValue | None = None  # None: a fault or a tombstone
    data: bytes = b""  # the bytes of a part or an index; empty for other kinds
    is_blocking: bool = False  # no broker can decode it, so no topic loads for which a broker reads this message
    is_doubtful: bool = False  # brokers may be unable to decode it, and a topic may need it


def read_message(
    kind: SnapshotKind,
    namespace: str,
    position: Position,
    found: UndeliveredMessage,
    origin_of: Callable[[bytes], SchemaOrigin],
) -> ReadValue:
    """Read one message of a namespace's topic of that kind. No content raises an error.

    origin_of: returns who registered the schema version in a message.
    """
    content = found.content
    key, topic, sequence = _key(kind, namespace, content.key)
    about = ReadValue(
        kind=kind,
        key=key,
        topic=topic,
        position=position,
        publish_ms=found.publish_ms,
        size_bytes=len(content.payload),
        sequence=sequence,
        is_null=content.is_null,
    )
    origin = origin_of(content.schema_version) if content.schema_version else SchemaOrigin.BROKERS
    is_blocking, is_doubtful = _blocks(kind, topic, found, origin)
    about = replace(about, is_blocking=is_blocking, is_doubtful=is_doubtful)
    if not topic:
        return replace(about, fault=Fault.ODD_KEY, detail=f"the key is no key of a {kind} of {namespace}")
    if found.why is not None:
        return replace(about, fault=Fault.UNREADABLE, detail=found.detail)
    if content.is_null:
        return about
    version = content.schema_version[:16].hex()
    if origin is SchemaOrigin.FOREIGN:
        return replace(about, fault=Fault.FOREIGN_SCHEMA, detail=f"schema version {version} is not the brokers'")
    if origin is not SchemaOrigin.BROKERS:
        why = "registered" if origin is SchemaOrigin.UNREGISTERED else "known here"
        return replace(about, fault=Fault.UNKNOWN_SCHEMA, detail=f"schema version {version} is not {why}")
    return _decoded(about, content.payload)


def _blocks(kind: SnapshotKind, topic: str, found: UndeliveredMessage, origin: SchemaOrigin) -> tuple[bool, bool]:
    """Return whether a broker that reads a message fails, and whether it may fail, if that is not known here.

    A broker that loads a topic reads all of the namespace's indexes, or single snapshots, and decodes each message that
    has a key; at the first that it can't decode, it closes the topic (seen on Pulsar 4.0.8). It reads segments by their
    positions. A broker decodes a message without a registered schema by its own schema. Two kinds of messages are
    doubtful, not blocking: a value of the key's topic with a foreign schema, since the topic may need it; and a message
    whose schema this program does not know and can't decode by, since a sender may have registered that schema.
    """
    content = found.content
    if kind not in READ_WHOLE:
        return False, False
    if found.why is not None:
        return True, False
    if content.key is None or content.is_null:
        return False, False
    if origin is SchemaOrigin.UNKNOWN:
        return False, True
    named = _topic_in(kind, content.payload)
    if named is None:
        return True, False
    is_own = bool(topic) and named == topic
    return origin is SchemaOrigin.FOREIGN and not is_own, origin is SchemaOrigin.FOREIGN and is_own


def names_its_topic(read: ReadValue) -> bool:
    """Whether a message, read with its bytes, contains a value of the topic that its key names."""
    return bool(read.topic) and _topic_in(read.kind, read.data) == read.topic


def _topic_in(kind: SnapshotKind, data: bytes) -> str | None:
    """Return the topic in a value; None if no broker can decode the bytes."""
    try:
        return _DECODERS[kind](data).topic
    except NotOursError as error:
        return error.topic
    except FormatError:
        return None


def _decoded(about: ReadValue, data: bytes) -> ReadValue:
    try:
        value = _DECODERS[about.kind](data)
    except FormatError as error:
        return replace(about, fault=Fault.UNREADABLE, detail=str(error))
    if value.topic != about.topic or (isinstance(value, Segment) and value.sequence != about.sequence):
        detail = f"the value says that it belongs to {value.topic!r}"[:_LONGEST_DETAIL]
        return replace(about, fault=Fault.OTHER_NAME, detail=detail)
    return replace(about, value=value, data=data if about.kind in _KEPT else b"")


_DECODERS: dict[SnapshotKind, Callable[[bytes], AnyValue]] = {
    SnapshotKind.PARTS: decode_snapshot,
    SnapshotKind.SINGLE: decode_snapshot,
    SnapshotKind.SEGMENT: decode_segment,
    SnapshotKind.INDEX: decode_index,
}


def _key(kind: SnapshotKind, namespace: str, key: bytes | None) -> tuple[str, str, int]:
    """Return the key's text, the topic that it names ("" for an odd key), and a segment's number."""
    try:
        text = (key or b"").decode()
    except UnicodeDecodeError:
        return repr(key)[:_LONGEST_KEY], "", -1
    topic, sequence = _named(kind, text)
    if not topic or namespace_of(topic) != namespace:
        return text[:_LONGEST_KEY], "", -1
    return text, topic, sequence


def _named(kind: SnapshotKind, key: str) -> tuple[str, int]:
    if kind is SnapshotKind.SEGMENT:
        segment = segment_key_of(key)
        return (segment.topic, segment.sequence) if segment else ("", -1)
    if kind is SnapshotKind.PARTS:
        part = part_key_of(key)
        return (part.topic, -1) if part else ("", -1)
    return (key, -1) if is_topic(key) else ("", -1)
