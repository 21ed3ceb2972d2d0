"""Lock, epoch and pause on the fake store and on ZooKeeper."""

import contextlib
import json
import os
import socket
from threading import Event, Timer
from uuid import uuid4

import psutil
import pytest

from streaming.clock import ManualClock, StartedClock, SystemClock, utc_text
from streaming.coordination.agreed_clock import AgreedClock
from streaming.coordination.epoch import Epoch
from streaming.coordination.lock import InstanceLock, refuse_second
from streaming.coordination.pause import Pause
from streaming.errors import SafetyError, StopRequestedError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, MetadataStore
from tests.contract.conftest import Stores


@pytest.fixture
def root() -> str:
    return f"/reaper-{uuid4().hex}"


def _never() -> None:
    raise AssertionError("the lock was not lost")


def test_a_second_instance_is_refused_with_the_holders_name(store: MetadataStore, new_store: Stores, root: str) -> None:
    with InstanceLock(store, root, "main", on_lost=_never):
        with pytest.raises(
            SafetyError, match=rf"'main' already runs: pid {os.getpid()} on {socket.gethostname()} since"
        ):
            InstanceLock(new_store(), root, "main", on_lost=_never).__enter__()
        with InstanceLock(new_store(), root, "other", on_lost=_never):
            pass


def test_a_released_lock_can_be_taken_again(store: MetadataStore, new_store: Stores, root: str) -> None:
    for session in (store, new_store(), store):
        with InstanceLock(session, root, "main", on_lost=_never):
            pass


