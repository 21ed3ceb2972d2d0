"""The life of a streaming query: when it is started again, when the fallback runs, and when the query is given up.

A pure state machine: `apply` takes the state and an event, and returns the new state and the action to take. `_TABLE`
has an entry for each event that can happen in a phase.

1. A query that ends because another client holds its subscription is started again every RESTART_S, for a limited time:
   a broker needs a while to notice that a run was killed.
2. A query that ends for any other reason is parked. The fallback processes at once what the query could not, and then
   the query is started again. It stays parked until it commits a batch.
3. A query that fails again, and whose fallbacks find nothing new, waits before each fallback, longer each time (SOON).
4. If the fallback fails too, perhaps because of an outage, the query is started after longer pauses (backoff.LONG).
5. If no batch can be planned, the query is not started, and the fallback runs every FALLBACK_S.
6. If a query seems to have been planning its next batch for PLANS_S, and its broker does not return the last message of
   a partition, the query is stopped and parked: the connector would wait a minute for that message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from udfs.backoff import LONG, Backoff

RESTART_S = 2.0
FALLBACK_S = 5.0
PLANS_S = 8.0
SOON = Backoff((0.0, 2.0, 5.0, 10.0, 20.0, 30.0))
_OUTAGE_S = 60.0  # the longest pause while a service is unavailable: it may return at any moment


class Phase(Enum):
    """The current activity of a query."""

    RUNS = auto()  # not parked
    HELD = auto()  # it has ended, and waits for the holder of its subscription
    STOPS = auto()  # it is being stopped, because it can't plan a batch; its thread may still run
    FALLBACK_DUE = auto()  # it is parked, and the fallback runs when that is due
    FALLBACK_RUNS = auto()
    START_DUE = auto()  # it is parked, and starts when that is due
    PROVES = auto()  # it runs, and stays parked until it commits a batch


class Action(Enum):
    """The action to take after an event."""

    NOTHING = auto()
    WAIT_FOR_HOLDER = auto()  # report that the subscription is held
    START = auto()
    ASK_BROKER = auto()  # whether it returns the last messages; if not, CannotPlan happens
    STOP = auto()
    PARK = auto()  # report the failure
    PARK_AS_HELD = auto()  # the same, because the subscription was held for too long
    RUN_FALLBACK = auto()
    SHOW = auto()  # show the new state of the parked query
    REPORT_FALLBACK = auto()  # report that the fallback failed, and show the new state
    RECOVER = auto()  # report that the query works again


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits that are the same for all queries."""

    patience_s: float  # how long a held subscription is waited for
    most_failures: int | None = None  # a query with more failures in a row is given up; None: never
    has_fallback: bool = True  # False: our own source reads every message


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLife:
    """The state of a query."""

    phase: Phase = Phase.RUNS
    is_parked: bool = False
    failures: int = 0  # in a row, of the query and of the fallback, since the fallback found news
    is_read: bool = False  # the last fallback succeeded
    due_s: float = 0.0  # when the next action of the phase is due
    held_since_s: float | None = None  # when the subscription was first found held; kept until a batch is committed
    planning_since_s: float | None = None

    @property
    def rests(self) -> bool:
        """Whether the query is parked and does not run."""
        return self.phase in (Phase.FALLBACK_DUE, Phase.FALLBACK_RUNS, Phase.START_DUE)

    @property
    def has_to_prove(self) -> bool:
        """Whether a committed batch changes the state. Only then is Spark asked for it, because an answer costs CPU."""
        return self.is_parked or self.held_since_s is not None

    def is_given_up(self, rules: Rules) -> bool:
        """Whether the query failed too often to be tried again."""
        return self.is_parked and rules.most_failures is not None and self.failures > rules.most_failures


@dataclass(frozen=True, slots=True)
class Checked:
    """Time has passed."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Planning:
    """The running query was seen planning a batch, or doing something else."""

    now_s: float
    is_planning: bool


@dataclass(frozen=True, slots=True)
class CannotPlan:
    """The broker does not return the last message of a partition."""


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """The running query has committed a batch."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The query has ended, and does not run any more."""

    now_s: float
    is_held: bool = False  # because another client holds its subscription


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The query could not be started."""

    now_s: float


@dataclass(frozen=True, slots=True)
class FallbackReturned:
    """The fallback has succeeded."""

    now_s: float
    has_news: bool  # it found messages without a receipt, or committed a batch
    may_start: bool  # the connector can plan the next batch


@dataclass(frozen=True, slots=True)
class FallbackFailed:
    """The fallback has failed."""

    now_s: float
    is_outage: bool  # a service was unavailable


@dataclass(frozen=True, slots=True)
class FallbackStopped:
    """The fallback was interrupted, because the service is to stop."""


Event = (
    Checked
    | Planning
    | CannotPlan
    | BatchCommitted
    | Ended
    | StartFailed
    | FallbackReturned
    | FallbackFailed
    | FallbackStopped
)
Step = tuple[QueryLife, Action]


def apply(life: QueryLife, event: Event, rules: Rules) -> Step:
    """Return the state after an event, and the action to take. Raises KeyError for an event that can't happen."""
    return _TABLE[life.phase, type(event)](life, event, rules)


