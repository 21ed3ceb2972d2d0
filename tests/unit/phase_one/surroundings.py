"""The client's surroundings in memory: MemoryPulsar's topics, and receipts that the test writes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.sender import MemoryRequestSender
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.phase_one.receipts_by_message import Receipt
from streaming.phase_one.services import Services
from streaming.ports import StoredMessage
from streaming.topics.setup import ensure_request_topic
from tests.builders import NOW_MS
from udfs.records import Outcome, Reason


@dataclass
class Memory:
    """answer: the contents of the newest receipt of every request, in turn; the last one repeats."""

    settings: Settings = field(default_factory=lambda: load(None))
    pulsar: MemoryPulsar = field(default_factory=MemoryPulsar)
    answers: list[tuple[Outcome, Reason]] = field(default_factory=lambda: [(Outcome.DELETED, Reason.UNREFERENCED)])
    senders: list[MemoryRequestSender] = field(default_factory=list)

    def services(self) -> Services:
        return Services(
            ensure_topic=lambda topic: ensure_request_topic(self.pulsar, self.settings, topic),
            open_sender=self._open,
            receipts=self._receipts,
            now_ms=lambda: NOW_MS,
        )

    def sent(self, topic: str = "") -> list[StoredMessage]:
        name = topic or self.settings.topics.requests[0]
        found = self.pulsar.topics.get(name)
        return [each for part in found.partitions.values() for each in part.messages] if found else []

    def _open(self, topic: str) -> MemoryRequestSender:
        self.senders.append(MemoryRequestSender(self.pulsar, topic))
        return self.senders[-1]

    def _receipts(self, message_ids: Collection[str], since_ms: int) -> Mapping[str, Receipt]:
        assert since_ms == NOW_MS
        outcome, reason = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return {
            each: Receipt(
                message_id=each,
                ledger_id=5,
                ledger_type=None,
                topic="persistent://public/default/orders",
                outcome=outcome,
                reason=reason,
                detail="",
                attempt=0,
                at_ms=NOW_MS,
            )
            for each in message_ids
        }
