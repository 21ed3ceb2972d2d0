"""Values are not compressed, because brokers don't decompress segments; tombstones are compressed."""

from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from streaming.adapters.pulsar.snapshots import keyed
from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.errors import UnavailableError
from tests.pulsar_settings import pulsar_settings

TOPIC = "persistent://t/ns/__transaction_buffer_snapshot_segments"
SETTINGS = pulsar_settings(
    service_url="pulsar://127.0.0.1:1",
    admin_url="http://127.0.0.1:1",
    timeout_seconds=5,
)


@dataclass
class Client:
    """A fake of pulsar-client."""

    fails: Any = None  # the compression without a producer
    sent: list[tuple[str, Any, bytes | None]] = field(default_factory=list)
    created: list[Any] = field(default_factory=list)
    is_closed: bool = False

    def create_producer(self, topic: str, *, compression_type: Any, batching_enabled: bool, **_more: Any) -> "Producer":
        if compression_type is self.fails:
            raise pulsar.PulsarException("no")
        assert not batching_enabled
        self.created.append(compression_type)
        return Producer(self, compression_type)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Producer:
    client: Client
    compression: Any

    def send(self, value: bytes | None, *, partition_key: str) -> pulsar.MessageId:
        self.client.sent.append((partition_key, self.compression, value))
        return pulsar.MessageId(-1, 7, len(self.client.sent) - 1, -1)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    created = Client()
    monkeypatch.setattr(keyed, "new_client", lambda _settings: created)
    return created


def test_values_are_not_compressed_and_tombstones_are(client: Client) -> None:
    with KeyedSender(SETTINGS, TOPIC) as sender:
        assert [sender.send("a", b"1"), sender.send("a", None), sender.send("b", b"2"), sender.send("b", None)] == [
            (7, 0),
            (7, 1),
            (7, 2),
            (7, 3),
        ]
    plain, lz4 = pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4
    assert client.sent == [("a", plain, b"1"), ("a", lz4, None), ("b", plain, b"2"), ("b", lz4, None)]
    assert client.created == [plain, lz4]
    assert client.is_closed


def test_without_tombstones_there_is_one_producer(client: Client) -> None:
    with KeyedSender(SETTINGS, TOPIC) as sender:
        sender.send("a", b"1")
    assert client.created == [pulsar.CompressionType.NONE]


def test_a_topic_without_a_producer_is_refused_at_once(client: Client) -> None:
    client.fails = pulsar.CompressionType.NONE
    with pytest.raises(UnavailableError, match="accepts no producer"), KeyedSender(SETTINGS, TOPIC):
        pass
    assert client.is_closed


def test_a_tombstone_without_a_producer_is_an_error(client: Client) -> None:
    client.fails = pulsar.CompressionType.LZ4
    with KeyedSender(SETTINGS, TOPIC) as sender, pytest.raises(UnavailableError, match="accepts no producer"):
        sender.send("a", None)
