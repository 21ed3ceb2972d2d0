"""Checks every JSON object that a command prints in a test against docs/output.schema.json."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import typer
from jsonschema import Draft202012Validator

SCHEMA = Path(__file__).parents[1] / "docs/output.schema.json"
_ELSEWHERE = ("streaming.cli.rocketmq", "streaming.cli.sandbox", "tests.")  # docs/rocketmq.md describes the first


@cache
def strict() -> Draft202012Validator:
    """The schema, in which a field that it does not describe is a fault."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for definition in schema["$defs"].values():
        definition["additionalProperties"] = False
    return Draft202012Validator(schema)


def fault_of(value: Any) -> str:
    """Return why an object is not described; "" if it is."""
    validator = strict()
    if validator.is_valid(value):
        return ""
    # the definition that has most of the object's fields tells most
    definitions = validator.schema["$defs"]
    nearest = max(definitions, key=lambda name: len(value.keys() & definitions[name]["properties"].keys()))
    found = validator.evolve(schema={**validator.schema, "anyOf": [{"$ref": f"#/$defs/{nearest}"}]})
    [error] = found.iter_errors(value)
    causes = "; ".join(f"{'.'.join(map(str, each.path))}: {each.message}"[:300] for each in error.context or ())
    return f"docs/output.schema.json does not describe this object ({nearest}): {causes}"


def watch() -> None:
    """From now on, raise AssertionError in a command that prints an object which the schema does not describe."""
    echo = typer.echo

    def checked(message: Any = None, *others: Any, **how: Any) -> None:
        frame = sys._getframe(1)  # say_json, or another printer
        caller = str(frame.f_back.f_globals.get("__name__")) if frame.f_back else ""
        if frame.f_code.co_name == "say_json" and not caller.startswith(_ELSEWHERE):
            value = json.loads(message)
            if isinstance(value, dict) and (fault := fault_of(value)):
                raise AssertionError(fault)
        echo(message, *others, **how)

    if echo.__name__ != "checked":
        typer.echo = checked
