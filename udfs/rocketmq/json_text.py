"""The JSON of RocketMQ's configuration files, which fastjson writes with unquoted integer keys in maps.

The parser turns a number in the position of a key into an int key; everything else is JSON. The writers produce the
broker's own form, with tabs, and the compact form of RocksDB values. A broker 5.3.3 writes the entries of a list, or of
a map with integer keys, on one line of its files; a broker 5.5.0 writes a line for each. Brokers of both
versions read both forms.
"""

import json
import re
from typing import Any

# A whole string, which is kept, or a bare integer key, which is marked and quoted. Strings come first, so that no text
# inside a string is taken for a key.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
_MARK = "\x01"  # no name of a topic or group contains it
_LINE_OF_INTEGER = re.compile(r"^\t+-?\d+:", re.MULTILINE)  # strings contain no line break
_INTEGER = re.compile(rf"{_MARK}(-?\d+)")
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1  # a broker does not start with a number that does not fit into a Java long


class BadJsonError(ValueError):
    """A text is not JSON as RocketMQ writes it. `position` is near the fault: it counts the quotes of keys, too."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(position, text)
        self.position, self.text = position, text


def parse(text: str) -> Any:
    """Parse a text; integer keys become int. Raises BadJsonError, also for a key that occurs twice in an object."""
    quoted = _TOKEN.sub(_quoted, text)
    try:
        return json.loads(quoted, object_pairs_hook=_object, parse_int=_long)
    except json.JSONDecodeError as error:
        raise BadJsonError(error.pos, error.msg) from error
    except ValueError as error:  # int() refuses thousands of digits
        raise BadJsonError(0, str(error)) from error
    except RecursionError as error:
        raise BadJsonError(0, "it is nested too deeply") from error


def compact(value: Any) -> str:
    """Format a value as in RocksDB rows: no blanks, bare integer keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(key)}:{compact(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return _scalar(value)


def has_lines(text: str) -> bool:
    """Whether a broker's file has a line for each entry of a list, or of a map with integer keys."""
    return _LINE_OF_INTEGER.search(text) is not None


def pretty(value: Any, depth: int = 0, *, in_lines: bool = False) -> str:
    """Format a value as a broker does in its files. in_lines: the answer of `has_lines` about that broker."""
    inner, outer = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, dict) and value:
        between = "," if all(isinstance(key, int) for key in value) and not in_lines else "," + inner
        lead = "" if between == "," else inner
        entries = between.join(
            f"{_key(key)}:{pretty(item, depth + 1, in_lines=in_lines)}" for key, item in value.items()
        )
        return "{" + lead + entries + outer + "}"
    if isinstance(value, list) and value:
        lines = (pretty(item, depth + 1, in_lines=in_lines) for item in value)
        return f"[{inner}{f',{inner}'.join(lines)}{outer}]" if in_lines else f"[{','.join(lines)}]"
    return compact(value)


def _quoted(match: re.Match[str]) -> str:
    return f'{match[1]}"\\u0001{match[2]}"{match[3]}' if match[2] is not None else match[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for name, value in pairs:
        bare = _INTEGER.fullmatch(name)
        key: Any = int(bare[1]) if bare else name
        if key in result:
            raise BadJsonError(0, f"the key {key!r} occurs twice in an object")
        result[key] = value
    return result


def _long(digits: str) -> int:
    value = int(digits)
    if not LONG_MIN <= value <= LONG_MAX:
        raise BadJsonError(0, f"the number {digits} does not fit into 64 bits")
    return value


def _key(key: Any) -> str:
    return str(key) if isinstance(key, int) else _scalar(key)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
