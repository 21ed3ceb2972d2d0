"""`ledger-reaper`, killed by kill -9 at one of its effects: `python -m tests.integration.rocket_dying EFFECT …`."""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

_FOLLOW, _CONVERT = "streaming.rocketmq.follow", "streaming.rocketmq.convert"
_DATABASE = "streaming.adapters.rocksdb.database:Database"


class Effect(NamedTuple):
    """The call of a function of the driver at which the process dies."""

    where: str  # module and name
    is_done: bool  # the process dies after the call, not before
    call: int = 1  # the number of the call


# `follow` before its database beside the broker exists, in the order of its work
FIRST = {
    "queues read": Effect(f"{_FOLLOW}.base:snapshot_of", is_done=True),
    "files written": Effect(f"{_CONVERT}.job:Job.run", is_done=True),
    "files added": Effect(f"{_DATABASE}.take_in", is_done=True),
    "bounds written": Effect(f"{_DATABASE}.put_all", is_done=True),
    "joined": Effect(f"{_FOLLOW}.base:join", is_done=True),
    "in its place": Effect(f"{_FOLLOW}.base:flush", is_done=False),
}
# with a database
LATER = {
    "resumed": Effect(f"{_CONVERT}.index_database:IndexDatabase.resume", is_done=True),
    "query started": Effect(f"{_FOLLOW}.run:_Stream._started", is_done=True),
    "note half written": Effect(f"{_FOLLOW}.run:os.utime", is_done=False),
    "note written": Effect(f"{_FOLLOW}.run:_Stream._write_note", is_done=True),
    "log read": Effect(f"{_CONVERT}.ranges:RangeJob.run", is_done=True),
    "before a batch": Effect(f"{_DATABASE}.put_atomically", is_done=False),
    "batch written and not durable": Effect("rocksdb:flush_wal", is_done=False),
    "after a batch": Effect(f"{_DATABASE}.put_atomically", is_done=True),
    "before the second batch": Effect(f"{_DATABASE}.put_atomically", is_done=False, call=2),
    "before the close": Effect(f"{_DATABASE}.close", is_done=False),
}
# with a database, for a log whose end was cut off
CUT_OFF = {
    "before it goes back": Effect(f"{_DATABASE}.put_atomically", is_done=False),
    "gone back and not durable": Effect("rocksdb:flush_wal", is_done=False),
}
# `rollback`: no broker may start in file mode before its end
BACK = {
    "barred": Effect("streaming.rocketmq.rollback.run:bar", is_done=True),
    "a queue renamed": Effect("streaming.rocketmq.rollback.file_queues:_move_in", is_done=True),
    "all queues renamed but one": Effect("streaming.rocketmq.rollback.file_queues:_move_in", is_done=False, call=4),
    "offsets replaced": Effect("streaming.rocketmq.rollback.run:_replace", is_done=True),
    "CURRENT gone": Effect("streaming.rocketmq.rollback.run:set_aside_queues", is_done=True),
    "before the end": Effect("streaming.rocketmq.rollback.run:unbar", is_done=False),
}
EFFECTS = FIRST | LATER | CUT_OFF | BACK


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(effect: Effect) -> None:
    if effect.where == "rocksdb:flush_wal":
        _arm_flush()
        return
    module, _, path = effect.where.partition(":")
    *holders, name = path.split(".")
    holder: Any = import_module(module)
    for attribute in holders:
        holder = getattr(holder, attribute)
    real: Callable[..., Any] = getattr(holder, name)
    calls = 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == effect.call and not effect.is_done:
            _die()
        result = real(*arguments, **options)
        if calls == effect.call:
            _die()
        return result

    setattr(holder, name, dying)


def _arm_flush() -> None:
    """Die when a batch is in the database's memory and in a file that is not durable yet."""
    database = import_module("streaming.adapters.rocksdb.database").Database
    real = database.put_atomically

    class Root:
        def __init__(self, root: Any) -> None:
            self._root = root

        def __getattr__(self, name: str) -> Any:
            return getattr(self._root, name)

        def flush_wal(self, _sync: bool) -> None:
            _die()

    def dying(self: Any, *arguments: Any, **options: Any) -> None:
        self._root = Root(self._root)
        real(self, *arguments, **options)

    database.put_atomically = dying


if __name__ == "__main__":
    _arm(EFFECTS[sys.argv[1]])
    sys.argv[1:] = sys.argv[2:]
    from streaming.__main__ import main

    main()
