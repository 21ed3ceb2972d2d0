"""Writes topics, groups and offsets of RocksDB as the JSON files that a broker in file mode reads.

RocketMQ's own tools for a stopped broker are not enough: `rocksDBConfigToJson -p` does not work in 5.3.3, and
`exportMetadataInRocksDB` exports no offsets, no forbidden groups and no versions.
"""

from pathlib import Path
from typing import NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.errors import SafetyError
from streaming.rocketmq.failures import refused
from streaming.rocketmq.store.configuration import (
    DATABASES,
    Configuration,
    other_database,
    read_databases,
    rows_of,
    table_of,
)
from streaming.rocketmq.store.json_files import JSON_FILES, is_name_evident, offsets_name, read_bounded
from streaming.rocketmq.store.locks import is_broker_running
from streaming.rocketmq.store.owner import require_owner
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.rollback_plan import unfinished_rollback
from streaming.state.durable import durable_write
from udfs.rocketmq import metadata as m
from udfs.rocketmq.json_text import has_lines, pretty
from udfs.rocketmq.refusals import Code


class Exported(NamedTuple):
    """The result of an export."""

    out: Path
    files: dict[str, int]  # name -> number of topics, groups or offsets
    only_in_files: dict[
        str, list[str]
    ]  # name -> topics or groups that are in no database, perhaps because a broker deleted them


def export(paths: StorePaths, out: Path) -> Exported:
    """Write the JSON files into a folder that has none of them.

    Raises SafetyError if a broker runs or was killed, during an unfinished rollback, if there is no database or an
    unknown one, and if a file would be replaced.
    """
    if is_broker_running(paths):
        text = f"a broker runs on {paths.store}: stop it, so that its last offsets reach the database"
        raise refused(Code.RUNNING, text)
    require_clean_stop(paths)
    if paths.barrier.exists():
        raise SafetyError(f"some databases may be gone already: {unfinished_rollback(paths)}")
    if out.resolve() == paths.config.resolve():
        raise SafetyError(f"{out} belongs to the broker: `rollback` writes there, and keeps the files that it replaces")
    taken = [name for name in JSON_FILES if (out / name).exists()]
    if taken:
        raise SafetyError(f"{out} already has {', '.join(taken)}, perhaps of another broker: name another folder")
    if out.parent == paths.own:
        require_owner(paths)
    databases = [name for name in DATABASES if exists(paths.config / name)]
    if not databases:
        raise SafetyError(f"there are no databases below {paths.config}, only the JSON files")
    other = other_database(paths)
    if other:
        raise SafetyError(
            f"{other} is a database that this program does not know, and a broker may have its last topics, groups and "
            "offsets there"
        )
    return write_json(paths, out, databases)


def require_clean_stop(paths: StorePaths) -> None:
    """Raise SafetyError if the broker was killed: its last offsets may be missing from RocksDB."""
    if (paths.store / "abort").exists():
        raise refused(
            Code.ABORT,
            f"{paths.store}/abort exists: the broker was killed, and its last writes may be missing from RocksDB. "
            "Start the broker once more as it was, stop it with SIGTERM, and run this command again",
        )


def write_json(paths: StorePaths, out: Path, databases: list[str], more: Configuration | None = None) -> Exported:
    """Write the JSON files of some databases into a folder. Raises SafetyError for a damaged row.

    more: JSON files; their entries that are missing in the databases are added.
    """
    offsets = offsets_name(paths)
    if m.OFFSETS in databases and paths.conf.is_lmq is None and not is_name_evident(paths):
        raise SafetyError(
            f"{paths.config} has neither {m.OFFSETS_JSON} nor {m.LMQ_OFFSETS_JSON}, so it is unknown which of them "
            "the broker reads: name its configuration with --broker-conf, or use --lmq (enableLmq=true) or --no-lmq"
        )
    # a broker with enableLmq=true reads its offsets from another file, which RocketMQ's own tools don't write
    names = {m.TOPICS: m.TOPICS_JSON, m.GROUPS: m.GROUPS_JSON, m.OFFSETS: offsets}
    rows = read_databases(paths.config)
    in_lines = any(has_lines(read_bounded(path)) for path in _written(paths, offsets))
    out.mkdir(parents=True, exist_ok=True)
    files, only_in_files = dict[str, int](), dict[str, list[str]]()
    for database in databases:
        try:
            if more:
                file_rows = rows_of(database, more.tables[database])
                missing = file_rows.default.keys() - rows[database].default
                added = sorted(key.decode("utf-8", "replace") for key in missing)
                if added and database != m.OFFSETS:
                    only_in_files[names[database]] = added
                rows[database] = m.united(rows[database], file_rows, are_offsets=database == m.OFFSETS)
            table = table_of(database, rows[database], is_lmq=offsets == m.LMQ_OFFSETS_JSON)
        except m.BadTableError as error:
            raise SafetyError(f"{paths.config / database}: {error}") from error
        durable_write(out / names[database], pretty(table, in_lines=in_lines))
        files[names[database]] = len(rows[database].default)
    return Exported(out, files, only_in_files)


def _written(paths: StorePaths, offsets: str) -> list[Path]:
    """Return the broker's files that show how it writes integer keys.

    A broker writes the delay offsets as a file in RocksDB mode, too.
    """
    names = (m.DELAY_OFFSETS_JSON, offsets)
    candidates = (paths.config / f"{name}{suffix}" for name in names for suffix in ("", ".bak"))
    return [path for path in candidates if path.is_file()]
