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
    """A function of the driver, by module and name, and when the process dies: before its nth call, or behind it."""

    where: str
    is_done: bool
    call: int = 1


# `follow` with no database beside the broker yet, in the order of its work
FIRST = {
    "queues looked at": Effect(f"{_FOLLOW}.base:snapshot_of", is_done=True),
    "files written": Effect(f"{_CONVERT}.job:Job.run", is_done=True),
    "files taken in": Effect(f"{_DATABASE}.take_in", is_done=True),
    "bounds written": Effect(f"{_DATABASE}.put_all", is_done=True),
    "joined": Effect(f"{_FOLLOW}.base:join", is_done=True),
    "in its place": Effect(f"{_FOLLOW}.base:flush", is_done=False),
}
# with one
LATER = {
    "resumed": Effect(f"{_CONVERT}.index_database:IndexDatabase.resume", is_done=True),
    "query started": Effect(f"{_FOLLOW}.run:_Stream._started", is_done=True),
    "note half written": Effect(f"{_FOLLOW}.run:os.utime", is_done=False),
    "note written": Effect(f"{_FOLLOW}.run:_Stream._write_note", is_done=True),
    "log read": Effect(f"{_CONVERT}.ranges:RangeJob.run", is_done=True),
    "before a batch": Effect(f"{_DATABASE}.put_atomically", is_done=False),
    "batch written and not durable": Effect("rocksdb:flush_wal", is_done=False),
    "behind a batch": Effect(f"{_DATABASE}.put_atomically", is_done=True),
    "before the second batch": Effect(f"{_DATABASE}.put_atomically", is_done=False, call=2),
    "before the close": Effect(f"{_DATABASE}.close", is_done=False),
}
# with one, of a log whose end was cut off
CUT_OFF = {
    "before it goes back": Effect(f"{_DATABASE}.put_atomically", is_done=False),
    "gone back and not durable": Effect("rocksdb:flush_wal", is_done=False),
}
# `rollback`, from where a broker in file mode must not start until it has ended
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
    for each in holders:
        holder = getattr(holder, each)
    real: Callable[..., Any] = getattr(holder, name)
    calls = 0

    def dying(*words: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == effect.call and not effect.is_done:
            _die()
        result = real(*words, **named)
        if calls == effect.call:
            _die()
        return result

    setattr(holder, name, dying)


def _arm_flush() -> None:
    """Die where a batch is in the database's memory, and in a file that is not durable yet."""
    database = import_module("streaming.adapters.rocksdb.database").Database
    real = database.put_atomically

    class Root:
        def __init__(self, root: Any) -> None:
            self._root = root

        def __getattr__(self, name: str) -> Any:
            return getattr(self._root, name)

        def flush_wal(self, _sync: bool) -> None:
            _die()

    def dying(self: Any, *words: Any, **named: Any) -> None:
        self._root = Root(self._root)
        real(self, *words, **named)

    database.put_atomically = dying


if __name__ == "__main__":
    _arm(EFFECTS[sys.argv[1]])
    sys.argv[1:] = sys.argv[2:]
    from streaming.__main__ import main

    main()
