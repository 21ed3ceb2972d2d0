"""A segment is an orphan only if ZooKeeper's layout and the brokers' agree that it has no topic any more."""

from dataclasses import replace

import pytest

from tests.builders import DAY_MS, LAYOUT_PATH, MINUTE_MS, NOW_MS, SEGMENT, layout_znode, list_znode, offloaded
from udfs.owners.references import ZnodeRead
from udfs.paths import managed_ledger_path, segment_of
from udfs.records import BrokerView, Outcome, Presence, Reason, Verdict
from udfs.verdicts.finding_classes import FindingClass
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_segment import MOST_LEDGERS, RemovalFacts, SegmentFacts, check_of_segment, judge_removal

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
    ("facts", "reason", "detail"),
    [
        pytest.param(PRUNED, Reason.SEGMENT_UNNAMED, "does not name it any more", id="pruned"),
        pytest.param(
            replace(PRUNED, layout=_layout(None)), Reason.SEGMENT_UNNAMED, "does not exist", id="its topic is deleted"
        ),
        pytest.param(
            FAILED_SPLIT, Reason.SEGMENT_AHEAD, "may take it over", id="left by a split that failed a day ago"
        ),
    ],
)
def test_a_segment_that_no_layout_names_is_an_orphan(facts: SegmentFacts, reason: Reason, detail: str) -> None:
    check = check_of_segment(facts, POLICY, now_ms=NOW_MS)
    assert (check.finding_class, check.reason, check.is_candidate) == (FindingClass.ORPHAN_SEGMENT, reason, True)
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


REMOVABLE = RemovalFacts(
    segment=PRUNED, schema=ZnodeRead("/schemas/public/default/orders"), folder=ZnodeRead("/topics/public/default", b"")
)
SEEN_MS = NOW_MS - POLICY.absence_interval_ms


def _removal(facts: RemovalFacts, *, ledger_id: int = 5, absent_since_ms: int | None = SEEN_MS) -> Verdict:
    return judge_removal(facts, ledger_id, POLICY, absent_since_ms=absent_since_ms, now_ms=NOW_MS)


def test_a_broker_may_delete_a_segment_that_two_checks_found_unnamed() -> None:
    verdict = _removal(REMOVABLE)
    assert (verdict.outcome, verdict.reason) == (Outcome.DELETED, Reason.SEGMENT_UNNAMED)


@pytest.mark.parametrize(
    "absent_since_ms", [None, SEEN_MS + 1, NOW_MS + 1, NOW_MS - 11 * DAY_MS], ids=["never", "early", "later", "expired"]
)
def test_one_sighting_is_not_enough(absent_since_ms: int | None) -> None:
    verdict = _removal(REMOVABLE, absent_since_ms=absent_since_ms)
    assert (verdict.outcome, verdict.reason) == (Outcome.RETRY, Reason.UNREFERENCED_ONCE)


DELETED_TOPIC = replace(PRUNED, layout=_layout(None))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(
            replace(REMOVABLE, segment=replace(PRUNED, layout=_layout(layout_znode(0, 1)))),
            Reason.IN_USE,
            id="its layout names it",
        ),
        pytest.param(replace(REMOVABLE, segment=replace(PRUNED, view=PRESENT)), Reason.IN_USE, id="a broker's does"),
        pytest.param(
            replace(REMOVABLE, segment=replace(PRUNED, view=None)), Reason.OWNER_UNREADABLE, id="brokers are not asked"
        ),
        pytest.param(
            replace(REMOVABLE, segment=replace(PRUNED, layout=ZnodeRead(LAYOUT_PATH, error="no right"))),
            Reason.OWNER_UNREADABLE,
            id="its layout is unreadable",
        ),
        pytest.param(replace(REMOVABLE, segment=FAILED_SPLIT), Reason.SEGMENT_AHEAD, id="the next split may take it"),
        pytest.param(
            replace(REMOVABLE, schema=ZnodeRead("/schemas/public/default/orders", b"s")),
            Reason.NOT_REMOVABLE,
            id="its topic's name has a schema",
        ),
        pytest.param(
            replace(REMOVABLE, schema=ZnodeRead("/schemas/public/default/orders", error="no right")),
            Reason.OWNER_UNREADABLE,
            id="the schema is unreadable",
        ),
        pytest.param(
            replace(REMOVABLE, segment=DELETED_TOPIC, folder=ZnodeRead("/topics/public/default")),
            Reason.OWNER_UNREADABLE,
            id="all layouts are gone",
        ),
        pytest.param(
            replace(REMOVABLE, segment=DELETED_TOPIC, folder=ZnodeRead("/topics/public/default", error="no right")),
            Reason.OWNER_UNREADABLE,
            id="the folder of layouts is unreadable",
        ),
        pytest.param(
            replace(REMOVABLE, segment=replace(PRUNED, own=ZnodeRead("/x", b"no list", 1))),
            Reason.OWNER_UNREADABLE,
            id="its list has an unknown form",
        ),
        pytest.param(
            replace(REMOVABLE, segment=replace(PRUNED, own=ZnodeRead("/x", list_znode(5, offloaded(6)), 1))),
            Reason.NOT_REMOVABLE,
            id="a ledger is offloaded",
        ),
        pytest.param(
            replace(REMOVABLE, segment=replace(PRUNED, own=ZnodeRead("/x", list_znode(*range(MOST_LEDGERS + 1)), 1))),
            Reason.NOT_REMOVABLE,
            id="too many ledgers",
        ),
    ],
)
def test_a_broker_may_not_delete_any_other_segment(facts: RemovalFacts, reason: Reason) -> None:
    verdict = _removal(facts)
    assert (verdict.outcome, verdict.reason) == (Outcome.RETRY, reason)


@pytest.mark.parametrize(
    ("facts", "ledger_id"),
    [
        pytest.param(REMOVABLE, 6, id="created again with other ledgers"),
        pytest.param(replace(REMOVABLE, segment=replace(PRUNED, own=ZnodeRead("/x"))), 5, id="deleted by now"),
    ],
)
def test_a_request_for_a_segment_that_is_gone_ends(facts: RemovalFacts, ledger_id: int) -> None:
    verdict = _removal(facts, ledger_id=ledger_id)
    assert (verdict.outcome, verdict.reason) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)


def test_the_segments_of_a_deleted_topic_are_removable() -> None:
    assert _removal(replace(REMOVABLE, segment=DELETED_TOPIC)).outcome is Outcome.DELETED
