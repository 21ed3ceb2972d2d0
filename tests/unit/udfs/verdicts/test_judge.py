"""The judge's rules, each on both sides of its boundary, each starting from a case without a reason to keep."""

from dataclasses import replace

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from tests.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    NOW_MS,
    OF_LEDGERS,
    TOPIC,
    bucket_request,
    compacted_request,
    cursor_request,
    data_request,
    facts,
    gone,
    reference,
    schema_request,
)
from udfs.records import (
    LedgerComponent,
    LedgerFacts,
    LedgerState,
    LedgerType,
    Outcome,
    PendingDelete,
    Presence,
    Reason,
    Reference,
)
from udfs.verdicts.judge import Case, Policy, is_above_newest, judge, refers_to

POLICY = Policy(
    min_age_ms=5 * MINUTE_MS,
    above_newest_quarantine_ms=DAY_MS,
    absence_interval_ms=10 * MINUTE_MS,
    absence_expires_ms=2 * DAY_MS,
)
LONG_AGO = NOW_MS - 30 * DAY_MS
DELETABLE = Case(
    request=data_request(5), ledger=facts(data_request(5), last_change_ms=LONG_AGO), reference=reference(in_use=(8, 9))
)

CLOSED_BEFORE_REFERENCED = [
    pytest.param(schema_request(5), id="schema"),
    pytest.param(compacted_request(5), id="compacted ledger"),
    pytest.param(bucket_request(5), id="delayed bucket"),
]
EVERY_COMPONENT = [
    *CLOSED_BEFORE_REFERENCED,
    pytest.param(data_request(5), id="data"),
    pytest.param(cursor_request(5), id="cursor"),
]


def case_of(request: PendingDelete, *, last_change_ms: int = LONG_AGO, **changes: object) -> Case:
    """Return a deletable case for any component, with these changes."""
    built = Case(
        request=request, ledger=facts(request, last_change_ms=last_change_ms), reference=reference(in_use=(8, 9))
    )
    return replace(built, **changes)  # type: ignore[arg-type]


def why(case: Case, policy: Policy = POLICY, now_ms: int = NOW_MS) -> tuple[Outcome, Reason]:
    verdict = judge(case, policy, now_ms=now_ms)
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize("request_", [data_request(5), cursor_request(5), schema_request(5), bucket_request(5)])
def test_a_ledger_is_deleted_if_there_is_no_reason_to_keep_it(request_: PendingDelete) -> None:
    assert why(case_of(request_)) == (Outcome.DELETED, Reason.UNREFERENCED)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        pytest.param(
            replace(DELETABLE, reference=reference(presence=Presence.UNREADABLE)),
            Reason.OWNER_UNREADABLE,
            id="its owner could not be read",
        ),
        pytest.param(
            replace(DELETABLE, reference=reference(presence=Presence.UNREADABLE), ledger=None),
            Reason.OWNER_UNREADABLE,
            id="its owner could not be read, though the ledger is not there",
        ),
        pytest.param(replace(DELETABLE, reference=reference(in_use=(4, 5, 6))), Reason.IN_USE, id="its owner names it"),
        pytest.param(
            replace(DELETABLE, reference=reference(in_use=(5,)), ledger=None),
            Reason.IN_USE,
            id="its owner names it, though it is lost",
        ),
        pytest.param(
            replace(DELETABLE, ledger=replace(facts(), metadata=None)),
            Reason.LEDGER_UNREADABLE,
            id="its metadata can't be parsed",
        ),
        pytest.param(
            replace(DELETABLE, ledger=facts(state=LedgerState.OPEN)), Reason.NOT_CLOSED, id="a client may be writing"
        ),
        pytest.param(
            replace(DELETABLE, ledger=facts(state=LedgerState.IN_RECOVERY)),
            Reason.NOT_CLOSED,
            id="a client is recovering it",
        ),
    ],
)
def test_a_ledger_is_kept_when(case: Case, reason: Reason) -> None:
    assert why(case) == (Outcome.RETRY, reason)


