"""The layout of a scalable topic as a witness about the topic's segments, beside their znodes and their brokers.

The layout refers to segments, never to ledgers. So it never allows a delete; it can only forbid one:
1. If the layout can't be read or parsed, the segment is UNREADABLE.
2. A segment that the layout names, or whose id the layout has not assigned yet, is never GONE: a broker creates the
   segments of a split before it writes them into the layout, and if an active segment is missing, creates it again.
   A deleted cursor of a segment whose list exists is GONE nevertheless (udfs.owners.references, rule 7).
3. If the layout exists, the delete's transaction checks its version.
4. A name that may be a V1 topic's proves nothing: brokers show the V1 topic under another name
   (udfs.paths.SegmentName.may_be_v1).
"""

from dataclasses import replace
from functools import lru_cache

from udfs.formats.errors import FormatError
from udfs.formats.segment_layout import parse_layout
from udfs.owners.references import KeyOwner, ZnodeRead, owner_of
from udfs.paths import SegmentName, layout_path, segment_of
from udfs.records import Presence, Reference

_WITHOUT_SEGMENTS = "schema"  # the kind of owner that belongs to the scalable topic as a whole
# keys of one topic follow each other, and parsing a layout of 3,000 segments takes 25 ms
_parsed = lru_cache(maxsize=4)(parse_layout)


def layout_of(owner: KeyOwner) -> str | None:
    """Return the path of the layout that has to be read for an owner; None: the owner is not a segment's."""
    segment = _segment_of(owner)
    return layout_path(segment.topic) if segment else None


def with_layout(reference: Reference, layout: ZnodeRead) -> Reference:
    """Return a segment's reference under the rules above; any other reference stays as it is."""
    segment = _segment_of(owner_of(reference.key))
    if segment is None or reference.presence is Presence.UNREADABLE:
        return reference
    try:
        why = _doubt(segment, reference, layout)
    except FormatError as error:
        why = str(error)
    if why:
        return Reference(
            key=reference.key,
            presence=Presence.UNREADABLE,
            read_at_ms=reference.read_at_ms,
            detail=f"{layout.path}: {why}",
        )
    if layout.data is None:
        return reference
    return replace(reference, checks=(*reference.checks, (layout.path, layout.version)))


def _doubt(segment: SegmentName, reference: Reference, layout: ZnodeRead) -> str:
    """Return why the segment's reference proves nothing; "" if nothing contradicts it. Raises FormatError."""
    if layout.error:
        return layout.error
    if segment.may_be_v1:
        return "a V1 topic may have this name"
    if layout.data is None:
        return ""
    parsed = _parsed(layout.data)
    is_named = parsed.names(segment)
    if reference.presence is not Presence.GONE or reference.checks:  # the check is that of the segment's list
        return ""
    if is_named:
        return "the layout names the segment: a broker may create the absent znode again"
    return "" if segment.segment_id < parsed.next_segment_id else "the layout has not assigned the segment's id yet"


def _segment_of(owner: KeyOwner) -> SegmentName | None:
    return None if owner.kind == _WITHOUT_SEGMENTS else segment_of(owner.name)
