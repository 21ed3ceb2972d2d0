"""The future of a request after each verdict; attempts are counted as the Java client counts them."""

import pytest

from udfs.records import Outcome, Reason, Verdict
from udfs.requests.retry import Delays, Disposition, delay_ms, dispose, next_look

KEPT = Verdict(Outcome.RETRY, Reason.IN_USE)


@pytest.mark.parametrize(
    ("verdict", "attempt", "expected"),
    [
        pytest.param(Verdict(Outcome.DELETED, Reason.UNREFERENCED), 3, (Outcome.DELETED, 3), id="deleted is final"),
        pytest.param(Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND), 3, (Outcome.ALREADY_GONE, 3), id="gone is final"),
        pytest.param(
            Verdict(Outcome.DEAD_LETTER, Reason.OTHER_OWNER), 0, (Outcome.DEAD_LETTER, 0), id="refused at once"
        ),
        pytest.param(KEPT, 0, (Outcome.RETRY, 1), id="the first retry carries 1"),
        pytest.param(KEPT, 9, (Outcome.RETRY, 10), id="the last retry carries the maximum"),
        pytest.param(KEPT, 10, (Outcome.DEAD_LETTER, 11), id="the dead letter carries one more"),
        pytest.param(KEPT, 99, (Outcome.DEAD_LETTER, 100), id="a forged count ends sooner, not later"),
    ],
)
def test_a_verdict_becomes(verdict: Verdict, attempt: int, expected: tuple[Outcome, int]) -> None:
    assert dispose(verdict, attempt=attempt, max_retry_delete_count=10) == Disposition(*expected)


def test_without_retries_the_first_refusal_is_final() -> None:
    assert dispose(KEPT, attempt=0, max_retry_delete_count=0) == Disposition(Outcome.DEAD_LETTER, 1)


FREE = {
    Reason.SOURCE_SHRANK,
    Reason.TENANT_HELD,
    Reason.TOO_YOUNG,
    Reason.ABOVE_NEWEST,
    Reason.OFFLOAD_IN_PROGRESS,
    Reason.STORE_UNAVAILABLE,
    Reason.BROKER_UNAVAILABLE,
    Reason.NOT_GUARDED,
}


@pytest.mark.parametrize("reason", Reason)
def test_only_a_wait_for_an_operator_for_time_or_for_a_store_costs_no_try(reason: Reason) -> None:
    disposed = dispose(Verdict(Outcome.RETRY, reason), attempt=10, max_retry_delete_count=10)
    assert disposed == (Disposition(Outcome.RETRY, 10) if reason in FREE else Disposition(Outcome.DEAD_LETTER, 11))


@pytest.mark.parametrize("reason", [Reason.NOT_CLOSED, Reason.IN_USE])
def test_a_wait_with_a_known_end_costs_no_try_for_any_reason(reason: Reason) -> None:
    verdict = Verdict(Outcome.RETRY, reason, wait_ms=1)
    assert dispose(verdict, attempt=10, max_retry_delete_count=10) == Disposition(Outcome.RETRY, 10)


CONSTANT = Delays(base_ms=600_000, not_closed_ms=86_400_000)
DOUBLING = Delays(base_ms=600_000, cap_ms=3_600_000)


@pytest.mark.parametrize(
    ("reason", "delays", "attempt", "shortest", "longest"),
    [
        pytest.param(Reason.IN_USE, CONSTANT, 1, 600_000, 600_000, id="PIP-186's delay is constant"),
        pytest.param(Reason.IN_USE, CONSTANT, 10, 600_000, 600_000, id="and stays so"),
        pytest.param(
            Reason.NOT_CLOSED, CONSTANT, 1, 86_400_000, 86_400_000, id="a ledger that is never closed: once a day"
        ),
        pytest.param(Reason.NOT_CLOSED, DOUBLING, 9, 600_000, 600_000, id="never more often than anything else"),
        pytest.param(Reason.IN_USE, DOUBLING, 0, 600_000, 600_000, id="a try that was free doubles nothing"),
        pytest.param(Reason.IN_USE, DOUBLING, 1, 600_000, 600_000, id="the first delay is not doubled"),
        pytest.param(Reason.IN_USE, DOUBLING, 2, 900_000, 1_200_000, id="the second may be a quarter shorter"),
        pytest.param(Reason.IN_USE, DOUBLING, 9, 2_700_000, 3_600_000, id="the cap is never exceeded"),
    ],
)
def test_the_next_try_comes_after(reason: Reason, delays: Delays, attempt: int, shortest: int, longest: int) -> None:
    verdict = Verdict(Outcome.RETRY, reason)
    waits = {delay_ms(verdict, delays, attempt=attempt, seed=f"{n}:1:0") for n in range(50)}
    assert shortest <= min(waits) <= max(waits) <= longest
    assert (len(waits) > 1) == (shortest < longest)


@pytest.mark.parametrize(
    ("reason", "fresh_ms", "expected"),
    [
        pytest.param(Reason.IN_USE, 0, (600_000, 1), id="no longer fresh"),
        pytest.param(Reason.IN_USE, 1, (1_000, 0), id="fresh for a millisecond: never less than a second"),
        pytest.param(Reason.IN_USE, 60_000, (60_000, 0), id="tried again when it is no longer fresh"),
        pytest.param(Reason.IN_USE, 900_000, (600_000, 0), id="never later than any other"),
        pytest.param(Reason.OWNER_UNREADABLE, 60_000, (600_000, 1), id="another reason"),
    ],
)
def test_a_fresh_request_loses_no_try_while_its_owner_still_names_the_ledger(
    reason: Reason, fresh_ms: int, expected: tuple[int, int]
) -> None:
    verdict = Verdict(Outcome.RETRY, reason)
    assert next_look(verdict, CONSTANT, attempt=1, seed="1:1", fresh_ms=fresh_ms) == expected


@pytest.mark.parametrize("delays", [CONSTANT, DOUBLING])
@pytest.mark.parametrize(
    ("wait_ms", "expected"),
    [
        pytest.param(1, 600_000, id="almost over: not sooner than any other try"),
        pytest.param(600_001, 600_001, id="to its end, to the millisecond"),
        pytest.param(21_600_000, 21_600_000, id="six hours in one go, and not a day"),
        pytest.param(30 * 86_400_000, 7 * 86_400_000, id="a month: as long as a delay is believed"),
    ],
)
def test_a_wait_with_a_known_end_is_tried_again_at_its_end(delays: Delays, wait_ms: int, expected: int) -> None:
    verdict = Verdict(Outcome.RETRY, Reason.NOT_CLOSED, wait_ms=wait_ms)
    assert next_look(verdict, delays, attempt=3, seed="1:1") == (expected, 3)


def test_t3_a_request_for_a_ledger_in_use_is_retried_and_finally_reported_never_dropped() -> None:
    """The request is published before the list is written: a final "in use" would leak the ledger."""
    verdict = Verdict(Outcome.RETRY, Reason.IN_USE)
    ends = [dispose(verdict, attempt=n, max_retry_delete_count=10).outcome for n in range(11)]
    assert ends == [Outcome.RETRY] * 10 + [Outcome.DEAD_LETTER]