def test_a_ledger_that_does_not_exist_is_already_gone() -> None:
    assert why(replace(DELETABLE, ledger=None)) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)


@pytest.mark.parametrize(
    ("custom", "reason"),
    [
        pytest.param({}, Reason.NOT_PULSARS, id="another application's"),
        pytest.param(
            {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": b"t/ns/x"},
            Reason.OTHER_COMPONENT,
            id="a schema's",
        ),
        pytest.param(
            {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": b"t/ns/persistent/x"},
            Reason.OTHER_OWNER,
            id="another topic's",
        ),
    ],
)
def test_a_ledger_is_refused_for_good_if_its_metadata_names(custom: dict[str, bytes], reason: Reason) -> None:
    case = replace(DELETABLE, ledger=facts(last_change_ms=LONG_AGO, custom_metadata=custom))
    assert why(case) == (Outcome.DEAD_LETTER, reason)


def test_a_foreign_ledger_is_refused_even_while_it_is_young_and_open() -> None:
    ledger = facts(last_change_ms=NOW_MS, custom_metadata={}, state=LedgerState.OPEN)
    assert why(replace(DELETABLE, ledger=ledger)) == (Outcome.DEAD_LETTER, Reason.NOT_PULSARS)


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        pytest.param(5 * MINUTE_MS, Outcome.DELETED, id="old enough to the millisecond"),
        pytest.param(5 * MINUTE_MS - 1, Outcome.RETRY, id="one millisecond too young"),
        pytest.param(0, Outcome.RETRY, id="just changed"),
        pytest.param(-HOUR_MS, Outcome.RETRY, id="from the future: clocks disagree"),
    ],
)
def test_min_age_counts_from_the_last_change(age_ms: int, expected: Outcome) -> None:
    verdict = judge(case_of(data_request(5), last_change_ms=NOW_MS - age_ms), POLICY, now_ms=NOW_MS)
    assert verdict.outcome is expected
    assert expected is Outcome.DELETED or verdict.reason is Reason.TOO_YOUNG


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        pytest.param(DAY_MS, Outcome.DELETED, id="quarantine is over"),
        pytest.param(DAY_MS - 1, Outcome.RETRY, id="one millisecond early"),
    ],
)
@pytest.mark.parametrize("request_", CLOSED_BEFORE_REFERENCED)
@pytest.mark.parametrize("newest", [3, 9])
def test_a_ledger_that_is_closed_before_it_is_listed_stays_for_the_quarantine_even_below_the_newest(
    request_: PendingDelete, age_ms: int, expected: Outcome, newest: int
) -> None:
    """A stalled broker publishes late; "create if absent" succeeds again once a newer locator was deleted."""
    case = case_of(
        request_,
        last_change_ms=NOW_MS - age_ms,
        reference=reference(in_use=(newest,)),
        absent_since_ms=NOW_MS - HOUR_MS,
    )
    verdict = judge(case, POLICY, now_ms=NOW_MS)
    assert verdict.outcome is expected
    assert expected is Outcome.DELETED or verdict.reason in (Reason.TOO_YOUNG, Reason.ABOVE_NEWEST)


@pytest.mark.parametrize(
    ("request_", "last_entry_id"),
    [
        pytest.param(data_request(5), -1, id="a list's, without entries: no list can have named it"),
        pytest.param(cursor_request(5), 0, id="a cursor's, with the entry that it gets before it is named"),
        pytest.param(cursor_request(5), 9, id="a cursor's"),
    ],
)
@pytest.mark.parametrize("owner", [gone(), reference(in_use=(), newest_id=9)], ids=["gone", "names a newer one"])
@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        pytest.param(DAY_MS, Outcome.DELETED, id="after"),
        pytest.param(DAY_MS - 1, Outcome.RETRY, id="one millisecond early"),
    ],
)
def test_a_closed_ledger_that_was_perhaps_never_named_stays_for_the_quarantine(
    request_: PendingDelete, last_entry_id: int, owner: Reference, age_ms: int, expected: Outcome
) -> None:
    """A recovery closed it under a stalled broker, and the owner is created again with the version it expects."""
    ledger = facts(request_, last_change_ms=NOW_MS - age_ms, last_entry_id=last_entry_id)
    case = Case(request=request_, ledger=ledger, reference=owner, absent_since_ms=NOW_MS - 10 * MINUTE_MS)
    verdict = judge(case, POLICY, now_ms=NOW_MS)
    assert verdict.outcome is expected
    assert expected is Outcome.DELETED or (verdict.reason, verdict.wait_ms) == (Reason.TOO_YOUNG, 1)


