"""Properties of a topic are written and removed individually, and never for a missing topic."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from streaming.adapters.memory.properties import MemoryTopicProperties
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.pulsar.admin_api.properties import PulsarTopicProperties
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.errors import ForbiddenError, RefusedError, UnavailableError
from tests.builders import TOPIC
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from udfs.formats.managed_ledger import ManagedLedgerInfo, parse_managed_ledger, serialize_managed_ledger
from udfs.paths import managed_ledger_path

PATH = "/admin/v2/persistent/public/default/orders/properties"


@dataclass
class Real:
    """The real adapter, and a server with canned answers."""

    stub: HttpStub
    adapter: PulsarTopicProperties


@pytest.fixture
def real() -> Iterator[Real]:
    with http_stub() as stub:
        adapter = PulsarTopicProperties(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=1))
        yield Real(stub, adapter)
        adapter.close()


def test_the_broker_writes_and_removes_properties(real: Real) -> None:
    real.stub.answer_with(PATH, CannedAnswer(204))
    real.adapter.update(TOPIC, {"a": "1", "b": "2"})
    assert real.adapter.remove(TOPIC, "ledger-reaper.deletable.a.0")
    put, delete = real.stub.requests
    assert (put.method, put.path, json.loads(put.body)) == ("PUT", PATH, {"a": "1", "b": "2"})
    assert (delete.method, delete.path) == ("DELETE", f"{PATH}?key=ledger-reaper.deletable.a.0")


def test_a_request_names_the_partition(real: Real) -> None:
    path = "/admin/v2/persistent/public/default/orders-partition-3/properties"
    real.stub.answer_with(path, CannedAnswer(204))
    real.adapter.update(f"{TOPIC}-partition-3", {"a": "1"})
    assert [request.path for request in real.stub.requests] == [path]


def test_a_refusal_contains_advice(real: Real) -> None:
    real.stub.answer_with(PATH, CannedAnswer(404, b'{"reason":"Topic not found"}'))
    with pytest.raises(RefusedError, match=r"404 Topic not found; check the name"):
        real.adapter.update(TOPIC, {"a": "1"})
    assert not real.adapter.remove(TOPIC, "a")
    real.stub.answers.clear()
    real.stub.answer_with(PATH, CannedAnswer(401))
    with pytest.raises(ForbiddenError, match=r"renew its credentials"):
        real.adapter.remove(TOPIC, "a")


def test_a_broker_that_does_not_answer_may_have_written(real: Real) -> None:
    real.stub.answer_with(PATH, CannedAnswer(503))
    with pytest.raises(UnavailableError):
        real.adapter.update(TOPIC, {"a": "1"})


def test_the_fake_behaves_like_a_broker() -> None:
    tree = MemoryTree()
    path = managed_ledger_path(TOPIC)
    for depth in range(2, path.count("/") + 1):
        tree.create("/".join(path.split("/")[:depth]), b"")
    tree.create(path, serialize_managed_ledger(ManagedLedgerInfo(properties={"mine": "1"})))
    fake = MemoryTopicProperties(tree)
    fake.update(TOPIC, {"a": "1"})
    assert parse_managed_ledger(tree.read(path).data).properties == {"mine": "1", "a": "1"}
    assert fake.remove(TOPIC, "a")
    assert fake.remove(TOPIC, "a")
    assert parse_managed_ledger(tree.read(path).data).properties == {"mine": "1"}
    tree.remove(path)
    assert not fake.remove(TOPIC, "a")
    with pytest.raises(RefusedError):
        fake.update(TOPIC, {"a": "1"})
