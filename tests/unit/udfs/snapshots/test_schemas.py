import json
from copy import deepcopy

import pytest

from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.schemas import SCHEMAS, is_brokers


@pytest.mark.parametrize("kind", SnapshotKind)
def test_names_and_documentation_do_not_matter(kind: SnapshotKind) -> None:
    schema = deepcopy(SCHEMAS[kind]) | {"name": "Other", "namespace": "org.apache", "doc": "d"}
    assert is_brokers(kind, json.dumps(schema))


def test_another_order_or_type_or_text_is_foreign() -> None:
    kind = SnapshotKind.SEGMENT
    turned = SCHEMAS[kind] | {"fields": SCHEMAS[kind]["fields"][::-1]}
    assert not is_brokers(kind, json.dumps(turned))
    assert not is_brokers(kind, json.dumps(SCHEMAS[SnapshotKind.SINGLE]))
    for text in ("", "{", '"string"', "{}", "[" * 5000, "null", '{"type": "record"}'):
        assert not is_brokers(kind, text)
