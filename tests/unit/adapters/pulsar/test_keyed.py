"""Values lie in their entries as they are, for brokers don't decompress segments; tombstones are compressed."""

from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from streaming.adapters.pulsar import keyed
from streaming.adapters.pulsar.keyed import KeyedSender
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError

TOPIC = "persistent://t/ns/__transaction_buffer_snapshot_segments"
SETTINGS = PulsarSettings(
    service_url="pulsar://127.0.0.1:1",
    admin_url="http://127.0.0.1:1",
    token_file="",
    tls_trust_certs_file="",
    tls_check_hostname=True,
    timeout_seconds=5,
)


@dataclass
class Client:
    """pulsar-client. fails: what no producer is made with."""

    fails: Any = None
    sent: list[tuple[str, Any, bytes | None]] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)
    is_closed: bool = False

    def create_producer(self, topic: str, *, compression_type: Any, batching_enabled: bool, **_more: Any) -> "Producer":
        if compression_type is self.fails:
            raise pulsar.PulsarException("no")
        assert not batching_enabled
        self.made.append(compression_type)
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
    made = Client()
    monkeypatch.setattr(keyed, "new_client", lambda _settings: made)
    return made


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
    assert client.made == [plain, lz4]
    assert client.is_closed


def test_who_sends_no_tombstone_has_one_producer(client: Client) -> None:
    with KeyedSender(SETTINGS, TOPIC) as sender:
        sender.send("a", b"1")
    assert client.made == [pulsar.CompressionType.NONE]


def test_a_topic_that_takes_no_producer_is_told_at_once(client: Client) -> None:
    client.fails = pulsar.CompressionType.NONE
    with pytest.raises(UnavailableError, match="takes no producer"), KeyedSender(SETTINGS, TOPIC):
        pass
    assert client.is_closed


def test_a_tombstone_that_finds_no_producer_is_told(client: Client) -> None:
    client.fails = pulsar.CompressionType.LZ4
    with KeyedSender(SETTINGS, TOPIC) as sender, pytest.raises(UnavailableError, match="takes no producer"):
        sender.send("a", None)
