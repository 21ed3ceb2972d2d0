"""Writes topics, groups and offsets of RocksDB as the JSON files that a broker in file mode reads.

Both of RocketMQ's own tools leave something out: the local one does not work in 5.3.3, the other one has no offsets, no
forbidden groups and no versions, and neither knows that a broker with enableLmq=true reads another file.
"""

from pathlib import Path
from typing import NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.errors import SafetyError
from streaming.rocketmq.configuration import DATABASES, Configuration, other_database, read_databases, rows_of, table_of
from streaming.rocketmq.failures import refused
from streaming.rocketmq.inventory import JSON_FILES, is_name_told, offsets_name, read_bounded
from streaming.rocketmq.locks import is_broker_running
from streaming.rocketmq.owner import require_owner
from streaming.rocketmq.place import Place
from streaming.rocketmq.staging import unfinished_rollback, write_text
from udfs.rocketmq import metadata as m
from udfs.rocketmq.json_text import has_lines, pretty
from udfs.rocketmq.refusals import Code


class Exported(NamedTuple):
    """files: name -> how many topics, groups or offsets it has.

    only_in_files: name -> topics or groups that no database has, so that they may have been deleted there.
    """

    out: Path
    files: dict[str, int]
    only_in_files: dict[str, list[str]]


def export(place: Place, out: Path) -> Exported:
    """Write the JSON files into a folder that has none.

    Raises SafetyError beside a running broker, after one that was killed, within a rollback that has not ended, where
    no database is or one that this program does not know, and where a file is in the way.
    """
    if is_broker_running(place):
        text = f"a broker runs on {place.store}: stop it, so that its last offsets are in the database"
        raise refused(Code.RUNNING, text)
    require_clean_stop(place)
    if place.barrier.exists():
        raise SafetyError(f"some databases may have left already: {unfinished_rollback(place)}")
    if out.resolve() == place.config.resolve():
        raise SafetyError(f"{out} is the broker's own: `rollback` writes there, and keeps what it replaces")
    taken = [name for name in JSON_FILES if (out / name).exists()]
    if taken:
        raise SafetyError(f"{out} has {', '.join(taken)} already, of another broker perhaps: name another folder")
    if out.parent == place.own:
        require_owner(place)
    there = [name for name in DATABASES if exists(place.config / name)]
    if not there:
        raise SafetyError(f"there are no databases below {place.config}: the JSON files are all there is")
    other = other_database(place)
    if other:
        raise SafetyError(
            f"{other} is a database that this program does not know, and a broker may have its last topics, groups and "
            "offsets there"
        )
    return write_json(place, out, there)


def require_clean_stop(place: Place) -> None:
    """Raise SafetyError after a broker that was killed: RocksDB may lack the offsets that it had last."""
    if (place.store / "abort").exists():
        raise refused(
            Code.ABORT,
            f"{place.store}/abort is there: the broker was killed, and RocksDB may lack what it wrote last. Start the "
            "broker once more as it was, stop it with SIGTERM, and run this command again",
        )


def write_json(place: Place, out: Path, databases: list[str], more: Configuration | None = None) -> Exported:
    """Write the JSON files of some databases into a folder. Raises SafetyError for a damaged row.

    more: JSON files whose entries are taken where the databases have none.
    """
    offsets = offsets_name(place)
    if m.OFFSETS in databases and place.conf.is_lmq is None and not is_name_told(place):
        raise SafetyError(
            f"{place.config} has no file of offsets, so nothing says which one the broker reads: name its "
            "configuration with --broker-conf, or say --lmq (enableLmq=true) or --no-lmq"
        )
    names = {m.TOPICS: m.TOPICS_JSON, m.GROUPS: m.GROUPS_JSON, m.OFFSETS: offsets}
    rows = read_databases(place.config)
    in_lines = any(has_lines(read_bounded(path)) for path in _written(place, offsets))
    out.mkdir(parents=True, exist_ok=True)
    files, only_in_files = dict[str, int](), dict[str, list[str]]()
    for database in databases:
        try:
            if more:
                said = rows_of(database, more.tables[database])
                added = sorted(key.decode("utf-8", "replace") for key in said.default.keys() - rows[database].default)
                if added and database != m.OFFSETS:
                    only_in_files[names[database]] = added
                rows[database] = m.united(rows[database], said, are_offsets=database == m.OFFSETS)
            table = table_of(database, rows[database], is_lmq=offsets == m.LMQ_OFFSETS_JSON)
        except m.BadTableError as error:
            raise SafetyError(f"{place.config / database}: {error}") from error
        write_text(out / names[database], pretty(table, in_lines=in_lines))
        files[names[database]] = len(rows[database].default)
    return Exported(out, files, only_in_files)


def _written(place: Place, offsets: str) -> list[Path]:
    """The broker's own files that show how it writes integer keys; delayed messages have theirs in both modes."""
    names = (m.DELAY_OFFSETS_JSON, offsets)
    paths = (place.config / f"{name}{suffix}" for name in names for suffix in ("", ".bak"))
    return [path for path in paths if path.is_file()]
