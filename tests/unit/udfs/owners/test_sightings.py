"""A sighting counts only if we signed it, for this owner, and it is unchanged."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import OTHER_TOPIC, UUID, cursor_request, data_request
from udfs.owners.sightings import OWNER_ABSENT_SINCE, absent_since_ms, signed, subject_of
from udfs.records import OffloadContext, PendingDelete

SECRET = b"0" * 32
KEY = "data:public/default/persistent/orders"
SINCE_MS = 1_700_000_000_000


def read(value: str | None, *, secret: bytes = SECRET, key: str = KEY) -> int | None:
    return absent_since_ms(secret, key, {OWNER_ABSENT_SINCE: value})


@given(since_ms=st.integers(0, 10**15 - 1), key=st.text(), secret=st.binary(min_size=1))
def test_what_was_signed_is_read_back(since_ms: int, key: str, secret: bytes) -> None:
    key = key.encode("utf-8", "replace").decode()
    assert read(signed(secret, key, since_ms), secret=secret, key=key) == since_ms


def test_a_sighting_without_property_is_none() -> None:
    assert absent_since_ms(SECRET, KEY, {}) is None


GENUINE = signed(SECRET, KEY, SINCE_MS)
MAC = GENUINE.partition(":")[2]


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(None, id="null"),
        pytest.param("", id="empty"),
        pytest.param(str(SINCE_MS), id="no signature"),
        pytest.param(f"{SINCE_MS}:", id="an empty signature"),
        pytest.param(f"{SINCE_MS - 1}:{MAC}", id="another time with a genuine signature"),
        pytest.param(f"0{SINCE_MS}:{MAC[:-1]}", id="a shortened signature"),
        pytest.param(f"{SINCE_MS}:{MAC[::-1]}", id="a signature of the right form"),
        pytest.param(f" {SINCE_MS}:{MAC}", id="a space in front"),
        pytest.param(f"+{SINCE_MS}:{MAC}", id="a sign in front"),
        pytest.param(f"-1:{MAC}", id="a negative time"),
        pytest.param(f"\u0661\u0667:{MAC}", id="digits of another script"),
        pytest.param(f"{'9' * 400}:{MAC}", id="a time beyond all bounds"),
        pytest.param(f"{SINCE_MS}:{MAC}\u00e9", id="letters beyond ASCII"),
        pytest.param(f"{SINCE_MS}:\ud800", id="half a surrogate"),
        pytest.param(f":{MAC}", id="no time"),
    ],
)
def test_a_forged_sighting_does_not_count(forged: str | None) -> None:
    assert read(forged) is None


def test_a_sighting_of_one_owner_does_not_count_for_another() -> None:
    assert read(GENUINE) == SINCE_MS
    assert read(GENUINE, key="data:public/default/persistent/payments") is None
    assert read(GENUINE, key="cursor:public/default/persistent/orders/x") is None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(data_request(6), id="another ledger"),
        pytest.param(data_request(5, OTHER_TOPIC), id="another owner"),
        pytest.param(cursor_request(5), id="another component"),
        pytest.param(replace(data_request(5), offload_context=OffloadContext(uuid=UUID)), id="an upload"),
    ],
)
def test_a_sighting_for_one_request_does_not_count_for_another(other: PendingDelete) -> None:
    made = signed(SECRET, subject_of(data_request(5)), SINCE_MS)
    assert read(made, key=subject_of(data_request(5))) == SINCE_MS
    assert read(made, key=subject_of(other)) is None


def test_a_sighting_signed_with_another_clusters_key_is_none() -> None:
    assert read(GENUINE, secret=b"1" * 32) is None


@given(value=st.text())
def test_no_text_raises_an_error(value: str) -> None:
    assert read(value) is None
