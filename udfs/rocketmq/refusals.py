"""The reasons not to convert a store. All that apply are reported together."""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

from udfs.rocketmq.broker_conf import CLEAN_FORCIBLY_PERCENT
from udfs.rocketmq.rows import TOPIC_BYTES_MAX

_SHOWN = 10  # names in a message
_SHOWN_BYTES = 60  # of a name that is too long


class Code(StrEnum):
    """Why a store is refused."""

    RUNNING = "RUNNING"  # a broker holds the lock of the store
    ABORT = (
        "ABORT"  # the file `abort`: a broker runs, or did not stop cleanly, and messages may be missing from its queues
    )
    ROLLBACK = "ROLLBACK"  # a rollback was interrupted, and the file queues may have unequal ends
    BAD_BYTES = "BAD_BYTES"  # a file contains what no healthy store has
    WRONG_SIZE = "WRONG_SIZE"  # a broker does not start with a file whose size differs from its configuration
    BATCH_QUEUES = "BATCH_QUEUES"  # RocksDB has no form for BatchCQ
    EXT_QUEUES = "EXT_QUEUES"  # RocksDB has no form for ConsumeQueueExt
    COMPACTION = "COMPACTION"  # compacted topics have queues of their own; converting them was never tried
    CONFIG_V2 = "CONFIG_V2"  # another form of the configuration's database
    ROCKSDB_THERE = "ROCKSDB_THERE"  # the consume queues' database exists already
    DATABASES_THERE = "DATABASES_THERE"  # the configuration's databases have rows, which may be newer than the JSON
    LONG_TOPIC = "LONG_TOPIC"  # a topic's name does not fit into a key
    TWO_OFFSET_FILES = "TWO_OFFSET_FILES"  # two exist, and it is unknown which of them the broker reads
    UNREAD_OFFSETS = "UNREAD_OFFSETS"  # the broker does not read the only file of offsets
    UNKNOWN_TOPICS = "UNKNOWN_TOPICS"  # the broker would delete the rows of topics that topics.json does not have
    UNINDEXED = "UNINDEXED"  # messages of the log are missing from their queues: RocksDB would have holes
    NO_QUEUES = "NO_QUEUES"  # the log has messages and no queue has any: no broker would ever index them
    NO_TOPICS = "NO_TOPICS"  # without topics, the broker would delete the rows of all queues
    OTHER_DISK = "OTHER_DISK"  # a rename does not move files to another disk
    WRONG_USER = "WRONG_USER"  # the broker could not write the files of this process
    NO_SPACE = "NO_SPACE"
    CROWDED_DISK = "CROWDED_DISK"  # the disk would be so full that a broker deletes messages early


class Refusal(NamedTuple):
    """A reason not to convert a store."""

    code: Code
    text: str  # with what the operator can do


class DiskFacts(NamedTuple):
    """The store's disk, and what an upgrade takes of it."""

    is_one_disk: bool = True  # the folder beside the consume queues is on their disk
    bytes_needed: int = 0  # while the upgrade runs
    bytes_kept: int = 0  # how many of them stay in use afterwards
    bytes_free: int = 0
    bytes_total: int = 0  # 0 if unknown
    clean_forcibly_percent: int = CLEAN_FORCIBLY_PERCENT