def test_a_slow_clock_delays_no_request_for_longer_than_the_smallest_age() -> None:
    young = replace(DELETABLE, ledger=facts(last_change_ms=NOW_MS + 365 * DAY_MS))
    verdict = judge(young, POLICY, now_ms=NOW_MS)
    assert (verdict.outcome, verdict.reason, verdict.wait_ms) == (Outcome.RETRY, Reason.TOO_YOUNG, POLICY.min_age_ms)


@pytest.mark.parametrize("request_", [*CLOSED_BEFORE_REFERENCED, pytest.param(cursor_request(5), id="cursor")])
@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [pytest.param(DAY_MS, Outcome.DELETED, id="after"), pytest.param(DAY_MS - 1, Outcome.RETRY, id="before")],
)
def test_a_ledger_that_a_gone_owner_could_name_again_stays_for_the_quarantine(
    request_: PendingDelete, age_ms: int, expected: Outcome
) -> None:
    case = case_of(request_, last_change_ms=NOW_MS - age_ms, reference=gone(), absent_since_ms=NOW_MS - 10 * MINUTE_MS)
    assert judge(case, POLICY, now_ms=NOW_MS).outcome is expected


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        pytest.param(6, (Outcome.DELETED, Reason.UNREFERENCED), id="a newer one was published"),
        pytest.param(5, (Outcome.DELETED, Reason.UNREFERENCED), id="it was the newest itself, and is free now"),
        pytest.param(4, (Outcome.RETRY, Reason.ABOVE_NEWEST), id="newer than all that is published"),
        pytest.param(-1, (Outcome.RETRY, Reason.ABOVE_NEWEST), id="nothing is published"),
    ],
)
def test_a_ledger_above_the_newest_that_its_owner_names_is_kept(newest: int, expected: tuple[Outcome, Reason]) -> None:
    case = case_of(
        data_request(5), last_change_ms=NOW_MS - DAY_MS + 1, reference=reference(in_use=(), newest_id=newest)
    )
    assert why(case) == expected


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [pytest.param(DAY_MS, Outcome.DELETED, id="after"), pytest.param(DAY_MS - 1, Outcome.RETRY, id="before")],
)
@pytest.mark.parametrize("newest", [-1, 4])
def test_above_newest_ends_with_the_quarantine(age_ms: int, expected: Outcome, newest: int) -> None:
    case = case_of(data_request(5), last_change_ms=NOW_MS - age_ms, reference=reference(in_use=(), newest_id=newest))
    assert judge(case, POLICY, now_ms=NOW_MS).outcome is expected


@pytest.mark.parametrize(
    ("since_ms", "expected"),
    [
        pytest.param(None, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="never before"),
        pytest.param(NOW_MS - 10 * MINUTE_MS, (Outcome.DELETED, Reason.OWNER_GONE), id="the interval ago"),
        pytest.param(NOW_MS - 10 * MINUTE_MS + 1, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="too lately"),
        pytest.param(NOW_MS - 2 * DAY_MS, (Outcome.DELETED, Reason.OWNER_GONE), id="as long ago as counts"),
        pytest.param(
            NOW_MS - 2 * DAY_MS - 1, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="so long ago that it may have lived"
        ),
        pytest.param(NOW_MS + 1, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="in the future: clocks disagree"),
    ],
)
def test_an_owner_is_gone_if_it_was_seen_gone_before(since_ms: int | None, expected: tuple[Outcome, Reason]) -> None:
    assert why(replace(DELETABLE, reference=gone(), absent_since_ms=since_ms)) == expected


