"""The brokers' answers about segments of scalable topics, which Pulsar 5.0 introduced.

A broker lists a segment among its loaded topics, but 5.0.0-M1 shows neither its ledgers nor its cursors, and no list of
a namespace names segments. A broker does return the layout of a scalable topic, which it reads from its metadata store.
"""

import json
from collections.abc import Collection, Iterable
from http import HTTPStatus

from streaming.adapters.pulsar.http import Answer
from udfs.formats.errors import FormatError
from udfs.formats.segment_layout import parse_layout
from udfs.paths import SegmentName, decode_name, segment_of
from udfs.records import BrokerView, Presence

# A loaded segment, as its broker shows it.
HIDDEN = BrokerView(presence=Presence.PRESENT, is_hidden=True, detail="brokers do not show a segment's ledgers")


def segments_among(managed_ledgers: Iterable[str]) -> dict[str, SegmentName]:
    """Return the segments among valid names, by name."""
    return {name: segment for name in managed_ledgers if (segment := segment_of(name))}


def layout_request(scalable_topic: str) -> str | None:
    """Return the path below /admin/ of a scalable topic's layout; None: no request can name the topic.

    Brokers of 5.0.0-M1 do not decode the name in such a path, so a name that has to be encoded would be another's.
    """
    encoded = scalable_topic.rpartition("/")[2]
    return f"v2/scalable/{scalable_topic}" if decode_name(encoded) == encoded else None


def is_absent(scalable_topic: str, answer: Answer) -> bool:
    """Whether a broker answered layout_request() with "no such scalable topic"; an older one has another 404."""
    is_known = answer.reason == f"Scalable topic not found: topic://{scalable_topic}"
    return answer.status == HTTPStatus.NOT_FOUND and is_known


def view_of_segment(segment: SegmentName, answer: Answer) -> BrokerView:
    """Return the view of a segment that no broker has loaded, by a broker's answer to layout_request()."""
    if is_absent(segment.topic, answer):
        return BrokerView(presence=Presence.GONE, detail=answer.reason)
    if answer.status != HTTPStatus.OK:
        return BrokerView(presence=Presence.UNREADABLE, detail=f"HTTP {answer.status}: {answer.reason}")
    try:
        is_named = parse_layout(json.dumps(answer.body).encode()).names(segment)
    except (FormatError, RecursionError) as error:
        return BrokerView(presence=Presence.UNREADABLE, detail=str(error))
    if is_named:
        return BrokerView(presence=Presence.PRESENT, is_loaded=False)
    return BrokerView(presence=Presence.GONE, detail=f"the brokers' layout of topic://{segment.topic} does not name it")


def view_of_schema(schema_id: str, loaded: Collection[str]) -> BrokerView | None:
    """Return the view of a schema if a segment of its topic is loaded; None: none is.

    We ask a broker for a schema by the name of a loaded topic, and a segment's name is not the name of its schema.

    Args:
        schema_id: the schema, whose topic itself is not loaded.
        loaded: the schemas of all loaded segments.
    """
    if schema_id not in loaded:
        return None
    return BrokerView(presence=Presence.UNREADABLE, detail="only segments of its topic are loaded")
