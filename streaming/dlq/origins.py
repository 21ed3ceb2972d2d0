"""Finds the request topic to which a dead letter may be published again: receipts prove where it came from."""

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
from udfs.requests.replay_target import LetterOrigin, Stays, replay_target
from udfs.requests.retry import REAL_TOPIC, fitting


@dataclass(slots=True)
class Origins:
    """Chooses the targets of a replay."""

    settings: Settings
    admin: TopicAdmin
    to: str = ""  # the request topic that the operator named, if any
    _exists: dict[str, bool] = field(default_factory=dict)

    def targets(self, letters: Sequence[DeadLetter]) -> Iterator[tuple[DeadLetter, str | Stays]]:
        """Yield each letter with the topic to which it may be published, or why it can't. Raises UnavailableError."""
        proven = self._proven(letters)
        for letter in letters:
            origin = LetterOrigin(
                # any writer to the dead-letter topic can write REAL_TOPIC, so only a receipt proves the origin
                # (decision 25)
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
        """Return letter id -> request topics. A receipt is proof for a letter with the same origin and payload."""
        condition = (ds.field(c.OUTCOME) == str(Outcome.DEAD_LETTER)) & ds.field(c.ORIGIN_MESSAGE_ID).isin(
            sorted({letter.origin for letter in letters})
        )
        by_request: dict[tuple[str, bytes], set[str]] = {}
        columns = [c.ORIGIN_MESSAGE_ID, c.TARGET, c.PAYLOAD, c.MESSAGE_PROPERTIES]
        for row in receipts.rows(self.settings.state_dir, condition, columns=columns):
            if row[c.TARGET] == self.settings.topics.dead_letter:
                # with the payload: a sender could combine the origin id with the payload of another request
                by_request.setdefault((row[c.ORIGIN_MESSAGE_ID], _sent(row)), set()).add(_real_topic(row))
        return {letter.id: frozenset(by_request.get((letter.origin, letter.message.payload), ())) for letter in letters}

    def _is_there(self, topic: str) -> bool:
        if topic not in self._exists:
            # a lane that was deleted is created again for the letters, like for its first request
            self._exists[topic] = bool(self.admin.partitions(topic)) or self.settings.topics.is_lane(topic)
        return self._exists[topic]


def _sent(row: Mapping[str, Any]) -> bytes:
    """Return the payload that the dead letter got, which may be truncated."""
    return fitting(bytes(row[c.PAYLOAD] or b""), b"", {})[0]


def _real_topic(row: Mapping[str, Any]) -> str:
    return dict(row[c.MESSAGE_PROPERTIES] or ()).get(REAL_TOPIC) or ""
