"""Whether a snapshot's message may get a tombstone: every reason to keep it, and both sides of every boundary."""

from dataclasses import replace

import pytest

from tests.builders import DAY_MS, MINUTE_MS, NOW_MS, data_request, gone, reference, snapshot_request
from udfs.records import Outcome, Presence, Reason, Verdict
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import IndexState
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_snapshot import IndexFacts, MessageFacts, SnapshotCase, judge_snapshot

POLICY = Policy(min_age_ms=5 * MINUTE_MS, above_newest_quarantine_ms=DAY_MS, absence_interval_ms=10 * MINUTE_MS)
SEEN_MS = NOW_MS - POLICY.absence_interval_ms
OLD = MessageFacts((5, 0), NOW_MS - 2 * DAY_MS)
INDEX = IndexFacts(IndexState.READABLE, frozenset({1, 2}), frozenset({(6, 0), (6, 1)}))
NO_INDEX = IndexFacts()
OF_GONE = SnapshotCase(
    request=snapshot_request(),
    latest=OLD,
    index=INDEX,
    segments=1,
    is_guarded=True,
    reference=gone(),
    absent_since_ms=SEEN_MS,
)
OF_LIVING = replace(OF_GONE, reference=reference())


def judged(case: SnapshotCase, **changes: object) -> Verdict:
    return judge_snapshot(replace(case, **changes), POLICY, now_ms=NOW_MS)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [SnapshotKind.SINGLE, SnapshotKind.SEGMENT, SnapshotKind.INDEX])
def test_every_message_of_a_topic_that_is_gone_goes_at_the_second_check(kind: SnapshotKind) -> None:
    case = replace(OF_GONE, request=snapshot_request(kind), segments=0)
    assert judged(case) == Verdict(Outcome.DELETED, Reason.OWNER_GONE)
    assert judged(case, absent_since_ms=SEEN_MS + 1).reason is Reason.OWNER_ABSENT_ONCE
    assert judged(case, absent_since_ms=None).reason is Reason.OWNER_ABSENT_ONCE


def test_an_existing_topic_loses_only_a_segment_that_its_index_has_dropped() -> None:
    assert judged(OF_LIVING) == Verdict(Outcome.DELETED, Reason.UNREFERENCED)
    assert judged(OF_LIVING, absent_since_ms=None).reason is Reason.UNREFERENCED_ONCE


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"request": snapshot_request(SnapshotKind.INDEX), "segments": 0}, id="its index"),
        pytest.param({"request": snapshot_request(SnapshotKind.SINGLE), "segments": 0}, id="its single snapshot"),
        pytest.param({"request": snapshot_request(number=1)}, id="the number is named"),
        pytest.param({"index": replace(INDEX, places=frozenset({(5, 0)}))}, id="the position is named"),
        pytest.param({"request": snapshot_request(number=3)}, id="it is after all that are named"),
        pytest.param({"index": replace(INDEX, numbers=frozenset())}, id="the index names none"),
        pytest.param({"index": NO_INDEX}, id="there is no index"),
        pytest.param({"index": replace(INDEX, standing=IndexState.FAULTY)}, id="the index can't be read"),
    ],
)
def test_a_message_that_an_existing_topic_may_need_stays(changes: dict[str, object]) -> None:
    verdict = judged(OF_LIVING, **changes)
    assert (verdict.outcome, verdict.reason) == (Outcome.RETRY, Reason.IN_USE)


def test_an_owner_that_could_not_be_read_keeps_everything() -> None:
    assert judged(OF_GONE, reference=reference(presence=Presence.UNREADABLE)).reason is Reason.OWNER_UNREADABLE


def test_brokers_that_could_not_be_asked_keep_everything() -> None:
    away = replace(reference(presence=Presence.UNREADABLE), is_unavailable=True)
    verdict = judged(OF_GONE, reference=away)
    assert (verdict.outcome, verdict.reason) == (Outcome.RETRY, Reason.BROKER_UNAVAILABLE)


@pytest.mark.parametrize(
    ("latest", "outcome", "reason"),
    [
        pytest.param(None, Outcome.ALREADY_GONE, Reason.NOT_FOUND, id="no value"),
        pytest.param(replace(OLD, is_null=True), Outcome.ALREADY_GONE, Reason.NOT_FOUND, id="a tombstone"),
        pytest.param(replace(OLD, position=(5, 1)), Outcome.ALREADY_GONE, Reason.NOT_FOUND, id="a newer value"),
        pytest.param(replace(OLD, fault="UNREADABLE"), Outcome.DEAD_LETTER, Reason.NOT_PULSARS, id="no broker's"),
        pytest.param(
            replace(OLD, fault="UNKNOWN_SCHEMA"),
            Outcome.RETRY,
            Reason.LEDGER_UNREADABLE,
            id="perhaps another version of Pulsar's",
        ),
    ],
)
def test_only_the_requested_value_goes(latest: MessageFacts, outcome: Outcome, reason: Reason) -> None:
    verdict = judged(OF_GONE, latest=latest)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


@pytest.mark.parametrize(("case", "wait_ms"), [(OF_GONE, POLICY.min_age_ms), (OF_LIVING, DAY_MS)])
def test_a_young_value_stays(case: SnapshotCase, wait_ms: int) -> None:
    assert judged(case, latest=replace(OLD, publish_ms=NOW_MS - wait_ms + 1)).reason is Reason.TOO_YOUNG
    assert judged(case, latest=replace(OLD, publish_ms=NOW_MS + DAY_MS)).reason is Reason.TOO_YOUNG
    assert judged(case, latest=replace(OLD, publish_ms=NOW_MS - wait_ms)).outcome is Outcome.DELETED


def test_no_segment_goes_while_nothing_guards_the_others() -> None:
    assert judged(OF_GONE, is_guarded=False).reason is Reason.NOT_GUARDED
    of_single = replace(OF_GONE, request=snapshot_request(SnapshotKind.SINGLE))
    assert judged(of_single, is_guarded=False).outcome is Outcome.DELETED


def test_an_index_goes_after_its_segments() -> None:
    of_index = replace(OF_GONE, request=snapshot_request(SnapshotKind.INDEX))
    assert judged(of_index).reason is Reason.OWNER_ABSENT_ONCE
    assert judged(of_index, segments=0).outcome is Outcome.DELETED


def test_a_ledger_is_none_of_its_cases() -> None:
    with pytest.raises(ValueError, match="no message"):
        judged(OF_GONE, request=data_request())
