from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.adapters.rocksdb.database import Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.convert.index_database import IndexDatabase, rules_of
from streaming.rocketmq.follow import base as base_module
from streaming.rocketmq.follow.base import snapshot_of
from streaming.rocketmq.store.inventory import Inventory, inventory_of
from streaming.rocketmq.store.log_files import CommitLog
from streaming.rocketmq.store.store_paths import StorePaths
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.convert.test_backfill import MESSAGES, KilledError, database_of, expected_of
from tests.unit.rocketmq.converted import backfill, check, paths
from tests.unit.rocketmq.followed_store import follow, follow_on, follow_with, grown, written
from udfs.rocketmq import rows
from udfs.rocketmq.growth import UnitChunk
from udfs.rocketmq.queue_units import Units


def is_as_a_backfill_would_make_it(root: Path, store: Store) -> None:
    result = backfill(root)
    assert result.resumed, "the work of `follow` was not used"
    assert database_of(root) == expected_of(store)
    assert check(root).findings == ()
    assert not (root / "ledger-reaper" / "follow").exists()


def test_what_was_followed_is_finished_and_equals_a_conversion_of_the_whole(tmp_path: Path) -> None:
    store = written(small_store(tmp_path))
    follow(tmp_path)
    assert follow(tmp_path) == 0
    assert follow(written(grown(store, 9)).root) == 8  # the last one waits until another has begun behind it
    is_as_a_backfill_would_make_it(tmp_path, store)


def test_units_whose_messages_expire_meanwhile_go(tmp_path: Path) -> None:
    store = written(small_store(tmp_path))
    follow(tmp_path)
    written(grown(store, 60), expired_files=3)
    follow(tmp_path)
    is_as_a_backfill_would_make_it(tmp_path, store)


def test_if_the_broker_deletes_unread_messages_follow_starts_over(tmp_path: Path) -> None:
    store = written(grown(Store(tmp_path), 5))
    follow(tmp_path)
    written(grown(store, 60), expired_files=2)
    assert follow_on(tmp_path) >= 0
    is_as_a_backfill_would_make_it(tmp_path, store)


@pytest.mark.parametrize(
    "lost", [1, pytest.param(7, marks=pytest.mark.long), 25, pytest.param(50, marks=pytest.mark.long)]
)
def test_the_database_follows_a_log_back_whose_end_was_cut_off(tmp_path: Path, lost: int) -> None:
    shared = small_store(tmp_path)
    grown(shared, 60 - lost)
    longer = small_store(tmp_path)
    written(grown(longer, 60))
    follow(tmp_path)
    for number in range(lost // 2 + 1):  # other messages at the same places
        shared.put(Message("Other", 0, body=bytes(number)))
    grown(shared, lost)
    written(shared)
    follow(tmp_path)
    is_as_a_backfill_would_make_it(tmp_path, shared)


def test_a_queue_that_was_deleted_and_created_again_has_only_its_new_messages(tmp_path: Path) -> None:
    store = written(grown(small_store(tmp_path), 12))
    follow(tmp_path)
    store.units["Grown", 0].clear()
    store.units["Grown", 1].clear()
    follow(written(grown(store, 5)).root)
    backfill(tmp_path)
    assert database_of(tmp_path) == expected_of(store)


def test_a_queue_that_was_deleted_is_not_in_the_database(tmp_path: Path) -> None:
    store = written(grown(small_store(tmp_path), 12))
    follow(tmp_path)
    del store.units["Grown", 0], store.units["Grown", 1]
    written(store)
    is_as_a_backfill_would_make_it(tmp_path, store)


@settings(max_examples=6)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=12), min_size=1, max_size=5), st.integers(200, 3000))
def test_however_a_store_grows_the_rows_are_those_of_its_log(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[Message]], range_bytes: int
) -> None:
    store = Store(tmp_path_factory.mktemp("store"), log_file_bytes=1024, queue_file_units=5, is_lmq=True)
    for messages in rounds:
        for message in messages:
            store.put(message)
        store.units = defaultdict(list, {queue: units for queue, units in store.units.items() if units})
        follow(written(store).root, range_bytes=range_bytes)
    is_as_a_backfill_would_make_it(store.root, store)


class Dying:
    """A database whose process is killed at one of its batches: before it, or when it is durable."""

    def __init__(self, real: Database, at: int, *, is_written: bool) -> None:
        self._real, self._left, self._is_written = real, at, is_written

    def put_atomically(self, *words: Any) -> None:
        self._left -= 1
        if self._left >= 0:
            self._real.put_atomically(*words)
            return
        if self._is_written:
            self._real.put_atomically(*words)
        raise KilledError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize(
    ("batch", "is_written"),
    [
        (0, False),
        (2, True),
        (3, False),
        (5, True),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((0, True), (1, False), (4, True), (5, False))),
    ],
)
def test_a_run_that_is_killed_at_any_batch_lags_and_leaves_no_hole(
    tmp_path: Path, batch: int, is_written: bool
) -> None:
    store = written(small_store(tmp_path))
    follow(tmp_path)
    written(grown(store, 150))
    with opened(paths(tmp_path).follow_queues, ("offset",), compressed=True) as database:
        dying: Any = Dying(database, batch, is_written=is_written)
        with pytest.raises(KilledError):
            follow_with(tmp_path, dying, 300)
    follow(tmp_path)
    is_as_a_backfill_would_make_it(tmp_path, store)


def chunk(first: int, *phy: int) -> UnitChunk:
    count = len(phy)
    units = Units(np.array(phy), np.full(count, 99, dtype=np.int32), np.zeros(count, dtype=np.int64))
    return UnitChunk(topic=b"T", queue_id=0, first=first, units=units, times=np.arange(count))


def test_where_a_queue_would_get_a_hole_nothing_is_written(tmp_path: Path) -> None:
    written(Store(tmp_path))
    with opened(tmp_path / "d", ("offset",), compressed=True) as database:
        followed = IndexDatabase(database, rules_of(paths(tmp_path)))
        followed.add([chunk(0, 0, 99)])
        with pytest.raises(SafetyError, match="queue offset 3, and 2 should follow"):
            followed.add([chunk(2, 198)._replace(topic=b"U"), chunk(3, 297)])
        assert followed.checkpoint == 99
        assert [rows.decode_key(key).offset for key, _value in database.rows("default")] == [0, 1]


def test_a_database_that_ends_otherwise_than_its_file_queues_is_refused(tmp_path: Path) -> None:
    store = written(grown(small_store(tmp_path), 12))
    follow(tmp_path)
    del store.units["Grown", 0][-2:]
    written(store)
    with pytest.raises(SafetyError, match="--restart"):
        backfill(tmp_path)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def test_queues_that_grow_while_they_are_read_are_truncated_at_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is looked at later has units of messages that another one did not have yet."""
    store = written(small_store(tmp_path))
    known = {queue: [unit[0] for unit in units] for queue, units in store.units.items()}
    looks = list[Inventory]()

    def look(where: StorePaths, log: CommitLog | None = None) -> Inventory:
        if looks:
            written(grown(store, 9, "Orders"))
        looks.append(inventory_of(where, log))
        return looks[-1]

    monkeypatch.setattr(base_module, "inventory_of", look)
    found, last = snapshot_of(paths(tmp_path))
    assert last == looks[0].checkpoint
    ends = {(each.range.topic.decode(), each.range.queue_id): each.range.end for each in found.queues}
    assert ends == {queue: offsets[-1] + 1 for queue, offsets in known.items()}
