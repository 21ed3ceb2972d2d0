"""Compares the messages in the topics with the receipts, after a run with crashes.

It reads the topics message by message, and uses none of the service's own records but the receipts.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.ports import StoredMessage
from streaming.state import receipts
from udfs import columns as c
from udfs.records import Outcome
from udfs.requests.retry import ORIGIN_MESSAGE_ID, attempt_of

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Reckoning:
    """The result of the comparison."""

    requests: int  # messages in the request topics
    retries: int  # messages in the retry topic
    dead_letters: int  # messages in the dead-letter topic
    outcomes: Counter[str] = field(default_factory=Counter)  # of the final receipts
    open: int = 0  # requests without a final receipt; 0 after `run --until-idle`
    wrong: list[str] = field(default_factory=list)  # sentences that describe contradictions


def reckon(settings: Settings) -> Reckoning:
    """Compare topics and receipts. Call this only while no service runs, and before messages of the topics expire."""
    topics = settings.topics
    requests = {message.id for topic in topics.requests for message in _messages(settings, topic)}
    retried = Counter((_origin(retry), attempt_of(retry.properties)) for retry in _messages(settings, topics.retry))
    dead = Counter(_origin(letter) for letter in _messages(settings, topics.dead_letter))
    rows = list(receipts.rows(settings.state_dir))
    final = [row for row in rows if row[c.OUTCOME] != Outcome.RETRY]
    ends = Counter(row[c.ORIGIN_MESSAGE_ID] for row in final)
    result = Reckoning(
        requests=len(requests),
        retries=retried.total(),
        dead_letters=dead.total(),
        outcomes=Counter(row[c.OUTCOME] for row in final),
    )
    result.open = len(requests - ends.keys())
    positions = Counter(tuple(row[name] for name in c.POSITION) for row in rows)
    for what, wrong in (
        ("requests have several final receipts", (request for request, n in ends.items() if n > 1)),
        ("final receipts belong to no request", ends.keys() - requests),
        ("messages were processed twice", (position for position, n in positions.items() if n > 1)),
        ("retries differ from the receipts", _differences(retried, _retries(rows))),
        ("dead letters differ from the receipts", _differences(dead, _dead(final))),
    ):
        named = [str(item) for item in wrong]
        if named:
            result.wrong.append(f"{len(named)} {what}, such as {', '.join(named[:3])}")
    return result


def _messages(settings: Settings, topic: str) -> Iterable[StoredMessage]:
    with admin_for(settings) as admin:
        last = admin.last_positions(topic) if admin.partitions(topic) else {}
    return read(settings.pulsar, last)


def _origin(message: StoredMessage) -> str:
    return message.properties.get(ORIGIN_MESSAGE_ID) or message.id


def _retries(rows: list[dict[str, object]]) -> Counter[tuple[str, int]]:
    retries = (row for row in rows if row[c.OUTCOME] == Outcome.RETRY)
    return Counter((str(row[c.ORIGIN_MESSAGE_ID]), int(str(row[c.ATTEMPT]))) for row in retries)


def _dead(final: list[dict[str, object]]) -> Counter[str]:
    return Counter(str(row[c.ORIGIN_MESSAGE_ID]) for row in final if row[c.OUTCOME] == Outcome.DEAD_LETTER)


def _differences(stored: Counter[T], receipted: Counter[T]) -> list[T]:
    return [*(stored - receipted).elements(), *(receipted - stored).elements()]
