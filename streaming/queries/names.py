"""Which streaming queries there are, what they are called, and where the checkpoint of each lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.schemas import REQUESTS, RETRY

VERSION = "v1"  # of what a checkpoint means; checkpoints/README.md says when it must change
FURTHER = f"{REQUESTS}-"
_SHORT = 8  # digits; queries/short_names.py says why there are more now


@dataclass(frozen=True, slots=True)
class Query:
    """name: names its checkpoint's folder and stands in the Spark UI; it stays the same while its topics do."""

    name: str
    topics: tuple[str, ...]


def queries_of(settings: Settings, matched: Sequence[str] = ()) -> tuple[Query, ...]:
    """Return a query for each request topic, and one for RETRY.

    The first topic's query is `requests`; those of further topics carry the SHA-256 of the topic, so that no two
    share a checkpoint. matched: topics that match topics.requests_pattern. Their queries are named in the same way, so
    that a topic may be listed later, or no longer, and keep its checkpoint.
    """
    first, *further = settings.topics.requests
    return (
        Query(REQUESTS, (first,)),
        *(Query(f"{FURTHER}{_digest(topic)}", (topic,)) for topic in (*further, *matched)),
        Query(RETRY, (settings.topics.retry,)),
    )


def short_name_of(query: Query) -> str | None:
    """Return how earlier versions named a further topic's query; None for the other queries."""
    return f"{FURTHER}{_digest(query.topics[0])[:_SHORT]}" if query.name.startswith(FURTHER) else None


def _digest(topic: str) -> str:
    return sha256(topic.encode()).hexdigest()


def checkpoint_of(settings: Settings, name: str) -> str:
    """Return where a query's checkpoint is, as Spark takes it."""
    folder = settings.checkpoints.dir.rstrip("/")
    if is_on_s3(folder):
        folder = f"s3a://{folder.partition('://')[2]}"
    return f"{folder}/{name}/{VERSION}"
