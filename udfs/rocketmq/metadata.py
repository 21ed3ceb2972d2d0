"""RocketMQ's topics, groups and offsets: rows of its three RocksDB databases, and back to the tables of its JSON files.

A broker compares versions when it starts: where the counter of a JSON file is above that of the database, it reads the
file over the database. So the rows get a counter above the file's.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from udfs.rocketmq.json_text import LONG_MAX, BadJsonError, compact, parse

VERSION_FAMILY, FORBIDDEN_FAMILY = "kvDataVersion", "forbidden"
VERSION_KEY = b"kvDataVersionKey"
LMQ_PREFIX = "%LMQ%"

# Folders below config/, which are the databases' names, too.
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
    """Whose topics, groups and offsets count where brokers have written both forms.

    BOTH: those of RocksDB, and of the files what RocksDB does not have.
    """

    ROCKSDB = "rocksdb"
    FILES = "files"
    BOTH = "both"


class BadTableError(ValueError):
    """A JSON file holds something else than its table."""


def topic_rows(table: Mapping[str, Any]) -> ConfigRows:
    """Make the rows of topics.json. Raises BadTableError."""
    return ConfigRows(_rows(_part(table, "topicConfigTable")), version_rows(table), {})


def group_rows(table: Mapping[str, Any]) -> ConfigRows:
    """Make the rows of subscriptionGroup.json. Raises BadTableError."""
    forbidden = _rows(_part(table, "forbiddenTable", needed=False))
    return ConfigRows(_rows(_part(table, "subscriptionGroupTable")), version_rows(table), forbidden)


def offset_rows(table: Mapping[str, Any]) -> ConfigRows:
    """Make the rows of consumerOffset.json or lmqConsumerOffset.json. Raises BadTableError.

    An LMQ group's offset, which the JSON has in a table of its own, is an entry like the others, of queue 0.
    """
    offsets = {name: _offset_row(name, each) for name, each in _part(table, "offsetTable").items()}
    for name, offset in _part(table, "lmqOffsetTable", needed=False).items():
        offsets[name] = _offset_row(name, {0: offset})
    return ConfigRows(_rows(offsets), version_rows(table), {})


def version_rows(table: Mapping[str, Any]) -> Pairs:
    """Make the version row, one above that of the JSON file. Raises BadTableError."""
    version = _part(table, "dataVersion")
    counter = _whole(version.get("counter", 0), "dataVersion.counter")
    if counter >= LONG_MAX:
        raise BadTableError(f"dataVersion.counter is {counter}, and no broker has a higher one")
    above = {
        "counter": counter + 1,
        "stateVersion": _whole(version.get("stateVersion", 0), "dataVersion.stateVersion"),
        "timestamp": _whole(version.get("timestamp", 0), "dataVersion.timestamp"),
    }
    return {VERSION_KEY: compact(above).encode()}


def topics_table(rows: ConfigRows) -> dict[str, Any]:
    """Make the table of topics.json. Raises BadTableError."""
    return {"dataVersion": _version(rows), "topicConfigTable": _table(rows.default)}


def groups_table(rows: ConfigRows) -> dict[str, Any]:
    """Make the table of subscriptionGroup.json. Raises BadTableError."""
    return {
        "dataVersion": _version(rows),
        "forbiddenTable": _table(rows.forbidden),
        "subscriptionGroupTable": _table(rows.default),
    }


def offsets_table(rows: ConfigRows, *, is_lmq: bool) -> dict[str, Any]:
    """Make the table of consumerOffset.json; is_lmq: of lmqConsumerOffset.json. Raises BadTableError."""
    offsets = offsets_of_rows(rows)
    if not is_lmq:
        return {"dataVersion": _version(rows), "groupTopicMap": _topics_by_group(offsets), "offsetTable": offsets}
    lmq = {name: each[0] for name, each in offsets.items() if is_lmq_group(name) and 0 in each}
    others = {name: each for name, each in offsets.items() if name not in lmq}
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
    """Return the database's version counter; None where it has none. Raises BadTableError."""
    return _version(rows)["counter"] if VERSION_KEY in rows.version else None


