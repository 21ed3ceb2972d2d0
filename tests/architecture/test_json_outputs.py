"""docs/output.schema.json describes every field of --json; tests/json_outputs.py compares it with what tests print."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.json_outputs import SCHEMA, fault_of

DEFINITIONS: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_field_has_a_type_and_a_description(name: str) -> None:
    for field, described in DEFINITIONS[name]["properties"].items():
        assert described.get("description"), field
        assert {"type", "$ref", "anyOf"} & described.keys(), field


HISTORY = {"at_ms": 1, "who": "a@b", "service": "main", "command": "pause", "what": "paused", "why": ""}


def test_an_unknown_field_a_missing_field_and_another_type_are_found() -> None:
    assert fault_of(HISTORY) == ""
    assert "'note' was unexpected" in fault_of(HISTORY | {"note": ""})
    assert "at_ms: '1' is not of type 'integer'" in fault_of(HISTORY | {"at_ms": "1"})
    assert "'why' is a required property" in fault_of({name: HISTORY[name] for name in HISTORY if name != "why"})
