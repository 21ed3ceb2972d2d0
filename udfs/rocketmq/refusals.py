"""When a store is not converted, and why. Reasons to leave it alone are all named at once."""

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
    ABORT = "ABORT"  # the file `abort`: a broker runs, or did not stop cleanly, and its queues may lack messages
    ROLLBACK = "ROLLBACK"  # a rollback was cut short, and the file queues may be of unequal ends
    BAD_BYTES = "BAD_BYTES"  # a file holds what no healthy store has
    WRONG_SIZE = "WRONG_SIZE"  # a broker does not start with a file of another size than its configuration says
    BATCH_QUEUES = "BATCH_QUEUES"  # RocksDB has no form for BatchCQ
    EXT_QUEUES = "EXT_QUEUES"  # RocksDB has no form for ConsumeQueueExt
    COMPACTION = "COMPACTION"  # compacted topics have queues of their own, which nobody has tried to convert
    CONFIG_V2 = "CONFIG_V2"  # another form of the configuration's database
    ROCKSDB_THERE = "ROCKSDB_THERE"  # the consume queues' database is there already
    DATABASES_THERE = "DATABASES_THERE"  # the configuration's databases hold rows: they may be newer than the JSON
    LONG_TOPIC = "LONG_TOPIC"  # a topic's name does not fit into a key
    TWO_OFFSET_FILES = "TWO_OFFSET_FILES"  # and nobody has said which one the broker reads
    UNREAD_OFFSETS = "UNREAD_OFFSETS"  # the only file of offsets is not the one that the broker reads
    UNKNOWN_TOPICS = "UNKNOWN_TOPICS"  # the broker would delete the rows of topics that topics.json does not have
    UNINDEXED = "UNINDEXED"  # the log has messages that their queues do not have: RocksDB would have holes
    NO_QUEUES = "NO_QUEUES"  # the log has messages and no queue has any: nobody would ever index them
    NO_TOPICS = "NO_TOPICS"  # without them the broker would delete the rows of all topics
    OTHER_DISK = "OTHER_DISK"  # a rename does not carry files over
    WRONG_USER = "WRONG_USER"  # the broker could not write what this process makes
    NO_SPACE = "NO_SPACE"
    CROWDED_DISK = "CROWDED_DISK"  # on a disk as full as it would be, a broker deletes messages before their time


class Refusal(NamedTuple):
    """One reason. text says what the operator can do."""

    code: Code
    text: str


class StoreFacts(NamedTuple):
    """What the rules look at. Each text is "" where there is nothing to say.

    bytes_needed: of the disk, until the end. bytes_kept: how many of them stay. bytes_total: the disk, 0 for unknown.
    """

    is_running: bool = False
    has_abort: bool = False
    unfinished_rollback: str = ""
    bad_bytes: tuple[str, ...] = ()
    wrong_size: str = ""
    batch_queues: str = ""
    ext_queues: str = ""
    compaction: str = ""
    config_manager: str = ""
    has_one_database: bool = False
    other_databases: str = ""
    has_rocksdb: bool = False
    databases_with_rows: tuple[str, ...] = ()
    topics: tuple[bytes, ...] = ()
    two_offset_files: str = ""
    unread_offsets: str = ""
    unknown_topics: tuple[bytes, ...] = ()
    unindexed: tuple[str, ...] = ()
    lacks_queues: bool = False
    has_topics: bool = True
    has_messages: bool = True
    is_one_disk: bool = True
    wrong_user: str = ""
    bytes_needed: int = 0
    bytes_kept: int = 0
    bytes_free: int = 0
    bytes_total: int = 0
    clean_forcibly_percent: int = CLEAN_FORCIBLY_PERCENT


# What the operator may accept: the conversion is right, and something of the store is lost by it.
LOSSES = (Code.UNREAD_OFFSETS, Code.UNKNOWN_TOPICS, Code.UNINDEXED)


def refusals_of(facts: StoreFacts, *, replace: bool = False, accept_loss: Collection[Code] = ()) -> list[Refusal]:
    """Return every reason not to convert this store.

    Args:
        facts: what was found in the store.
        replace: a consume queues' database that is there may go.
        accept_loss: the losses (LOSSES) that the operator has confirmed. No other code counts.
    """
    return [
        *_of_the_broker(facts),
        *([Refusal(Code.ROLLBACK, facts.unfinished_rollback)] if facts.unfinished_rollback else []),
        *(Refusal(Code.BAD_BYTES, text) for text in facts.bad_bytes),
        *_of_the_forms(facts),
        *_of_the_configuration(facts),
        *_of_what_is_there(facts, replace=replace),
        *(
            each._replace(text=f"{each.text}, or accept the loss with `backfill --accept-loss {each.code}`")
            for each in _of_losses(facts)
            if each.code not in accept_loss
        ),
        *_of_the_disk(facts),
    ]


def losses_of(facts: StoreFacts, accept_loss: Collection[Code]) -> list[Refusal]:
    """Return what this store loses by its conversion and the operator has confirmed."""
    return [each for each in _of_losses(facts) if each.code in accept_loss]


