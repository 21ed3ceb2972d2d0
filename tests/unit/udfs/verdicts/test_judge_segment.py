"""A segment is an orphan only if ZooKeeper's layout and the brokers' agree that it has no topic any more."""

from dataclasses import replace

import pytest

from tests.builders import DAY_MS, LAYOUT_PATH, MINUTE_MS, NOW_MS, SEGMENT, layout_znode, list_znode
from udfs.owners.references import ZnodeRead
from udfs.paths import managed_ledger_path, segment_of
from udfs.records import BrokerView, Presence, Reason
from udfs.verdicts.finding_classes import FindingClass
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_segment import SegmentFacts, check_of_segment

POLICY = Policy(min_age_ms=5 * MINUTE_MS, above_newest_quarantine_ms=DAY_MS, absence_interval_ms=10 * MINUTE_MS)
NAME, V1 = segment_of(SEGMENT), segment_of("public/default/segment/persistent/0000-7fff-0")
assert NAME is not None
assert V1 is not None
GONE = BrokerView(presence=Presence.GONE)
PRESENT = BrokerView(presence=Presence.PRESENT)
UNREADABLE = BrokerView(presence=Presence.UNREADABLE, detail="HTTP 500")


def _layout(data: bytes | None) -> ZnodeRead:
    return ZnodeRead(LAYOUT_PATH, data, 3 if data is not None else -1)


PRUNED = SegmentFacts(
    name=NAME,
    own=ZnodeRead(managed_ledger_path(SEGMENT), list_znode(5), 1),
    layout=_layout(layout_znode(1, 2)),
    last_change_ms=NOW_MS - 5 * MINUTE_MS,
    view=GONE,
)
FAILED_SPLIT = replace(PRUNED, layout=_layout(layout_znode(next_id=0)), last_change_ms=NOW_MS - DAY_MS)


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        pytest.param(PRUNED, "does not name it any more", id="pruned"),
        pytest.param(replace(PRUNED, layout=_layout(None)), "does not exist", id="its topic is deleted"),
        pytest.param(FAILED_SPLIT, "may take it over", id="left by a split that failed a day ago"),
    ],
)
def test_a_segment_that_no_layout_names_is_an_orphan(facts: SegmentFacts, detail: str) -> None:
    check = check_of_segment(facts, POLICY, now_ms=NOW_MS)
    assert (check.finding_class, check.reason, check.is_candidate) == (
        FindingClass.ORPHAN_SEGMENT,
        Reason.SEGMENT_UNNAMED,
        True,
    )
    assert detail in check.detail


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        pytest.param(
            replace(PRUNED, own=ZnodeRead("/x", error="too large")), FindingClass.UNKNOWN, id="its list is unreadable"
        ),
        pytest.param(
            replace(PRUNED, layout=ZnodeRead(LAYOUT_PATH, error="no right")),
            FindingClass.UNKNOWN,
            id="no right to read it",
        ),
        pytest.param(replace(PRUNED, layout=_layout(b"{}")), FindingClass.UNKNOWN, id="layout of an unknown form"),
        pytest.param(
            replace(PRUNED, layout=_layout(layout_znode(0, hashRange={"start": 0, "end": 9}))),
            FindingClass.UNKNOWN,
            id="the layout gives its id to another",
        ),
        pytest.param(replace(PRUNED, name=V1, layout=_layout(None)), FindingClass.UNKNOWN, id="it may be a V1 topic"),
        pytest.param(replace(PRUNED, view=UNREADABLE), FindingClass.UNKNOWN, id="brokers do not answer"),
        pytest.param(replace(PRUNED, view=None), FindingClass.UNKNOWN, id="brokers are not asked"),
        pytest.param(replace(PRUNED, own=ZnodeRead("/x")), FindingClass.GONE, id="deleted by now"),
        pytest.param(
            replace(PRUNED, layout=_layout(layout_znode(0, 1))), FindingClass.IN_USE, id="named by ZooKeeper's layout"
        ),
        pytest.param(replace(PRUNED, view=PRESENT), FindingClass.IN_USE, id="named by the brokers' layout"),
        pytest.param(
            replace(PRUNED, last_change_ms=NOW_MS - 5 * MINUTE_MS + 1), FindingClass.IN_USE, id="changed a moment ago"
        ),
        pytest.param(
            replace(FAILED_SPLIT, last_change_ms=NOW_MS - DAY_MS + 1), FindingClass.IN_USE, id="a split may be running"
        ),
    ],
)
def test_any_other_segment_is_none(facts: SegmentFacts, found: FindingClass) -> None:
    check = check_of_segment(facts, POLICY, now_ms=NOW_MS)
    assert check.finding_class is found
    assert not check.is_candidate
