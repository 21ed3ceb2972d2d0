"""Whether a topic's snapshot may be replaced by an empty one, so that its broker replays the topic.

A broker that finds an index without segments and without a maxReadPosition replays all that the topic still holds,
finds every abort marker again, and seals new segments (seen on Pulsar 4.0.8). That costs one reading of the topic and
loses nothing: where a marker is gone, the messages before it that it takes back are gone as well. It is right only for
a topic that does not load: of one that is loaded, the broker would write its own index over ours.
"""

from udfs.formats.internal_stats import BEFORE_ALL
from udfs.records import Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.audit import READY, TopicFacts
from udfs.snapshots.codec import Index, encode_index, entries_of


def empty_index(topic: str) -> bytes:
    """Return the value that makes a broker replay a topic from its beginning."""
    return encode_index(Index(topic, entries_of([]), BEFORE_ALL, ids_of([])))


def refusal_of(facts: TopicFacts) -> str:
    """Return why a topic must not be repaired; "" where it may. facts: as the audit has them, read just now."""
    if facts.in_metadata is not Presence.PRESENT:
        return facts.detail or "ZooKeeper does not have the topic, or it could not be read"
    if facts.buffer is not None and facts.buffer.state == READY:
        return "the topic is loaded and its transaction buffer is ready: it works, and nothing is repaired"
    if not facts.named:
        return "it has no index that names a segment: a missing segment is not what keeps it from being loaded"
    if not any(not each.is_readable and each.marker[0] in facts.ledgers for each in facts.named):
        return "every segment that it needs can be read: something else keeps it from being loaded"
    return ""
