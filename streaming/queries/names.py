"""Which streaming queries there are, what they are called, and where each one's checkpoint lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from streaming.config.settings import Settings
from streaming.schemas import REQUESTS, RETRY

VERSION = "v1"  # of what a checkpoint means; checkpoints/README.md says when it must change
FURTHER = f"{REQUESTS}-"


@dataclass(frozen=True, slots=True)
class Query:
    """name: of its checkpoint's folder and in the Spark UI; it stays the same while its topics do."""

    name: str
    topics: tuple[str, ...]


def queries_of(settings: Settings, matched: Sequence[str] = ()) -> tuple[Query, ...]:
    """The first request topic's query is `requests`, a further one's carries a digest of its topic; RETRY is last.

    matched: topics that match topics.requests_pattern; their queries are named as those of further listed ones, so a
    topic may move from one to the other.
    """
    first, *further = settings.topics.requests
    return (
        Query(REQUESTS, (first,)),
        *(Query(f"{FURTHER}{sha256(topic.encode()).hexdigest()[:8]}", (topic,)) for topic in (*further, *matched)),
        Query(RETRY, (settings.topics.retry,)),
    )


def checkpoint_of(settings: Settings, name: str) -> str:
    """Where a query's checkpoint is."""
    return f"{settings.checkpoints.dir.rstrip('/')}/{name}/{VERSION}"