def test_a_holder_that_lost_its_lock_does_not_release_its_successors_lock(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    successor_store = new_store()
    first = InstanceLock(store, root, "main", on_lost=_never)
    with first:
        successor_store.delete(first.path)
        successor = InstanceLock(successor_store, root, "main", on_lost=_never)
        successor.__enter__()

    with pytest.raises(SafetyError):
        InstanceLock(new_store(), root, "main", on_lost=_never).__enter__()


GONE_PID = max(psutil.pids()) + 1_000_000


def _held_by(store: MetadataStore, root: str, **holder: object) -> str:
    """Write a lock as a holder would, and return its path."""
    path = f"{root}/instances/main/lock"
    written = {"host": socket.gethostname(), "pid": GONE_PID, "since": "2026-11-23T01:02:03+00:00", "token": "x"}
    store.create(path, json.dumps(written | holder).encode(), parents=True)
    return path


MAYBE_DEAD = [
    pytest.param({}, id="an ended process of this host"),
    pytest.param({"pid": os.getpid()}, id="a pid of this host that a younger process has, as in a new container"),
    pytest.param({"pid": os.getpid(), "since": "then"}, id="an unknown start"),
    pytest.param({"host": "elsewhere", "pid": os.getpid()}, id="another host, whose processes can't be checked"),
]


@pytest.mark.parametrize("holder", MAYBE_DEAD)
def test_a_lock_whose_holder_may_be_dead_is_refused_after_a_wait(
    store: MetadataStore, root: str, holder: dict[str, object]
) -> None:
    _held_by(store, root, **holder)
    lock = InstanceLock(store, root, "main", on_lost=_never)
    lock.patience_s = 0.3

    with pytest.raises(SafetyError, match="already runs: pid"):
        lock.__enter__()


def test_a_start_that_fails_before_it_takes_the_lock_learns_whether_another_runs(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    refuse_second(new_store(), root, "main")
    with InstanceLock(store, root, "main", on_lost=_never):
        with pytest.raises(SafetyError, match=rf"'main' already runs: pid {os.getpid()} on"):
            refuse_second(new_store(), root, "main")
        refuse_second(new_store(), root, "other")
    refuse_second(new_store(), root, "main")


@pytest.mark.parametrize(("holder", "is_refused"), [({}, False), ({"host": "elsewhere"}, True)])
def test_refuse_second_refuses_unless_the_holder_is_certainly_dead(
    store: MetadataStore, root: str, holder: dict[str, object], *, is_refused: bool
) -> None:
    _held_by(store, root, **holder)
    with pytest.raises(SafetyError) if is_refused else contextlib.nullcontext():
        refuse_second(store, root, "main")


@pytest.mark.parametrize("holder", MAYBE_DEAD)
def test_the_lock_of_a_dead_holder_is_taken_once_it_is_gone(
    store: MetadataStore, new_store: Stores, root: str, holder: dict[str, object]
) -> None:
    path = _held_by(store, root, **holder)
    other = new_store()
    timer = Timer(0.6, lambda: other.delete(path))
    timer.start()
    with InstanceLock(store, root, "main", on_lost=_never):
        pass
    timer.join()


def test_a_lock_with_unreadable_data_still_locks(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/instances/main/lock", b"?", parents=True)
    lock = InstanceLock(store, root, "main", on_lost=_never)
    lock.patience_s = 0.3

    with pytest.raises(SafetyError, match="on unknown"):
        lock.__enter__()


def test_a_later_epoch_ends_the_earlier_one(store: MetadataStore, new_store: Stores, root: str) -> None:
    first = Epoch.bump(store, root, "main")
    other = Epoch.bump(store, root, "other")
    assert first.still_mine()

    second = Epoch.bump(new_store(), root, "main")

    assert not first.still_mine()
    assert second.still_mine()
    assert other.still_mine()
    assert second.version > first.version


def test_a_deleted_epoch_is_not_current(store: MetadataStore, root: str) -> None:
    epoch = Epoch.bump(store, root, "main")
    store.delete(epoch.path)

    assert not epoch.still_mine()


def test_an_outdated_epoch_deletes_nothing(store: MetadataStore, root: str) -> None:
    old = Epoch.bump(store, root, "main")
    new = Epoch.bump(store, root, "main")
    ledger = f"{root}/0000/L0001"
    store.create(ledger, b"", parents=True)

    results = store.delete_guarded(
        [GuardedDelete(((epoch.path, epoch.version),), ((ledger, 0),)) for epoch in (old, new)]
    )

    assert results == [GuardResult(GuardStatus.CHECK_FAILED, old.path), GuardResult(GuardStatus.DELETED)]


def test_a_pause_names_its_reason_operator_and_start_until_it_is_ended(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    # this machine's clock is wrong by years
    pause, elsewhere = Pause(store, root, clock=ManualClock(1_700_000_000_000)), Pause(new_store(), root)
    assert elsewhere.reason() == ""

    assert pause.set("investigating INC-1") is None

    assert elsewhere.reason().startswith("investigating INC-1 (by ")
    present = elsewhere.read()
    assert present is not None
    assert f"since {utc_text(present.since_ms)})" in present.text
    assert abs(SystemClock().now_ms() - present.since_ms) < 60_000
    assert elsewhere.end(present)
    assert not pause.end(present)
    assert pause.reason() == ""


def test_a_second_pause_is_refused_unless_it_is_forced(store: MetadataStore, root: str) -> None:
    pause = Pause(store, root)
    pause.set("broker upgrade")
    first = pause.read()
    assert first is not None

    with pytest.raises(SafetyError, match=r"paused already: broker upgrade \(by .*--force"):
        pause.set("restore of shop")
    assert pause.read() == first
    assert pause.set("restore of shop", force=True) == first

    assert pause.reason().startswith("restore of shop (by ")
    assert not pause.end(first), "the version of the first pause ends the first pause only"
    assert pause.reason().startswith("restore of shop (by ")


def test_a_pause_ends_by_the_agreed_time_counted_from_the_stores_time(
    store: MetadataStore, root: str, new_store: Stores
) -> None:
    pause = Pause(store, root, clock=ManualClock(1_000))  # this machine's clock is wrong by decades
    pause.set("maintenance", for_ms=7_200_000)
    present = pause.read()
    assert present is not None
    assert present.until_ms is not None
    assert ", until 2" in present.text

    assert pause.ended(lambda: present.until_ms - 1) is None  # type: ignore[operator]
    assert pause.reason() == present.text
    assert Pause(new_store(), root).ended(lambda: present.until_ms) == present  # type: ignore[arg-type,return-value]
    assert pause.reason() == ""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"who": "a@b", "since": "2025-01-01T00:00:00+00:00", "why": "old"}', id="of an earlier version"),
        pytest.param(b'{"who": "a", "since": "b", "why": "c", "for_ms": "soon"}', id="a duration that is no number"),
        pytest.param(b'{"who": "a", "since": "b", "why": "c", "for_ms": 1e400}', id="an infinite duration"),
        pytest.param(b"[]", id="created by hand"),
    ],
)
def test_a_pause_without_a_readable_end_lasts(store: MetadataStore, root: str, data: bytes) -> None:
    store.create(f"{root}/pause", data, parents=True)
    pause = Pause(store, root)
    assert pause.reason()
    assert pause.ended(lambda: 1 << 60) is None
    assert pause.reason()


def test_ending_a_pause_does_not_end_the_next_pause(store: MetadataStore, root: str) -> None:
    pause = Pause(store, root)
    pause.set("maintenance")
    first = pause.read()
    assert first is not None
    assert pause.end(first)
    assert pause.reason() == ""
    pause.set("data is being lost")

    assert not pause.end(first)

    assert pause.reason().startswith("data is being lost (by ")


def test_a_pause_znode_created_by_hand_pauses(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/pause", b"", parents=True)

    assert Pause(store, root).reason() == f"{root}/pause exists"


@pytest.mark.parametrize("ahead_ms", [86_400_000, -86_400_000], ids=["a day fast", "a day slow"])
def test_the_earlier_of_our_clock_and_the_stores_counts(
    store: MetadataStore, root: str, caplog: pytest.LogCaptureFixture, ahead_ms: int
) -> None:
    real_ms = SystemClock().now_ms()
    agreed = AgreedClock(store, root, "main", clock=ManualClock(real_ms + ahead_ms))
    assert min(0, ahead_ms) - 10_000 < agreed.now_ms() - real_ms < min(0, ahead_ms) + 10_000
    agreed.now_ms()
    assert caplog.text.count("the earlier counts") == 1


def test_a_clock_without_skew_is_not_logged(store: MetadataStore, root: str, caplog: pytest.LogCaptureFixture) -> None:
    AgreedClock(store, root, "main").now_ms()
    assert caplog.text == ""


def test_a_started_clock_advances_from_its_start() -> None:
    clock = StartedClock(1_000)
    first_ms = clock.now_ms()
    assert 1_000 <= first_ms <= clock.now_ms() < 11_000


def test_a_wait_for_the_lock_of_a_dead_process_ends_with_a_stop(store: MetadataStore, root: str) -> None:
    _held_by(store, root)
    stop = Event()
    stop.set()

    with pytest.raises(StopRequestedError):
        InstanceLock(store, root, "main", on_lost=_never, stop=stop).__enter__()
