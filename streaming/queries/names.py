"""Which streaming queries there are, what they are called, and where the checkpoint of each lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.schemas import REQUESTS, RETRY

VERSION = "v1"  # of what a checkpoint means; checkpoints/README.md says when it must change
FURTHER = f"{REQUESTS}-"


@dataclass(frozen=True, slots=True)
class Query:
    """name: names its checkpoint's folder and stands in the Spark UI; it stays the same while its topics do."""

    name: str
    topics: tuple[str, ...]


def queries_of(settings: Settings, matched: Sequence[str] = ()) -> tuple[Query, ...]:
    """Return a query for each request topic, and one for RETRY.

    The first topic's query is `requests`; those of further topics carry a digest of the topic. matched: topics that
    match topics.requests_pattern. Their queries are named in the same way, so that a topic may be listed later, or no
    longer, and keep its checkpoint.
    """
    first, *further = settings.topics.requests
    return (
        Query(REQUESTS, (first,)),
        *(Query(f"{FURTHER}{sha256(topic.encode()).hexdigest()[:8]}", (topic,)) for topic in (*further, *matched)),
        Query(RETRY, (settings.topics.retry,)),
    )


def checkpoint_of(settings: Settings, name: str) -> str:
    """Return where a query's checkpoint is, as Spark takes it."""
    folder = settings.checkpoints.dir.rstrip("/")
    if is_on_s3(folder):
        folder = f"s3a://{folder.partition('://')[2]}"
    return f"{folder}/{name}/{VERSION}"
