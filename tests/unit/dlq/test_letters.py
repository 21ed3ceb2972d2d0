"""Dead letters: parsing, filters and totals."""

import pytest

from streaming.dlq.letters import AGES, NO_OWNER, OTHER_OWNERS, DeadLetter, DeadLetterFilters, Groups, age_of, filters
from streaming.errors import ConfigError
from streaming.ports import StoredMessage
from streaming.state.settlements import REPLAYED, WAITING
from tests.builders import DAY_MS, HOUR_MS, NOW_MS, data_request
from udfs.requests.request_format import decode, encode

DLQ = "persistent://pulsar/system/__ledger_deletion-DLQ-partition-2"


def _letter(
    entry: int = 0, *, payload: bytes | None = None, properties: dict[str, str] | None = None, age_ms: int = 0
) -> DeadLetter:
    body = encode(data_request()) if payload is None else payload
    about = {"REASON": "IN_USE: listed"} if properties is None else properties
    message = StoredMessage(
        partition=DLQ,
        ledger_id=7,
        entry_id=entry,
        batch_index=-1,
        publish_ms=NOW_MS - age_ms,
        key="key",
        payload=body,
        properties=about,
    )
    return DeadLetter(message, decode(body))


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        pytest.param({"REASON": "IN_USE: listed"}, "IN_USE", id="with a detail"),
        pytest.param({"REASON": "IN_USE"}, "IN_USE", id="without a detail"),
        pytest.param({}, "(none)", id="another client's dead letter"),
        pytest.param({"REASON": "PWNED: x"}, "(other)", id="no reason of ours"),
    ],
)
def test_a_reason_that_is_not_ours_is_shown_as_unknown(properties: dict[str, str], expected: str) -> None:
    assert _letter(properties=properties).reason == expected


@pytest.mark.parametrize(
    ("chosen", "is_meant"),
    [
        pytest.param(DeadLetterFilters(), True, id="nothing chosen"),
        pytest.param(DeadLetterFilters(ids=frozenset({"7:0:2"})), True, id="own id"),
        pytest.param(DeadLetterFilters(ids=frozenset({"1:1:1"})), True, id="the original's id"),
        pytest.param(DeadLetterFilters(ids=frozenset({"7:0:1"})), False, id="another partition's id"),
        pytest.param(DeadLetterFilters(reason="IN_USE"), True, id="reason"),
        pytest.param(DeadLetterFilters(reason="NOT_JSON"), False, id="another reason"),
        pytest.param(DeadLetterFilters(owner="persistent://public/default/orders"), True, id="topic"),
        pytest.param(DeadLetterFilters(owner="public/default"), True, id="namespace"),
        pytest.param(DeadLetterFilters(owner="public"), True, id="tenant"),
        pytest.param(DeadLetterFilters(owner="pub"), False, id="beginning of a tenant"),
        pytest.param(DeadLetterFilters(owner="public/default/orders"), False, id="neither topic nor namespace"),
        pytest.param(DeadLetterFilters(older_than_ms=HOUR_MS), True, id="just old enough"),
        pytest.param(DeadLetterFilters(older_than_ms=HOUR_MS + 1), False, id="a millisecond too young"),
        pytest.param(DeadLetterFilters(reason="IN_USE", owner="other"), False, id="one of two"),
    ],
)
def test_filters_mean_a_letter_when_all_of_them_do(chosen: DeadLetterFilters, is_meant: bool) -> None:
    letter = _letter(properties={"REASON": "IN_USE", "ORIGIN_MESSAGE_ID": "1:1:1"}, age_ms=HOUR_MS)
    assert chosen.match(letter, NOW_MS) is is_meant


def test_an_owner_never_means_what_is_no_request() -> None:
    letter = _letter(payload=b"\xff")
    assert letter.owner == NO_OWNER
    assert not DeadLetterFilters(owner="public").match(letter, NOW_MS)


def test_filters_take_a_topic_in_any_form_and_refuse_what_is_no_reason() -> None:
    assert filters((), "", "public/default/persistent/a", 0).owner == "persistent://public/default/a"
    with pytest.raises(ConfigError, match=r"--reason in use: no such value; did you mean IN_USE\?"):
        filters((), "in use", "", 0)
    with pytest.raises(ConfigError, match="--owner"):
        filters((), "", "persistent://", 0)


@pytest.mark.parametrize(
    ("age_ms", "name"), [(0, "< 1 h"), (HOUR_MS - 1, "< 1 h"), (HOUR_MS, "1-24 h"), (8 * DAY_MS, "> 7 d")]
)
def test_ages_have_classes(age_ms: int, name: str) -> None:
    assert age_of(age_ms) == name
    assert name in dict(AGES)


def test_groups_add_up_what_is_alike() -> None:
    groups = Groups(NOW_MS)
    for entry, age_ms in enumerate((5, 9, 2)):
        groups.add(_letter(entry, age_ms=age_ms), WAITING)
    groups.add(_letter(4), REPLAYED)
    replayed, waiting = groups.sorted()
    assert (waiting.messages, NOW_MS - waiting.oldest_ms, NOW_MS - waiting.newest_ms) == (3, 9, 2)
    assert (replayed.state, replayed.messages) == (REPLAYED, 1)


def test_groups_do_not_grow_with_invented_owners() -> None:
    groups = Groups(NOW_MS, most=2)
    for number in range(5):
        groups.add(_letter(payload=encode(data_request(topic=f"t/ns/persistent/x{number}"))), WAITING)
    most = groups.sorted()[0]
    assert (most.owner, most.messages) == (OTHER_OWNERS, 3)
    assert len(groups.groups) == 3
