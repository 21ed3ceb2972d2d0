"""RequestSender on MemoryPulsar. Requests of one owner go to one partition."""

from concurrent.futures import Future
from zlib import crc32

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.errors import UnavailableError


class MemoryRequestSender:
    """A producer on one topic. Tests inject failures with the faults of its MemoryPulsar (operation "send")."""

    def __init__(self, pulsar: MemoryPulsar, topic: str) -> None:
        self._pulsar = pulsar
        self._topic = topic
        self.is_closed = False

    def send(self, key: bytes | None, payload: bytes) -> "Future[str]":
        """Send a request; the future returns its message id."""
        if self.is_closed:
            raise UnavailableError("the producer is closed")
        answer: Future[str] = Future()
        answer.set_running_or_notify_cancel()
        ids: list[str] = []
        self._pulsar.connect(self._topic)
        count = self._pulsar.partitions(self._topic) or 0
        name = f"{self._topic}-partition-{crc32(key or b'') % count}" if count else self._topic
        try:
            self._pulsar.faults.step("send", [self._topic])
            self._pulsar.faults.effect(
                lambda: ids.append(self._pulsar.publish(name, payload, key=(key or b"").decode("utf-8", "replace")).id)
            )
        except UnavailableError as error:
            answer.set_exception(error)
        else:
            answer.set_result(ids[0])
        return answer

    def close(self) -> None:
        """Refuse further requests."""
        self.is_closed = True