@pytest.mark.parametrize(("intervals", "expected"), [(1, Outcome.DELETED), (10, Outcome.DELETED), (11, Outcome.RETRY)])
def test_a_sighting_is_valid_for_ten_intervals_of_any_length(intervals: int, expected: Outcome) -> None:
    patient = replace(POLICY, absence_interval_ms=7 * DAY_MS)
    case = replace(DELETABLE, reference=gone(), absent_since_ms=NOW_MS - intervals * 7 * DAY_MS)
    assert judge(case, patient, now_ms=NOW_MS).outcome is expected


@pytest.mark.parametrize(
    ("since_ms", "expected"),
    [
        pytest.param(None, (Outcome.RETRY, Reason.UNREFERENCED_ONCE), id="never before"),
        pytest.param(NOW_MS - 10 * MINUTE_MS + 1, (Outcome.RETRY, Reason.UNREFERENCED_ONCE), id="too lately"),
        pytest.param(NOW_MS - 10 * MINUTE_MS, (Outcome.DELETED, Reason.UNREFERENCED), id="the interval ago"),
    ],
)
def test_a_compacted_ledger_must_be_seen_unreferenced_twice_because_no_znode_version_guards_it(
    since_ms: int | None, expected: tuple[Outcome, Reason]
) -> None:
    assert why(case_of(compacted_request(5), absent_since_ms=since_ms)) == expected


def test_a_sighting_of_absence_does_not_count_while_the_owner_exists() -> None:
    case = replace(DELETABLE, reference=reference(in_use=(5,)), absent_since_ms=NOW_MS - DAY_MS)
    assert why(case) == (Outcome.RETRY, Reason.IN_USE)


