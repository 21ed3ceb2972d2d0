"""A dead letter goes back to its topic, or to the topic that an operator names, and never with more rights."""

import pytest

from udfs.requests.replay_target import AMBIGUOUS, MORE_RIGHTS, REFUSED, UNPROVEN, LetterOrigin, Stays, replay_target

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
SECOND = "persistent://pulsar/system/__ledger_deletion-too"
ACME, RIVAL = "persistent://acme/reaper/deletions", "persistent://rival/reaper/deletions"
ACMES_SECOND, GONE = "persistent://acme/reaper/more", "persistent://acme/reaper/gone"
OLD = "persistent://acme/old/deletions"
TAKEN = {SYSTEM, SECOND, ACME, RIVAL, ACMES_SECOND, GONE}


def _target(origin: LetterOrigin, to: str = "") -> str | Stays:
    return replay_target(
        origin, to, ("pulsar",), is_request_topic=lambda topic: topic in TAKEN, is_there=lambda topic: topic != GONE
    )


def _proven(topic: str) -> LetterOrigin:
    return LetterOrigin({topic}, topic)


@pytest.mark.parametrize("topic", [SYSTEM, ACME])
def test_a_letter_goes_back_to_the_topic_that_receipts_name(topic: str) -> None:
    assert _target(_proven(topic)) == topic
    assert _target(LetterOrigin({topic}, RIVAL, is_other_tenants=True)) == topic  # whatever its own properties name


@pytest.mark.parametrize(
    ("origin", "to"),
    [
        pytest.param(_proven(SYSTEM), SECOND, id="from one trusted topic to another"),
        pytest.param(_proven(SYSTEM), ACME, id="to one with fewer rights"),
        pytest.param(_proven(ACME), ACMES_SECOND, id="to another of the same tenant"),
        pytest.param(_proven(GONE), ACME, id="from a topic that is gone to another of its tenant"),
        pytest.param(_proven(OLD), ACME, id="from a topic that is none of ours any more"),
        pytest.param(LetterOrigin(()), SYSTEM, id="a letter that names no topic, and an operator names it"),
        pytest.param(LetterOrigin((), SYSTEM), SYSTEM, id="a letter that names the topic that the operator names"),
        pytest.param(LetterOrigin((), "no topic at all"), SYSTEM, id="a letter with a nonsensical name"),
        pytest.param(LetterOrigin((), is_other_tenants=True), ACME, id="a refused letter, to a tenant's own topic"),
        pytest.param(
            LetterOrigin({SYSTEM}, is_other_tenants=True), SYSTEM, id="a refused letter that did come from there"
        ),
    ],
)
def test_an_operator_may_send_it_to_a_topic_without_more_rights(origin: LetterOrigin, to: str) -> None:
    assert _target(origin, to) == to


@pytest.mark.parametrize(
    ("origin", "to", "why"),
    [
        pytest.param(LetterOrigin(()), "", UNPROVEN, id="no receipt and no property"),
        pytest.param(LetterOrigin((), SYSTEM), "", UNPROVEN, id="no receipt, and its own property only"),
        pytest.param(LetterOrigin((), ACME), "", UNPROVEN, id="its own property, for a tenant's topic"),
        pytest.param(LetterOrigin({""}), "", UNPROVEN, id="a receipt that names no topic"),
        pytest.param(LetterOrigin({SYSTEM, ACME}), "", AMBIGUOUS, id="two receipts that differ"),
        pytest.param(
            LetterOrigin({SYSTEM, ACME}), SYSTEM, AMBIGUOUS, id="two receipts that differ, and an operator's choice"
        ),
        pytest.param(_proven(ACME), SYSTEM, MORE_RIGHTS, id="from a tenant's topic to a trusted one"),
        pytest.param(_proven(GONE), SYSTEM, MORE_RIGHTS, id="from a tenant's topic that is gone to a trusted one"),
        pytest.param(_proven(OLD), SYSTEM, MORE_RIGHTS, id="from a topic that is none of ours any more"),
        pytest.param(_proven(ACME), RIVAL, MORE_RIGHTS, id="from one tenant's topic to another's"),
        pytest.param(LetterOrigin((), ACME), SYSTEM, MORE_RIGHTS, id="its own property removes rights"),
        pytest.param(
            LetterOrigin((), is_other_tenants=True), SYSTEM, REFUSED, id="a refused letter, to a trusted topic"
        ),
        pytest.param(
            LetterOrigin((), SYSTEM, is_other_tenants=True),
            SYSTEM,
            REFUSED,
            id="a refused letter that names a trusted topic",
        ),
    ],
)
def test_any_other_letter_stays_and_names_the_reason(origin: LetterOrigin, to: str, why: str) -> None:
    assert _target(origin, to) == Stays(why)


@pytest.mark.parametrize(("topic", "why"), [(GONE, "no partitioned topic"), (OLD, "no request topic of this service")])
def test_it_stays_if_the_topic_it_came_from_is_gone(topic: str, why: str) -> None:
    stays = _target(_proven(topic))
    assert isinstance(stays, Stays)
    assert why in stays.why
    assert topic in stays.why