class StoreFacts(NamedTuple):
    """The input of the rules. A text is "" if there is nothing to report."""

    is_running: bool = False  # a broker holds the lock
    has_abort: bool = False  # the file `abort` exists
    unfinished_rollback: str = ""  # what to do about it
    bad_bytes: tuple[str, ...] = ()  # a text for each file
    wrong_size: str = ""  # the first such file
    batch_queues: str = ""  # a file or topic
    ext_queues: str = ""  # a file
    compaction: str = ""  # a file or topic
    config_manager: str = ""  # the broker's configManagerVersion
    has_one_database: bool = False  # the broker's useSingleRocksDBForAllConfigs
    other_databases: str = ""  # an unknown database below config/
    has_rocksdb: bool = False  # the consume queues' database exists
    databases_with_rows: tuple[str, ...] = ()  # those below config/ that a broker may have used
    topics: tuple[bytes, ...] = ()  # of queues and of topics.json
    two_offset_files: str = ""  # which files, and how to choose
    unread_offsets: str = ""  # the file, and some of its groups
    unknown_topics: tuple[bytes, ...] = ()  # topics of queues that are missing from topics.json
    unindexed: tuple[str, ...] = ()  # messages that are missing from their queues
    lacks_queues: bool = False  # the log has messages, and no file queue has any
    has_topics: bool = True  # topics.json or its .bak was read, or neither could be checked
    has_messages: bool = True  # some topic has a file queue
    wrong_user: str = ""  # why the broker could not write our files
    disk: DiskFacts = DiskFacts()


# Refusals that the operator may accept: the conversion is correct, and something of the store is lost.
LOSSES = (Code.UNREAD_OFFSETS, Code.UNKNOWN_TOPICS, Code.UNINDEXED)


def refusals_of(facts: StoreFacts, *, replace: bool = False, accept_loss: Collection[Code] = ()) -> list[Refusal]:
    """Return every reason not to convert this store.

    Args:
        facts: the survey of the store.
        replace: an existing consume queues' database may be set aside.
        accept_loss: the losses (LOSSES) that the operator has confirmed. Other codes have no effect.
    """
    return [
        *_of_the_broker(facts),
        *([Refusal(Code.ROLLBACK, facts.unfinished_rollback)] if facts.unfinished_rollback else []),
        *(Refusal(Code.BAD_BYTES, text) for text in facts.bad_bytes),
        *_of_the_forms(facts),
        *_of_the_configuration(facts),
        *_of_existing_data(facts, replace=replace),
        *(
            loss._replace(text=f"{loss.text}, or accept the loss with `backfill --accept-loss {loss.code}`")
            for loss in _of_losses(facts)
            if loss.code not in accept_loss
        ),
        *_of_the_disk(facts),
    ]


def losses_of(facts: StoreFacts, accept_loss: Collection[Code]) -> list[Refusal]:
    """Return the losses of this store that the operator has confirmed."""
    return [loss for loss in _of_losses(facts) if loss.code in accept_loss]