class TestOpenLedgers:
    QUIET_MS = 6 * HOUR_MS
    PATIENT = replace(POLICY, open_quiet_ms=QUIET_MS)

    def opened(self, request: PendingDelete, *, quiet_ms: int = DAY_MS, **changes: object) -> Case:
        """Return a case of a ledger that is OPEN and unchanged for this long; its owner names only 8 and 9."""
        about = facts(request, last_change_ms=NOW_MS - quiet_ms, state=LedgerState.OPEN)
        return replace(case_of(request, ledger=about), **changes)  # type: ignore[arg-type]

    @pytest.mark.parametrize("request_", EVERY_COMPONENT)
    def test_are_never_deleted_if_the_quiet_period_is_never(self, request_: PendingDelete) -> None:
        for case in (self.opened(request_, quiet_ms=NOW_MS), self.opened(request_, quiet_ms=NOW_MS, reference=gone())):
            verdict = judge(case, POLICY, now_ms=NOW_MS)
            assert (verdict.outcome, verdict.reason, verdict.wait_ms) == (Outcome.RETRY, Reason.NOT_CLOSED, 0)

    @pytest.mark.parametrize("request_", [data_request(5), cursor_request(5)])
    def test_are_deleted_after_both_periods_if_their_owner_names_a_newer_ledger(self, request_: PendingDelete) -> None:
        assert why(self.opened(request_), self.PATIENT) == (Outcome.DELETED, Reason.UNREFERENCED)

    def test_are_deleted_after_both_periods_if_their_list_was_seen_gone_twice(self) -> None:
        case = self.opened(data_request(5), reference=gone(), absent_since_ms=NOW_MS - HOUR_MS)
        assert why(case, self.PATIENT) == (Outcome.DELETED, Reason.OWNER_GONE)
        assert why(replace(case, absent_since_ms=None), self.PATIENT)[1] is Reason.OWNER_ABSENT_ONCE

    @pytest.mark.parametrize("request_", [data_request(5), cursor_request(5)])
    def test_of_an_owner_of_newer_ledgers_wait_for_the_quarantine_as_well(self, request_: PendingDelete) -> None:
        """The owner may be deleted and created again, before this check or after: its versions then start at 0."""
        verdict = judge(self.opened(request_, quiet_ms=self.QUIET_MS), self.PATIENT, now_ms=NOW_MS)
        assert (verdict.reason, verdict.wait_ms) == (Reason.NOT_CLOSED, DAY_MS - self.QUIET_MS)

    @pytest.mark.parametrize("request_", EVERY_COMPONENT)
    def test_of_a_gone_owner_wait_for_the_quarantine_as_well(self, request_: PendingDelete) -> None:
        """Both periods count from the last change, and a single wait covers both."""
        case = self.opened(request_, quiet_ms=self.QUIET_MS, reference=gone(), absent_since_ms=NOW_MS - HOUR_MS)
        verdict = judge(case, self.PATIENT, now_ms=NOW_MS)
        assert (verdict.reason, verdict.wait_ms) == (Reason.NOT_CLOSED, DAY_MS - self.QUIET_MS)
        case = self.opened(request_, quiet_ms=DAY_MS, reference=gone(), absent_since_ms=NOW_MS - HOUR_MS)
        assert why(case, self.PATIENT) == (Outcome.DELETED, Reason.OWNER_GONE)

    @pytest.mark.parametrize("request_", CLOSED_BEFORE_REFERENCED)
    def test_that_are_written_before_they_are_listed_stay_for_any_newest_ledger_of_their_owner(
        self, request_: PendingDelete
    ) -> None:
        """A compaction may write for days; a schema's locator is deleted and created; buckets are in no order."""
        verdict = judge(self.opened(request_, quiet_ms=NOW_MS), self.PATIENT, now_ms=NOW_MS)
        assert (verdict.reason, verdict.wait_ms) == (Reason.NOT_CLOSED, 0)

    def test_return_how_long_they_still_wait(self) -> None:
        policy = replace(self.PATIENT, open_quiet_ms=2 * DAY_MS)  # the quiet period is longer than the quarantine
        verdict = judge(self.opened(cursor_request(5), quiet_ms=2 * DAY_MS - 1), policy, now_ms=NOW_MS)
        assert (verdict.outcome, verdict.reason, verdict.wait_ms) == (Outcome.RETRY, Reason.NOT_CLOSED, 1)

    @pytest.mark.parametrize("request_", [data_request(5), cursor_request(5)])
    @pytest.mark.parametrize(
        "owner",
        [
            pytest.param(reference(in_use=(), newest_id=4), id="it is the newest"),
            pytest.param(reference(in_use=(), newest_id=5), id="the newest is it itself"),
            pytest.param(reference(in_use=(), newest_id=-1), id="a cursor that was closed names none"),
        ],
    )
    def test_are_kept_while_a_broker_may_still_list_them(self, request_: PendingDelete, owner: Reference) -> None:
        case = self.opened(request_, quiet_ms=NOW_MS, reference=owner)
        assert why(case, self.PATIENT) == (Outcome.RETRY, Reason.NOT_CLOSED)

    @pytest.mark.parametrize("owner", [reference(in_use=(8, 9)), gone()])
    def test_in_recovery_are_kept(self, owner: Reference) -> None:
        about = facts(last_change_ms=0, state=LedgerState.IN_RECOVERY)
        case = replace(DELETABLE, ledger=about, reference=owner, absent_since_ms=NOW_MS - HOUR_MS)
        assert why(case, self.PATIENT) == (Outcome.RETRY, Reason.NOT_CLOSED)


