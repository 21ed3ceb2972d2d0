"""The agreed clock is the earlier of two clocks; the later clock dates undo data; waits survive an outage."""

from collections.abc import Sequence

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.coordination.agreed_clock import AgreedClock, PacedClock
from streaming.errors import UnavailableError
from streaming.ports import Unreadable, Znode
from tests.builders import DAY_MS, NOW_MS, SECOND_MS

YEAR_MS = 366 * DAY_MS


class Scene(MemoryStore):
    """A machine and ZooKeeper with separate clocks."""

    is_unavailable = False
    reads = 0
    elapsed_ms = 0

    def __init__(self) -> None:
        self.machine, self.zookeeper = ManualClock(NOW_MS), ManualClock(NOW_MS)
        super().__init__(MemoryTree(self.zookeeper))
        self.agreed = AgreedClock(
            self, "/reaper", "main", clock=self.machine, monotonic_ns=lambda: self.elapsed_ms * 1_000_000
        )

    def elapse(self, milliseconds: int) -> None:
        self.elapsed_ms += milliseconds
        self.jump(milliseconds, milliseconds)

    def jump(self, machine_ms: int, zookeeper_ms: int) -> None:
        self.machine.advance(machine_ms)
        self.zookeeper.advance(zookeeper_ms)

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        self.reads += 1
        if self.is_unavailable:
            raise UnavailableError("ZooKeeper does not answer")
        return super().read_many(paths)


@pytest.mark.parametrize(
    ("machine_ms", "zookeeper_ms", "earlier_ms", "later_ms"),
    [
        pytest.param(YEAR_MS, 0, 0, YEAR_MS, id="this machine's clock jumps ahead"),
        pytest.param(-YEAR_MS, 0, -YEAR_MS, 0, id="this machine's clock jumps back"),
        pytest.param(0, YEAR_MS, 0, YEAR_MS, id="a new leader's clock is fast"),
        pytest.param(0, -YEAR_MS, -YEAR_MS, 0, id="a new leader's clock is slow"),
    ],
)
def test_the_earlier_of_two_clocks_dates_ledgers_and_the_later_dates_undo_data(
    machine_ms: int, zookeeper_ms: int, earlier_ms: int, later_ms: int
) -> None:
    scene = Scene()
    assert scene.agreed.now_ms() == NOW_MS
    scene.jump(machine_ms, zookeeper_ms)
    scene.elapse(SECOND_MS)
    assert scene.agreed.now_ms() == NOW_MS + SECOND_MS + earlier_ms
    assert scene.agreed.later_ms() == NOW_MS + SECOND_MS + later_ms
    scene.jump(-machine_ms, -zookeeper_ms)
    scene.elapse(SECOND_MS)
    assert scene.agreed.now_ms() == scene.agreed.later_ms() == NOW_MS + 2 * SECOND_MS


def test_for_a_second_time_advances_with_the_monotonic_clock() -> None:
    scene = Scene()
    scene.agreed.now_ms()
    scene.jump(YEAR_MS, 0)
    scene.elapse(SECOND_MS - 1)
    assert scene.agreed.now_ms() == NOW_MS + SECOND_MS - 1
    assert scene.agreed.later_ms() == NOW_MS + SECOND_MS - 1
    assert scene.reads == 1


def test_during_an_outage_no_age_is_judged_and_waits_continue() -> None:
    scene = Scene()
    paced = PacedClock(scene.agreed)
    scene.is_unavailable = True
    scene.jump(YEAR_MS, 0)
    scene.elapse(SECOND_MS)
    with pytest.raises(UnavailableError):
        scene.agreed.now_ms()
    reads = scene.reads
    assert paced.now_ms() == NOW_MS + SECOND_MS
    scene.elapse(9 * SECOND_MS)
    assert paced.now_ms() == NOW_MS + 10 * SECOND_MS
    assert scene.reads == reads + 1, "a ZooKeeper that does not answer is not read at each call"
    scene.elapse(SECOND_MS)
    scene.is_unavailable = False
    assert paced.now_ms() == NOW_MS + 11 * SECOND_MS
    scene.jump(-YEAR_MS, 0)
    scene.elapse(SECOND_MS)
    assert paced.now_ms() == NOW_MS + 12 * SECOND_MS


def test_a_deleted_clock_znode_is_an_error() -> None:
    scene = Scene()
    scene.delete(scene.agreed.path)
    with pytest.raises(UnavailableError, match="find out which program deletes below"):
        scene.agreed.now_ms()
