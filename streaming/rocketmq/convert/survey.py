"""Surveys a store for the rules of udfs/rocketmq/refusals.py. It writes nothing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.errors import SafetyError
from streaming.rocketmq.store.configuration import (
    DATABASES,
    Configuration,
    UnreadOffsets,
    other_database,
    read_databases,
    read_json,
    unread_offsets,
)
from streaming.rocketmq.store.disk import disk_of
from streaming.rocketmq.store.inventory import Inventory, inventory_of
from streaming.rocketmq.store.json_files import offsets_name
from streaming.rocketmq.store.locks import require_own_folders
from streaming.rocketmq.store.owner import wrong_user
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.rollback_plan import unfinished_rollback
from streaming.rocketmq.workspace.staging import is_unopened
from udfs.rocketmq import metadata as m
from udfs.rocketmq.dispatch import is_kept
from udfs.rocketmq.refusals import DiskFacts, StoreFacts

# bytes for each unit: 22 were measured in RocksDB (apache/rocketmq 5.3.3), and the parts exist beside it until the end
BYTES_PER_UNIT = 45
READ_WHILE_RUNNING = " (a broker runs and may have been writing just there: try again)"
_SHOWN = 3  # names in a message
MORE_BYTES = 64 << 20  # the write-ahead log and the smaller databases


class Survey(NamedTuple):
    """The result of a survey."""

    facts: StoreFacts
    inventory: Inventory | None  # None if bad bytes prevent it
    configuration: Configuration | None  # None if bad bytes prevent it


def survey_of(paths: StorePaths, *, is_running: bool) -> Survey:
    """Check everything that could prevent the conversion of this store. is_running: whether its broker runs."""
    bad = list[str]()
    # one by one, so that the operator gets all faults at once
    _attempt(lambda: require_own_folders(paths), bad)
    inventory = _attempt(lambda: inventory_of(paths), bad)
    two = _two_offset_files(paths)
    configuration = None if two else _attempt(lambda: read_json(paths), bad)
    unread = _attempt(lambda: unread_offsets(paths), bad) if configuration else None
    topics = tuple(sorted({queue.range.topic for queue in inventory.queues})) if inventory else ()
    with_rows = _attempt(lambda: tuple(_databases_with_rows(paths)), bad) or ()
    if is_running:
        bad = [f"{text}{READ_WHILE_RUNNING}" for text in bad]
    facts = StoreFacts(
        is_running=is_running,
        has_abort=(paths.store / "abort").exists(),
        unfinished_rollback=unfinished_rollback(paths) if paths.barrier.exists() else "",
        bad_bytes=tuple(bad),
        wrong_size=_wrong_size(paths, inventory) if inventory else "",
        batch_queues=_some_file(paths.store / "batchconsumequeue")
        or _topics_with(configuration, "queue.type", "BatchCQ"),
        ext_queues=_some_file(paths.store / "consumequeue_ext"),
        compaction=_compaction(paths) or _topics_with(configuration, "cleanup.policy", "COMPACTION"),
        config_manager=paths.conf.config_manager,
        has_one_database=paths.conf.has_one_database,
        other_databases=other_database(paths),
        has_rocksdb=exists(paths.rocksdb),
        databases_with_rows=with_rows,
        topics=tuple(sorted({*topics, *_configured(configuration)})),
        two_offset_files=two,
        unread_offsets=_of_unread(unread) if unread else "",
        unknown_topics=_unknown_topics(inventory, configuration),
        lacks_queues=inventory is not None and inventory.has_no_queues,
        has_topics=configuration is None or bool(configuration.files[m.TOPICS]),
        has_messages=bool(topics),
        wrong_user=wrong_user(paths),
        disk=_disk_facts(paths, inventory.units if inventory else 0),
    )
    return Survey(facts, inventory, configuration)


def _two_offset_files(paths: StorePaths) -> str:
    try:
        offsets_name(paths)
    except SafetyError as error:
        return str(error)
    return ""


def _disk_facts(paths: StorePaths, units: int) -> DiskFacts:
    if exists(paths.follow_queues):  # then the rows are on the disk already
        units = 0
    disk = disk_of(paths)
    return DiskFacts(
        is_one_disk=_is_one_disk(paths),
        bytes_needed=units * BYTES_PER_UNIT + MORE_BYTES,
        bytes_kept=units * BYTES_PER_UNIT // 2,
        bytes_free=disk.free,
        bytes_total=disk.total,
        clean_forcibly_percent=paths.conf.clean_forcibly_percent,
    )


def _attempt(read: Callable[[], Any], bad: list[str]) -> Any:
    try:
        return read()
    except SafetyError as error:
        bad.append(str(error))
    except FileNotFoundError as error:
        bad.append(f"{error.filename} was deleted while it was read, perhaps by a broker: try again")
    except PermissionError:
        raise
    except OSError as error:
        bad.append(f"{error.filename}: {error.strerror}")
    return None


def _databases_with_rows(paths: StorePaths) -> Iterator[str]:
    """Yield the databases below config/ with rows that may be newer than the JSON.

    A database that we created, and that no broker has opened, is not newer.
    """
    rows = read_databases(paths.config)
    return (name for name in DATABASES if rows[name].default and not is_unopened(paths, name))


def _wrong_size(paths: StorePaths, inventory: Inventory) -> str:
    """Describe the first file whose size differs from the configuration, or from the first queue file; or ""."""
    configured, files = paths.conf.log_file_bytes, inventory.log.files
    if configured and files and files[0].size != configured:  # all files of a log have the same size
        return f"{files[0].path} has {files[0].size} bytes, and mappedFileSizeCommitLog is {configured}"
    expected, source = paths.conf.queue_file_units, "mappedFileSizeConsumeQueue"
    for file in (file for queue in inventory.queues for file in queue.files.files):
        if not expected:
            expected, source = file.count, file.path
        if file.count != expected:
            return f"{file.path} has room for {file.count} units, and {source} for {expected}"
    return ""


def _some_file(folder: Path) -> str:
    """Return a file with data below a folder; "" if there is none."""
    for root, _folders, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if path.stat().st_size:
                return str(path)
    return ""


def _compaction(paths: StorePaths) -> str:
    folders = (paths.store / "compaction" / name for name in ("compactionLog", "compactionCq"))
    return next(filter(None, map(_some_file, folders)), "")


def _of_unread(unread: UnreadOffsets) -> str:
    shown = ", ".join(unread.names[:_SHOWN]) + (", …" if len(unread.names) > _SHOWN else "")
    return f"{unread.file} has {len(unread.names)} groups' offsets ({shown})"


def _unknown_topics(inventory: Inventory | None, configuration: Configuration | None) -> tuple[bytes, ...]:
    """Return topics with messages that are missing from topics.json: a broker in RocksDB mode deletes their rows."""
    configured = frozenset(_configured(configuration))
    if inventory is None or not configured:
        return ()
    used = {queue.range.topic for queue in inventory.queues if queue.range.end > queue.files.start}
    return tuple(sorted(topic for topic in used if not is_kept(topic, configured)))


def _configured(configuration: Configuration | None) -> Iterator[bytes]:
    """Yield the topics of topics.json, which may have no queue yet."""
    tables = configuration.tables if configuration else {}
    return (name.encode() for name in tables.get(m.TOPICS, {}).get("topicConfigTable", {}))


def _topics_with(configuration: Configuration | None, attribute: str, value: str) -> str:
    """Name a topic with this value of an attribute; "" if there is none."""
    if configuration is None:
        return ""
    for name, topic in configuration.tables[m.TOPICS].get("topicConfigTable", {}).items():
        attributes = topic.get("attributes") if isinstance(topic, dict) else None
        if isinstance(attributes, dict) and str(attributes.get(attribute)).lower() == value.lower():
            return f"topic {name}"
    return ""


def _is_one_disk(paths: StorePaths) -> bool:
    folders = [paths.consumequeue.parent, paths.config, paths.consumequeue, paths.rocksdb]
    return len({folder.stat().st_dev for folder in folders if folder.exists()}) == 1
