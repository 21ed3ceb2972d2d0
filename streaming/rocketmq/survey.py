"""Looks at a store for the rules of udfs/rocketmq/refusals.py. Nothing is written."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.errors import SafetyError
from streaming.rocketmq.configuration import (
    DATABASES,
    Configuration,
    UnreadOffsets,
    other_database,
    read_databases,
    read_json,
    unread_offsets,
)
from streaming.rocketmq.disk import disk_of
from streaming.rocketmq.inventory import Inventory, inventory_of, offsets_name
from streaming.rocketmq.locks import require_own_folders
from streaming.rocketmq.owner import wrong_user
from streaming.rocketmq.place import Place
from streaming.rocketmq.staging import is_unopened, unfinished_rollback
from udfs.rocketmq import metadata as m
from udfs.rocketmq.dispatch import is_kept
from udfs.rocketmq.refusals import StoreFacts

# bytes for each unit: 22 were seen in RocksDB (apache/rocketmq 5.3.3), and the parts lie beside it until the end
BYTES_PER_UNIT = 45
LOOK_AGAIN = " (a broker runs and may have been writing just there: look again)"
_SHOWN = 3  # names in a message
MORE_BYTES = 64 << 20  # the write-ahead log and the smaller databases


class Survey(NamedTuple):
    """inventory and configuration: None where bad bytes stand in the way."""

    facts: StoreFacts
    inventory: Inventory | None
    configuration: Configuration | None

    @property
    def bytes_needed(self) -> int:
        """What the upgrade takes on the disk."""
        return self.facts.bytes_needed


def survey_of(place: Place, *, is_running: bool) -> Survey:
    """Look at everything that could speak against converting this store; is_running: its broker."""
    bad = list[str]()
    _tried(lambda: require_own_folders(place), bad)
    inventory = _tried(lambda: inventory_of(place), bad)
    two = ""
    try:
        offsets_name(place)
    except SafetyError as error:
        two = str(error)
    configuration = None if two else _tried(lambda: read_json(place), bad)
    unread = _tried(lambda: unread_offsets(place), bad) if configuration else None
    topics = tuple(sorted({queue.range.topic for queue in inventory.queues})) if inventory else ()
    with_rows = _tried(lambda: tuple(_databases_with_rows(place)), bad) or ()
    if is_running:
        bad = [f"{text}{LOOK_AGAIN}" for text in bad]
    is_followed = exists(place.followed_queues)  # then the rows lie on the disk already
    units = inventory.units if inventory and not is_followed else 0
    disk = disk_of(place)
    facts = StoreFacts(
        is_running=is_running,
        has_abort=(place.store / "abort").exists(),
        unfinished_rollback=unfinished_rollback(place) if place.barrier.exists() else "",
        bad_bytes=tuple(bad),
        wrong_size=_wrong_size(place, inventory) if inventory else "",
        batch_queues=_some_file(place.store / "batchconsumequeue")
        or _topics_with(configuration, "queue.type", "BatchCQ"),
        ext_queues=_some_file(place.store / "consumequeue_ext"),
        compaction=_compaction(place) or _topics_with(configuration, "cleanup.policy", "COMPACTION"),
        config_manager=place.conf.config_manager,
        has_one_database=place.conf.has_one_database,
        other_databases=other_database(place),
        has_rocksdb=exists(place.rocksdb),
        databases_with_rows=with_rows,
        topics=tuple(sorted({*topics, *_configured(configuration)})),
        two_offset_files=two,
        unread_offsets=_of_unread(unread) if unread else "",
        unknown_topics=_unknown_topics(inventory, configuration),
        lacks_queues=inventory is not None and inventory.lacks_queues,
        has_topics=configuration is None or bool(configuration.files[m.TOPICS]),
        has_messages=bool(topics),
        is_one_disk=_is_one_disk(place),
        wrong_user=wrong_user(place),
        bytes_needed=units * BYTES_PER_UNIT + MORE_BYTES,
        bytes_kept=units * BYTES_PER_UNIT // 2,
        bytes_free=disk.free,
        bytes_total=disk.total,
        clean_forcibly_percent=place.conf.clean_forcibly_percent,
    )
    return Survey(facts, inventory, configuration)


def _tried(look: Callable[[], Any], bad: list[str]) -> Any:
    try:
        return look()
    except SafetyError as error:
        bad.append(str(error))
    except FileNotFoundError as error:
        bad.append(f"{error.filename} was deleted while it was looked at, by a broker perhaps: look again")
    except PermissionError:
        raise
    except OSError as error:
        bad.append(f"{error.filename}: {error.strerror}")
    return None


def _databases_with_rows(place: Place) -> Iterator[str]:
    """Databases below config/ with rows that may be newer than the JSON: not those of ours that no broker opened."""
    rows = read_databases(place.config)
    return (name for name in DATABASES if rows[name].default and not is_unopened(place, name))


def _wrong_size(place: Place, inventory: Inventory) -> str:
    """The first file of another size than the broker's configuration says, or the first queue file; "" if none is."""
    said, files = place.conf.log_file_bytes, inventory.log.files
    if said and files and files[0].size != said:  # all files of a log have one size
        return f"{files[0].path} has {files[0].size} bytes, and mappedFileSizeCommitLog is {said}"
    wanted, by = place.conf.queue_file_units, "mappedFileSizeConsumeQueue"
    for file in (each for queue in inventory.queues for each in queue.files.files):
        if not wanted:
            wanted, by = file.count, file.path
        if file.count != wanted:
            return f"{file.path} has room for {file.count} units, and {by} for {wanted}"
    return ""


def _some_file(folder: Path) -> str:
    """A file with data below a folder; "" if there is none."""
    for root, _folders, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if path.stat().st_size:
                return str(path)
    return ""


def _compaction(place: Place) -> str:
    folders = (place.store / "compaction" / name for name in ("compactionLog", "compactionCq"))
    return next(filter(None, map(_some_file, folders)), "")


def _of_unread(unread: UnreadOffsets) -> str:
    shown = ", ".join(unread.names[:_SHOWN]) + (", …" if len(unread.names) > _SHOWN else "")
    return f"{unread.file} has {len(unread.names)} groups' offsets ({shown})"


def _unknown_topics(inventory: Inventory | None, configuration: Configuration | None) -> tuple[bytes, ...]:
    """Topics with messages that topics.json does not have, and whose rows a broker in RocksDB mode deletes."""
    known = frozenset(_configured(configuration))
    if inventory is None or not known:
        return ()
    named = {each.range.topic for each in inventory.queues if each.range.end > each.files.start}
    return tuple(sorted(name for name in named if not is_kept(name, known)))


def _configured(configuration: Configuration | None) -> Iterator[bytes]:
    """Names of the topics in topics.json, which may have no queue yet."""
    tables = configuration.tables if configuration else {}
    return (name.encode() for name in tables.get(m.TOPICS, {}).get("topicConfigTable", {}))


def _topics_with(configuration: Configuration | None, attribute: str, value: str) -> str:
    """A topic whose attributes say so; "" if there is none."""
    if configuration is None:
        return ""
    for name, topic in configuration.tables[m.TOPICS].get("topicConfigTable", {}).items():
        attributes = topic.get("attributes") if isinstance(topic, dict) else None
        if isinstance(attributes, dict) and str(attributes.get(attribute)).lower() == value.lower():
            return f"topic {name}"
    return ""


def _is_one_disk(place: Place) -> bool:
    folders = [place.consumequeue.parent, place.config, place.consumequeue, place.rocksdb]
    return len({folder.stat().st_dev for folder in folders if folder.exists()}) == 1
