"""A message is a value only where key, schema, bytes and names all fit; whatever else stands there is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.formats.entry import Content
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import (
    Index,
    Segment,
    Snapshot,
    encode_index,
    encode_segment,
    encode_snapshot,
    entries_of,
)
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import Fault, ReadValue, read_message
from udfs.undelivered import Undeliverable, UndeliveredMessage

TOPIC = "persistent://t/ns/orders"
AT = (7, 3)
SEGMENT = encode_segment(Segment(TOPIC, 4, (2, 9), ids_of([(1, 2), (3, 4)])))
SINGLE = encode_snapshot(Snapshot(TOPIC, (2, 9), aborts_of([(1, 2, 2, 8)])))
INDEX = encode_index(Index(TOPIC, entries_of([(4, AT, (2, 9))]), (2, 9), ids_of([])))
KEY = f"multiple-4-{TOPIC}".encode()
BROKERS, OTHER, FOREIGN = bytes(8), bytes(7) + b"\x01", bytes(7) + b"\x02"
GONE = bytes(7) + b"\x63"
VERSIONS = {
    BROKERS: SchemaOrigin.BROKERS,
    OTHER: SchemaOrigin.UNKNOWN,
    FOREIGN: SchemaOrigin.FOREIGN,
    GONE: SchemaOrigin.UNREGISTERED,
}


def _read(
    kind: SnapshotKind, key: bytes | None, payload: bytes, *, is_null: bool = False, version: bytes = b""
) -> ReadValue:
    found = UndeliveredMessage(
        batch_index=-1,
        content=Content(key=key, payload=payload, properties={}, is_null=is_null, schema_version=version),
        publish_ms=1000,
    )
    return read_message(kind, "t/ns", AT, found, VERSIONS.__getitem__)


@pytest.mark.parametrize(
    ("kind", "key", "payload"),
    [
        (SnapshotKind.SEGMENT, KEY, SEGMENT),
        (SnapshotKind.SINGLE, TOPIC.encode(), SINGLE),
        (SnapshotKind.INDEX, TOPIC.encode(), INDEX),
        (SnapshotKind.PARTS, f"parts-1-10-100-end-{TOPIC}".encode(), SINGLE),
    ],
)
@pytest.mark.parametrize("version", [b"", bytes(8)], ids=["without a schema", "the brokers' schema"])
def test_what_a_broker_writes_is_a_value(kind: SnapshotKind, key: bytes, payload: bytes, version: bytes) -> None:
    read = _read(kind, key, payload, version=version)
    assert (read.fault, read.topic, read.position, read.size_bytes) == (None, TOPIC, AT, len(payload))
    assert read.value is not None


@pytest.mark.parametrize(
    ("key", "payload", "version", "fault"),
    [
        pytest.param(None, SEGMENT, b"", Fault.ODD_KEY, id="no key"),
        pytest.param(b"\xff", SEGMENT, b"", Fault.ODD_KEY, id="a key that is no text"),
        pytest.param(TOPIC.encode(), SEGMENT, b"", Fault.ODD_KEY, id="the key of an index"),
        pytest.param(b"multiple-4-persistent://t/other/orders", SEGMENT, b"", Fault.ODD_KEY, id="another namespace"),
        pytest.param(KEY, SEGMENT, FOREIGN, Fault.FOREIGN_SCHEMA, id="a foreign schema version"),
        pytest.param(KEY, SEGMENT, OTHER, Fault.UNKNOWN_SCHEMA, id="an unknown schema version"),
        pytest.param(KEY, SEGMENT + b"\x00", OTHER, Fault.UNKNOWN_SCHEMA, id="a field that was added"),
        pytest.param(KEY, SEGMENT, GONE, Fault.UNKNOWN_SCHEMA, id="a schema version that is not registered"),
        pytest.param(KEY, SEGMENT[:-1], b"", Fault.UNREADABLE, id="cut off"),
        pytest.param(KEY, SEGMENT + b"\x00", b"", Fault.UNREADABLE, id="a byte too much"),
        pytest.param(KEY, b"", b"", Fault.UNREADABLE, id="empty"),
        pytest.param(KEY, b"\xff" * 5_242_880, b"", Fault.UNREADABLE, id="five MiB of nothing"),
        pytest.param(f"multiple-5-{TOPIC}".encode(), SEGMENT, b"", Fault.OTHER_NAME, id="another number"),
        pytest.param(f"{KEY.decode()}-2".encode(), SEGMENT, b"", Fault.OTHER_NAME, id="another topic"),
    ],
)
def test_what_does_not_fit_is_named_and_is_no_value(key: bytes, payload: bytes, version: bytes, fault: Fault) -> None:
    read = _read(SnapshotKind.SEGMENT, key, payload, version=version)
    assert (read.fault, read.value) == (fault, None)
    assert read.detail


def test_a_tombstone_is_neither_a_value_nor_a_fault() -> None:
    read = _read(SnapshotKind.SEGMENT, KEY, b"", is_null=True, version=OTHER)
    assert (read.is_null, read.fault, read.value, read.topic) == (True, None, None, TOPIC)


def test_what_the_broker_did_not_deliver_is_unreadable() -> None:
    found = UndeliveredMessage(
        batch_index=-1,
        content=Content(key=KEY, payload=SEGMENT, properties={}),
        why=Undeliverable.ENCRYPTED,
        detail="encrypted",
    )
    read = read_message(SnapshotKind.SEGMENT, "t/ns", AT, found, lambda _version: SchemaOrigin.BROKERS)
    assert (read.fault, read.value, read.detail) == (Fault.UNREADABLE, None, "encrypted")


@given(st.sampled_from(SnapshotKind), st.one_of(st.none(), st.binary(max_size=40)), st.binary(max_size=60))
def test_no_bytes_of_a_sender_raise_an_error(kind: SnapshotKind, key: bytes | None, payload: bytes) -> None:
    for each in (key, TOPIC.encode(), KEY):
        read = _read(kind, each, payload)
        assert (read.value is None) == (read.fault is not None)


@given(st.integers(0, len(INDEX) - 1), st.integers(0, 255))
def test_no_byte_that_was_changed_raises_an_error(at: int, byte: int) -> None:
    changed = INDEX[:at] + bytes([byte]) + INDEX[at + 1 :]
    read = _read(SnapshotKind.INDEX, TOPIC.encode(), changed)
    assert (read.value is None) == (read.fault is not None)
    assert read.position != BEFORE_ALL


@pytest.mark.parametrize("kind", [SnapshotKind.INDEX, SnapshotKind.SINGLE])
@pytest.mark.parametrize(
    ("found", "is_blocking"),
    [
        pytest.param(
            UndeliveredMessage(batch_index=-1, content=Content(key=b"odd", payload=b"\xff", properties={})),
            True,
            id="garbage with any key",
        ),
        pytest.param(
            UndeliveredMessage(batch_index=-1, content=Content(key=TOPIC.encode(), payload=b"\xff", properties={})),
            True,
            id="garbage with a topic's key",
        ),
        pytest.param(
            UndeliveredMessage(batch_index=-1, content=Content(key=b"", payload=b"\xff", properties={})),
            True,
            id="garbage with an empty key",
        ),
        pytest.param(
            UndeliveredMessage(batch_index=-1, content=Content(key=b"odd", payload=b"", properties={})),
            True,
            id="an empty value",
        ),
        pytest.param(
            UndeliveredMessage(batch_index=-1, content=Content(key=None, payload=b"\xff", properties={})),
            False,
            id="garbage without a key",
        ),
        pytest.param(
            UndeliveredMessage(batch_index=-1, content=Content(key=b"odd", payload=b"", properties={}, is_null=True)),
            False,
            id="a tombstone",
        ),
        pytest.param(
            UndeliveredMessage(
                batch_index=-1,
                content=Content(key=None, payload=b"", properties={}),
                why=Undeliverable.ENCRYPTED,
                detail="it is",
            ),
            True,
            id="encrypted",
        ),
    ],
)
def test_what_no_broker_can_decode_blocks_loading(
    kind: SnapshotKind, found: UndeliveredMessage, is_blocking: bool
) -> None:
    """Each was seen on Pulsar 4.0.8: it reads all indexes, or all single snapshots, of the namespace."""
    assert read_message(kind, "t/ns", AT, found, lambda _version: SchemaOrigin.FOREIGN).is_blocking is is_blocking
    segment = read_message(SnapshotKind.SEGMENT, "t/ns", AT, found, lambda _version: SchemaOrigin.FOREIGN)
    assert not segment.is_blocking  # which a broker reads at its place


def test_a_value_under_any_key_blocks_nothing() -> None:
    assert not _read(SnapshotKind.INDEX, b"odd", INDEX).is_blocking
    assert not _read(SnapshotKind.INDEX, TOPIC.encode(), INDEX).is_blocking


@pytest.mark.parametrize(
    ("kind", "value"), [(SnapshotKind.INDEX, INDEX), (SnapshotKind.SINGLE, SINGLE)], ids=["index", "single"]
)
@pytest.mark.parametrize(
    ("before", "after", "version"),
    [
        pytest.param(b"", b"\x02", OTHER, id="a last field was added"),
        pytest.param(b"\x7f", b"", OTHER, id="a first field was added"),
        pytest.param(b"", b"\x02", BROKERS, id="Java ignores bytes after a value"),
        pytest.param(b"", b"\x02", b"", id="Java ignores bytes after a value without a schema"),
    ],
)
def test_what_another_version_of_pulsar_may_have_written_blocks_nothing(
    before: bytes, after: bytes, version: bytes, kind: SnapshotKind, value: bytes
) -> None:
    for key in (TOPIC.encode(), f"{TOPIC}-2".encode(), b"odd"):
        read = _read(kind, key, before + value + after, version=version)
        assert (read.is_blocking, read.value) == (False, None)
        assert read.is_doubtful is (version == OTHER)
        assert read.fault is not None


@pytest.mark.parametrize(
    "value",
    [
        INDEX[:-2] + b"\xff\xfe",  # a topic that is not UTF-8
        b"\x02" + b"\x02\x02\x02\x02\x02\x02" * 1001 + b"\x00" + b"\x00" + b"\x00",  # a list in 1001 blocks
    ],
    ids=["text", "blocks"],
)
def test_what_java_decodes_blocks_nothing(value: bytes) -> None:
    read = _read(SnapshotKind.INDEX, TOPIC.encode(), value)
    assert (read.is_blocking, read.value) == (False, None)


@pytest.mark.parametrize(("kind", "value"), [(SnapshotKind.INDEX, INDEX), (SnapshotKind.SINGLE, SINGLE)])
@pytest.mark.parametrize(
    ("key", "version", "is_blocking"),
    [
        pytest.param(b"odd", FOREIGN, True, id="a foreign schema"),
        pytest.param(b"odd", OTHER, False, id="an unknown schema"),
        pytest.param(TOPIC.encode(), FOREIGN, False, id="a foreign schema, and a value of the topic"),
        pytest.param(TOPIC.encode(), OTHER, False, id="an unknown schema, and a value of the topic"),
        pytest.param(f"{TOPIC}-2".encode(), FOREIGN, True, id="a foreign schema, and a value of another topic"),
    ],
)
def test_a_foreign_schema_blocks_loading_where_the_value_is_none_of_the_topic(
    kind: SnapshotKind, value: bytes, key: bytes, version: bytes, is_blocking: bool
) -> None:
    read = _read(kind, key, value, version=version)
    assert (read.is_blocking, read.value) == (is_blocking, None)
    assert read.is_doubtful is not is_blocking
    schema = Fault.FOREIGN_SCHEMA if version == FOREIGN else Fault.UNKNOWN_SCHEMA
    assert read.fault is (Fault.ODD_KEY if key == b"odd" else schema)


@pytest.mark.parametrize(("kind", "value"), [(SnapshotKind.INDEX, INDEX), (SnapshotKind.SINGLE, SINGLE)])
@pytest.mark.parametrize("key", [b"odd", TOPIC.encode()])
@pytest.mark.parametrize(
    ("version", "is_doubtful"),
    [
        pytest.param(b"", False, id="without a schema"),
        pytest.param(BROKERS, False, id="the brokers' schema"),
        pytest.param(GONE, False, id="not registered: brokers decode by their own"),
        pytest.param(OTHER, True, id="perhaps another version's: nothing is decoded here"),
        pytest.param(FOREIGN, False, id="no broker's"),
    ],
)
def test_garbage_blocks_loading_unless_another_version_may_have_written_it(
    version: bytes, is_doubtful: bool, key: bytes, kind: SnapshotKind, value: bytes
) -> None:
    """Seen on Pulsar 4.0.8: with a version that is not registered, garbage closes each topic, and a value does not."""
    garbage = _read(kind, key, b"\xff" * 20, version=version)
    assert (garbage.is_blocking, garbage.is_doubtful) == (not is_doubtful, is_doubtful)
    assert garbage.fault is not None
    is_own_of_foreign = version == FOREIGN and key != b"odd"  # a topic may need what seems to be its own
    read = _read(kind, key, value, version=version)
    assert read.is_blocking is (version == FOREIGN and not is_own_of_foreign)
    assert read.is_doubtful is (is_doubtful or is_own_of_foreign)
    assert (read.fault is None) == (key != b"odd" and version in (b"", BROKERS))


@pytest.mark.parametrize("version", [OTHER, GONE, FOREIGN])
def test_what_brokers_do_not_decode_at_a_load_is_in_no_doubt(version: bytes) -> None:
    for read in (
        _read(SnapshotKind.SEGMENT, KEY, b"\xff", version=version),
        _read(SnapshotKind.INDEX, None, b"\xff", version=version),
        _read(SnapshotKind.INDEX, TOPIC.encode(), b"", is_null=True, version=version),
    ):
        assert (read.is_blocking, read.is_doubtful) == (False, False)
