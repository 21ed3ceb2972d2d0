"""Stores that grow while they are followed, in this process and without a JVM."""

import shutil
from pathlib import Path

from streaming.adapters.rocksdb.database import Database, opened
from streaming.rocketmq.convert.index_database import IndexDatabase, OvertakenError, rules_of
from streaming.rocketmq.convert.ranges import RangeJob
from streaming.rocketmq.follow.base import Base
from streaming.rocketmq.follow.tail import Tail, TruncatedError
from streaming.rocketmq.store.log_files import commitlog_being_written
from streaming.rocketmq.workspace.handover import give_back
from tests.rocketmq_store import Message, Store
from tests.unit.rocketmq.converted import CLOCK, context, nothing, paths
from udfs.rocketmq import rows


def written(store: Store, *, expired_files: int = 0) -> Store:
    """Write the store as it is by now, over what was there."""
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(store.root / name, ignore_errors=True)
    return store.write(expired_files=expired_files)


def follow(root: Path, *, range_bytes: int = 700) -> int:
    """One run of `follow` to the end of what is whole; returns how many units were new."""
    where = paths(root)
    give_back(where)
    Base(where, CLOCK, nothing, 7).make(context())
    with opened(where.follow_queues, (rows.OFFSET_FAMILY,), compressed=True) as database:
        return follow_with(root, database, range_bytes)


def follow_with(root: Path, database: Database, range_bytes: int) -> int:
    where = paths(root)
    followed = IndexDatabase(database, rules_of(where))
    position = followed.resume(commitlog_being_written(where.commitlog))
    tail, new = Tail(where.commitlog, position, range_bytes=range_bytes), 0
    while (news := tail.read()).ranges:
        new += followed.add(RangeJob(rules_of(where)).run(context(), news.ranges))
    return new


def follow_on(root: Path) -> int:
    """As the command does it: begin anew where the log has nothing more of what was indexed."""
    try:
        return follow(root)
    except (OvertakenError, TruncatedError):
        shutil.rmtree(paths(root).follow)
        return follow(root)


def grown(store: Store, count: int, topic: str = "Grown") -> Store:
    for number in range(count):
        store.put(Message(topic, number % 2, tag="t"))
    return store