@pytest.mark.parametrize(
    ("request_", "owner", "age_ms", "wait_ms"),
    [
        pytest.param(data_request(5), reference(in_use=(8, 9)), MINUTE_MS, 4 * MINUTE_MS, id="min_age"),
        pytest.param(schema_request(5), reference(in_use=(8, 9)), HOUR_MS, 23 * HOUR_MS, id="schema: the quarantine"),
        pytest.param(cursor_request(5), gone(), HOUR_MS, 23 * HOUR_MS, id="gone cursor: the quarantine"),
        pytest.param(data_request(5), reference(in_use=(4,)), HOUR_MS, 0, id="its owner may name a newer one any time"),
        pytest.param(
            schema_request(5), reference(in_use=(4,)), HOUR_MS, 23 * HOUR_MS, id="which proves nothing about a schema"
        ),
    ],
)
def test_a_verdict_that_time_alone_ends_contains_the_remaining_time(
    request_: PendingDelete, owner: Reference, age_ms: int, wait_ms: int
) -> None:
    case = case_of(request_, last_change_ms=NOW_MS - age_ms, reference=owner)
    verdict = judge(case, POLICY, now_ms=NOW_MS)
    assert (verdict.outcome, verdict.wait_ms) == (Outcome.RETRY, wait_ms)


EVERY_REASON = {
    Reason.UNREFERENCED: DELETABLE,
    Reason.NOT_FOUND: replace(DELETABLE, ledger=None),
    Reason.IN_USE: replace(DELETABLE, reference=reference(in_use=(5,))),
    Reason.OWNER_UNREADABLE: replace(DELETABLE, reference=reference(presence=Presence.UNREADABLE)),
    Reason.BROKER_UNAVAILABLE: replace(
        DELETABLE, reference=replace(reference(presence=Presence.UNREADABLE), is_unavailable=True)
    ),
    Reason.OWNER_HIDDEN: replace(DELETABLE, reference=replace(reference(in_use=(8,)), is_hidden=True)),
    Reason.LEDGER_UNREADABLE: replace(DELETABLE, ledger=replace(facts(), metadata=None)),
    Reason.NOT_PULSARS: replace(DELETABLE, ledger=facts(custom_metadata={})),
    Reason.OTHER_COMPONENT: replace(DELETABLE, request=cursor_request(5)),
    Reason.OTHER_OWNER: replace(DELETABLE, request=data_request(5, "a/b/persistent/c")),
    Reason.NOT_CLOSED: replace(DELETABLE, ledger=facts(state=LedgerState.OPEN)),
    Reason.TOO_YOUNG: replace(DELETABLE, ledger=facts(last_change_ms=NOW_MS)),
    Reason.ABOVE_NEWEST: replace(
        DELETABLE, ledger=facts(last_change_ms=NOW_MS - HOUR_MS), reference=reference(in_use=(4,))
    ),
    Reason.OWNER_ABSENT_ONCE: replace(DELETABLE, reference=gone()),
    Reason.OWNER_GONE: replace(DELETABLE, reference=gone(), absent_since_ms=NOW_MS - HOUR_MS),
    Reason.UNREFERENCED_ONCE: case_of(compacted_request(5)),
}


@pytest.mark.parametrize("reason", EVERY_REASON)
def test_every_reason_the_judge_can_return(reason: Reason) -> None:
    assert why(EVERY_REASON[reason])[1] is reason


def test_a_request_for_tiered_storage_is_not_for_this_judge() -> None:
    request = replace(data_request(5), ledger_type=LedgerType.OFFLOAD_LEDGER)
    with pytest.raises(ValueError, match="OFFLOAD_LEDGER"):
        judge(replace(DELETABLE, request=request), POLICY, now_ms=NOW_MS)


ids = st.integers(0, 12)


@given(in_use=st.sets(ids), ledger_id=ids)
def test_refers_to_is_membership(in_use: set[int], ledger_id: int) -> None:
    assert refers_to(reference(in_use=in_use), ledger_id) == (ledger_id in in_use)


@pytest.mark.parametrize("request_", EVERY_COMPONENT)
@pytest.mark.parametrize(
    ("newest", "presence", "expected"),
    [
        pytest.param(4, Presence.PRESENT, True, id="newer than all"),
        pytest.param(5, Presence.PRESENT, False, id="the newest"),
        pytest.param(6, Presence.PRESENT, False, id="older"),
        pytest.param(-1, Presence.PRESENT, True, id="the owner names none"),
        pytest.param(4, Presence.GONE, False, id="no list to be newer than"),
        pytest.param(4, Presence.UNREADABLE, False, id="the list is not known"),
    ],
)
def test_is_above_newest(request_: PendingDelete, newest: int, presence: Presence, *, expected: bool) -> None:
    assert is_above_newest(request_, reference(in_use=(), newest_id=newest, presence=presence)) is expected


