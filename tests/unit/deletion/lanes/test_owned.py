"""Topics that match the pattern belong to one service each, and leave no znode when they are gone."""

from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.coordination.ownership import Ownership
from streaming.deletion.lanes.owned import OwnedLanes
from streaming.topics.setup import MOST_PARTITIONS

ACMES, RIVALS = "persistent://acme/reaper/d1", "persistent://rival/reaper/d2"
LANE = "persistent://acme/ledger-deletion/__ledger_deletion"


class World:
    def __init__(self, folder: Path) -> None:
        file = folder / "config.toml"
        file.write_text('[topics]\nlanes = "tenant"\nrequests_pattern = "persistent://(acme|rival)/reaper/d.*"\n')
        self.settings = load(file)
        self.store = MemoryStore(MemoryTree(ManualClock()))
        self.ours = Ownership(self.store, "/reaper", "main")
        self.owned = self.start()

    def start(self) -> OwnedLanes:
        self.owned = OwnedLanes(store=self.store, settings=self.settings, ownership=self.ours)
        return self.owned

    def create(self, *topics: str, partitions: int = 1) -> None:
        for topic in topics:
            self.store.create(self._path(topic), b'{"partitions":%d}' % partitions, parents=True)

    def delete(self, topic: str) -> None:
        self.store.delete(self._path(topic))

    def read(self) -> set[str]:
        lanes, _refused = self.owned()
        return {*lanes}

    def _path(self, topic: str) -> str:
        tenant, namespace, name = topic.removeprefix("persistent://").split("/")
        return f"/admin/partitioned-topics/{tenant}/{namespace}/persistent/{name}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_matching_topic_of_another_service_is_not_read_until_it_is_released(world: World) -> None:
    other = Ownership(world.store, "/reaper", "third")
    other.claim([ACMES])
    world.create(ACMES, RIVALS, LANE)
    lanes, refused = world.owned()
    assert {*lanes} == {RIVALS, LANE}
    assert "it is read by service 'third'" in refused[ACMES]
    other.release([ACMES])
    assert world.read() == {ACMES, RIVALS, LANE}
    assert world.ours.owned() == [ACMES, RIVALS], "one claim covers all lanes"


def test_a_lane_that_another_service_lists_or_matches_is_not_read(world: World) -> None:
    world.create(LANE, RIVALS)
    assert world.read() == {LANE, RIVALS}
    Ownership(world.store, "/reaper", "third").claim([LANE])
    lanes, refused = world.owned()
    assert {*lanes} == {RIVALS}
    assert "it is read by service 'third'" in refused[LANE]


def test_a_service_without_a_pattern_leaves_out_lanes_of_others_too(world: World) -> None:
    topics = world.settings.topics.model_copy(update={"requests_pattern": ""})
    world.settings = world.settings.model_copy(update={"topics": topics})
    world.create(LANE, RIVALS)
    assert world.start()() == ({LANE: 1}, {})
    Ownership(world.store, "/reaper", "third").claim([LANE])
    assert world.read() == set()


def test_a_topic_that_another_service_claims_at_the_same_time_is_not_read(world: World) -> None:
    world.create(ACMES, RIVALS)
    claim = world.ours.claim

    def claim_late(topics: list[str]) -> list[str]:
        if topics == [ACMES]:
            Ownership(world.store, "/reaper", "third").claim(topics)
        return claim(topics)

    world.ours.claim = claim_late  # type: ignore[assignment, method-assign]
    assert world.read() == {RIVALS}


def test_a_matching_topic_is_owned_until_it_is_deleted(world: World) -> None:
    world.create(ACMES, RIVALS)
    world.read()
    world.delete(ACMES)
    assert world.read() == {RIVALS}
    assert world.ours.owned() == [RIVALS]
    world.delete(RIVALS)
    world.start()  # it was deleted while no service ran
    assert world.read() == set()
    assert world.ours.owned() == []


def test_topics_with_a_fault_that_come_and_go_leave_no_claim(world: World) -> None:
    for number in range(30):
        topic = f"persistent://acme/reaper/d-short-lived-{number}"
        world.create(topic, partitions=MOST_PARTITIONS + 1)
        assert topic in world.owned()[1]
        world.delete(topic)
    world.read()
    assert world.ours.owned() == []


def test_what_else_the_service_owns_stays_owned(world: World) -> None:
    world.ours.claim([*world.settings.topics.claims])
    world.create(ACMES)
    world.read()
    world.delete(ACMES)
    world.read()
    assert world.ours.owned() == sorted(world.settings.topics.claims)
