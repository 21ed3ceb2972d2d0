"""Accounts of lanes: the service checks those that it processed, and those that had gaps or unread messages before."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import RefusedError
from streaming.ports import Pulsar
from streaming.queries.names import checkpoint_of, further_query
from streaming.reconcile import accounting
from streaming.reconcile.accounting import accept_gaps, reconcile
from streaming.reconcile.gaps import Reconciliation
from streaming.reconcile.markers import Markers
from tests.unit.reconcile.rows import write_rows
from udfs.formats.internal_stats import BEFORE_ALL, Position


def _lane(tenant: str) -> str:
    return f"persistent://{tenant}/ledger-deletion/__ledger_deletion-partition-0"


LANE = _lane("acme")


class Scene:
    """A service, its lanes, and an operator with commands."""

    def __init__(self, folder: Path) -> None:
        file = folder / "reaper.toml"
        text = f'[state]\ndir = "{folder}/state"\n[checkpoints]\ndir = "{folder}/checkpoints"\n'
        file.write_text(f'[topics]\nlanes = "tenant"\n{text}')
        self.settings: Settings = load(file)
        self.memory = MemoryPulsar()
        self.pulsar = Pulsar(self.memory, self.memory)
        self.markers = Markers()

    def check(self, processed: Mapping[str, Position] | None = None, *waiting: str) -> Reconciliation:
        self.markers.lanes = processed or {}
        self.markers.waiting = dict.fromkeys(waiting, BEFORE_ALL)
        return reconcile(self.settings, self.pulsar, 0, service=self.markers)

    def command(self) -> Reconciliation:
        return reconcile(self.settings, self.pulsar, 0)

    def trimmed(self, found: Reconciliation) -> dict[str, tuple[int, ...]]:
        assert found.doubt == ""
        return {one.partition: one.trimmed for one in found.partitions if one.trimmed}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_loss_in_a_lane_is_an_alarm_until_it_is_accepted_though_the_lane_is_idle(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 3), (6, 0))
    assert scene.check({LANE: BEFORE_ALL}).gaps == []
    scene.memory.store(LANE, (6, 0))
    for _ in range(2):
        assert scene.trimmed(scene.check()) == {LANE: (5,)}
    assert scene.trimmed(scene.check({LANE: BEFORE_ALL})) == {LANE: (5,)}
    scene.markers = Markers()  # the service starts again
    assert scene.trimmed(scene.check()) == {LANE: (5,)}
    assert scene.trimmed(scene.command()) == {LANE: (5,)}

    assert accept_gaps(scene.settings, scene.pulsar, 0) == [f"{LANE}: ledgers 5"]

    assert scene.check().gaps == scene.command().gaps == []


def test_entries_of_an_idle_lane_without_a_receipt_stay_an_alarm(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 0))
    for _ in range(2):
        scene.memory.publish(LANE)
    scene.settings = scene.settings.model_copy(
        update={"state": scene.settings.state.model_copy(update={"receipts_days": 1})}
    )
    write_rows(Path(scene.settings.state_dir), "receipts", [(5, 0, -1)], source=LANE)
    found = [scene.check({LANE: (5, 1)}), scene.check(), scene.check({LANE: (5, 0)}), scene.command()]
    assert [[one.missing for one in each.partitions if one.partition == LANE] for each in found] == [[((5, 1),)]] * 4
    write_rows(Path(scene.settings.state_dir), "receipts", [(5, 1, -1)], source=LANE)
    assert scene.check().gaps == scene.check().gaps == []


def test_a_deleted_lane_is_reported_once_and_no_doubt(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 3))
    assert scene.check({LANE: BEFORE_ALL}).gaps == []
    scene.memory.delete_topic(LANE.removesuffix("-partition-0"))
    for _ in range(2):
        assert scene.trimmed(scene.check()) == {LANE: (5,)}
    assert scene.trimmed(scene.command()) == {LANE: (5,)}


def test_the_loss_of_a_lane_that_waited_and_was_never_read_is_an_alarm(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 3))
    assert scene.check(None, LANE).gaps == []
    scene.markers = Markers()  # the service starts again
    scene.memory.delete_topic(LANE.removesuffix("-partition-0"))
    for _ in range(2):
        assert scene.trimmed(scene.check()) == {LANE: (5,)}
    assert scene.trimmed(scene.command()) == {LANE: (5,)}


def test_a_waiting_lane_whose_messages_have_receipts_is_no_alarm(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 1))
    write_rows(Path(scene.settings.state_dir), "receipts", [(5, 0, -1)], source=LANE)
    assert scene.check(None, LANE).gaps == []
    scene.memory.delete_topic(LANE.removesuffix("-partition-0"))
    assert scene.check().gaps == scene.command().gaps == []


def test_waiting_lanes_beyond_the_number_of_a_check_cause_no_doubt(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = [_lane("acme"), _lane("rival"), _lane("zoo")]
    for lane in lanes:
        scene.memory.store(lane, (5, 3))
    monkeypatch.setattr(accounting, "MOST_IDLE_LANES", 2)
    asked: list[str] = []
    scene.memory.faults.before(lambda operation, names: asked.extend(names) if operation == "internal_stats" else None)
    assert scene.check(None, *lanes).doubt == ""
    assert [name for name in asked if name in lanes] == lanes[:2]


def test_idle_lanes_without_gaps_or_unread_messages_are_not_read(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 1))
    write_rows(Path(scene.settings.state_dir), "receipts", [(5, 0, -1)], source=LANE)
    assert scene.check({LANE: (5, 0)}).gaps == []
    asked: list[str] = []
    scene.memory.faults.before(lambda _operation, names: asked.extend(names))
    assert scene.check().gaps == []
    assert not any("acme" in name for name in asked)


def test_a_check_reads_a_bounded_number_of_idle_lanes_and_forgets_none(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = [_lane("acme"), _lane("rival"), _lane("zoo")]
    for lane in lanes:
        scene.memory.store(lane, (5, 3))
    assert scene.check(dict.fromkeys(lanes, BEFORE_ALL)).gaps == []
    for lane in lanes:
        scene.memory.store(lane, (6, 0))
    monkeypatch.setattr(accounting, "MOST_IDLE_LANES", 2)
    for _ in range(2):
        found = scene.check()
        assert [one.partition for one in found.partitions if one.trimmed] == lanes[:2]
        assert "3 lanes" in found.doubt
    monkeypatch.undo()
    assert scene.trimmed(scene.check()) == dict.fromkeys(lanes, (5,))


def test_a_lane_that_was_processed_and_then_deleted_leaves_no_doubt(scene: Scene) -> None:
    """Otherwise a tenant that creates and deletes lanes keeps the accounts from ever being complete."""
    scene.memory.store(LANE, (5, 1))
    write_rows(Path(scene.settings.state_dir), "receipts", [(5, 0, -1)], source=LANE)
    scene.memory.delete_topic(LANE.removesuffix("-partition-0"))
    for _ in range(2):
        found = scene.check({LANE: (5, 0)})
        assert (found.gaps, found.doubt) == ([], "")


def test_a_lane_that_can_t_be_checked_is_a_doubt_although_it_was_processed(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 1))

    def refuse(operation: str, names: Sequence[str]) -> None:
        if operation == "internal_stats" and names[0] == LANE:
            raise RefusedError("403")

    scene.memory.faults.before(refuse)
    assert LANE in scene.check({LANE: (5, 0)}).doubt


def test_unread_messages_are_lost_with_partitions_that_a_lane_has_no_longer(scene: Scene) -> None:
    topic = LANE.removesuffix("-partition-0")
    other = f"{topic}-partition-1"
    scene.memory.known_namespaces.add("acme/ledger-deletion")
    scene.memory.create_partitioned_topic(topic, 2)
    for partition in (LANE, other):
        scene.memory.store(partition, (5, 3))
    assert scene.check(dict.fromkeys((LANE, other), BEFORE_ALL)).gaps == []
    scene.memory.delete_topic(topic)
    scene.memory.store(LANE, (7, 0))  # created again with one partition
    for processed in ({}, {LANE: BEFORE_ALL, other: BEFORE_ALL}, {}):
        assert scene.trimmed(scene.check(processed)) == {LANE: (5,), other: (5,)}


def test_a_lane_that_is_listed_now_is_checked_as_far_as_its_query_has_read(scene: Scene) -> None:
    scene.memory.store(LANE, (5, 0))
    for _ in range(3):
        scene.memory.publish(LANE)
    scene.settings = scene.settings.model_copy(
        update={"state": scene.settings.state.model_copy(update={"receipts_days": 1})}
    )
    write_rows(Path(scene.settings.state_dir), "receipts", [(5, 0, -1)], source=LANE)
    assert scene.check({LANE: (5, 0)}).gaps == []
    topics = scene.settings.topics
    listed = topics.model_copy(update={"requests": (*topics.requests, LANE.removesuffix("-partition-0"))})
    scene.settings = scene.settings.model_copy(update={"topics": listed})
    checkpoint = Path(checkpoint_of(scene.settings, further_query(listed.requests[-1]).name))
    for name, content in (("offsets", "v1\n{}\n" + json.dumps({LANE: [8, 5, 16, 2]})), ("commits", "v1\n{}")):
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name / "0").write_text(content)
    for found in (scene.check(), scene.check(), scene.command()):
        assert [one.missing for one in found.partitions if one.partition == LANE] == [((5, 1), (5, 2))]
