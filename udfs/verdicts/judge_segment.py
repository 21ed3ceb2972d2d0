"""Decides whether a segment of a scalable topic is an orphan: a whole owner, with its list and cursors, that no layout
names. Audits report such segments. If the operator allows it, a broker deletes them (decision 5).

Brokers lose such segments: a prune or a deletion removes a segment from the layout first, and then tries once
to delete the segment; a split or merge creates segments first, and may fail to write them into the layout. No broker
collects them later. The rules, in this order:
1. A segment whose znode, layout or broker could not be read is UNKNOWN, and so is one that may be a V1 topic.
2. A segment that its layout names, by ZooKeeper or by a broker, is in use.
3. A segment that changed a short while ago is in use: a broker may be about to delete it, or to write it into the
   layout. If the layout has not assigned the segment's id yet, a later split may still take it over, so the segment
   waits as long as a ledger that is newer than all ledgers of its owner.
4. Any other segment is an orphan, if a second check agrees.

A broker deletes the segment that it is told to delete, whether or not a layout names it, and with it the schema that
has the topic's name. So these further rules apply to a removal:
5. A segment whose id the layout has not assigned yet stays, since the next split may take it over at any moment.
6. The segment must still name the request's ledger: a segment that was created again under the same name has others.
7. Without a layout, the namespace must have had layouts before: if all are gone, the store may have lost them.
8. The topic's name must have no schema, and the segment neither offloaded ledgers nor too many to be undone.
9. A second check, later, has to agree.
"""

from dataclasses import dataclass, replace

from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import in_use_ids
from udfs.formats.segment_layout import SegmentLayout, parse_layout
from udfs.owners.references import ZnodeRead
from udfs.paths import SegmentName
from udfs.records import BrokerView, Outcome, Presence, Reason, Verdict
from udfs.verdicts.finding_classes import FindingClass, SuspectCheck
from udfs.verdicts.judge import Policy, is_second_look

MOST_LEDGERS = 1_000  # of a segment that is removed: the limits count it as one delete
_IN_USE = SuspectCheck(FindingClass.IN_USE, Reason.IN_USE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A segment as its znode, its layout and the brokers describe it."""

    name: SegmentName
    own: ZnodeRead
    layout: ZnodeRead
    last_change_ms: int  # the latest change of the two znodes
    view: BrokerView | None  # what brokers read in the layout (Broker.layout_views); None: they are not asked


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalFacts:
    """A segment, and what else decides whether a broker may delete it."""

    segment: SegmentFacts
    schema: ZnodeRead  # of the topic's name: segments, persistent and scalable topics of one name share it
    folder: ZnodeRead  # below which the layouts of the namespace are


def is_unchanged(judged: RemovalFacts, now: RemovalFacts) -> bool:
    """Whether all znodes are as they were judged: content, version, and time of the last change."""
    # the time as well, because a znode that is created again starts with the same version
    segment = replace(now.segment, view=judged.segment.view)
    return (segment, now.schema, now.folder) == (judged.segment, judged.schema, judged.folder)


def judge_removal(
    facts: RemovalFacts, ledger_id: int, policy: Policy, *, absent_since_ms: int | None, now_ms: int
) -> Verdict:
    """Return DELETED only if a broker may delete the segment. absent_since_ms: as in judge.Case."""
    check = check_of_segment(facts.segment, policy, now_ms=now_ms)
    if check.finding_class is FindingClass.GONE:
        return Verdict(Outcome.ALREADY_GONE, check.reason)
    if check.reason is not Reason.SEGMENT_UNNAMED:
        return Verdict(Outcome.RETRY, check.reason, check.detail)
    why = _kept(facts, ledger_id)
    if why is not None:
        return why
    if not is_second_look(absent_since_ms, policy, now_ms=now_ms):
        return Verdict(Outcome.RETRY, Reason.UNREFERENCED_ONCE, check.detail)
    return Verdict(Outcome.DELETED, Reason.SEGMENT_UNNAMED, check.detail)


def _kept(facts: RemovalFacts, ledger_id: int) -> Verdict | None:
    own, layout = facts.segment.own, facts.segment.layout
    unread = [f"{read.path}: {read.error}" for read in (facts.schema, facts.folder) if read.error]
    try:
        listed = in_use_ids(own.data or b"")
    except FormatError as error:
        unread.append(f"{own.path}: {error}")
    if layout.data is None and facts.folder.data is None:
        unread.append(f"{facts.folder.path} does not exist: ZooKeeper may have lost the namespace's layouts")
    if unread:
        return Verdict(Outcome.RETRY, Reason.OWNER_UNREADABLE, unread[0])
    if ledger_id not in {*listed.ids, *listed.bookkeeper_free}:
        return Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND, f"the segment does not name ledger {ledger_id} any more")
    if facts.schema.data is not None:
        why = f"a broker would also delete the schema {facts.schema.path}, which a topic of that name may need"
    elif listed.offloads:
        why = "some of its ledgers are offloaded, and `undo` could not restore their objects"
    elif len(listed.ids) > MOST_LEDGERS:
        why = f"it names {len(listed.ids)} ledgers, more than {MOST_LEDGERS}"
    else:
        return None
    return Verdict(Outcome.RETRY, Reason.NOT_REMOVABLE, why)


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
    reason = Reason.SEGMENT_UNNAMED
    if layout is None:
        why = f"topic://{name.topic} does not exist"
    elif name.segment_id < layout.next_segment_id:
        why = f"the layout of topic://{name.topic} does not name it any more"
    else:
        reason = Reason.SEGMENT_AHEAD
        why = f"a split or merge of topic://{name.topic} failed; the next may take it over"
    return SuspectCheck(FindingClass.ORPHAN_SEGMENT, reason, why, is_candidate=True)


def _unknown(reason: Reason, detail: str) -> SuspectCheck:
    return SuspectCheck(FindingClass.UNKNOWN, reason, detail)
