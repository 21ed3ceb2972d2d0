"""Receipts reach the tenants at least once, and a tenant's topic that fails or hangs delays no other's receipts."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming import schemas
from streaming.clock import ManualClock
from streaming.deletion import lane_receipts
from streaming.deletion.lane_receipts import Following, LaneReceipts
from streaming.errors import UnavailableError
from streaming.state.receipts import Receipts
from tests.builders import NOW_MS
from tests.tasks import Tasks
from udfs import columns as c
from udfs.units import DAY_MS

ACME, RIVAL = (f"persistent://{tenant}/ledger-deletion/__ledger_deletion" for tenant in ("acme", "rival"))


class Topics:
    """Topics of tenants, of which some refuse or hang."""

    def __init__(self) -> None:
        self.stored: dict[str, list[str]] = {}  # topic -> keys
        self.refusing: set[str] = set()
        self.hanging: dict[str, threading.Event] = {}
        self.calls: list[str] = []
        self.busy: list[str] = []
        self.most_busy = 0
        self._lock = threading.Lock()

    def publish(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> None:
        with self._lock:
            self.calls.append(topic)
            self.busy.append(topic)
            self.most_busy = max(self.most_busy, len(self.busy))
        try:
            if topic in self.hanging:
                self.hanging[topic].wait(30)
            if topic in self.refusing:
                raise UnavailableError(f"publishing to {topic}: no right")
            for key, payload in messages:
                assert json.loads(payload)["messageId"] == key
            with self._lock:
                self.stored.setdefault(topic, []).extend(key for key, _payload in messages)
        finally:
            with self._lock:
                self.busy.remove(topic)

    def close_idle(self) -> None:
        pass

    def of(self, lane: str) -> list[str]:
        with self._lock:
            return list(self.stored.get(f"{lane}-RECEIPT", ()))


class World:
    def __init__(self, state: Path) -> None:
        self.state = str(state)
        spark: Any = None
        self.receipts = Receipts(spark, self.state)
        self.topics = Topics()
        self.clock = ManualClock(NOW_MS)
        self.now_s = 1000.0
        self.dropped: list[int] = []
        self.followers: list[LaneReceipts] = []
        self.follower = self.start()

    def start(self) -> LaneReceipts:
        self.follower = LaneReceipts(
            self.state,
            self.receipts.table_id,
            lambda: self.receipts.newest_chunk,
            topics=self.topics,
            clock=self.clock,
            dropped=self.dropped.append,
            now_s=lambda: self.now_s,
        )
        self.followers.append(self.follower)
        return self.follower

    def chunk(self, *receipts: tuple[str | None, str]) -> None:
        """Commit a chunk of receipts (lane, message id)."""
        blank = dict.fromkeys(schemas.RECEIPT.names)
        number = self.receipts.newest_chunk + 1
        about = {c.CHUNK: number, c.AT_MS: self.clock.now_ms(), c.OUTCOME: "DELETED", c.REASON: "UNREFERENCED"}
        rows = [blank | about | {c.LANE: lane, c.ORIGIN_MESSAGE_ID: message_id} for lane, message_id in receipts]
        tasks: Any = Tasks(pa.Table.from_pylist(rows, schema=schemas.RECEIPT))
        self.receipts.append(tasks, number)

    def until(self, holds: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < give_up_s, (self.topics.stored, self.follower.position)
            self.follower.step()

    def until_published(self) -> None:
        self.until(lambda: not self.follower.is_behind and not self.follower.position.lanes)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(lane_receipts, "_WAIT_S", 0.01)
    created = World(tmp_path)
    yield created
    for event in created.topics.hanging.values():
        event.set()
    for follower in created.followers:
        follower.close()


def test_receipts_of_lanes_are_published_to_their_topics_and_no_others_are(world: World) -> None:
    world.chunk((ACME, "1:0:0"), (None, "2:0:0"), (RIVAL, "3:0:0"))
    world.chunk((None, "2:1:0"))
    world.chunk((ACME, "1:1:0"))
    world.until_published()
    assert world.topics.stored == {f"{ACME}-RECEIPT": ["1:0:0", "1:1:0"], f"{RIVAL}-RECEIPT": ["3:0:0"]}


def test_a_later_run_publishes_only_what_is_new(world: World) -> None:
    world.chunk((ACME, "1:0:0"))
    world.until_published()
    world.follower.note()
    world.start()
    world.chunk((ACME, "1:1:0"))
    world.until_published()
    assert world.topics.of(ACME) == ["1:0:0", "1:1:0"]


def test_a_run_that_was_killed_before_it_noted_its_position_loses_no_receipt(world: World) -> None:
    world.chunk((ACME, "1:0:0"))
    world.until_published()
    world.start()
    world.until_published()
    assert set(world.topics.of(ACME)) == {"1:0:0"}
    assert len(world.topics.of(ACME)) >= 1


def test_a_topic_that_hangs_delays_no_other_tenants_receipts(world: World) -> None:
    world.topics.hanging[f"{ACME}-RECEIPT"] = threading.Event()
    for number in range(3):
        world.chunk((ACME, f"1:{number}:0"), (RIVAL, f"3:{number}:0"))
        world.until(lambda count=number + 1: len(world.topics.of(RIVAL)) == count)  # type: ignore[misc]
    assert world.topics.of(ACME) == []

    world.topics.hanging[f"{ACME}-RECEIPT"].set()
    world.until_published()
    assert world.topics.of(ACME) == ["1:0:0", "1:1:0", "1:2:0"]


def test_a_topic_that_refuses_gets_its_receipts_later_even_from_another_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world.topics.refusing.add(f"{ACME}-RECEIPT")
    world.chunk((ACME, "1:0:0"), (RIVAL, "3:0:0"))
    world.until(lambda: bool(world.topics.of(RIVAL)) and world.follower.position.lanes == {ACME: 1})
    world.until(lambda: bool(caplog.messages))
    assert "no right" in caplog.text
    world.follower.note()

    world.topics.refusing.clear()
    world.start()
    world.until_published()
    assert (world.topics.of(ACME), world.topics.of(RIVAL)) == (["1:0:0"], ["3:0:0"])


def test_the_pauses_of_a_topic_that_refuses_grow(world: World) -> None:
    world.topics.refusing.add(f"{ACME}-RECEIPT")
    world.chunk((ACME, "1:0:0"))
    calls = []
    for second in range(100):
        world.now_s = 1000.0 + second
        world.follower.step()
        world.until(lambda: not world.topics.busy)
        world.follower.step()
        calls.append(len(world.topics.calls))
    assert calls[0] == 1
    assert 3 <= calls[-1] <= 6


def test_the_wait_for_a_topic_that_refuses_keeps_no_run_from_ending(world: World) -> None:
    world.topics.refusing.add(f"{ACME}-RECEIPT")
    world.chunk((ACME, "1:0:0"))
    assert world.follower.is_behind
    world.until(lambda: not world.follower.is_behind)
    assert world.follower.position.lanes == {ACME: 1}


def test_receipts_that_could_not_be_published_within_a_day_are_dropped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world.topics.refusing.add(f"{ACME}-RECEIPT")
    world.chunk((ACME, "1:0:0"))
    world.until(lambda: bool(world.topics.calls) and not world.follower.is_behind)
    world.clock.advance(DAY_MS + 1)
    world.now_s += 86_401
    world.chunk((RIVAL, "3:0:0"))
    world.until_published()
    assert (world.topics.of(ACME), world.topics.of(RIVAL)) == ([], ["3:0:0"])
    assert "could not be published within a day" in caplog.text


def test_a_chunk_with_many_receipts_of_a_lane_is_published_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_receipts, "_RECEIPTS_AT_ONCE", 10)
    ids = [f"1:{number:02}:0" for number in range(25)]
    world.chunk(*((ACME, each) for each in ids))
    world.chunk((ACME, "1:90:0"))
    world.until_published()
    assert world.topics.of(ACME) == [*ids, "1:90:0"]
    assert len(world.topics.calls) >= 3


def _namespaces(tenant: str, count: int) -> list[str]:
    return [f"persistent://{tenant}/ns{number}/__ledger_deletion" for number in range(count)]


def test_a_tenant_with_many_topics_that_hang_delays_no_other_tenant(world: World) -> None:
    hanging = _namespaces("acme", 50)
    for lane in hanging:
        world.topics.hanging[f"{lane}-RECEIPT"] = threading.Event()
    world.chunk(*((lane, f"1:{at}:0") for at, lane in enumerate(hanging)))
    world.until(lambda: len(world.topics.busy) == 2)
    world.chunk((RIVAL, "3:0:0"))
    world.until(lambda: world.topics.of(RIVAL) == ["3:0:0"])
    assert len(world.topics.busy) == 2


def test_many_tenants_whose_topics_failed_share_two_threads(world: World) -> None:
    lanes = [f"persistent://t{number}/ledger-deletion/__ledger_deletion" for number in range(20)]
    topics = {f"{lane}-RECEIPT" for lane in lanes}
    world.topics.refusing |= topics
    world.chunk(*((lane, f"1:{at}:0") for at, lane in enumerate(lanes)))
    world.until(lambda: set(world.topics.calls) == topics and not world.follower.is_behind)

    world.topics.hanging |= {topic: threading.Event() for topic in topics}
    world.now_s += 60
    world.until(lambda: len(world.topics.busy) == 2)
    world.topics.most_busy = 0
    world.chunk((RIVAL, "3:0:0"))
    world.until(lambda: world.topics.of(RIVAL) == ["3:0:0"])
    assert world.topics.most_busy <= 3


def test_the_memory_of_a_tenants_lanes_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_receipts, "_LANES_OF_TENANT", 5)
    lanes = _namespaces("acme", 30)
    world.topics.refusing |= {f"{lane}-RECEIPT" for lane in lanes}
    world.chunk(*((lane, f"1:{at}:0") for at, lane in enumerate(lanes)), (RIVAL, "3:0:0"))
    world.until(lambda: world.topics.of(RIVAL) == ["3:0:0"])
    assert len(world.follower.position.lanes) <= 5


def test_receipts_of_too_many_waiting_lanes_are_counted_and_their_tenant_is_logged_once_an_hour(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lane_receipts, "_LANES_OF_TENANT", 5)
    lanes = _namespaces("acme", 8)
    world.topics.refusing |= {f"{lane}-RECEIPT" for lane in lanes}
    for number, (dropped, logged) in enumerate([(3, 1), (6, 1), (9, 2)]):
        if logged == 2:
            world.now_s += lane_receipts._LOG_S
        world.chunk(*((lane, f"1:{number}:{at}") for at, lane in enumerate(lanes)), (RIVAL, f"3:{number}:0"))
        world.until(lambda count=number + 1: len(world.topics.of(RIVAL)) == count)  # type: ignore[misc]
        assert sum(world.dropped) == dropped
        messages = [each.message for each in caplog.records if "more than 5 lanes of tenant acme" in each.message]
        assert len(messages) == logged


def test_another_receipts_table_is_read_from_its_start(world: World) -> None:
    world.chunk((ACME, "1:0:0"))
    world.until_published()
    world.follower.note()
    follower = LaneReceipts(
        world.state,
        "another",
        lambda: 1,
        topics=world.topics,
        clock=world.clock,
        dropped=world.dropped.append,
        now_s=lambda: world.now_s,
    )
    world.followers.append(follower)
    world.follower = follower
    world.until_published()
    assert world.topics.of(ACME) == ["1:0:0", "1:0:0"]


def test_a_note_that_can_not_be_read_stops_nothing(world: World) -> None:
    Path(world.state, "lane-receipts.json").write_text("{")
    world.chunk((ACME, "1:0:0"))
    world.until_published()
    assert world.topics.of(ACME) == ["1:0:0"]


def test_the_thread_publishes_until_nothing_waits_and_notes_its_position(world: World) -> None:
    world.chunk((ACME, "1:0:0"))
    disconnected = []
    with Following(world.follower, lambda: disconnected.append(True)) as thread:
        assert thread.keeps_from_ending
        give_up_s = time.monotonic() + 20
        while thread.is_busy:
            assert time.monotonic() < give_up_s
    assert world.topics.of(ACME) == ["1:0:0"]
    assert disconnected == [True]
    world.start()
    world.until_published()
    assert world.topics.of(ACME) == ["1:0:0"]
