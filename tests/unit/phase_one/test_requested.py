"""Marks that became dead letters are requested again after a day; nothing is stored about all other marks."""

from collections.abc import Collection, Mapping

import pytest

from streaming.phase_one.receipts_by_message import Receipt
from streaming.phase_one.requested import AFTER_DEAD_LETTER_MS, MOST, Requested
from tests.builders import NOW_MS, UUID
from udfs.phase_one.marks import Marks
from udfs.records import OffloadContext, Outcome, Reason

UPLOAD = (7, UUID)
OFFLOADED = OffloadContext(uuid=UUID)
MARKS = Marks(frozenset({5, 6}), {UPLOAD: OFFLOADED})


class Answers:
    """The contents of receipts by message id; records the requested ids."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.outcomes = outcomes
        self.asked: list[tuple[set[str], int]] = []

    def look(self, message_ids: Collection[str], since_ms: int) -> Mapping[str, Receipt]:
        self.asked.append((set(message_ids), since_ms))
        return {
            each: Receipt(
                message_id=each,
                ledger_id=5,
                ledger_type=None,
                topic=None,
                outcome=self.outcomes[each],
                reason=Reason.NOT_PULSARS,
                detail="",
                attempt=0,
                at_ms=NOW_MS,
            )
            for each in message_ids
            if each in self.outcomes
        }


def test_marks_of_a_topic_without_requests_are_all_requested_and_no_receipt_is_read() -> None:
    answers = Answers()
    assert Requested().worth_asking(MARKS, answers.look, NOW_MS) == MARKS
    assert answers.asked == []


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_a_dead_letter_is_a_reason_not_to_ask(outcome: Outcome) -> None:
    requested = Requested()
    requested.note([5, 6, UPLOAD], ["a", "b", "c"], NOW_MS)
    answers = Answers(a=outcome, c=outcome)
    found = requested.worth_asking(MARKS, answers.look, NOW_MS + 1)
    expected = Marks(frozenset({6}), {}) if outcome is Outcome.DEAD_LETTER else MARKS
    assert found == expected
    assert answers.asked == [({"a", "b", "c"}, NOW_MS)]


@pytest.mark.parametrize(("later_ms", "is_asked"), [(AFTER_DEAD_LETTER_MS - 1, False), (AFTER_DEAD_LETTER_MS, True)])
def test_after_a_day_it_is_asked_for_again(later_ms: int, *, is_asked: bool) -> None:
    requested = Requested()
    requested.note([5], ["a"], NOW_MS)
    found = requested.worth_asking(MARKS, Answers(a=Outcome.DEAD_LETTER).look, NOW_MS + later_ms)
    assert (5 in found.ledgers) is is_asked


def test_the_newest_request_counts() -> None:
    requested = Requested()
    requested.note([5], ["a"], NOW_MS)
    requested.note([5], ["b"], NOW_MS + 1)
    assert requested.worth_asking(MARKS, Answers(a=Outcome.DEAD_LETTER).look, NOW_MS + 2) == MARKS


def test_a_dead_letter_is_read_once_and_a_new_request_is_read_again() -> None:
    requested = Requested()
    requested.note([5, 6], ["a", "b"], NOW_MS)
    answers = Answers(a=Outcome.DEAD_LETTER, b=Outcome.RETRY, c=Outcome.RETRY)
    for _ in range(2):
        assert requested.worth_asking(MARKS, answers.look, NOW_MS).ledgers == {6}
    assert [ids for ids, _since_ms in answers.asked] == [{"a", "b"}, {"b"}]
    requested.note([5], ["c"], NOW_MS + 1)
    assert requested.worth_asking(MARKS, answers.look, NOW_MS + 2).ledgers == {5, 6}


def test_marks_that_are_not_among_those_examined_are_remembered() -> None:
    requested = Requested()
    requested.note([5], ["a"], NOW_MS)
    answers = Answers(a=Outcome.DEAD_LETTER)
    assert requested.worth_asking(Marks(frozenset({6})), answers.look, NOW_MS).ledgers == {6}
    assert requested.worth_asking(MARKS, answers.look, NOW_MS).ledgers == {6}


def test_no_more_is_remembered_than_has_room() -> None:
    requested = Requested()
    for ledger_id in range(MOST + 10):
        requested.note([ledger_id], [str(ledger_id)], NOW_MS)
    answers = Answers()
    requested.worth_asking(Marks(frozenset(range(MOST + 10))), answers.look, NOW_MS)
    assert len(answers.asked[0][0]) == MOST
