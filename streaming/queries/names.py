"""Lists the streaming queries of a configuration, with their names and the paths of their checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.schemas import REQUESTS, RETRY

VERSION = "v1"  # version of the meaning of a checkpoint; checkpoints/README.md lists the changes that increase it
FURTHER = f"{REQUESTS}-"
_SHORT = 8  # hex digits in the names of earlier versions; queries/short_names.py explains the change


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query and the topics that it reads."""

    name: str  # of its checkpoint's folder, and in Spark's UI; it stays the same as long as the topics do
    topics: tuple[str, ...]


def queries_of(settings: Settings, unlisted: Sequence[str] = ()) -> tuple[Query, ...]:
    """Return a query for each request topic, and a query for RETRY.

    The first topic's query is `requests`; the names of further queries contain the SHA-256 of their topic, so that no
    two share a checkpoint.

    unlisted: other topics that are read by a query: the watcher's, if it exists.
    """
    first, *further = settings.topics.requests
    return (
        Query(REQUESTS, (first,)),
        *map(further_query, (*further, *unlisted)),
        Query(RETRY, (settings.topics.retry,)),
    )


def further_query(topic: str) -> Query:
    """Return the query of a topic that is not the first of topics.requests, nor RETRY."""
    return Query(f"{FURTHER}{_digest(topic)}", (topic,))


def short_name_of(query: Query) -> str | None:
    """Return the name that earlier versions gave to a further topic's query; None for the other queries."""
    return f"{FURTHER}{_digest(query.topics[0])[:_SHORT]}" if query.name.startswith(FURTHER) else None


def _digest(topic: str) -> str:
    return sha256(topic.encode()).hexdigest()


def checkpoint_of(settings: Settings, name: str) -> str:
    """Return the path of a query's checkpoint in the form that Spark takes."""
    folder = settings.checkpoints.dir.rstrip("/")
    if is_on_s3(folder):
        folder = f"s3a://{folder.partition('://')[2]}"
    return f"{folder}/{name}/{VERSION}"