def _of_the_broker(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.is_running:
        yield Refusal(Code.RUNNING, "a broker runs on this store: stop it, or work on a copy")
    elif facts.has_abort:
        yield Refusal(
            Code.ABORT,
            "the file `abort` is there: the broker did not stop cleanly, so its queues may lack messages that the "
            "commitlog has. Start it once more as it was, wait until it is up, and stop it cleanly (SIGTERM)",
        )


def _of_the_forms(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.wrong_size:
        yield Refusal(Code.WRONG_SIZE, f"{facts.wrong_size}: a broker does not start with such a file")
    if facts.batch_queues:
        yield Refusal(Code.BATCH_QUEUES, f"RocksDB has no form for batch consume queues: {facts.batch_queues}")
    if facts.ext_queues:
        yield Refusal(Code.EXT_QUEUES, f"RocksDB has no form for consume queues with extensions: {facts.ext_queues}")
    if facts.compaction:
        yield Refusal(
            Code.COMPACTION, f"there are compacted topics, whose upgrade nobody has tried: {facts.compaction}"
        )
    for topic in (each for each in facts.topics if len(each) > TOPIC_BYTES_MAX):
        shown = topic[:_SHOWN_BYTES].decode("utf-8", "replace")
        text = (
            f"topic {shown}… has {len(topic)} bytes, and a key has room for {TOPIC_BYTES_MAX}: move its consumers first"
        )
        yield Refusal(Code.LONG_TOPIC, text)


def _of_the_configuration(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.config_manager.lower() == "v2":
        yield Refusal(Code.CONFIG_V2, "the broker's configManagerVersion is v2, which this program does not write")
    if facts.has_one_database:
        text = "useSingleRocksDBForAllConfigs=true: this program makes three databases, which such a broker looks past"
        yield Refusal(Code.CONFIG_V2, text)
    if facts.other_databases:
        yield Refusal(Code.CONFIG_V2, f"a database that this program does not know lies in {facts.other_databases}")


def _of_what_is_there(facts: StoreFacts, *, replace: bool) -> Iterator[Refusal]:
    if facts.has_rocksdb and not replace:
        yield Refusal(
            Code.ROCKSDB_THERE,
            "the consume queues' RocksDB is there already. If the broker runs with it, there is nothing to do. If it "
            "is left from double writing (stage 2), --replace sets it aside",
        )
    if facts.databases_with_rows:
        yield Refusal(
            Code.DATABASES_THERE,
            f"the databases {', '.join(facts.databases_with_rows)} below config/ hold rows, and a broker may have "
            "worked with them: `rollback` first brings their offsets back into the JSON files",
        )
    if facts.two_offset_files:
        yield Refusal(Code.TWO_OFFSET_FILES, facts.two_offset_files)
    if facts.lacks_queues:
        what_to_do = (
            "but RocksDB is there: let the broker run with it. `rollback` makes the file queues of it again"
            if facts.has_rocksdb
            else "so start the broker once more in file mode, wait until it has made its queues, and stop it cleanly"
        )
        yield Refusal(Code.NO_QUEUES, f"the commitlog has messages, and no file queue has any, {what_to_do}")
    if not facts.has_topics and facts.has_messages:
        yield Refusal(
            Code.NO_TOPICS,
            "config/topics.json and its .bak are missing or empty: without topics a RocksDB broker deletes the rows of "
            "all queues within the hour",
        )


def _of_losses(facts: StoreFacts) -> Iterator[Refusal]:
    if facts.unread_offsets:
        yield Refusal(
            Code.UNREAD_OFFSETS,
            f"{facts.unread_offsets}, which the broker does not read with this enableLmq, and there is no other file "
            f"of offsets: all these groups would start again as new ones. Correct --lmq or the configuration",
        )
    if facts.unknown_topics:
        names = ", ".join(each[:_SHOWN_BYTES].decode("utf-8", "replace") for each in facts.unknown_topics[:_SHOWN])
        more = f" and {len(facts.unknown_topics) - _SHOWN} more" if len(facts.unknown_topics) > _SHOWN else ""
        yield Refusal(
            Code.UNKNOWN_TOPICS,
            f"there are consume queues of topics that topics.json does not have: {names}{more}. A broker in RocksDB "
            "mode deletes their rows within the hour. Create the topics again in file mode",
        )
    for text in facts.unindexed:
        yield Refusal(Code.UNINDEXED, text)


def _of_the_disk(facts: StoreFacts) -> Iterator[Refusal]:
    if not facts.is_one_disk:
        yield Refusal(Code.OTHER_DISK, "the folder beside the consume queues is on another disk than they are")
    if facts.wrong_user:
        yield Refusal(Code.WRONG_USER, facts.wrong_user)
    if facts.bytes_needed > facts.bytes_free:
        yield Refusal(Code.NO_SPACE, f"{facts.bytes_needed} bytes are needed and {facts.bytes_free} are free")
    percent = used_percent(facts.bytes_total, facts.bytes_free - facts.bytes_kept)
    if percent > facts.clean_forcibly_percent:
        yield Refusal(Code.CROWDED_DISK, crowded_text(percent, facts.clean_forcibly_percent))


def used_percent(total: int, free: int) -> float:
    """How much of a disk is used, in percent; 0 for a disk of unknown size."""
    return 100 * (total - free) / total if total else 0.0


def crowded_text(percent: float, limit: int) -> str:
    """Why a disk that is used to so many percent is too full."""
    return (
        f"the disk would be used to {percent:.0f} %, and on one that is used to more than {limit} % "
        "(diskSpaceCleanForciblyRatio) a broker deletes messages before their time: make room first"
    )
