"""Work that waits for an operator: a held chunk at once; a topic that shrank, until an operator has accepted it."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.clock import ManualClock
from streaming.deletion.supervision.operator_action import OperatorAction
from streaming.errors import UnavailableError
from streaming.in_use.baseline import ALL
from tests.builders import HOUR_MS, NOW_MS, TOPIC
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.paths import topic_of
from udfs.records import Reason
from udfs.requests.retry import ORIGIN_MESSAGE_ID

OTHER = "public/default/persistent/payments"
ANSWERED_MS = NOW_MS - HOUR_MS


class World:
    """Waiting requests, each with its last answer."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.gate = SimpleNamespace(held="")
        self.accepted: dict[str, int] = {}
        self.is_asleep = True
        self.passes = 0
        self.requests = 0

    def answer(
        self, reason: str, topic: str = TOPIC, *, at_ms: int = ANSWERED_MS, origin: str = "", chunk: int = 1
    ) -> str:
        origin = origin or f"1:{self.requests}:0"
        about = {c.CHUNK: chunk, c.AT_MS: at_ms, c.OUTCOME: "RETRY", c.REASON: reason, c.ORIGIN_MESSAGE_ID: origin}
        owner = {c.REFERENCE_KEY: f"data:{topic}", c.TOPIC_NAME: topic_of(topic)}
        write_rows(self.state, "receipts", [(1, self.requests, -1)], about=about | owner)
        return origin

    def wait(self, origin: str, ready_ms: int = NOW_MS + HOUR_MS) -> None:
        self.requests += 1
        about = {c.READY_MS: ready_ms, c.MESSAGE_PROPERTIES: [(ORIGIN_MESSAGE_ID, origin)]}
        write_rows(self.state, "waiting", [(2, self.requests, -1)], about=about)

    def waits(self, reason: str, topic: str = TOPIC) -> None:
        self.wait(self.answer(reason, topic))

    def why(self, *, only_retries: bool = True) -> str:
        return self.person().why(lambda: only_retries)

    def person(self) -> OperatorAction:
        due = SimpleNamespace(is_asleep=lambda: self.is_asleep, passes=self.passes)
        waiting = SimpleNamespace(next_ms=lambda: NOW_MS, count=lambda: self.requests, done_ms=NOW_MS)

        def accepted() -> Mapping[str, int]:
            return self.accepted

        parts: Any = {"gate": self.gate, "waiting": waiting, "due": due}
        return OperatorAction(state_dir=str(self.state), accepted=accepted, clock=ManualClock(NOW_MS), **parts)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        pytest.param("paused: maintenance", "paused: maintenance; `ledger-reaper resume` ends the pause", id="a pause"),
        pytest.param(
            "LIMIT: 60. `ledger-reaper resume --limit`.", "LIMIT: 60. `ledger-reaper resume --limit`.", id="a limit"
        ),
        pytest.param("a migration has phase COPYING", "a migration has phase COPYING", id="a migration"),
    ],
)
def test_a_held_chunk_waits_for_a_resume_whatever_else_waits(world: World, held: str, told: str) -> None:
    world.gate.held = held
    assert world.why(only_retries=False) == told


def test_retries_of_topics_that_shrank_wait_for_an_accept_of_these_topics(world: World) -> None:
    for topic in (TOPIC, TOPIC, OTHER):
        world.waits(Reason.SOURCE_SHRANK, topic)
    why = world.why()
    assert "3 requests are kept as SOURCE_SHRANK" in why
    assert f"`ledger-reaper accept --topic {topic_of(TOPIC)}`, `ledger-reaper accept --topic {topic_of(OTHER)}`" in why


