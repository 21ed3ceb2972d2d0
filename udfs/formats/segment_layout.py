"""The layout of a scalable topic (Pulsar 5.0), in JSON at `/topics/tenant/ns/topic`: which segments the topic has.

A broker changes it by a compare-and-set. A topic that was migrated from a persistent topic has legacy segments: they
are sealed, and each wraps a persistent topic or partition, which keeps its own managed ledger.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from udfs.formats.errors import FormatError
from udfs.paths import MAX_LEDGER_ID, SegmentName

_LAYOUT_FIELDS = frozenset({"epoch", "nextSegmentId", "segments", "properties", "autoScalePolicy", "deleted"})
_SEGMENT_FIELDS = frozenset(
    {
        "segmentId",
        "hashRange",
        "state",
        "parentIds",
        "childIds",
        "createdAtEpoch",
        "sealedAtEpoch",
        "createdAtMs",
        "sealedAtMs",
        "legacyTopicName",
        "entryBucketSplits",
    }
)
# Java derives these from the other fields, and writes them too
_DERIVED_FIELDS = frozenset({"active", "sealed", "legacy", "root", "leaf"})
_STATES = ("ACTIVE", "SEALED")
_LAST_HASH = 0xFFFF


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment."""

    first_hash: int
    last_hash: int  # inclusive
    is_active: bool  # producers write to it; else it is sealed
    legacy_topic: str = ""  # the persistent topic that it wraps; "": it has a managed ledger of its own


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The segments of a scalable topic."""

    epoch: int  # grows with each change
    next_segment_id: int  # the id of the next segment to be created; a broker creates it before the layout names it
    # by id; a topic that is being deleted ("deleted", since 5.0.1) keeps them until its broker has deleted them all
    segments: Mapping[int, Segment]

    def names(self, segment: SegmentName) -> bool:
        """Whether the layout names the segment. Raises FormatError if it gives the segment's id to another."""
        named = self.segments.get(segment.segment_id)
        if named is None:
            return False
        if named.legacy_topic or (named.first_hash, named.last_hash) != (segment.first_hash, segment.last_hash):
            raise FormatError(f"the layout has another segment with the id {segment.segment_id}")
        return True


def parse_layout(data: bytes) -> SegmentLayout:
    """Parse the layout's znode. Raises FormatError for anything that no broker is known to write."""
    try:
        fields = json.loads(data.decode("utf-8"), object_pairs_hook=_object_of, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a layout is no JSON: {str(error)[:100]!a}") from error
    _check_fields(fields, _LAYOUT_FIELDS, required=("epoch", "nextSegmentId", "segments"))
    next_id = _number(fields, "nextSegmentId")
    if not isinstance(fields.get("deleted", False), bool):
        _refuse("deleted is neither true nor false")
    if not isinstance(fields["segments"], dict):
        _refuse("segments are no object")
    segments = {_id_of(key, each, next_id): _segment(each) for key, each in fields["segments"].items()}
    return SegmentLayout(_number(fields, "epoch"), next_id, segments)


def _id_of(key: str, fields: Any, next_id: int) -> int:
    _check_fields(fields, _SEGMENT_FIELDS | _DERIVED_FIELDS, required=("segmentId", "hashRange", "state"))
    segment_id = _number(fields, "segmentId")
    if key != str(segment_id) or segment_id >= next_id:
        _refuse(f"segment {segment_id} has the key {key[:40]!a}, and the next id is {next_id}")
    return segment_id


def _segment(fields: Mapping[str, Any]) -> Segment:
    hashes = fields["hashRange"]
    _check_fields(hashes, frozenset({"start", "end"}), required=("start", "end"))
    first, last = _number(hashes, "start"), _number(hashes, "end")
    if not first <= last <= _LAST_HASH:
        _refuse(f"a segment has the hashes {first} to {last}")
    state, legacy_topic = fields["state"], fields.get("legacyTopicName")
    if state not in _STATES:
        _refuse("a segment's state is neither ACTIVE nor SEALED")
    if legacy_topic is not None and not isinstance(legacy_topic, str):
        _refuse("legacyTopicName is no string")
    is_active = state == "ACTIVE"
    for name, derived in (("active", is_active), ("sealed", not is_active), ("legacy", bool(legacy_topic))):
        if fields.get(name, derived) is not derived:
            _refuse(f"{name} contradicts the other fields of its segment")
    return Segment(first, last, is_active, legacy_topic or "")


def _check_fields(fields: Any, known: frozenset[str], *, required: tuple[str, ...]) -> None:
    if not isinstance(fields, dict):
        _refuse("a part of it is no object")
    if unknown := sorted(fields.keys() - known):
        _refuse(f"field {unknown[0][:40]!a} is not known")
    if missing := [name for name in required if fields.get(name) is None]:
        _refuse(f"it has no {missing[0]}")


def _number(fields: Mapping[str, Any], name: str) -> int:
    number = fields[name]
    if type(number) is not int or not 0 <= number <= MAX_LEDGER_ID:
        _refuse(f"{name} is no whole number from 0 to 2^63 - 1")
    return number


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field appears twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _refuse(why: str) -> NoReturn:
    raise FormatError(f"a layout has an unknown form: {why}")
