"""Decides whether a segment of a scalable topic is an orphan: a whole owner, with its list and cursors, that no layout
names. Audits report such segments; nothing here allows a delete, because the segment's list still names its ledgers.

Brokers lose such segments: a prune or a deletion removes a segment from the layout first, and then tries once
to delete the segment; a split or merge creates segments first, and may fail to write them into the layout. No broker
collects them later. The rules, in this order:
1. A segment whose znode, layout or broker could not be read is UNKNOWN, and so is one that may be a V1 topic.
2. A segment that its layout names, by ZooKeeper or by a broker, is in use.
3. A segment that changed a short while ago is in use: a broker may be about to delete it, or to write it into the
   layout. A segment with an id that the layout has not assigned yet waits as long as a ledger that is newer than all
   that its owner names; a later split may still take it over.
4. Any other segment is an orphan, if a second check agrees.
"""

from dataclasses import dataclass

from udfs.formats.errors import FormatError
from udfs.formats.segment_layout import SegmentLayout, parse_layout
from udfs.owners.references import ZnodeRead
from udfs.paths import SegmentName
from udfs.records import BrokerView, Presence, Reason
from udfs.verdicts.finding_classes import FindingClass, SuspectCheck
from udfs.verdicts.judge import Policy

_IN_USE = SuspectCheck(FindingClass.IN_USE, Reason.IN_USE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A segment as its znode, its layout and the brokers describe it."""

    name: SegmentName
    own: ZnodeRead
    layout: ZnodeRead
    last_change_ms: int  # the latest change of the two znodes
    view: BrokerView | None  # what brokers read in the layout (Broker.layout_views); None: they are not asked


def check_of_segment(facts: SegmentFacts, policy: Policy, *, now_ms: int) -> SuspectCheck:
    """Return whether a segment is an orphan (ORPHAN_SEGMENT), is in use, is gone by now, or is UNKNOWN."""
    unread = [read for read in (facts.own, facts.layout) if read.error]
    if unread:
        return _unknown(Reason.OWNER_UNREADABLE, f"{unread[0].path}: {unread[0].error}")
    if facts.own.data is None:
        return SuspectCheck(FindingClass.GONE, Reason.NOT_FOUND)
    try:
        layout = None if facts.layout.data is None else parse_layout(facts.layout.data)
        is_named = layout is not None and layout.names(facts.name)
    except FormatError as error:
        return _unknown(Reason.OWNER_UNREADABLE, f"{facts.layout.path}: {error}")
    if layout is None and facts.name.may_be_v1:
        return _unknown(Reason.OWNER_UNREADABLE, "there is no layout, and a V1 topic may have this name")
    if is_named or now_ms - facts.last_change_ms < _wait_ms(facts.name, layout, policy):
        return _IN_USE
    return _by_brokers(facts.view) or _orphan(facts.name, layout)


def _wait_ms(name: SegmentName, layout: SegmentLayout | None, policy: Policy) -> int:
    is_assigned = layout is None or name.segment_id < layout.next_segment_id
    return policy.min_age_ms if is_assigned else max(policy.min_age_ms, policy.above_newest_quarantine_ms)


def _by_brokers(view: BrokerView | None) -> SuspectCheck | None:
    if view is None:
        return _unknown(Reason.OWNER_UNREADABLE, "no layout names the segment, and brokers are not asked")
    if view.presence is Presence.PRESENT:
        return _IN_USE
    if view.presence is Presence.UNREADABLE:
        reason = Reason.BROKER_UNAVAILABLE if view.is_unavailable else Reason.OWNER_UNREADABLE
        return _unknown(reason, view.detail)
    return None


def _orphan(name: SegmentName, layout: SegmentLayout | None) -> SuspectCheck:
    if layout is None:
        why = f"topic://{name.topic} does not exist"
    elif name.segment_id < layout.next_segment_id:
        why = f"the layout of topic://{name.topic} does not name it any more"
    else:
        why = f"a split or merge of topic://{name.topic} failed; the next may take it over"
    return SuspectCheck(FindingClass.ORPHAN_SEGMENT, Reason.SEGMENT_UNNAMED, why, is_candidate=True)


def _unknown(reason: Reason, detail: str) -> SuspectCheck:
    return SuspectCheck(FindingClass.UNKNOWN, reason, detail)