def _of_the_broker(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.is_running:
        yield Refusal(Code.RUNNING, "a broker runs on this store: stop it, or work on a copy")
    elif facts.has_abort:
        yield Refusal(
            Code.ABORT,
            "the file `abort` exists: the broker did not stop cleanly, so messages of the commitlog may be missing "
            "from its queues. Start it once more as it was, wait until it is up, and stop it cleanly (SIGTERM)",
        )


def _of_the_forms(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.wrong_size:
        yield Refusal(Code.WRONG_SIZE, f"{facts.wrong_size}: a broker does not start with such a file")
    if facts.batch_queues:
        yield Refusal(Code.BATCH_QUEUES, f"RocksDB has no form for batch consume queues: {facts.batch_queues}")
    if facts.ext_queues:
        yield Refusal(Code.EXT_QUEUES, f"RocksDB has no form for consume queues with extensions: {facts.ext_queues}")
    if facts.compaction:
        yield Refusal(Code.COMPACTION, f"compacted topics exist, whose upgrade was never tried: {facts.compaction}")
    for topic in (name for name in facts.topics if len(name) > TOPIC_BYTES_MAX):
        shown = topic[:_SHOWN_BYTES].decode("utf-8", "replace")
        fits = f"at most {TOPIC_BYTES_MAX} fit into a key: move its consumers first"
        yield Refusal(Code.LONG_TOPIC, f"topic {shown}… has {len(topic)} bytes, and {fits}")


def _of_the_configuration(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.config_manager.lower() == "v2":
        yield Refusal(Code.CONFIG_V2, "the broker's configManagerVersion is v2, which this program does not write")
    if facts.has_one_database:
        text = "useSingleRocksDBForAllConfigs=true: this program writes three databases, which such a broker ignores"
        yield Refusal(Code.CONFIG_V2, text)
    if facts.other_databases:
        yield Refusal(Code.CONFIG_V2, f"{facts.other_databases} is a database that this program does not know")


def _of_existing_data(facts: StoreFacts, *, replace: bool) -> Iterator[Refusal]:
    if facts.has_rocksdb and not replace:
        yield Refusal(
            Code.ROCKSDB_THERE,
            "the consume queues' RocksDB exists already. If the broker uses it, there is nothing to do. If it is left "
            "from double writing (stage 2), --replace sets it aside",
        )
    if facts.databases_with_rows:
        yield Refusal(
            Code.DATABASES_THERE,
            f"the databases {', '.join(facts.databases_with_rows)} below config/ have rows, and a broker may have "
            "worked with them: run `rollback` first, which writes their offsets into the JSON files",
        )
    if facts.two_offset_files:
        yield Refusal(Code.TWO_OFFSET_FILES, facts.two_offset_files)
    if facts.lacks_queues:
        advice = (
            "but RocksDB exists: let the broker use it. `rollback` creates the file queues from it again"
            if facts.has_rocksdb
            else "so start the broker once more in file mode, wait until it has created its queues, and stop it cleanly"
        )
        yield Refusal(Code.NO_QUEUES, f"the commitlog has messages, and no file queue has any, {advice}")
    if not facts.has_topics and facts.has_messages:
        yield Refusal(
            Code.NO_TOPICS,
            "config/topics.json and its .bak are missing or empty: without topics, a broker in RocksDB mode deletes "
            "the rows of all queues within the hour",
        )


def _of_losses(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.unread_offsets:
        yield Refusal(
            Code.UNREAD_OFFSETS,
            f"{facts.unread_offsets}, which the broker does not read with this enableLmq, and there is no other file "
            f"of offsets: all these groups would start again as new groups. Correct --lmq or the configuration",
        )
    if facts.unknown_topics:
        names = ", ".join(topic[:_SHOWN_BYTES].decode("utf-8", "replace") for topic in facts.unknown_topics[:_SHOWN])
        more = f" and {len(facts.unknown_topics) - _SHOWN} more" if len(facts.unknown_topics) > _SHOWN else ""
        yield Refusal(
            Code.UNKNOWN_TOPICS,
            f"there are consume queues of topics that are missing from topics.json: {names}{more}. A broker in RocksDB "
            "mode deletes their rows within the hour. Create the topics again in file mode",
        )
    for text in facts.unindexed:
        yield Refusal(Code.UNINDEXED, text)


def _of_the_disk(facts: StoreFacts) -> Iterator[Refusal]:
    disk = facts.disk
    if not disk.is_one_disk:
        yield Refusal(Code.OTHER_DISK, "the folder beside the consume queues is on another disk")
    if facts.wrong_user:
        yield Refusal(Code.WRONG_USER, facts.wrong_user)
    if disk.bytes_needed > disk.bytes_free:
        yield Refusal(Code.NO_SPACE, f"{disk.bytes_needed} bytes are needed and {disk.bytes_free} are free")
    percent = used_percent(disk.bytes_total, disk.bytes_free - disk.bytes_kept)
    if percent > disk.clean_forcibly_percent:
        yield Refusal(Code.CROWDED_DISK, crowded_text(percent, disk.clean_forcibly_percent))


def used_percent(total: int, free: int) -> float:
    """Return the used share of a disk, in percent; 0 for a disk of unknown size."""
    return 100 * (total - free) / total if total else 0.0


def crowded_text(percent: float, limit: int) -> str:
    """Explain why a disk with this share in use is too full."""
    return (
        f"the disk would be {percent:.0f} % full, and above {limit} % (diskSpaceCleanForciblyRatio) a broker deletes "
        "messages early: free space first"
    )