def offsets_of_rows(rows: ConfigRows) -> dict[str, dict[int, int]]:
    """Return the offsets by topic@group and queue id. Raises BadTableError."""
    return {name: _by_queue(name, _part(row, "offsetTable")) for name, row in _table(rows.default).items()}


def united(first: ConfigRows, other: ConfigRows, *, are_offsets: bool = False) -> ConfigRows:
    """Put rows together; where both have one, the first counts, and of offsets queue by queue. Raises BadTableError."""
    default = other.default | first.default
    if are_offsets:
        ours, theirs = offsets_of_rows(first), offsets_of_rows(other)
        table = {name: {"offsetTable": theirs.get(name, {}) | ours.get(name, {})} for name in ours | theirs}
        default = _rows(table)
    return ConfigRows(default, first.version or other.version, other.forbidden | first.forbidden)


def _topics_by_group(offsets: Mapping[str, Any]) -> dict[str, list[str]]:
    """A broker writes this beside the offsets, and makes it anew from them."""
    topics = dict[str, list[str]]()
    for name in sorted(offsets):
        topic, _, group = name.rpartition("@")
        topics.setdefault(group, []).append(topic)
    return topics


def _rows(table: Mapping[Any, Any]) -> Pairs:
    rows = {}
    for name, value in table.items():
        if not isinstance(name, str):
            raise BadTableError(f"the number {name} stands where a name has to be")
        try:
            rows[name.encode()] = compact(value).encode()
        except UnicodeEncodeError as error:  # half a character, as JSON can name it
            raise BadTableError(f"{name!r} is no name, or has text that is none: {error}") from error
    return rows


def _table(rows: Pairs) -> dict[str, Any]:
    table = {}
    for key, value in rows.items():
        name = key.decode("utf-8", "replace")
        try:
            table[name] = parse(value.decode())
        except (BadJsonError, UnicodeDecodeError) as error:
            raise BadTableError(f"the row {name!r} holds no JSON: {value[:80]!r}") from error
    return table


def _version(rows: ConfigRows) -> dict[str, int]:
    found = _table(rows.version).get(VERSION_KEY.decode(), {})
    if not isinstance(found, dict):
        raise BadTableError(f"the version row holds {found!r}")
    return {name: _whole(found.get(name, 0), name) for name in ("counter", "stateVersion", "timestamp")}


def _part(table: Mapping[str, Any], name: str, *, needed: bool = True) -> dict[str, Any]:
    found = table.get(name) if isinstance(table, Mapping) else None
    if found is None and not needed:
        return {}
    if not isinstance(found, dict):
        raise BadTableError(f"{name} is missing or no object")
    return found


def _offsets(name: str, offsets: Any) -> dict[int, int]:
    if not isinstance(offsets, dict) or not all(isinstance(key, int) for key in offsets):
        raise BadTableError(f"the offsets of {name!r} are no map from queue ids")
    return {key: _whole(value, f"the offset of {name!r}, queue {key}") for key, value in offsets.items()}


def _offset_row(name: str, offsets: Any) -> dict[str, Any]:
    """Make the row of a group's offsets. Raises BadTableError for an offset that no broker commits."""
    row = _offsets(name, offsets)
    for queue_id, offset in row.items():
        if not 0 <= queue_id <= _QUEUE_ID_MAX or offset < 0:
            raise BadTableError(f"the offset of {name!r}, queue {queue_id}, is {offset}")
    return {"offsetTable": row}


def _by_queue(name: str, offsets: dict[Any, Any]) -> dict[int, int]:
    """Offsets of a row. A broker 5.3.3 puts the queue ids into quotation marks there, and in its files it does not."""
    try:
        return _offsets(name, {int(key): value for key, value in offsets.items()})
    except ValueError as error:
        raise BadTableError(f"the offsets of {name!r} are no map from queue ids") from error


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadTableError(f"{what} is {value!r} instead of a whole number")
    return value
