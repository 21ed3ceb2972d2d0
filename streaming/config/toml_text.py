"""Writes values and commented keys as TOML."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import tomlkit

from streaming.config.load import default_lines


def toml_value(value: Any) -> str:
    """Return a value on one line of TOML; a table as an inline table."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml_value(part)}' for key, part in value.items())} }}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return str(tomlkit.item(value).as_string())


def commented(values: Mapping[tuple[str, str], Any]) -> str:
    """Return a configuration with these keys, (section, key) -> value, each below its comment of conf/default.toml."""
    explained = _comments(default_lines())
    in_order = [path for path in explained if path in values]
    parts = []
    for section, paths in groupby(in_order, key=lambda path: path[0]):
        lines = [f"[{section}]"]
        for path in paths:
            lines += [*explained[path], f"{path[1]} = {toml_value(values[path])}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _comments(lines: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Return (section, key) -> the comment above the key."""
    explained, section, comment = {}, "", list[str]()
    for line in lines:
        if line.startswith("#"):
            comment.append(line)
            continue
        if line.startswith("["):
            section = line.strip("[]")
        elif " = " in line:
            explained[section, line.partition(" = ")[0]] = comment
        comment = []
    return explained
