"""Where dead letters came from, as our receipts prove it, and so where each may be published again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds

from streaming.config.settings import Settings
from streaming.dlq.letters import DeadLetter
from streaming.ports import TopicAdmin
from streaming.state import receipts
from udfs import columns as c
from udfs.records import Outcome, Reason
from udfs.replay_target import Origin, Stays, replay_target
from udfs.retry import REAL_TOPIC, fitting


@dataclass(slots=True)
class Origins:
    """to: the request topic that a person named, "" for none."""

    settings: Settings
    admin: TopicAdmin
    to: str = ""
    _there: dict[str, bool] = field(default_factory=dict)

    def targets(self, letters: Sequence[DeadLetter]) -> Iterator[tuple[DeadLetter, str | Stays]]:
        """Return each letter with the topic to publish it to, or why it stays. Raises UnavailableError."""
        proven = self._proven(letters)
        for letter in letters:
            origin = Origin(
                proven.get(letter.id, frozenset()),
                letter.message.properties.get(REAL_TOPIC) or "",
                letter.reason == Reason.OTHER_TENANT,
            )
            topics = self.settings.topics
            yield (
                letter,
                replay_target(
                    origin, self.to, topics.trusted_tenants, is_request_topic=topics.takes, is_there=self._is_there
                ),
            )

    def _proven(self, letters: Sequence[DeadLetter]) -> Mapping[str, frozenset[str]]:
        """By letter, the request topics that receipts name. A receipt proves what has its origin and its payload."""
        wanted = (ds.field(c.OUTCOME) == str(Outcome.DEAD_LETTER)) & ds.field(c.ORIGIN_MESSAGE_ID).isin(
            sorted({letter.origin for letter in letters})
        )
        by_request: dict[tuple[str, bytes], set[str]] = {}
        columns = [c.ORIGIN_MESSAGE_ID, c.TARGET, c.PAYLOAD, c.MESSAGE_PROPERTIES]
        for row in receipts.rows(self.settings.state_dir, wanted, columns=columns):
            if row[c.TARGET] == self.settings.topics.dead_letter:
                by_request.setdefault((row[c.ORIGIN_MESSAGE_ID], _sent(row)), set()).add(_real_topic(row))
        return {letter.id: frozenset(by_request.get((letter.origin, letter.message.payload), ())) for letter in letters}

    def _is_there(self, topic: str) -> bool:
        if topic not in self._there:
            self._there[topic] = bool(self.admin.partitions(topic))
        return self._there[topic]


def _sent(row: Mapping[str, Any]) -> bytes:
    """The payload as the dead letter has it."""
    return fitting(bytes(row[c.PAYLOAD] or b""), b"", {})[0]


def _real_topic(row: Mapping[str, Any]) -> str:
    return dict(row[c.MESSAGE_PROPERTIES] or ()).get(REAL_TOPIC) or ""
