"""Converts RocketMQ's topics, groups and offsets between the rows of its three RocksDB databases and its JSON tables.

A broker compares versions at its start: if the counter of a JSON file is above the database's, the broker reads the
file, and overwrites the entries of the database. So the rows get a higher counter than the file.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from udfs.rocketmq.json_text import LONG_MAX, BadJsonError, compact, parse

VERSION_FAMILY, FORBIDDEN_FAMILY = "kvDataVersion", "forbidden"
VERSION_KEY = b"kvDataVersionKey"
LMQ_PREFIX = "%LMQ%"

# Names of the databases, and of their folders below config/.
TOPICS, GROUPS, OFFSETS = "topics", "subscriptionGroups", "consumerOffsets"
TOPICS_JSON, GROUPS_JSON = "topics.json", "subscriptionGroup.json"
OFFSETS_JSON, LMQ_OFFSETS_JSON = "consumerOffset.json", "lmqConsumerOffset.json"
DELAY_OFFSETS_JSON = "delayOffset.json"

_QUEUE_ID_MAX = 2**31 - 1

Pairs = dict[bytes, bytes]


class ConfigRows(NamedTuple):
    """All rows of one of the three databases, by column family."""

    default: Pairs
    version: Pairs
    forbidden: Pairs


class OffsetsOf(StrEnum):
    """The source of topics, groups and offsets if brokers have written both RocksDB and JSON files."""

    ROCKSDB = "rocksdb"
    FILES = "files"
    BOTH = "both"  # RocksDB's entries, and those entries of the files that are missing in RocksDB


class BadTableError(ValueError):
    """A JSON file, or a database, does not contain its table."""


def topic_rows(table: Mapping[str, Any]) -> ConfigRows:
    """Convert topics.json into rows. Raises BadTableError."""
    return ConfigRows(_rows(_part(table, "topicConfigTable")), version_rows(table), {})


def group_rows(table: Mapping[str, Any]) -> ConfigRows:
    """Convert subscriptionGroup.json into rows. Raises BadTableError."""
    forbidden = _rows(_part(table, "forbiddenTable", needed=False))
    return ConfigRows(_rows(_part(table, "subscriptionGroupTable")), version_rows(table), forbidden)


def offset_rows(table: Mapping[str, Any]) -> ConfigRows:
    """Convert consumerOffset.json or lmqConsumerOffset.json into rows. Raises BadTableError.

    The JSON has LMQ groups' offsets in a table of their own; their rows are like the others, with queue id 0.
    """
    offsets = {name: _offset_row(name, row) for name, row in _part(table, "offsetTable").items()}
    for name, offset in _part(table, "lmqOffsetTable", needed=False).items():
        offsets[name] = _offset_row(name, {0: offset})
    return ConfigRows(_rows(offsets), version_rows(table), {})


def version_rows(table: Mapping[str, Any]) -> Pairs:
    """Create the version row, with a counter one above that of the JSON file. Raises BadTableError."""
    version = _part(table, "dataVersion")
    counter = _whole(version.get("counter", 0), "dataVersion.counter")
    if counter >= LONG_MAX:
        raise BadTableError(f"dataVersion.counter is {counter}, and no counter can be higher")
    above = {
        "counter": counter + 1,
        "stateVersion": _whole(version.get("stateVersion", 0), "dataVersion.stateVersion"),
        "timestamp": _whole(version.get("timestamp", 0), "dataVersion.timestamp"),
    }
    return {VERSION_KEY: compact(above).encode()}


def topics_table(rows: ConfigRows) -> dict[str, Any]:
    """Convert rows into the table of topics.json. Raises BadTableError."""
    return {"dataVersion": _version(rows), "topicConfigTable": _table(rows.default)}


def groups_table(rows: ConfigRows) -> dict[str, Any]:
    """Convert rows into the table of subscriptionGroup.json. Raises BadTableError."""
    return {
        "dataVersion": _version(rows),
        "forbiddenTable": _table(rows.forbidden),
        "subscriptionGroupTable": _table(rows.default),
    }


def offsets_table(rows: ConfigRows, *, is_lmq: bool) -> dict[str, Any]:
    """Convert rows into the table of consumerOffset.json, or of lmqConsumerOffset.json. Raises BadTableError."""
    offsets = offsets_of_rows(rows)
    if not is_lmq:
        return {"dataVersion": _version(rows), "groupTopicMap": _topics_by_group(offsets), "offsetTable": offsets}
    lmq = {name: by_queue[0] for name, by_queue in offsets.items() if is_lmq_group(name) and 0 in by_queue}
    others = {name: by_queue for name, by_queue in offsets.items() if name not in lmq}
    return {
        "dataVersion": _version(rows),
        "groupTopicMap": _topics_by_group(others),
        "lmqOffsetTable": lmq,
        "offsetTable": others,
    }


def is_lmq_group(name: str) -> bool:
    """Whether an offset, named topic@group, belongs to an LMQ group."""
    return name.rpartition("@")[2].startswith(LMQ_PREFIX)


def counter_of(rows: ConfigRows) -> int | None:
    """Return the database's version counter; None without one. Raises BadTableError."""
    return _version(rows)["counter"] if VERSION_KEY in rows.version else None


