"""What a failed publication is called, so that it is waited for, or ends the service, as it must."""

import traceback
from collections.abc import Callable, Iterator

import pytest

from streaming.adapters.pulsar.publish import Copy, publish
from streaming.config.load import load
from streaming.config.sections import PulsarSettings
from streaming.deletion.copies import PulsarCopies, sequence_id
from streaming.deletion.outbox import refuse_outdated
from streaming.errors import FencedError, ReaperError, SafetyError, UnavailableError
from streaming.spark.failures import translated
from tests.contract.publish_broker import PublishBroker

TOPIC = "persistent://pulsar/ledger-deletion/d-RETRY-partition-0"
THREE = [Copy((1 << 20) + place, None, b"{}", {}) for place in range(3)]

Opened = Callable[..., tuple[PublishBroker, PulsarSettings]]


@pytest.fixture
def opened() -> Iterator[Opened]:
    brokers = []

    def make(**options: object) -> tuple[PublishBroker, PulsarSettings]:
        broker = PublishBroker(**options)  # type: ignore[arg-type]
        brokers.append(broker)
        settings = load(None).pulsar.model_copy(update={"service_url": broker.url, "timeout_seconds": 3})
        return broker, settings

    yield make
    for broker in brokers:
        broker.close()


def test_what_is_answered_is_stored(opened: Opened) -> None:
    broker, settings = opened()
    assert publish(settings, TOPIC, "p-0", THREE) == 3
    assert [number for number, _ in broker.sent] == [copy.sequence_id for copy in THREE]


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        pytest.param(False, UnavailableError, id="no answer is waited for"),
        pytest.param(None, FencedError, id="another instance has taken the producer"),
    ],
)
def test_a_failed_publication_has_our_name(opened: Opened, verdict: bool | None, kind: type[ReaperError]) -> None:
    _, settings = opened(on_send=lambda number: True if number == THREE[0].sequence_id else verdict)
    with pytest.raises(kind) as caught:
        publish(settings, TOPIC, "p-0", THREE)
    as_an_executor_tells_it = RuntimeError("".join(traceback.format_exception(caught.value)))
    assert type(translated(as_an_executor_tells_it)) is kind


def test_copies_that_a_broker_has_of_chunks_that_the_receipts_lack_stop_the_start(opened: Opened) -> None:
    broker, settings = opened(last_sequence_id=sequence_id(7, 3))
    targets = {TOPIC.removesuffix("-partition-0"): 2, "persistent://pulsar/ledger-deletion/d-DLQ": 0}
    copies = PulsarCopies(load(None).model_copy(update={"pulsar": settings}), targets)
    remembered = copies.remembered("T")
    refuse_outdated(remembered, 7)
    assert broker.producers == [f"ledger-reaper-main-T-{number}" for number in (0, 1, -1)]
    with pytest.raises(SafetyError, match=r"end with chunk 6, and \S+-partition-0 has copies of chunk 7.*Restore"):
        refuse_outdated(remembered, 6)
