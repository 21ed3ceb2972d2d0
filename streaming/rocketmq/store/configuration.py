"""Reads a store's topics, groups and offsets from its JSON files or its three databases, and writes either form."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, exists, opened
from streaming.errors import SafetyError
from streaming.rocketmq.store.json_files import json_table, offsets_name
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq import metadata as m

DATABASES = (m.TOPICS, m.GROUPS, m.OFFSETS)
Table = dict[str, Any]
_NO_TABLE = {"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}}
_EMPTY: dict[str, Table] = {
    m.TOPICS: {**_NO_TABLE, "topicConfigTable": {}},
    m.GROUPS: {**_NO_TABLE, "subscriptionGroupTable": {}},
    m.OFFSETS: {**_NO_TABLE, "offsetTable": {}},
}


class Configuration(NamedTuple):
    """The JSON tables of a store."""

    tables: Mapping[str, Table]  # by the name of the database
    files: Mapping[str, str]  # the file of each table; "" without one


def read_json(paths: StorePaths) -> Configuration:
    """Read the JSON files as the broker would. Raises SafetyError, which names the file, for a damaged file."""
    tables, files = dict[str, Table](), dict[str, str]()
    for database, name in ((m.TOPICS, m.TOPICS_JSON), (m.GROUPS, m.GROUPS_JSON), (m.OFFSETS, offsets_name(paths))):
        tables[database], files[database] = json_table(paths.config, name) or (_EMPTY[database], "")
        try:
            rows_of(database, tables[database])
        except m.BadTableError as error:
            raise SafetyError(f"{paths.config / files[database]}: {error}") from error
    return Configuration(tables, files)


class UnreadOffsets(NamedTuple):
    """A file of offsets that the broker does not read, while the file that it reads is missing."""

    file: str
    names: tuple[str, ...]  # topic@group


def unread_offsets(paths: StorePaths) -> UnreadOffsets | None:
    """Return the offsets that no broker would read with this enableLmq; None if there are none.

    Raises SafetyError as `json_table` does, and for a file that contains another table.
    """
    read = offsets_name(paths)
    (other,) = {m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON} - {read}
    unread = json_table(paths.config, other) if json_table(paths.config, read) is None else None
    if unread is None:
        return None
    try:
        names = tuple(sorted(key.decode() for key in rows_of(m.OFFSETS, unread[0]).default))
    except m.BadTableError as error:
        raise SafetyError(f"{paths.config / unread[1]}: {error}") from error
    return UnreadOffsets(unread[1], names) if names else None


def rows_of(database: str, table: Table) -> m.ConfigRows:
    """Convert a table into rows. Raises udfs.rocketmq.metadata.BadTableError."""
    convert = {m.TOPICS: m.topic_rows, m.GROUPS: m.group_rows, m.OFFSETS: m.offset_rows}[database]
    return convert(table)


def table_of(database: str, rows: m.ConfigRows, *, is_lmq: bool) -> Table:
    """Convert rows into the table of a JSON file. Raises udfs.rocketmq.metadata.BadTableError."""
    if database == m.OFFSETS:
        return m.offsets_table(rows, is_lmq=is_lmq)
    return m.topics_table(rows) if database == m.TOPICS else m.groups_table(rows)


def write_databases(configuration: Configuration, folder: Path) -> None:
    """Create the three databases in a folder."""
    for database in DATABASES:
        rows = rows_of(database, configuration.tables[database])
        with opened(folder / database, (m.VERSION_FAMILY, m.FORBIDDEN_FAMILY)) as target:
            target.put_all(DEFAULT_FAMILY, rows.default.items())
            target.put_all(m.VERSION_FAMILY, rows.version.items())
            target.put_all(m.FORBIDDEN_FAMILY, rows.forbidden.items())
            target.flush()


def other_database(paths: StorePaths) -> str:
    """Return the folder of a database below config/ other than the three; "" if there is none."""
    # with configManagerVersion=v2 or useSingleRocksDBForAllConfigs=true, a broker keeps topics, groups and offsets
    # there, and reads the three at its first start only, or not at all
    folders = (entry for entry in os.scandir(paths.config) if entry.is_dir() and entry.name not in DATABASES)
    return next((entry.path for entry in folders if exists(Path(entry.path))), "")


def read_databases(folder: Path) -> dict[str, m.ConfigRows]:
    """Read the three databases of a folder; a missing one has no rows."""
    return {database: _read(folder / database) for database in DATABASES}


def _read(folder: Path) -> m.ConfigRows:
    if not exists(folder):
        return m.ConfigRows({}, {}, {})
    with opened(folder, read_only=True) as database:
        return m.ConfigRows(*(
            dict(database.rows(family)) if database.has(family) else {}
            for family in (DEFAULT_FAMILY, m.VERSION_FAMILY, m.FORBIDDEN_FAMILY)
        ))  # fmt: skip


class LostOffsets(NamedTuple):
    """Offsets of groups in the JSON file that are missing in RocksDB, or lower there, as texts."""

    missing: tuple[str, ...]
    lower: tuple[str, ...]


def lost_offsets(configuration: Configuration, databases: Mapping[str, m.ConfigRows]) -> LostOffsets:
    """Compare the offsets; those of topics and groups that were deleted in RocksDB mode do not count as lost.

    Raises SafetyError for a damaged row.
    """
    try:
        files = m.offsets_of_rows(rows_of(m.OFFSETS, configuration.tables[m.OFFSETS]))
        in_rocksdb = m.offsets_of_rows(databases[m.OFFSETS])
    except m.BadTableError as error:
        raise SafetyError(f"the offsets can't be read: {error}") from error
    deleted = {
        database: rows_of(database, configuration.tables[database]).default.keys() - databases[database].default.keys()
        for database in (m.TOPICS, m.GROUPS)
    }
    # a broker that was switched to RocksDB without a backfill loses offsets in this way
    missing, lower = list[str](), list[str]()
    for name, offsets in sorted(files.items()):
        topic, _, group = name.rpartition("@")
        if topic.encode() in deleted[m.TOPICS] or group.encode() in deleted[m.GROUPS]:
            continue
        for queue_id, offset in sorted(offsets.items()):
            current = in_rocksdb.get(name, {}).get(queue_id)
            if current is None:
                missing.append(f"{name}, queue {queue_id}")
            elif current < offset:
                lower.append(f"{name}, queue {queue_id}: {current} instead of {offset}")
    return LostOffsets(tuple(missing), tuple(lower))


def topics_of(paths: StorePaths) -> frozenset[bytes]:
    """Return the topics in the database or the JSON file. A topic in only one of them does not count as deleted."""
    table = rows_of(m.TOPICS, read_json(paths).tables[m.TOPICS])
    return frozenset(read_databases(paths.config)[m.TOPICS].default.keys() | table.default.keys())
