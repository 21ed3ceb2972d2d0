"""Losses are reported if their owner still names them, by tenant, with those that may be ours."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.clock import ManualClock
from streaming.in_use import missing as module
from streaming.in_use.missing import LossCheck, Missing
from streaming.state.journal import JournalEntry, ObjectEntry, ParquetJournal
from tests.builders import NOW_MS, ROOT, TOPIC, UUID, data_request, list_znode, offloaded, reference, view
from tests.unit.in_use.test_source_watch import KEY, receipt, write
from tests.world import Bench, path_of
from udfs import columns as c
from udfs.offload_drivers import Bucket
from udfs.paths import Layout, managed_ledger_path
from udfs.records import Reason
from udfs.units import HOUR_MS

OTHERS_TOPIC = "bank/default/persistent/orders"
LOST = {"public": [f"LEDGER 8 of {KEY}"]}


class Pauses(threading.Event):
    """An event that is never set, records the pauses, and runs one action in each."""

    def __init__(self, *actions: Callable[[], None]) -> None:
        super().__init__()
        self.waited: list[float] = []
        self.actions = list(actions)

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0)
        if self.actions:
            self.actions.pop(0)()
        return False


def _nothing() -> None:
    pass


class Scene:
    """TOPIC still names ledgers 8 and 9; 8 was kept in chunk 1, and is gone."""

    def __init__(self, state: Path) -> None:
        self.bench = Bench()
        self.state = state
        self.clock = ManualClock(NOW_MS)
        self.name(TOPIC, 8, 9)
        self.kept_and_gone(KEY, 8)
        write(state, receipt(1, **_row(KEY, 9) | {c.REASON: str(Reason.IN_USE)}))

    def name(self, topic: str, *ledgers: Any, there: tuple[int, ...] = (8, 9)) -> None:
        self.bench.owner(managed_ledger_path(topic), list_znode(*ledgers))
        self.bench.broker.topics[topic] = view(*there)

    def kept_and_gone(self, key: str, ledger_id: int, **fields: Any) -> None:
        write(self.state, receipt(1, **_row(key, ledger_id) | fields))

    def delete_topic(self) -> None:
        self.bench.tree.remove(managed_ledger_path(TOPIC))
        del self.bench.broker.topics[TOPIC]

    def journal(self, ledger_id: int) -> None:
        entry = JournalEntry(
            ledger_id=ledger_id, path=path_of(ledger_id), data=b"", version=0, acl=b"", reference=reference()
        )
        ParquetJournal(str(self.state), "requests", 1, self.clock).write([entry])

    def check(self, *, chunk: int = 1, pauses: Pauses | None = None) -> Missing:
        check = LossCheck(
            loader=self.bench.loader(), state_dir=str(self.state), layout=Layout.HIERARCHICAL, ledgers_root=ROOT
        )
        return check.of(chunk, pauses or Pauses())


def _row(key: str, ledger_id: int) -> dict[str, Any]:
    why = str(Reason.KEPT_AND_GONE)
    return {c.REFERENCE_KEY: key, c.LEDGER_ID: ledger_id, c.LEDGER_TYPE: "LEDGER", c.REASON: why}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_ledger_that_its_owner_names_after_all_pauses_is_a_loss(scene: Scene) -> None:
    pauses = Pauses()
    missing = scene.check(pauses=pauses)
    assert missing == Missing(LOST)
    assert missing.is_one_tenants
    assert pauses.waited == [5, 10, 15]


@pytest.mark.parametrize("pauses", [1, 2, 3])
def test_a_topic_that_its_broker_deletes_during_the_pauses_has_no_loss(scene: Scene, pauses: int) -> None:
    """A broker deletes all ledgers first and the list last."""
    deleting = Pauses(*[_nothing] * (pauses - 1), scene.delete_topic)
    assert scene.check(pauses=deleting) == Missing()
    assert len(deleting.waited) == pauses


def test_a_ledger_that_its_owner_no_longer_names_is_no_loss(scene: Scene) -> None:
    scene.name(TOPIC, 9, there=(9,))
    assert scene.check() == Missing()


def test_a_ledger_that_exists_again_is_no_loss(scene: Scene) -> None:
    scene.bench.ledger(data_request(8))
    assert scene.check() == Missing()


def test_other_chunks_are_not_checked(scene: Scene) -> None:
    pauses = Pauses()
    assert scene.check(chunk=2, pauses=pauses) == Missing()
    assert pauses.waited == []


@pytest.mark.parametrize(
    ("hours_ago", "ours"),
    [
        pytest.param(0, LOST["public"], id="in this chunk"),
        pytest.param(0.99, LOST["public"], id="by a task of an earlier attempt"),
        pytest.param(1.01, [], id="long before the sweep read it"),
    ],
)
def test_a_loss_that_the_journal_names_may_be_ours(scene: Scene, hours_ago: float, ours: list[str]) -> None:
    scene.clock.advance(-int(hours_ago * HOUR_MS))
    scene.journal(8)
    scene.journal(9)
    pauses = Pauses()
    missing = scene.check(pauses=pauses)
    assert missing == Missing(LOST, ours)
    assert missing.is_one_tenants is not bool(ours)
    assert pauses.waited == ([5] if ours else [5, 10, 15])  # a loss that may be ours is reported at once


def test_losses_of_several_tenants_are_reported_at_once(scene: Scene) -> None:
    scene.name(OTHERS_TOPIC, 7, there=(7,))
    scene.kept_and_gone(f"data:{OTHERS_TOPIC}", 7)
    pauses = Pauses()
    missing = scene.check(pauses=pauses)
    assert missing == Missing(LOST | {"bank": [f"LEDGER 7 of data:{OTHERS_TOPIC}"]})
    assert not missing.is_one_tenants
    assert pauses.waited == [5]


def test_one_tenants_many_losses_hide_neither_another_tenants_nor_ours(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECKED_AT_MOST", 1)
    scene.name(TOPIC, 3, 4, 8, 9)
    scene.kept_and_gone(KEY, 3)
    scene.kept_and_gone(KEY, 4)
    scene.journal(4)
    scene.name(OTHERS_TOPIC, 7, there=(7,))
    scene.kept_and_gone(f"data:{OTHERS_TOPIC}", 7)
    missing = scene.check()
    assert missing.ours == [f"LEDGER 4 of {KEY}"]
    assert missing.tenants.keys() == {"public", "bank"}


@pytest.mark.parametrize("is_ours", [True, False])
def test_objects_are_compared_with_the_journal_of_objects(scene: Scene, *, is_ours: bool) -> None:
    scene.name(TOPIC, offloaded(8, uuid=UUID), 9)
    write(scene.state, receipt(2, **_row(KEY, 8) | {c.LEDGER_TYPE: "OFFLOAD_LEDGER", c.UUID: UUID}))
    scene.journal(8)  # its copy in BookKeeper
    entry = ObjectEntry(
        ledger_id=8,
        uuid=UUID if is_ours else "another",
        bucket=Bucket(endpoint="", name="", region="b"),
        objects=(),
        index=None,
        user_metadata={},
        reference=reference(),
    )
    ParquetJournal(str(scene.state), "requests", 1, scene.clock).write_objects([entry])
    loss = f"OFFLOAD_LEDGER 8 of {KEY}"
    assert scene.check(chunk=2) == Missing({"public": [loss]}, [loss] if is_ours else [])
