"""Brokers, operators, faults, forgers and two instances of the service act in any order; all promises always hold.

LEDGER_REAPER_MODEL_EXAMPLES is the number of runs (of up to STEPS steps); a failure prints the shortest failing run
and a line to repeat it. LEDGER_REAPER_MODEL_SHRINK=no prints the first failing run.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.builders import DAY_MS, HOUR_MS, MINUTE_MS, OF_LEDGERS, SCHEMA, SECOND_MS, exists
from tests.invariants import PROMISES
from tests.model.pulsar import CURSORS, TOPICS, Pulsar
from tests.model.service import UNDISTURBED, WITHOUT_TRACE, Cluster, SweepOptions
from tests.world import ObservedTree, path_of
from udfs.owners.references import KeyOwner
from udfs.owners.sightings import OWNER_ABSENT_SINCE
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import LedgerComponent, LedgerType, Outcome, PendingDelete

EXAMPLES = int(os.environ.get("LEDGER_REAPER_MODEL_EXAMPLES", "40"))
STEPS = 40
PHASES = [phase for phase in Phase if phase is not Phase.shrink or os.environ.get("LEDGER_REAPER_MODEL_SHRINK") != "no"]

cursors = st.sampled_from(CURSORS)
flags = st.booleans()
times = st.sampled_from([SECOND_MS, 6 * MINUTE_MS, 11 * MINUTE_MS, 11 * MINUTE_MS, 2 * HOUR_MS, DAY_MS - HOUR_MS])
Act = Callable[[Any, st.DataObject], None]  # on Pulsar, or on a class that extends it


def _topic(pulsar: Pulsar, data: st.DataObject) -> str:
    return data.draw(st.sampled_from(pulsar.names()))


# A failing run prints these names.
ACTS: dict[str, Act] = {
    "create topic": lambda p, d: p.create_topic(_topic(p, d), stalls=d.draw(flags)),
    "roll over": lambda p, d: p.roll_over(_topic(p, d), stalls=d.draw(flags)),
    "split brain": lambda p, d: p.split_brain(_topic(p, d)),
    "trim": lambda p, d: p.trim(_topic(p, d), written=d.draw(flags), lost=d.draw(flags)),
    "offload": lambda p, d: p.offload(_topic(p, d), lost=d.draw(flags)),
    "unload": lambda p, d: p.unload(_topic(p, d), lost=d.draw(flags)),
    "delete topic": lambda p, d: p.delete_topic(_topic(p, d), lost=d.draw(flags)),
    "restore list": lambda p, d: p.restore_list(_topic(p, d)),
    "lose metadata": lambda p, d: p.lose_metadata(_topic(p, d), loaded=d.draw(flags)),
    "crash brokers": lambda p, d: p.crash(is_lazy=d.draw(flags)),
    "open cursor": lambda p, d: p.open_cursor(_topic(p, d), d.draw(cursors)),
    "switch cursor": lambda p, d: p.switch_cursor(
        _topic(p, d), d.draw(cursors), stalls=d.draw(flags), lost=d.draw(flags)
    ),
    "close cursor": lambda p, d: p.close_cursor(_topic(p, d), d.draw(cursors), lost=d.draw(flags)),
    "delete cursor": lambda p, d: p.delete_cursor(_topic(p, d), d.draw(cursors), lost=d.draw(flags)),
    "touch cursor": lambda p, d: p.touch_cursor(_topic(p, d), d.draw(cursors)),
    "seal bucket": lambda p, d: p.seal_bucket(_topic(p, d), d.draw(cursors), stalls=d.draw(flags)),
    "drop bucket": lambda p, d: p.drop_bucket(_topic(p, d), d.draw(cursors), lost=d.draw(flags)),
    "compact": lambda p, d: p.compact(_topic(p, d), durable=d.draw(flags), lost=d.draw(flags), stalls=d.draw(flags)),
    "put schema": lambda p, d: p.put_schema(stalls=d.draw(flags), lost=d.draw(flags)),
    "delete schema": lambda p, d: p.delete_schema(lost=d.draw(flags)),
    "replicate": lambda p, d: p.replicate(d.draw(st.sampled_from(sorted(p.ledgers)))),
    "recover open ledgers": lambda p, _d: p.recover_open_ledgers(),
    "wake a stalled broker": lambda p, d: p.wake(d.draw(st.integers(0, 3))),
    "time passes": lambda p, d: p.pass_time(d.draw(times)),
}
acts = st.sampled_from(sorted(ACTS))


class Safety(RuleBasedStateMachine):
    """The cluster; every rule is an action of a broker, an operator, a forger or the service."""

    acts = ACTS
    others: tuple[str, ...] = ()  # znodes of a cluster that may be unreadable, beside those of owners

    def __init__(self, brokers: Callable[[ObservedTree], Pulsar] = Pulsar) -> None:
        super().__init__()
        self.cluster = Cluster(brokers)
        self.erred = False

    @initialize()
    def a_cluster_with_history(self) -> None:
        """Something of every kind is in use, and something of every kind has leaked, old and new."""
        pulsar = self.cluster.pulsar
        name, cursor = TOPICS[0], CURSORS[0]
        pulsar.put_schema(stalls=False, lost=True)
        for _ in range(2):
            pulsar.create_topic(name, stalls=False)
            pulsar.open_cursor(name, cursor)
            for _ in range(2):
                pulsar.roll_over(name, stalls=False)
                pulsar.switch_cursor(name, cursor, stalls=False, lost=True)
                pulsar.compact(name, durable=True, lost=True)
                pulsar.seal_bucket(name, cursor, stalls=False)
            pulsar.drop_bucket(name, cursor, lost=True)
            pulsar.trim(name, written=True, lost=True)
            pulsar.delete_schema(lost=True)
            pulsar.put_schema(stalls=False, lost=True)
            pulsar.pass_time(DAY_MS - HOUR_MS)

    @rule(data=st.data(), count=st.integers(1, 3))
    def brokers_and_operators_act(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self._act(data)

    @rule(data=st.data())
    def brokers_act(self, data: st.DataObject) -> None:
        self._act(data)

    @rule(data=st.data(), spent=times)
    def a_broker_stalls_and_a_bookie_dies(self, data: st.DataObject, spent: int) -> None:
        """Recovery closes the ledger that the broker has not published yet."""
        pulsar = self.cluster.pulsar
        name = pulsar.names()[0]
        if data.draw(flags):
            pulsar.roll_over(name, stalls=True)
        else:
            pulsar.switch_cursor(name, data.draw(cursors), stalls=True, lost=True)
        pulsar.recover_open_ledgers()
        pulsar.pass_time(spent)

    @rule(others=st.integers(0, 2))
    def brokers_race_for_a_new_schema(self, others: int) -> None:
        """A broker stalls before it creates the locator; others add versions and delete them again."""
        pulsar = self.cluster.pulsar
        pulsar.delete_schema(lost=True)
        pulsar.put_schema(stalls=True, lost=True)
        for _ in range(others):
            pulsar.put_schema(stalls=False, lost=True)

    @precondition(lambda self: self.cluster.pulsar.stalled)
    @rule(index=st.integers(0, 3), schema_goes=flags)
    def a_stalled_broker_goes_on(self, index: int, *, schema_goes: bool) -> None:
        if schema_goes:
            self.cluster.pulsar.delete_schema(lost=False)
        self.cluster.pulsar.wake(index)

    @rule(spent=times)
    def time_passes(self, spent: int) -> None:
        self.cluster.pulsar.pass_time(spent)

    @rule(data=st.data())
    def a_broker_announces_what_it_may_not_drop_in_the_end(self, data: st.DataObject) -> None:
        """T3: the message is published before the list is written; a forger can publish the same message."""
        ledgers = self.cluster.pulsar.ledgers
        ledger_id = data.draw(st.sampled_from(sorted(ledgers)))
        self.cluster.publish(ledgers[ledger_id].request)

    @rule(data=st.data())
    def somebody_forges_a_request(self, data: st.DataObject) -> None:
        """The request names any ledger and any owner, with any sighting of another request."""
        ledgers = self.cluster.pulsar.ledgers
        ledger_id = data.draw(st.sampled_from(sorted(ledgers)) | st.just(9_999))
        seen = [m.properties[OWNER_ABSENT_SINCE] for m in self.cluster.queue.values() if m.properties]
        sighting = data.draw(st.sampled_from([None, "1:00", *seen]))
        self.cluster.publish(_forged(data, ledger_id, self.cluster.pulsar.names()), {OWNER_ABSENT_SINCE: sighting})

    @precondition(lambda self: self.cluster.due())
    @rule(data=st.data(), number=st.integers(0, 1))
    def an_instance_sweeps(self, data: st.DataObject, number: int) -> None:
        self._sweep(data, number)

    @rule(data=st.data(), number=st.integers(0, 1), spent=times)
    def time_passes_until_an_instance_sweeps(self, data: st.DataObject, number: int, spent: int) -> None:
        self.cluster.pulsar.pass_time(spent)
        if self.cluster.due():
            self._sweep(data, number)

    @rule(number=st.integers(0, 1), spent=times, rounds=st.integers(1, 3))
    def the_service_runs_for_a_while(self, number: int, spent: int, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.pulsar.pass_time(spent)
            self.cluster.sweep(number, self.cluster.due())

    @precondition(lambda self: self.cluster.due())
    @rule(data=st.data(), effect=st.integers(1, 5), applied=flags, crash=flags)
    def a_sweep_fails_at_an_effect(self, data: st.DataObject, effect: int, *, applied: bool, crash: bool) -> None:
        number = data.draw(st.integers(0, 1))
        self.cluster.instances[number].store.faults.fail_at(effect, applied=applied, crash=crash)
        self._sweep(data, number)

    @precondition(lambda self: self.cluster.due())
    @rule(effect=st.integers(1, 4), applied=flags, crash=flags)
    def a_sweep_cut_short_would_end_as_a_clean_one(self, effect: int, *, applied: bool, crash: bool) -> None:
        batch = self.cluster.due()
        clean, broken = self.cluster.fork(), self.cluster.fork()
        broken.instances[0].store.faults.fail_at(effect, applied=applied, crash=crash)
        for world, times_swept in ((clean, 1), (broken, 2)):
            for _ in range(times_swept):
                world.sweep(0, batch, WITHOUT_TRACE)
        self.cluster.replays.append((_left(clean), _left(broken)))

    @rule(number=st.integers(0, 1))
    def an_instance_is_started_anew(self, number: int) -> None:
        self.cluster.take_over(number)

    @rule(number=st.integers(0, 1), ahead_ms=st.sampled_from([-366 * DAY_MS, 0, 366 * DAY_MS]))
    def a_machines_clock_jumps(self, number: int, ahead_ms: int) -> None:
        self.cluster.instances[number].ahead_ms = ahead_ms

    @rule(data=st.data())
    def something_can_not_be_read(self, data: st.DataObject) -> None:
        names = self.cluster.pulsar.names()
        owners = [managed_ledger_path(names[0]), cursor_path(names[0], CURSORS[0]), schema_path(SCHEMA), *self.others]
        ledgers = [path_of(ledger_id) for ledger_id in self.cluster.pulsar.ledgers]
        self.cluster.unreadable.add(data.draw(st.sampled_from(owners + ledgers)))
        self.cluster.pulsar.silent |= data.draw(st.sets(st.sampled_from([*names, SCHEMA]), max_size=1))

    @precondition(lambda self: not self.erred)
    @rule(data=st.data(), number=st.integers(0, 1), of_cursor=flags, forged=flags)
    def both_witnesses_err_for_a_moment(
        self, data: st.DataObject, number: int, *, of_cursor: bool, forged: bool
    ) -> None:
        """Once in a run, for less than the interval between two checks, an existing owner seems to be gone."""
        self.erred = True
        pulsar = self.cluster.pulsar
        topic = _topic(pulsar, data)
        pulsar.hidden = KeyOwner("cursor", topic, CURSORS[0]) if of_cursor else KeyOwner("data", topic)
        earlier = {OWNER_ABSENT_SINCE: f"{self.cluster.clock.now_ms() - 11 * MINUTE_MS}:{'0' * 64}"}
        for ledger_id in pulsar.references():
            self.cluster.publish(pulsar.ledgers[ledger_id].request, earlier if forged else None)
        self.cluster.sweep(number, self.cluster.due())

    @rule()
    def all_can_be_read_again(self) -> None:
        self.cluster.unreadable.clear()
        self.cluster.pulsar.silent.clear()

    @invariant()
    def all_promises_hold(self) -> None:
        for promise in PROMISES:
            promise(self.cluster)
        assert self.cluster.mistaken_certificates() == [], "a receipt has the certificate of another owner"

    def teardown(self) -> None:
        """Without disturbances the service deletes requested garbage: an idle service would keep all promises."""
        self.all_can_be_read_again()
        self.cluster.pulsar.settle()
        self.cluster.take_over(0)
        # after a clock that is a year slow a request waits a week at most; then its ledger may wait for its quarantine
        for _ in range(20):
            self.cluster.pulsar.pass_time(DAY_MS // 2)
            self.cluster.sweep(0, self.cluster.due())
            self.all_promises_hold()
        dead = {final.message for final in self.cluster.finals if final.outcome is Outcome.DEAD_LETTER}
        for number, request in enumerate(self.cluster.requests):
            ledger = self.cluster.pulsar.ledgers.get(request.ledger_id)
            if ledger is None or ledger.request != request or number in dead:
                continue
            assert not self.cluster.pulsar.is_garbage(request.ledger_id), f"{request} was never processed"

    def _act(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.acts)))
        self.acts[name](self.cluster.pulsar, data)

    def _sweep(self, data: st.DataObject, number: int, *, disturbed: bool = True) -> None:
        due = self.cluster.due()
        first = data.draw(st.integers(0, len(due) - 1))
        batch = (due[first:] + due[:first])[: data.draw(st.integers(1, len(due)))]
        options = SweepOptions(
            uses_cache=data.draw(flags),
            commits=data.draw(st.integers(0, 4)) > 0,
            is_lied_to=data.draw(st.integers(0, 9)) == 0,
            allowance=data.draw(st.sampled_from([1_000, 1_000, 2])),
            hook=self._interrupting(data, number) if disturbed else UNDISTURBED.hook,
        )
        self.cluster.sweep(number, batch, options)

    def _interrupting(self, data: st.DataObject, number: int) -> Callable[[str], None]:
        """Return a hook in which brokers act, or the other instance sweeps, between two steps of a sweep."""
        left = [data.draw(st.integers(1, 3))]

        def hook(operation: str) -> None:
            if not left[0] or not data.draw(flags, label=f"before {operation}"):
                return
            left[0] -= 1
            if data.draw(st.integers(0, 3)) == 0 and self.cluster.due():
                self._sweep(data, 1 - number, disturbed=False)
            elif data.draw(st.integers(0, 9)) == 0:
                self.cluster.take_over(1 - number)
            else:
                self._act(data)

        return hook


def _forged(data: st.DataObject, ledger_id: int, names: Sequence[str]) -> PendingDelete:
    component = data.draw(st.sampled_from(OF_LEDGERS))
    request = PendingDelete(
        managed_ledger=data.draw(st.sampled_from(names)),
        component=component,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
    )
    if component is LedgerComponent.MANAGED_CURSOR:
        return replace(request, cursor_name=data.draw(cursors))
    if component is LedgerComponent.SCHEMA_STORAGE:
        return replace(request, schema_id=SCHEMA)
    return request


def _left(cluster: Cluster) -> frozenset[str]:
    return frozenset(path_of(i) for i in cluster.pulsar.ledgers if exists(cluster.tree, path_of(i)))


TestSafety = Safety.TestCase
TestSafety.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
    phases=PHASES,
)
