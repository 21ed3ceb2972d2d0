"""A request's next try after each verdict, and its retry-letter properties: as Java's, and harmless when forged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.records import Outcome, Reason, Verdict
from udfs.requests import retry
from udfs.requests.retry import (
    Delays,
    Disposition,
    attempt_of,
    backoff_ms,
    dead_letter_properties,
    delay_ms,
    delay_ms_of,
    dispose,
    due_ms,
    fitting,
    next_look,
    retry_properties,
)
from udfs.units import MAX_DELAY_MS

ORIGIN = "5:7:2"
TOPIC = "persistent://pulsar/system/__ledger_deletion"
WEEK_MS = 604_800_000
# limits of a copy, in bytes: beside its payload, of a property of ours, of a payload, of a payload that is cut
ABOUT, PROPERTY, PAYLOAD, CUT = 262_144, 4_096, 1_048_576, 65_536


def fitted(payload: bytes = b"", key: bytes = b"", **properties: str) -> tuple[bytes, bytes, dict[str, str]]:
    return fitting(payload, key, properties)


@pytest.mark.parametrize(
    ("written", "attempt"),
    [
        pytest.param(None, 0, id="absent"),
        pytest.param("0", 0, id="zero"),
        pytest.param("1", 1, id="first retry"),
        pytest.param("11", 11, id="dead letter of ten tries"),
        pytest.param("007", 7, id="leading zeros"),
        pytest.param("", 0, id="empty"),
        pytest.param("-5", 0, id="negative, which must not buy more tries"),
        pytest.param("+5", 0, id="sign"),
        pytest.param(" 5", 0, id="space"),
        pytest.param("1e3", 0, id="exponent"),
        pytest.param("\u0665", 0, id="a digit of another script"),
        pytest.param("\u00b2", 0, id="superscript two"),
        pytest.param("1000000", 1_000_000, id="largest"),
        pytest.param("1000001", 1_000_000, id="beyond the largest"),
        pytest.param("9" * 10_000, 1_000_000, id="ten thousand digits"),
        pytest.param("0" * 10_000, 0, id="ten thousand zeros"),
    ],
)
def test_attempts_are_read_leniently(written: str | None, attempt: int) -> None:
    assert attempt_of({} if written is None else {"RECONSUMETIMES": written}) == attempt


@pytest.mark.parametrize(
    ("written", "delay_ms"),
    [
        (None, 0),
        ("600000", 600_000),
        ("-1", 0),
        ("x", 0),
        (str(WEEK_MS - 1), WEEK_MS - 1),
        (str(WEEK_MS), WEEK_MS),
        (str(WEEK_MS + 1), WEEK_MS),
        ("9" * 9, WEEK_MS),
        ("9" * 30, WEEK_MS),
    ],
)
def test_a_message_is_due_its_delay_after_its_publication(written: str | None, delay_ms: int) -> None:
    assert delay_ms_of({"DELAY_TIME": written}) == delay_ms
    assert due_ms(1_000, {"DELAY_TIME": written}) == 1_000 + delay_ms


def test_a_first_retry_carries_what_java_writes() -> None:
    copied = retry_properties({"zone": "a", "X": "1"}, real_topic=TOPIC, origin_id=ORIGIN, attempt=1, delay_ms=600_000)
    assert list(copied.items()) == [
        ("DELAY_TIME", "600000"),
        ("ORIGIN_MESSAGE_ID", ORIGIN),
        ("ORIGIN_MESSAGE_IDY_TIME", ORIGIN),
        ("REAL_TOPIC", TOPIC),
        ("RECONSUMETIMES", "1"),
        ("X", "1"),
        ("zone", "a"),
    ]


def test_a_later_copy_keeps_the_first_topic_and_counts_on() -> None:
    first = retry_properties({}, real_topic=TOPIC, origin_id=ORIGIN, attempt=1, delay_ms=5)
    second = retry_properties(first, real_topic=f"{TOPIC}-RETRY", origin_id=ORIGIN, attempt=2, delay_ms=10)
    assert second == first | {"RECONSUMETIMES": "2", "DELAY_TIME": "10"}


def test_the_caller_chooses_the_origin() -> None:
    copied = retry_properties(
        {"ORIGIN_MESSAGE_ID": "forged"}, real_topic=TOPIC, origin_id=ORIGIN, attempt=1, delay_ms=5
    )
    assert copied["ORIGIN_MESSAGE_ID"] == copied["ORIGIN_MESSAGE_IDY_TIME"] == ORIGIN


def test_a_dead_letter_contains_its_reason() -> None:
    first = retry_properties({"zone": "a"}, real_topic=TOPIC, origin_id=ORIGIN, attempt=10, delay_ms=5)
    dead = dead_letter_properties(
        first, real_topic=f"{TOPIC}-RETRY", origin_id=ORIGIN, attempt=11, reason="IN_USE: listed"
    )
    assert dead == first | {"RECONSUMETIMES": "11", "REASON": "IN_USE: listed"}


def test_a_reason_is_cut_to_the_length_of_a_property() -> None:
    dead = dead_letter_properties({}, real_topic=TOPIC, origin_id=ORIGIN, attempt=0, reason="ab" * 2500)
    assert dead["REASON"] == "ab" * 500
    whole = dead_letter_properties({}, real_topic=TOPIC, origin_id=ORIGIN, attempt=0, reason="x" * 1000)
    assert whole["REASON"] == "x" * 1000


def test_the_given_properties_are_not_changed() -> None:
    given_ = {"a": "b"}
    retry_properties(given_, real_topic=TOPIC, origin_id=ORIGIN, attempt=1, delay_ms=5)
    assert given_ == {"a": "b"}


def test_an_original_has_no_retry_properties() -> None:
    dead = dead_letter_properties(
        {"a": "b", "RETRY_TOPIC": "x"}, real_topic=TOPIC, origin_id=ORIGIN, attempt=1, reason="r"
    )
    assert retry.as_original(dead) == {"a": "b"}


@pytest.mark.parametrize(
    "name",
    [
        "RECONSUMETIMES",
        "DELAY_TIME",
        "REAL_TOPIC",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_IDY_TIME",
        "REASON",
        "COPY_ID",
        "OWNER_ABSENT_SINCE",
    ],
)
def test_no_property_that_only_we_write_is_left_on_an_original(name: str) -> None:
    assert retry.as_original({name: "1", f"{name}S": "2"}) == {f"{name}S": "2"}


class TestFitting:
    def test_a_copy_that_a_broker_accepts_is_unchanged(self) -> None:
        payload, key, properties = bytes(PAYLOAD), b"k" * 4, {"a": "x" * (ABOUT - 5)}
        assert fitted(payload, key, **properties) == (payload, key, properties)

    @pytest.mark.parametrize(
        ("key", "properties"),
        [
            pytest.param(b"k" * (ABOUT + 1), {}, id="the key"),
            pytest.param(b"", {"a": "x" * ABOUT}, id="a property's name and value"),
            pytest.param(b"k", {"a": "x" * (ABOUT - 1)}, id="key and property"),
            pytest.param(b"", {"a" * ABOUT: "x"}, id="a long name"),
            pytest.param(b"", {"a": "x" * (ABOUT // 2 - 1), "b": "x" * (ABOUT // 2)}, id="two properties"),
            pytest.param(b"", {"a": "\u00e4" * (ABOUT // 2)}, id="bytes count, not letters"),
            pytest.param(b"", {"a": "\ud800" * (ABOUT // 3)}, id="a value that is no text"),
        ],
    )
    def test_key_and_others_properties_are_dropped_whole_if_they_are_too_large_together(
        self, key: bytes, properties: dict[str, str]
    ) -> None:
        assert fitted(b"payload", key, **properties, REASON="NOT_JSON") == (b"payload", b"", {"REASON": "NOT_JSON"})

    def test_our_properties_that_are_longer_than_we_write_are_dropped_too(self) -> None:
        large = {"a": "x" * ABOUT}
        ours = {"REASON": "r" * PROPERTY, "REAL_TOPIC": "t" * (PROPERTY + 1), "OWNER_ABSENT_SINCE": "\u00e4" * 2049}
        assert fitted(b"", b"", **large, **ours)[2] == {"REASON": "r" * PROPERTY}

    def test_our_properties_of_any_length_stay_if_the_copy_is_small_enough(self) -> None:
        assert fitted(REAL_TOPIC="t" * (PROPERTY + 1))[2] == {"REAL_TOPIC": "t" * (PROPERTY + 1)}

    def test_a_payload_that_is_too_large_is_cut_to_its_start_and_records_its_length(self) -> None:
        payload = bytes(range(256)) * (PAYLOAD // 256) + b"!"
        assert fitted(payload, b"k", a="b") == (payload[:CUT], b"k", {"a": "b", "CUT_FROM": str(PAYLOAD + 1)})

    def test_both_are_cut_if_both_are_too_large(self) -> None:
        copy = fitted(bytes(PAYLOAD + 1), b"k", a="x" * ABOUT, REASON="r")
        assert copy == (bytes(CUT), b"", {"REASON": "r", "CUT_FROM": str(PAYLOAD + 1)})

    def test_the_given_properties_are_not_changed(self) -> None:
        properties = {"a": "b"}
        fitting(bytes(PAYLOAD + 1), b"", properties)
        assert properties == {"a": "b"}


@pytest.mark.parametrize(
    ("attempt", "shortest", "longest"),
    [
        (0, 600, 600),
        (1, 600, 600),
        (2, 900, 1200),
        (3, 1800, 2400),
        (4, 3600, 4800),
        (5, 3750, 5000),
        (10**9, 3750, 5000),
    ],
)
def test_waiting_doubles_up_to_the_cap(attempt: int, shortest: int, longest: int) -> None:
    waits = {backoff_ms(attempt, base_ms=600, cap_ms=5000, seed=f"5:{n}:0") for n in range(200)}
    assert shortest <= min(waits) <= max(waits) <= longest
    assert len(waits) > 100 or shortest == longest


@pytest.mark.parametrize("cap_ms", [0, 599, 600])
def test_a_cap_below_the_base_is_the_base(cap_ms: int) -> None:
    assert backoff_ms(7, base_ms=600, cap_ms=cap_ms, seed="x") == 600


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 10**9), st.text(st.characters(), max_size=9))
def test_a_wait_is_repeatable_and_within_its_bounds(attempt: int, base_ms: int, cap_ms: int, seed: str) -> None:
    wait = backoff_ms(attempt, base_ms=base_ms, cap_ms=cap_ms, seed=seed)
    assert wait == backoff_ms(attempt, base_ms=base_ms, cap_ms=cap_ms, seed=seed)
    assert base_ms <= wait <= max(base_ms, cap_ms)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["RECONSUMETIMES", "DELAY_TIME"]), st.none() | st.text(max_size=30)))
def test_any_property_is_read_as_a_number_within_its_bounds(properties: dict[str, str | None]) -> None:
    assert 0 <= attempt_of(properties) <= retry.MAX_ATTEMPT
    assert 0 <= delay_ms_of(properties) <= MAX_DELAY_MS


def test_a_cut_at_the_source_is_still_recorded_if_the_copy_is_cut_again() -> None:
    about = {retry.CUT_FROM: "5000000"}
    payload, _, properties = retry.fitting(b"x" * 65_537, b"", about, retry.LEAST_MESSAGE_BYTES)
    assert (len(payload) < 16_384, properties) == (True, about)
    assert retry.fitting(b"x" * 65_537, b"", {retry.CUT_FROM: "12"}, retry.LEAST_MESSAGE_BYTES)[2] == {
        retry.CUT_FROM: "65537"
    }


@settings(max_examples=200, deadline=None)
@given(
    st.integers(retry.LEAST_MESSAGE_BYTES, 100_000),
    st.binary(max_size=50) | st.integers(0, 9_000).map(lambda n: b"\xff" * n),
    st.integers(0, 2_000_000),
    st.integers(0, 2_000),
    st.dictionaries(st.sampled_from(sorted(retry.KEPT)), st.integers(0, 5_000).map(lambda n: "\U0001f980" * n)),
)
def test_every_copy_fits_from_the_smallest_limit_of_a_broker_on(
    most_bytes: int, key: bytes, size: int, foreign: int, ours: dict[str, str]
) -> None:
    sent = {f"{n}": "" for n in range(foreign)} | ours
    payload, key, properties = retry.fitting(b"x" * size, key, sent, most_bytes)
    assert retry._stored_about(key, properties) + len(payload) <= most_bytes
    if len(ours.get(retry.REAL_TOPIC, "")) <= retry.MAX_PROPERTY_BYTES // 4:
        assert properties.get(retry.REAL_TOPIC) == ours.get(retry.REAL_TOPIC)


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
    Reason.OWNER_HIDDEN,
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