def _plans(life: QueryLife, event: Planning, _rules: Rules) -> Step:
    if not event.is_planning:
        return replace(life, planning_since_s=event.now_s), Action.NOTHING
    since_s = event.now_s if life.planning_since_s is None else life.planning_since_s
    if event.now_s - since_s < PLANS_S:
        return replace(life, planning_since_s=since_s), Action.NOTHING
    return replace(life, planning_since_s=event.now_s), Action.ASK_BROKER


def _stops(life: QueryLife, _event: CannotPlan, _rules: Rules) -> Step:
    return replace(life, phase=Phase.STOPS), Action.STOP


def _recovers(life: QueryLife, _event: BatchCommitted, _rules: Rules) -> Step:
    if not life.has_to_prove:
        return life, Action.NOTHING
    return QueryLife(planning_since_s=life.planning_since_s), Action.RECOVER


def _ends(life: QueryLife, event: Ended, rules: Rules) -> Step:
    if not event.is_held:
        return _parked(life, event.now_s, rules), Action.PARK
    since_s = event.now_s if life.held_since_s is None else life.held_since_s
    if event.now_s - since_s > rules.patience_s:
        return _parked(life, event.now_s, rules), Action.PARK_AS_HELD
    due_s = event.now_s + RESTART_S
    held = replace(life, phase=Phase.HELD, held_since_s=since_s, due_s=due_s, planning_since_s=None)
    return held, Action.WAIT_FOR_HOLDER


def _waits_for_holder(life: QueryLife, event: Checked, rules: Rules) -> Step:
    if life.held_since_s is not None and event.now_s - life.held_since_s > rules.patience_s:
        return _parked(life, event.now_s, rules), Action.PARK_AS_HELD
    if event.now_s < life.due_s:
        return life, Action.NOTHING
    return replace(life, phase=Phase.RUNS), Action.START


def _is_parked(life: QueryLife, event: Ended | StartFailed, rules: Rules) -> Step:
    return _parked(life, event.now_s, rules), Action.PARK


def _parked(life: QueryLife, now_s: float, rules: Rules) -> QueryLife:
    failures = life.failures + 1
    pause_s = SOON.pause_s(failures) if life.is_read or not rules.has_fallback else 0.0
    phase = Phase.FALLBACK_DUE if rules.has_fallback else Phase.START_DUE
    return QueryLife(phase=phase, is_parked=True, failures=failures, is_read=life.is_read, due_s=now_s + pause_s)


def _may_run_fallback(life: QueryLife, event: Checked, rules: Rules) -> Step:
    if event.now_s < life.due_s or life.is_given_up(rules):
        return life, Action.NOTHING
    return replace(life, phase=Phase.FALLBACK_RUNS), Action.RUN_FALLBACK


def _may_start(life: QueryLife, event: Checked, rules: Rules) -> Step:
    if event.now_s < life.due_s or life.is_given_up(rules):
        return life, Action.NOTHING
    return replace(life, phase=Phase.PROVES), Action.START


def _fallback_returns(life: QueryLife, event: FallbackReturned, _rules: Rules) -> Step:
    phase, pause_s = (Phase.START_DUE, 0.0) if event.may_start else (Phase.FALLBACK_DUE, FALLBACK_S)
    failures = 0 if event.has_news else life.failures
    return replace(life, phase=phase, failures=failures, is_read=True, due_s=event.now_s + pause_s), Action.SHOW


def _fallback_fails(life: QueryLife, event: FallbackFailed, _rules: Rules) -> Step:
    failures = life.failures + 1
    pause_s = LONG.pause_s(failures - 1)  # the failure of the query itself does not count
    due_s = event.now_s + (min(pause_s, _OUTAGE_S) if event.is_outage else pause_s)
    parked = replace(life, phase=Phase.START_DUE, failures=failures, is_read=False, due_s=due_s)
    return parked, Action.REPORT_FALLBACK


def _fallback_stops(life: QueryLife, _event: FallbackStopped, _rules: Rules) -> Step:
    return replace(life, phase=Phase.FALLBACK_DUE), Action.NOTHING


_TABLE: Mapping[tuple[Phase, type], Callable[[QueryLife, Any, Rules], Step]] = {
    (Phase.RUNS, Planning): _plans,
    (Phase.RUNS, CannotPlan): _stops,
    (Phase.RUNS, BatchCommitted): _recovers,
    (Phase.RUNS, Ended): _ends,
    (Phase.RUNS, StartFailed): _is_parked,
    (Phase.HELD, Checked): _waits_for_holder,
    (Phase.STOPS, Ended): _is_parked,
    (Phase.FALLBACK_DUE, Checked): _may_run_fallback,
    (Phase.FALLBACK_RUNS, FallbackReturned): _fallback_returns,
    (Phase.FALLBACK_RUNS, FallbackFailed): _fallback_fails,
    (Phase.FALLBACK_RUNS, FallbackStopped): _fallback_stops,
    (Phase.START_DUE, Checked): _may_start,
    (Phase.PROVES, Planning): _plans,
    (Phase.PROVES, CannotPlan): _stops,
    (Phase.PROVES, BatchCommitted): _recovers,
    (Phase.PROVES, Ended): _is_parked,
    (Phase.PROVES, StartFailed): _is_parked,
}
