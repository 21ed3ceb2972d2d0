"""Messages for faults of a configuration: the key, its source (the file or a variable), and an example."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from streaming.config.amounts import most_similar
from streaming.config.settings import Settings

PREFIX = "LEDGER_REAPER__"
_ONE_UNDERSCORE = "LEDGER_REAPER_"
# Variables of this program that are no configuration keys, and the prefixes of those of tests and benchmarks.
_OTHERS = ("CONFIG", "JARS", "PYTHON", "IVY_SETTINGS", "PROCESS_TOKEN", "COMPLETE", "LOG_LEVEL", "LOG_FORMAT")
_TESTS = ("TEST_", "MODEL_", "FUZZ_", "BENCH_", "LOAD_", "WATCH_SEEDS", "CRASH_", "ROCKETMQ_", "ROLLBACK_")
_SHOWN = 24  # a longer text may be a token in the wrong variable
_SECRETS = "@?#"  # a value with one of these may be a URL with a password

Path = tuple[int | str, ...]


def messages_of(error: ValidationError, environment: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return a message for each fault.

    Args:
        error: the faults.
        environment: the values of variables, by section and key.
        defaults: the values of conf/default.toml, by section and key; they serve as examples.
    """
    faults = error.errors()
    # pydantic drops the wrong elements of a list, and then calls it too short
    lists = {fault["loc"][:-1] for fault in faults}
    return [
        _message(dict(fault), environment, defaults)
        for fault in faults
        if fault["type"] != "too_short" or fault["loc"] not in lists
    ]


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return a message for each variable that has our form and is no configuration key."""
    variables = [variable_of(path) for path in _keys()]
    letters = {_letters(name): name for name in variables}
    messages = []
    for name in sorted(names):
        rest = name.removeprefix(_ONE_UNDERSCORE)
        if rest == name or rest.startswith(("_", *_TESTS)) or rest in _OTHERS:
            continue
        similar = letters.get(_letters(name)) or most_similar(name, variables)
        hint = f"; did you mean {similar}?" if similar else ""
        messages.append(f"the variable {name} is no configuration key, and is ignored{hint}")
    return messages


def _message(fault: Mapping[str, Any], environment: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    path: Path = fault["loc"]
    is_variable = _is_in(path, environment)
    where = f"the variable {variable_of(path)}" if is_variable else ".".join(map(str, path))
    return f"{where}: {_reason(fault, path, defaults, is_variable=is_variable)}"


def variable_of(path: Path) -> str:
    """Return the name of the environment variable that sets a key; path: its section, its name, and so on."""
    keys = [part for part in path if isinstance(part, str)]
    return f"{PREFIX}{'__'.join(keys).upper()}"


def _reason(fault: Mapping[str, Any], path: Path, defaults: Mapping[str, Any], *, is_variable: bool) -> str:
    kind, limits = fault["type"], fault.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"unknown key{_did_you_mean(path, is_variable=is_variable)}"
    if kind == "value_error":
        return str(fault["msg"]).removeprefix("Value error, ")
    if kind == "missing":
        return "is missing"
    text = next((text for start, text in _MUST_BE.items() if kind.startswith(start)), "")
    if kind in ("literal_error", "enum"):
        text = f"must be {limits['expected']}"
    if kind.startswith("string_pattern") and (field := _field(path)) is not None and field.description:
        text = f"must be {field.description}"
    if kind in _LIMITS:
        text = f"must be {_LIMITS[kind]} {limits[_LIMIT_NAMES[kind]]}"
    if kind.startswith(("model", "dict")):
        return f"must be a table with the keys {', '.join(_siblings((*path, '')))}"
    return f"{_shown(fault['input'])}{text or fault['msg']}{_example(path, defaults)}"


_MUST_BE = {
    "string_too_short": "must not be empty",
    "string": "must be a text in quotes",
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "tuple": "must be a list",
    "list": "must be a list",
    "too_short": "must not be an empty list",
}
_LIMITS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_LIMIT_NAMES = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}


def _shown(value: object) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float | bool) else ""
    return f"{text} " if text and len(text) <= _SHOWN and not any(sign in text for sign in _SECRETS) else ""


def _example(path: Path, defaults: Mapping[str, Any]) -> str:
    field = _field(path)
    examples = field.examples if field is not None else None
    value: Any = examples[0] if examples else _at(path, defaults)
    return f", as in {json.dumps(value)}" if value not in (None, "", [], {}) else ""


def _did_you_mean(path: Path, *, is_variable: bool) -> str:
    wrong = str(path[-1])
    sibling = most_similar(wrong, _siblings(path))
    similar = [(*path[:-1], sibling)] if sibling else [key for key in _keys() if key[-1] == wrong][:1]
    if not similar:
        return ""
    name = variable_of(similar[0]) if is_variable else ".".join(map(str, similar[0]))
    return f"; did you mean {name}?"


def _keys() -> list[tuple[str, ...]]:
    """Return (section, key) of every key."""
    return [
        (name, key)
        for name, section in Settings.model_fields.items()
        for key in _model(section.annotation).model_fields
    ]


def _siblings(path: Path) -> Sequence[str]:
    """Return the keys of the section that contains the path's last part."""
    model: type[BaseModel] | None = Settings
    for part in path[:-1]:
        if isinstance(part, str):
            field = model.model_fields.get(part) if model is not None else None
            model = _model(field.annotation) if field is not None else None
    return list(model.model_fields) if model is not None else []


def _field(path: Path) -> FieldInfo | None:
    keys = [part for part in path if isinstance(part, str)]
    model: type[BaseModel] | None = Settings
    field = None
    for key in keys:
        field = model.model_fields.get(key) if model is not None else None
        model = _model(field.annotation) if field is not None else None
    return field


def _model(annotation: Any) -> Any:
    """Return the section class in an annotation: the annotation itself, or the element of its tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model(part)) is not None), None)


def _at(path: Path, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_in(path: Path, values: Mapping[str, Any]) -> bool:
    value: Any = values
    for part in path:
        if not isinstance(part, str) or not isinstance(value, Mapping):
            break
        if part not in value:
            return False
        value = value[part]
    return bool(path)


def _letters(name: str) -> str:
    return name.replace("_", "").upper()