def offsets_of_rows(rows: ConfigRows) -> dict[str, dict[int, int]]:
    """Return the offsets by topic@group and queue id. Raises BadTableError."""
    return {name: _by_queue(name, _part(row, "offsetTable")) for name, row in _table(rows.default).items()}


def united(first: ConfigRows, other: ConfigRows, *, are_offsets: bool = False) -> ConfigRows:
    """Merge rows; those of `first` win. With are_offsets, its offset wins for each queue. Raises BadTableError."""
    default = other.default | first.default
    if are_offsets:
        ours, theirs = offsets_of_rows(first), offsets_of_rows(other)
        table = {name: {"offsetTable": theirs.get(name, {}) | ours.get(name, {})} for name in ours | theirs}
        default = _rows(table)
    return ConfigRows(default, first.version or other.version, other.forbidden | first.forbidden)


def _topics_by_group(offsets: Mapping[str, Any]) -> dict[str, list[str]]:
    """Build the map that a broker writes beside the offsets, and could rebuild from them."""
    topics = dict[str, list[str]]()
    for name in sorted(offsets):
        topic, _, group = name.rpartition("@")
        topics.setdefault(group, []).append(topic)
    return topics


def _rows(table: Mapping[Any, Any]) -> Pairs:
    rows = {}
    for name, value in table.items():
        if not isinstance(name, str):
            raise BadTableError(f"the number {name} is used as a name")
        try:
            rows[name.encode()] = compact(value).encode()
        except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can express
            raise BadTableError(f"{name!r} is not a valid name, or contains invalid text: {error}") from error
    return rows


def _table(rows: Pairs) -> dict[str, Any]:
    table = {}
    for key, value in rows.items():
        name = key.decode("utf-8", "replace")
        try:
            table[name] = parse(value.decode())
        except (BadJsonError, UnicodeDecodeError) as error:
            raise BadTableError(f"the row {name!r} does not contain JSON: {value[:80]!r}") from error
    return table


def _version(rows: ConfigRows) -> dict[str, int]:
    version = _table(rows.version).get(VERSION_KEY.decode(), {})
    if not isinstance(version, dict):
        raise BadTableError(f"the version row contains {version!r}")
    return {name: _whole(version.get(name, 0), name) for name in ("counter", "stateVersion", "timestamp")}


def _part(table: Mapping[str, Any], name: str, *, needed: bool = True) -> dict[str, Any]:
    part = table.get(name) if isinstance(table, Mapping) else None
    if part is None and not needed:
        return {}
    if not isinstance(part, dict):
        raise BadTableError(f"{name} is missing or is not an object")
    return part


def _offsets(name: str, offsets: Any) -> dict[int, int]:
    if not isinstance(offsets, dict) or not all(isinstance(key, int) for key in offsets):
        raise BadTableError(f"the offsets of {name!r} are not a map from queue ids")
    return {key: _whole(value, f"the offset of {name!r}, queue {key}") for key, value in offsets.items()}


def _offset_row(name: str, offsets: Any) -> dict[str, Any]:
    """Convert a group's offsets into a row. Raises BadTableError for an offset that no broker commits."""
    row = _offsets(name, offsets)
    for queue_id, offset in row.items():
        if not 0 <= queue_id <= _QUEUE_ID_MAX or offset < 0:
            raise BadTableError(f"the offset of {name!r}, queue {queue_id}, is {offset}")
    return {"offsetTable": row}


def _by_queue(name: str, offsets: dict[Any, Any]) -> dict[int, int]:
    """Return the offsets of a row. A 5.3.3 broker quotes the queue ids there, unlike in its files."""
    try:
        return _offsets(name, {int(key): value for key, value in offsets.items()})
    except ValueError as error:
        raise BadTableError(f"the offsets of {name!r} are not a map from queue ids") from error


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadTableError(f"{name} is {value!r} instead of a whole number")
    return value