cases = st.builds(
    Case,
    request=st.sampled_from(
        [data_request(5), cursor_request(5), schema_request(5), compacted_request(5), bucket_request(5)]
    ),
    ledger=st.builds(
        lambda age_ms, state: facts(last_change_ms=NOW_MS - age_ms, state=state),
        st.sampled_from([0, 5 * MINUTE_MS, 6 * HOUR_MS, DAY_MS, 30 * DAY_MS]),
        st.sampled_from(LedgerState),
    ),
    reference=st.builds(
        lambda in_use, newest, presence: reference(in_use=in_use, newest_id=newest, presence=presence),
        st.sets(ids),
        st.integers(-1, 12),
        st.sampled_from(Presence),
    ),
    absent_since_ms=st.sampled_from([None, NOW_MS, NOW_MS - 10 * MINUTE_MS]),
)


def _with_its_own_ledger(case: Case) -> tuple[Case, LedgerFacts]:
    """Return the case with a ledger that belongs to the request's owner, of the drawn age and state."""
    assert case.ledger is not None
    state = case.ledger.metadata.state if case.ledger.metadata else LedgerState.CLOSED
    about = facts(case.request, last_change_ms=case.ledger.last_change_ms, state=state)
    return replace(case, ledger=about), about


@pytest.mark.long
@pytest.mark.parametrize("component", OF_LEDGERS)
@pytest.mark.parametrize("presence", [Presence.PRESENT, Presence.GONE])
def test_some_of_the_drawn_facts_allow_a_delete(component: LedgerComponent, presence: Presence) -> None:
    """Otherwise the next test would prove nothing."""

    def goes(case: Case) -> bool:
        is_drawn = case.request.component is component and case.reference.presence is presence
        return is_drawn and judge(_with_its_own_ledger(case)[0], POLICY, now_ms=NOW_MS).outcome is Outcome.DELETED

    assert find(cases, goes, settings=settings(max_examples=5_000))


@given(case=cases, open_quiet_ms=st.sampled_from([0, 6 * HOUR_MS, 7 * DAY_MS]))
def test_deletion_needs_every_condition_for_all_facts(case: Case, open_quiet_ms: int) -> None:
    case, about = _with_its_own_ledger(case)
    assert about.metadata is not None
    state = about.metadata.state
    policy = replace(POLICY, open_quiet_ms=open_quiet_ms)
    if judge(case, policy, now_ms=NOW_MS).outcome is not Outcome.DELETED:
        return
    owner, age_ms = case.reference, NOW_MS - about.last_change_ms
    assert owner.presence is not Presence.UNREADABLE
    assert 5 not in owner.in_use
    assert age_ms >= 5 * MINUTE_MS
    if state is not LedgerState.CLOSED:
        assert state is LedgerState.OPEN
        assert 0 < open_quiet_ms <= age_ms
        assert age_ms >= DAY_MS
        in_order = case.request.component in (LedgerComponent.MANAGED_LEDGER, LedgerComponent.MANAGED_CURSOR)
        assert owner.presence is Presence.GONE or (in_order and owner.newest_id > 5)
    assert owner.presence is Presence.PRESENT or case.absent_since_ms == NOW_MS - 10 * MINUTE_MS
    assert owner.newest_id >= 5 or owner.presence is Presence.GONE or age_ms >= DAY_MS


def test_the_detail_names_the_owner_so_that_an_operator_can_check_it() -> None:
    verdict = judge(replace(DELETABLE, reference=reference(in_use=(5,))), POLICY, now_ms=NOW_MS)
    assert TOPIC in verdict.detail
