"""The brokers' answers about segments of scalable topics, which Pulsar 5.0 introduced.

A broker lists a segment among its loaded topics, but 5.0.1 shows neither its ledgers nor its cursors, and no list of
a namespace names segments. A broker does return the layout of a scalable topic, which it reads from its metadata store.
"""

import json
from collections.abc import Collection
from http import HTTPStatus

from streaming.adapters.pulsar.http import Answer
from streaming.errors import UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.segment_layout import SegmentLayout, parse_layout
from udfs.paths import SegmentName, decode_name
from udfs.records import BrokerView, Presence

# A loaded segment, as its broker shows it.
HIDDEN = BrokerView(presence=Presence.PRESENT, is_hidden=True, detail="brokers do not show a segment's ledgers")


def layout_request(scalable_topic: str) -> str | None:
    """Return the path below /admin/ of a scalable topic's layout; None: no request can name the topic.

    Brokers of 5.0.0-M1 do not decode the name in such a path, and those of 5.0.1 do. So a name that has to be encoded
    could be another's.
    """
    encoded = scalable_topic.rpartition("/")[2]
    return f"v2/scalable/{scalable_topic}" if decode_name(encoded) == encoded else None


def layout_in(scalable_topic: str, host: str, answer: Answer) -> SegmentLayout | BrokerView:
    """Return the layout in a broker's answer to layout_request(), or the view of each segment of the topic.

    Raises UnavailableError if the broker does not know such requests.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        is_known = answer.reason == f"Scalable topic not found: topic://{scalable_topic}"
        if is_known:
            return BrokerView(presence=Presence.GONE, detail=answer.reason)
        # during a rolling upgrade, from a broker before 5.0
        raise UnavailableError(f"{host}: HTTP {answer.status}: {answer.reason}")
    if answer.status != HTTPStatus.OK:
        return BrokerView(presence=Presence.UNREADABLE, detail=f"HTTP {answer.status}: {answer.reason}")
    try:
        return parse_layout(json.dumps(answer.body).encode())
    except (FormatError, RecursionError) as error:
        return BrokerView(presence=Presence.UNREADABLE, detail=str(error))


def view_of_segment(segment: SegmentName, layout: SegmentLayout) -> BrokerView:
    """Return the view of a segment that no broker has loaded, by the brokers' layout of its topic."""
    try:
        is_named = layout.names(segment)
    except FormatError as error:
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
