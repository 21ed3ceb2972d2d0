"""What each version of Pulsar wrote, recorded by tests/version_bytes.py; the broker's own answers are the truth."""

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from streaming.sandbox.parts.distribution import versions
from tests.version_bytes import COMPACTED, CURSORS, DELAYED, FOLDER, LISTED, LONG, NOTE, OFFLOADED
from udfs.formats.bookie_info import http_address, rpc_address
from udfs.formats.internal_stats import parse_internal_stats, ranges_in, view_of
from udfs.formats.ledger_metadata import bookies_of, parse_ledger_metadata
from udfs.formats.managed_ledger import acknowledged_ranges, in_use_ids, parse_cursor, parse_managed_ledger
from udfs.formats.offload_index import parse_object_name, parse_offload_index
from udfs.formats.schema_locator import ledger_ids
from udfs.owners.references import DELAYED_BUCKET_PREFIX, bucket_id
from udfs.paths import cursor_path, managed_ledger_name, managed_ledger_path, schema_id_of, schema_path
from udfs.records import BrokerView

each_version = pytest.mark.parametrize("version", versions())
in_each_state = pytest.mark.parametrize("while_", ["loaded", "unloaded"])
COMPRESSED = b"\x47\x78"  # the magic number of a compressed value
COMPONENTS = {b"managed-ledger", b"schema", b"compacted-ledger", b"delayed-index-bucket"}


@cache
def recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{version}.json").read_text())
    return found


def value(version: str, while_: str, path: str) -> bytes:
    return base64.b64decode(recorded(version)[while_][path])


def list_of(version: str, while_: str, topic: str) -> bytes:
    return value(version, while_, managed_ledger_path(managed_ledger_name(topic)))


def cursor_of(version: str, while_: str, topic: str, name: str) -> bytes:
    return value(version, while_, cursor_path(managed_ledger_name(topic), name))


def view(version: str, topic: str) -> BrokerView:
    return view_of(recorded(version)["stats"][topic])


def custom_metadata(version: str) -> dict[int, Mapping[str, bytes]]:
    """Return the custom metadata of every recorded ledger."""
    return {
        int(path.rpartition("/L")[2]): parse_ledger_metadata(base64.b64decode(data)).custom_metadata
        for path, data in recorded(version)["ledgers"].items()
    }


@each_version
@in_each_state
@pytest.mark.parametrize("topic", [LISTED, COMPACTED, DELAYED])
def test_a_list_names_the_ledgers_that_the_broker_reports(version: str, while_: str, topic: str) -> None:
    listed = in_use_ids(list_of(version, while_, topic))

    assert tuple(listed.ids) == view(version, topic).ledgers
    assert listed.offloads == ()


@each_version
@pytest.mark.parametrize(
    ("topic", "name"), [(topic, name) for topic, names in CURSORS.items() if topic != LONG for name in names]
)
def test_a_cursor_names_the_ledger_that_the_broker_reports(version: str, topic: str, name: str) -> None:
    assert (
        parse_cursor(cursor_of(version, "loaded", topic, name)).cursors_ledger_id == view(version, topic).cursors[name]
    )
    # a broker that closes a topic moves the cursor's state into the znode
    assert parse_cursor(cursor_of(version, "unloaded", topic, name)).cursors_ledger_id == -1


@each_version
def test_acknowledged_entries_are_those_that_the_broker_reports(version: str) -> None:
    stats = recorded(version)["stats"][LISTED]
    closed = cursor_of(version, "unloaded", LISTED, "holes")

    expected = ranges_in(stats["cursors"]["holes"]["individuallyDeletedMessages"])
    assert len(expected) == 10
    assert acknowledged_ranges(closed) == expected
    position = parse_cursor(closed).mark_delete_ledger_id, parse_cursor(closed).mark_delete_entry_id
    assert position == parse_internal_stats(stats).cursors["holes"]


@each_version
def test_the_cursor_of_the_compaction_names_the_compacted_ledger(version: str) -> None:
    named = parse_cursor(cursor_of(version, "unloaded", COMPACTED, "__compaction")).properties

    reported = view(version, COMPACTED)
    assert set(named.values()) == {reported.compacted_ledger} == {reported.compacted_by_cursor}
    assert custom_metadata(version)[reported.compacted_ledger]["component"] == b"compacted-ledger"


@each_version
@in_each_state
def test_a_cursor_names_the_ledgers_of_its_delayed_buckets(version: str, while_: str) -> None:
    properties = parse_cursor(cursor_of(version, while_, DELAYED, "later")).cursor_properties

    named = {bucket_id(value) for name, value in properties.items() if name.startswith(DELAYED_BUCKET_PREFIX)}
    written = {
        ledger_id
        for ledger_id, metadata in custom_metadata(version).items()
        if metadata["component"] == b"delayed-index-bucket"
    }
    assert named
    assert named <= written


@each_version
@in_each_state
def test_a_locator_names_the_ledger_of_each_version_of_the_schema(version: str, while_: str) -> None:
    named = ledger_ids(value(version, while_, schema_path(schema_id_of(LISTED))))

    assert named == {ledger["ledgerId"] for ledger in recorded(version)["stats"][LISTED]["schemaLedgers"]}
    assert len(named) == 2
    assert {custom_metadata(version)[ledger_id]["component"] for ledger_id in named} == {b"schema"}


@each_version
def test_every_ledger_states_its_component_and_its_bookie(version: str) -> None:
    ledgers = [base64.b64decode(data) for data in recorded(version)["ledgers"].values()]

    assert {parse_ledger_metadata(data).custom_metadata["component"] for data in ledgers} == COMPONENTS
    assert {bookies_of(data) for data in ledgers} == {frozenset({"bookie-0"})}


@each_version
@in_each_state
def test_long_values_are_compressed_since_5(version: str, while_: str) -> None:
    if int(version.partition(".")[0]) < 5:
        assert (
            managed_ledger_path(managed_ledger_name(LONG)) not in recorded(version)[while_]
        )  # too long to be recorded
        return
    listed, cursor = list_of(version, while_, LONG), cursor_of(version, while_, LONG, "reader")

    assert listed[:2] == cursor[:2] == COMPRESSED
    assert parse_managed_ledger(listed).properties == NOTE
    assert set(in_use_ids(listed).ids) >= set(view(version, LONG).ledgers)
    assert parse_cursor(cursor).cursor_properties == NOTE


@each_version
def test_a_bookie_registers_its_addresses(version: str) -> None:
    data = base64.b64decode(recorded(version)["bookie"])

    assert http_address(data) is not None
    assert rpc_address(data) is not None


@each_version
def test_an_index_object_states_the_owner_of_the_ledger_that_the_list_names(version: str) -> None:
    objects = dict(recorded(version)["offloaded"])
    if not objects:
        pytest.skip("the sandbox has no offloader of this version")
    listed = in_use_ids(base64.b64decode(objects.pop(managed_ledger_path(managed_ledger_name(OFFLOADED)))))

    assert objects
    for key, data in objects.items():
        named = parse_object_name(key)
        assert named is not None
        assert (named.ledger_id, named.uuid) in listed.offloads
        owner = parse_offload_index(base64.b64decode(data)).metadata.custom_metadata["pulsar/managed-ledger"]
        assert owner.decode() == managed_ledger_name(OFFLOADED)
