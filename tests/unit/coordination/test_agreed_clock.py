"""The earlier of two clocks counts, the later one dates undo data, and an outage of ZooKeeper stops neither."""

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
    """A machine and ZooKeeper, each with a clock of its own."""

    is_away = False
    asked = 0
    passed_ms = 0

    def __init__(self) -> None:
        self.machine, self.zookeeper = ManualClock(NOW_MS), ManualClock(NOW_MS)
        super().__init__(MemoryTree(self.zookeeper))
        self.agreed = AgreedClock(
            self, "/reaper", "main", clock=self.machine, monotonic_ns=lambda: self.passed_ms * 1_000_000
        )

    def pass_by(self, milliseconds: int) -> None:
        self.passed_ms += milliseconds
        self.jump(milliseconds, milliseconds)

    def jump(self, machine_ms: int, zookeeper_ms: int) -> None:
        self.machine.advance(machine_ms)
        self.zookeeper.advance(zookeeper_ms)

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        self.asked += 1
        if self.is_away:
            raise UnavailableError("ZooKeeper is away")
        return super().read_many(paths)


@pytest.mark.parametrize(
    ("machine_ms", "zookeeper_ms", "earlier_ms", "later_ms"),
    [
        pytest.param(YEAR_MS, 0, 0, YEAR_MS, id="this machine's clock jumps ahead"),
        pytest.param(-YEAR_MS, 0, -YEAR_MS, 0, id="this machine's clock jumps back"),
        pytest.param(0, YEAR_MS, 0, YEAR_MS, id="a new leader's clock is ahead"),
        pytest.param(0, -YEAR_MS, -YEAR_MS, 0, id="a new leader's clock is behind"),
    ],
)
def test_of_clocks_a_year_apart_the_earlier_counts_and_the_later_dates_undo_data(
    machine_ms: int, zookeeper_ms: int, earlier_ms: int, later_ms: int
) -> None:
    scene = Scene()
    assert scene.agreed.now_ms() == NOW_MS
    scene.jump(machine_ms, zookeeper_ms)
    scene.pass_by(SECOND_MS)
    assert scene.agreed.now_ms() == NOW_MS + SECOND_MS + earlier_ms
    assert scene.agreed.later_ms() == NOW_MS + SECOND_MS + later_ms
    scene.jump(-machine_ms, -zookeeper_ms)
    scene.pass_by(SECOND_MS)
    assert scene.agreed.now_ms() == scene.agreed.later_ms() == NOW_MS + 2 * SECOND_MS


def test_for_a_second_time_goes_on_at_this_machines_pace_however_its_clock_is_set() -> None:
    scene = Scene()
    scene.agreed.now_ms()
    scene.jump(YEAR_MS, 0)
    scene.pass_by(SECOND_MS - 1)
    assert scene.agreed.now_ms() == NOW_MS + SECOND_MS - 1
    assert scene.agreed.later_ms() == NOW_MS + SECOND_MS - 1
    assert scene.asked == 1


def test_no_age_is_judged_while_zookeeper_does_not_answer_and_no_wait_stops() -> None:
    scene = Scene()
    paced = PacedClock(scene.agreed)
    scene.is_away = True
    scene.jump(YEAR_MS, 0)
    scene.pass_by(SECOND_MS)
    with pytest.raises(UnavailableError):
        scene.agreed.now_ms()
    asked = scene.asked
    assert paced.now_ms() == NOW_MS + SECOND_MS
    scene.pass_by(9 * SECOND_MS)
    assert paced.now_ms() == NOW_MS + 10 * SECOND_MS
    assert scene.asked == asked + 1, "a hanging ZooKeeper is not asked at each look"
    scene.pass_by(SECOND_MS)
    scene.is_away = False
    assert paced.now_ms() == NOW_MS + 11 * SECOND_MS
    scene.jump(-YEAR_MS, 0)
    scene.pass_by(SECOND_MS)
    assert paced.now_ms() == NOW_MS + 12 * SECOND_MS


def test_a_clock_whose_znode_is_deleted_says_so() -> None:
    scene = Scene()
    scene.delete(scene.agreed.path)
    with pytest.raises(UnavailableError, match="something cleans up among our znodes"):
        scene.agreed.now_ms()