def test_requests_of_a_tenant_that_is_held_wait_for_a_resume(world: World) -> None:
    for topic in (TOPIC, OTHER):
        world.waits("TENANT_HELD", topic)
    assert "2 requests are kept as TENANT_HELD" in world.why()
    assert world.why().endswith("if that is right: `ledger-reaper resume --tenant public`")
    world.waits(Reason.SOURCE_SHRANK)
    assert "1 request is kept as SOURCE_SHRANK" in world.why()
    assert "; and 2 requests are kept as TENANT_HELD" in world.why()
    world.accepted["public/*"] = ANSWERED_MS  # so `resume` notes it
    assert world.why() == ""


def test_many_topics_are_not_all_named(world: World) -> None:
    for number in range(7):
        world.waits(Reason.SOURCE_SHRANK, f"public/default/persistent/t{number}")
    assert "and 2 more; `ledger-reaper receipts` names them" in world.why()


@pytest.mark.parametrize(
    ("name", "at_ms", "waits"),
    [
        pytest.param(TOPIC, ANSWERED_MS, False, id="accepted since the answer: the next retry goes by that"),
        pytest.param(ALL, ANSWERED_MS, False, id="every topic accepted"),
        pytest.param(TOPIC, ANSWERED_MS - 1, True, id="accepted before the answer"),
        pytest.param(OTHER, NOW_MS, True, id="another topic accepted"),
    ],
)
def test_an_owner_that_an_operator_has_accepted_does_not_wait(
    world: World, name: str, at_ms: int, *, waits: bool
) -> None:
    world.waits(Reason.SOURCE_SHRANK)
    world.accepted[name] = at_ms
    assert bool(world.why()) is waits


def test_an_owner_with_a_request_that_would_continue_does_not_wait(world: World) -> None:
    world.waits(Reason.SOURCE_SHRANK)
    world.wait(world.answer(Reason.SOURCE_SHRANK, at_ms=ANSWERED_MS + 10))
    world.accepted[TOPIC] = ANSWERED_MS
    assert world.why() == ""


def test_a_request_with_another_reason_keeps_the_run_going(world: World) -> None:
    world.waits(Reason.SOURCE_SHRANK)
    world.waits(Reason.TOO_YOUNG)
    assert world.why() == ""


def test_the_newest_answer_counts(world: World) -> None:
    world.answer(Reason.TOO_YOUNG, origin="1:0:0", at_ms=ANSWERED_MS - 1000)
    world.wait(world.answer(Reason.SOURCE_SHRANK, origin="1:0:0", chunk=2))
    assert world.why()
    world.answer(Reason.IN_USE, origin="1:0:0", chunk=3)
    world.passes += 1
    assert world.why() == ""


def test_a_request_without_an_answer_keeps_the_run_going(world: World) -> None:
    world.waits(Reason.SOURCE_SHRANK)
    world.wait("9:9:9")
    assert world.why() == ""


@pytest.mark.parametrize("what", ["asleep", "only retries", "none"])
def test_nothing_waits_for_an_operator_while_there_is_work(world: World, what: str) -> None:
    if what != "none":
        world.waits(Reason.SOURCE_SHRANK)
    world.is_asleep = what != "asleep"
    assert world.why(only_retries=what != "only retries") == ""


def test_the_run_continues_while_a_service_does_not_answer(world: World) -> None:
    world.waits(Reason.SOURCE_SHRANK)

    def away() -> bool:
        raise UnavailableError("no broker")

    assert world.person().why(away) == ""


def test_a_processed_request_no_longer_counts(world: World) -> None:
    world.waits(Reason.SOURCE_SHRANK)
    world.wait(world.answer(Reason.TOO_YOUNG), ready_ms=NOW_MS)
    assert world.why()


def test_the_tables_are_read_again_only_after_something_happened(world: World) -> None:
    world.waits(Reason.SOURCE_SHRANK)
    person = world.person()
    assert person.why(lambda: True)
    world.answer(Reason.TOO_YOUNG, origin="1:0:0", chunk=2)
    assert person.why(lambda: True)
    cast("Any", person.due).passes = 1
    assert person.why(lambda: True) == ""
