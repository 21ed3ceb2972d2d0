import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from udfs.snapshots.avro_schemas import SCHEMAS, SchemaOrigin, origin_of, origins
from udfs.snapshots.keys import SnapshotKind


@pytest.mark.parametrize("kind", SnapshotKind)
def test_names_and_documentation_do_not_matter(kind: SnapshotKind) -> None:
    schema = deepcopy(SCHEMAS[kind]) | {"name": "Other", "namespace": "org.apache", "doc": "d"}
    assert origin_of(kind, json.dumps(schema)) is SchemaOrigin.BROKERS


@pytest.mark.parametrize("kind", SnapshotKind)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda fields: [*fields, {"name": "topicUuid", "type": "string"}], id="a field is added at the end"
        ),
        pytest.param(lambda fields: [{"name": "aa", "type": "long"}, *fields], id="a field is added at the beginning"),
        pytest.param(lambda fields: fields[:-1], id="a field is removed"),
        pytest.param(lambda fields: fields[::-1], id="another order"),
        pytest.param(lambda fields: [each | {"type": "string"} for each in fields], id="other types"),
        pytest.param(lambda fields: [each | {"name": f"{each['name']}2"} for each in fields], id="other names"),
    ],
)
def test_another_version_of_pulsar_may_have_written_a_changed_schema(
    kind: SnapshotKind, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    schema = SCHEMAS[kind] | {"fields": change(SCHEMAS[kind]["fields"])}
    assert origin_of(kind, json.dumps(schema)) is SchemaOrigin.UNKNOWN


def test_added_fields_below_a_record_or_with_another_name_are_unknown() -> None:
    text = json.dumps(SCHEMAS[SnapshotKind.INDEX])
    below = text.replace('{"name": "sequenceID"', '{"name": "segmentUuid", "type": "long"}, {"name": "sequenceID"')
    assert below != text
    assert origin_of(SnapshotKind.INDEX, below) is SchemaOrigin.UNKNOWN
    more = [*SCHEMAS[SnapshotKind.INDEX]["fields"], {"name": "topicUuid", "type": "string"}]
    renamed = {"type": "record", "name": "TransactionBufferSnapshotIndexesV3", "fields": more}
    assert origin_of(SnapshotKind.INDEX, json.dumps(renamed)) is SchemaOrigin.UNKNOWN
    full = SCHEMAS[SnapshotKind.INDEX] | {"name": "org.apache.pulsar.TransactionBufferSnapshotIndexes", "fields": []}
    assert origin_of(SnapshotKind.INDEX, json.dumps(full)) is SchemaOrigin.UNKNOWN


def test_text_numbers_and_records_of_others_are_foreign() -> None:
    kind = SnapshotKind.SEGMENT
    for text in ("", "null", '"string"', '{"type": "string"}', json.dumps(SCHEMAS[SnapshotKind.SINGLE])):
        assert origin_of(kind, text) is SchemaOrigin.FOREIGN, text


def test_what_is_no_avro_schema_is_unknown() -> None:
    for text in ("{", "{}", "[" * 5000, '{"type": "record"}', '{"fileDescriptorSet": "CgA="}'):
        assert origin_of(SnapshotKind.SEGMENT, text) is SchemaOrigin.UNKNOWN, text


NEWER = json.dumps(
    {"type": "record", "name": "N", "fields": [*SCHEMAS[SnapshotKind.INDEX]["fields"], {"name": "more"}]}
)


@pytest.mark.parametrize(
    ("newer", "is_unknown_foreign", "registered", "unregistered"),
    [
        pytest.param("null", False, SchemaOrigin.FOREIGN, SchemaOrigin.UNREGISTERED, id="brokers of one version"),
        pytest.param(
            NEWER, False, SchemaOrigin.UNKNOWN, SchemaOrigin.UNKNOWN, id="perhaps of two: schemas can be deleted"
        ),
        pytest.param(NEWER, True, SchemaOrigin.FOREIGN, SchemaOrigin.UNREGISTERED, id="the operator knows of one"),
    ],
)
def test_a_schema_version_that_is_not_registered_may_be_another_versions_only_where_such_a_one_was(
    newer: str, is_unknown_foreign: bool, registered: SchemaOrigin, unregistered: SchemaOrigin
) -> None:
    definitions = {0: json.dumps(SCHEMAS[SnapshotKind.INDEX]), 1: newer}
    of = origins(SnapshotKind.INDEX, definitions, is_unknown_foreign=is_unknown_foreign)
    assert (of(bytes(8)), of(bytes(7) + b"\x01")) == (SchemaOrigin.BROKERS, registered)
    assert {of(bytes(7) + b"\x63"), of(b"\xff" * 8), of(b"x" * 400)} == {unregistered}
    assert of(bytes(7) + b"\x01" + b"more") is registered  # brokers read eight bytes
    assert {of(b"\x01"), of(bytes(7))} == {SchemaOrigin.FOREIGN}  # no broker writes fewer, or can read fewer
    assert origins(SnapshotKind.INDEX, {})(bytes(8)) is SchemaOrigin.UNREGISTERED
