"""Each request goes to its tenant's lane, through one of a bounded number of producers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming.adapters.memory.sender import MemoryRequestSender
from streaming.errors import UnavailableError
from streaming.topics.routing import LaneUnavailableError
from streaming.topics.senders import MOST_OPEN, RequestSenders
from tests.builders import data_request
from tests.unit.topics.test_routing import SHARED, Scene, Slow, lane, settings_with
from udfs.records import PendingDelete


class Senders(RequestSenders):
    """Producers in memory."""

    def __init__(self, scene: Scene) -> None:
        self.opened: list[MemoryRequestSender] = []
        self.fails = ""  # the topic to which no producer connects
        self.slow: dict[str, Slow] = {}  # by topic
        self.scene = scene
        super().__init__(scene.topics, self._connect)

    def of_tenant(self, tenant: str, ledger_id: int = 5) -> PendingDelete:
        return data_request(ledger_id, f"{tenant}/app/persistent/orders")

    def _connect(self, topic: str) -> MemoryRequestSender:
        if topic == self.fails:
            raise UnavailableError("the producer is refused")
        if slow := self.slow.get(topic):
            slow.wait()
        self.opened.append(MemoryRequestSender(self.scene.pulsar, topic))
        return self.opened[-1]


@pytest.fixture
def senders(tmp_path: Path) -> Senders:
    return Senders(Scene(settings_with(tmp_path), "acme", "rival"))


def test_each_tenants_requests_are_in_its_lane_alone(senders: Senders) -> None:
    for tenant in ("acme", "rival", "acme"):
        senders.start_send(senders.of_tenant(tenant)).result()
    senders.send("", None, b"no request").result()
    topics = senders.scene.pulsar.topics
    stored = {name: sum(len(part.messages) for part in topic.partitions.values()) for name, topic in topics.items()}
    assert stored == {lane("acme"): 2, lane("rival"): 1, SHARED: 1}
    assert len(senders.opened) == len(stored)
    senders.check_sent()


def test_no_more_producers_are_open_than_the_limit(tmp_path: Path) -> None:
    tenants = [f"t{number}" for number in range(MOST_OPEN + 1)]
    senders = Senders(Scene(settings_with(tmp_path), *tenants))
    for tenant in tenants:
        senders.start_send(senders.of_tenant(tenant)).result()
    assert [sender.is_closed for sender in senders.opened] == [True, *[False] * MOST_OPEN]
    senders.close()
    assert all(sender.is_closed for sender in senders.opened)


def test_a_lane_without_a_producer_is_its_tenants_fault_and_is_not_tried_for_each_request(senders: Senders) -> None:
    senders.fails = lane("acme")
    for _ in range(2):
        with pytest.raises(LaneUnavailableError, match="tenant acme"):
            senders.start_send(senders.of_tenant("acme"))
    assert len([topic for topic in senders.scene.asked if topic == lane("acme")]) == 1
    senders.start_send(senders.of_tenant("rival")).result()


def test_requests_to_a_lane_that_was_deleted_before_count_as_lost(senders: Senders) -> None:
    senders.start_send(senders.of_tenant("acme")).result()
    senders.check_sent()
    senders.scene.topic_for("acme")  # its check is remembered for a minute
    senders.scene.pulsar.delete_topic(lane("acme"), force=True)
    senders.scene.pulsar.closed_namespaces.clear()  # so the broker creates an unpartitioned topic
    senders.start_send(senders.of_tenant("acme")).result()
    with pytest.raises(UnavailableError, match="not partitioned"):
        senders.check_sent()


def test_a_producer_that_connects_slowly_delays_only_its_own_topic(senders: Senders) -> None:
    slow = senders.slow[lane("acme")] = Slow()
    with ThreadPoolExecutor(2) as threads:
        try:
            own = threads.submit(senders.start_send, senders.of_tenant("acme"))
            assert slow.is_asked.wait(20)
            assert threads.submit(senders.start_send, senders.of_tenant("rival")).result(20).result(20)
        finally:
            slow.release.set()
        assert own.result(20).result(20)


def test_a_request_whose_producer_was_just_closed_for_others_is_sent_with_a_new_one(tmp_path: Path) -> None:
    first, *others = [f"t{number}" for number in range(MOST_OPEN + 1)]
    senders = Senders(Scene(settings_with(tmp_path), first, *others))
    choose = senders._producer

    def choose_late(topic: str) -> object:
        producer = choose(topic)
        senders._producer = choose  # type: ignore[method-assign]
        for tenant in others:
            senders.start_send(senders.of_tenant(tenant)).result()
        return producer

    senders._producer = choose_late  # type: ignore[assignment, method-assign]
    assert senders.start_send(senders.of_tenant(first)).result()
    assert len(senders.opened) == MOST_OPEN + 1
