"""Requests are sent in the order of their numbers; those that an interrupted run sent are not sent again."""

import shutil
from collections.abc import Set
from pathlib import Path

import pytest

from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.phase_one.watcher import request_outbox
from streaming.phase_one.watcher.request_outbox import LedgerName, Published, RequestOutbox
from streaming.state.watched import Watched
from tests.builders import UUID, data_request
from tests.unit.phase_one.watcher.watching import Crash, CrashedError, MemoryPublication
from udfs.formats.internal_stats import Position
from udfs.records import LedgerType, OffloadContext, PendingDelete
from udfs.requests.request_format import encode

UPLOAD = PendingDelete(
    managed_ledger=data_request(3).managed_ledger,
    component=data_request(3).component,
    ledger_type=LedgerType.OFFLOAD_LEDGER,
    ledger_id=3,
    offload_context=OffloadContext(uuid=UUID, driver_name="aws-s3", driver_properties={"bucket": "b"}),
)


class Scene:
    """An outbox on a state and a topic that both outlive it."""

    def __init__(self, state: Path) -> None:
        self.state = str(state)
        self.topic = MemoryPublication(Crash())
        self.named: set[LedgerName] = set()
        self.watched = Watched(self.state)

    def open(self, delay_ms: int = 100) -> RequestOutbox:
        self.watched = Watched(self.state)
        return RequestOutbox(self.watched, self.topic, self._named, delay_ms)

    def ask(self, *requests: PendingDelete, at_ms: int = 0) -> None:
        self.watched.save({}, [("/p", encode(each)) for each in requests], at_ms=at_ms)

    def _named(self, wanted: Set[LedgerName]) -> Set[LedgerName]:
        return self.named & wanted


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def owners(count: int) -> list[PendingDelete]:
    return [data_request(each, f"public/default/persistent/t-{each}") for each in range(count)]


def test_each_waits_for_its_delay_and_not_longer(scene: Scene) -> None:
    box = scene.open()
    scene.ask(data_request(1), at_ms=0)
    scene.ask(data_request(2), at_ms=50)
    assert (box.publish_due(99), box.waiting) == (Published(), 2)
    assert (box.publish_due(100), box.waiting) == (Published(sent=1), 1)
    assert (box.publish_due(150), box.waiting) == (Published(sent=1), 0)
    assert scene.topic.requests == [data_request(1), data_request(2)]
    assert scene.topic.looked_up == 0, "nothing was interrupted"


def test_one_owners_requests_go_to_one_partition(scene: Scene) -> None:
    box = scene.open()
    scene.ask(*owners(20), *owners(20))
    box.publish_due(100)
    found = [{each.key for _sender, each in some} for some in scene.topic.stored.values()]
    assert all(found)
    assert not set.intersection(*found)


def test_ledgers_that_a_list_names_are_not_sent_and_uploads_are_compared_by_uuid(scene: Scene) -> None:
    box = scene.open()
    scene.ask(data_request(1), data_request(2), UPLOAD)
    scene.named = {(1, ""), (3, "")}
    assert box.publish_due(100) == Published(sent=2, dropped=1)
    assert sorted(each.ledger_id for each in scene.topic.requests) == [2, 3]
    scene.ask(UPLOAD)
    scene.named = {(3, UUID)}
    assert box.publish_due(100) == Published(dropped=1)
    assert box.waiting == 0


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("is_after", [False, True])
def test_after_a_crash_between_two_sends_the_rest_is_sent(scene: Scene, at: int, *, is_after: bool) -> None:
    box = scene.open()
    scene.ask(*owners(8))
    scene.topic.crash.at, scene.topic.crash.is_after = at, is_after
    with pytest.raises(CrashedError):
        box.publish_due(100)
    again = scene.open()
    scene.ask(data_request(99))
    again.publish_due(200)
    assert sorted(each.ledger_id for each in scene.topic.requests) == [*range(8), 99]


def test_after_an_error_the_same_outbox_reads_which_requests_are_stored(scene: Scene) -> None:
    box = scene.open()
    scene.topic.is_away = True
    scene.ask(data_request(1))
    assert box.publish_due(100).why == "away", "before the first note"
    scene.topic.is_away = False
    assert box.publish_due(100) == Published(sent=1)
    scene.ask(*owners(4))
    scene.topic.is_away = True
    assert box.publish_due(100).why == "away"
    scene.topic.is_away = False
    assert box.publish_due(100) == Published(sent=4)
    looked_up = scene.topic.looked_up
    assert looked_up > 0
    scene.ask(data_request(9))
    assert box.publish_due(100) == Published(sent=1)
    assert scene.topic.looked_up == looked_up, "now all is known again"


def test_topics_that_can_not_be_used_for_a_while_end_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    box = scene.open()
    scene.ask(data_request(1))

    def ends() -> dict[str, Position]:
        raise ConfigError("a topic has a message TTL")

    monkeypatch.setattr(scene.topic, "ends", ends)
    assert (box.publish_due(100).why, box.waiting) == ("a topic has a message TTL", 1)
    monkeypatch.undo()
    assert box.publish_due(100) == Published(sent=1)


def test_an_error_of_the_state_is_no_error_of_the_topic(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    box = scene.open()
    scene.ask(data_request(1))

    def save(*_nodes: object, **_rest: object) -> None:
        raise UnavailableError("it may be stored or not")

    monkeypatch.setattr(scene.watched, "save", save)
    with pytest.raises(UnavailableError):
        box.publish_due(100)


def test_a_lot_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_outbox, "_MOST_AT_ONCE", 3)
    box = scene.open()
    scene.ask(*owners(4))
    assert [box.publish_due(100), box.publish_due(100), box.publish_due(100)] == [
        Published(3),
        Published(1),
        Published(),
    ]


def test_a_new_state_gives_its_requests_another_sender(tmp_path: Path) -> None:
    one, other = Scene(tmp_path / "one"), Scene(tmp_path / "other")
    other.topic = one.topic
    for each in (one, other):
        box = each.open()
        each.ask(data_request(1))
        box.publish_due(100)
    assert len({sender for some in one.topic.stored.values() for sender, _send in some}) == 2


def test_a_state_from_a_backup_loses_no_request_to_the_numbers_that_were_used_since(scene: Scene) -> None:
    box = scene.open()
    scene.ask(data_request(1))
    box.publish_due(100)
    backup = scene.state + "-backup"
    shutil.copytree(scene.state, backup)
    scene.ask(*owners(6))
    box.publish_due(200)
    scene.state = backup
    again = scene.open()
    scene.ask(data_request(99))
    assert again.publish_due(300) == Published(), "it sees that others had its numbers"
    assert again.publish_due(400) == Published(sent=1)
    assert again.waiting == 0
    assert data_request(99) in scene.topic.requests


def test_another_topic_gets_what_waits_under_another_name(scene: Scene) -> None:
    box = scene.open()
    scene.ask(data_request(1))
    box.publish_due(100)
    (first,) = {sender for some in scene.topic.stored.values() for sender, _send in some}
    scene.ask(data_request(2))
    scene.topic = MemoryPublication(Crash(), "persistent://pulsar/elsewhere/w")
    assert scene.open().publish_due(200) == Published(sent=1)
    assert scene.topic.requests == [data_request(2)]
    assert {sender for some in scene.topic.stored.values() for sender, _send in some} != {first}


def test_damaged_requests_stop_it(scene: Scene) -> None:
    box = scene.open()
    scene.watched.save({}, [("/p", b"no request")], at_ms=0)
    with pytest.raises(SafetyError, match="damaged"):
        box.publish_due(100)
