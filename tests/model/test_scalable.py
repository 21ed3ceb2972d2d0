"""The model test with brokers of Pulsar 5.0: a scalable topic's layout changes, and brokers die at every step."""

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from streaming.adapters.memory.store import MemoryStore
from streaming.in_use.loader import InUseLoader
from tests.builders import DAY_MS, HOUR_MS, LAYOUT_PATH, MINUTE_MS, TOPIC, exists
from tests.invariants import PROMISES
from tests.model.pulsar import CURSORS
from tests.model.scalable import ALL_STEPS, ScalablePulsar
from tests.model.service import POLICY, Cluster, SweepOptions
from tests.model.test_safety import ACTS, EXAMPLES, PHASES, STEPS, Act, Safety, _topic, flags
from tests.world import path_of
from udfs.paths import managed_ledger_path, segment_of
from udfs.verdicts.finding_classes import FindingClass
from udfs.verdicts.judge_segment import check_of_segment

numbers = st.integers(0, 3)
steps = st.sampled_from([1, 2, 3, 4, ALL_STEPS, ALL_STEPS, ALL_STEPS])

CHANGES: dict[str, Act] = {
    "create the scalable topic": lambda p, d: p.create_scalable(steps=d.draw(steps)),
    "open the scalable topic": lambda p, d: p.open_scalable(steps=d.draw(steps)),
    "split": lambda p, d: p.split(d.draw(numbers), steps=d.draw(steps), is_late=d.draw(flags)),
    "merge": lambda p, d: p.merge(d.draw(numbers), steps=d.draw(steps), is_late=d.draw(flags)),
    "prune": lambda p, d: p.prune(d.draw(numbers), steps=d.draw(steps), lost=d.draw(flags)),
    "delete the scalable topic": lambda p, d: p.delete_scalable(steps=d.draw(steps), lost=d.draw(flags)),
    "migrate": lambda p, _d: p.migrate(),
    "roll the layout back": lambda p, d: p.roll_back_layout(is_cached=d.draw(flags)),
    "roll a list back": lambda p, d: p.roll_back_list(_topic(p, d)),
    "restore a segment": lambda p, d: p.restore_segment(_topic(p, d)),
}


class ScalableSafety(Safety):
    """The cluster of Safety, whose topics are the segments of one scalable topic."""

    acts = ACTS | CHANGES
    others = (LAYOUT_PATH,)

    def __init__(self) -> None:
        super().__init__(ScalablePulsar)

    @initialize()
    def a_cluster_with_history(self) -> None:
        """A segment was pruned and left ledgers, and its children have some of every kind, in use and leaked."""
        pulsar = self.cluster.pulsar
        assert isinstance(pulsar, ScalablePulsar)
        pulsar.create_scalable(steps=ALL_STEPS)
        for name in list(pulsar.names()):
            pulsar.open_cursor(name, CURSORS[0])
            pulsar.roll_over(name, stalls=False)
            pulsar.switch_cursor(name, CURSORS[0], stalls=False, lost=True)
        pulsar.split(0, steps=ALL_STEPS)
        pulsar.pass_time(DAY_MS - HOUR_MS)
        pulsar.prune(0, steps=ALL_STEPS, lost=True)
        for name in list(pulsar.names()):
            pulsar.open_cursor(name, CURSORS[0])
            for _ in range(2):
                pulsar.roll_over(name, stalls=False)
                pulsar.switch_cursor(name, CURSORS[0], stalls=False, lost=True)
                pulsar.compact(name, durable=True, lost=True)
                pulsar.seal_bucket(name, CURSORS[0], stalls=False)
            pulsar.drop_bucket(name, CURSORS[0], lost=True)
            pulsar.trim(name, written=True, lost=True)
        for name in list(pulsar.names())[:2]:
            pulsar.unload(name, lost=False)
        pulsar.pass_time(DAY_MS - HOUR_MS)

    @invariant()
    def only_segments_without_a_layout_are_orphans(self) -> None:
        pulsar = self.cluster.pulsar
        assert isinstance(pulsar, ScalablePulsar)
        assert not orphans(self.cluster) & pulsar.named()


def orphans(cluster: Cluster) -> set[str]:
    """Return the segments that an audit reports as ORPHAN_SEGMENT."""
    loader = InUseLoader(MemoryStore(cluster.tree), cluster.pulsar, cluster.clock)
    facts = loader.segments(name for name in cluster.pulsar.names() if segment_of(name))
    checks = {name: check_of_segment(each, POLICY, now_ms=cluster.clock.now_ms()) for name, each in facts.items()}
    return {name for name, check in checks.items() if check.finding_class is FindingClass.ORPHAN_SEGMENT}


TestScalableSafety = ScalableSafety.TestCase
TestScalableSafety.settings = settings(
    max_examples=max(1, EXAMPLES // 2),
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
    phases=PHASES,
)


Change = Callable[[ScalablePulsar, int], None]  # with the number of steps after which the broker dies


def _started(*, splits: int = 0) -> Cluster:
    """Return a cluster whose scalable topic has segments with full ledgers and cursors, and has been split."""
    cluster = Cluster(ScalablePulsar)
    pulsar = _scalable(cluster)
    pulsar.create_scalable(steps=ALL_STEPS)
    for number in range(splits):
        pulsar.split(number, steps=ALL_STEPS)
    for name in list(pulsar.names()):
        pulsar.open_cursor(name, CURSORS[0])
        pulsar.switch_cursor(name, CURSORS[0], stalls=False, lost=False)
        pulsar.roll_over(name, stalls=False)
    cluster.take_over(0)
    return cluster


def _scalable(cluster: Cluster) -> ScalablePulsar:
    assert isinstance(cluster.pulsar, ScalablePulsar)
    return cluster.pulsar


def _service_runs(cluster: Cluster, days: int = 3) -> None:
    for _ in range(2 * days):
        cluster.pulsar.pass_time(DAY_MS // 2)
        cluster.sweep(0, cluster.due())
        for promise in PROMISES:
            promise(cluster)


@pytest.mark.parametrize(
    ("change", "splits", "left"),
    [
        pytest.param(lambda p, steps: p.split(0, steps=steps), 0, [1, 2, 2, 0], id="split"),
        pytest.param(lambda p, steps: p.split(0, steps=steps, is_late=True), 0, [1, 2, 2, 2], id="split, too late"),
        pytest.param(lambda p, steps: p.merge(0, steps=steps), 0, [1, 1, 1, 0], id="merge"),
        pytest.param(lambda p, steps: p.prune(0, steps=steps, lost=True), 1, [1, 0], id="prune"),
        pytest.param(lambda p, steps: p.delete_scalable(steps=steps, lost=True), 0, [2, 1, 0], id="deletion"),
    ],
)
@pytest.mark.parametrize("is_open", [True, False], ids=["its segments stay loaded", "its segments are unloaded"])
def test_a_broker_that_dies_in_a_change_leaves_orphan_segments_and_no_ledger_in_use_is_deleted(
    change: Change, splits: int, left: list[int], *, is_open: bool
) -> None:
    """`left` is the number of orphan segments after each step."""
    for steps, number in enumerate(left, start=1):
        cluster = _started(splits=splits)
        pulsar = _scalable(cluster)
        change(pulsar, steps)
        pulsar.crash()
        if not is_open:
            pulsar.settle()
        for request in [ledger.request for ledger in pulsar.ledgers.values()]:
            cluster.publish(request)  # an audit, or a forger, may take any ledger for an orphan
        _service_runs(cluster)

        found = orphans(cluster)
        assert len(found) == number, f"after step {steps}"
        assert all(exists(cluster.tree, managed_ledger_path(name)) for name in found)
        assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in pulsar.references())
        if not is_open:
            assert not [ledger_id for ledger_id in pulsar.ledgers if pulsar.is_garbage(ledger_id)]


def test_a_segment_that_is_restored_before_the_delete_keeps_its_ledgers() -> None:
    """A prune left the segment's ledgers; the delete is sent after the layout was restored, and then the list."""
    cluster = _started(splits=1)
    pulsar = _scalable(cluster)
    pruned = "public/default/segment/orders/0000-7fff-0"
    pulsar.prune(0, steps=ALL_STEPS, lost=True)
    pulsar.pass_time(DAY_MS)
    cluster.sweep(0, cluster.due())
    pulsar.pass_time(HOUR_MS)
    restored: list[str] = []

    def restore(operation: str) -> None:
        if operation == "delete_guarded" and not restored:
            restored.append(pruned)
            pulsar.restore_segment(pruned)

    cluster.sweep(0, cluster.due(), SweepOptions(hook=restore))
    assert restored
    assert set(pulsar.topics[pruned].ledgers) == pulsar.written[managed_ledger_path(pruned)] != set()
    _service_runs(cluster)


@pytest.mark.parametrize("is_open", [True, False], ids=["loaded", "not loaded"])
@pytest.mark.parametrize("is_assigned", [True, False], ids=["named by the layout", "of a split that failed"])
def test_a_segment_whose_list_is_lost_keeps_its_ledgers(*, is_assigned: bool, is_open: bool) -> None:
    cluster = _started()
    pulsar = _scalable(cluster)
    pulsar.split(0, steps=ALL_STEPS if is_assigned else 3)
    lost = "public/default/segment/orders/0000-3fff-2"
    pulsar.roll_over(lost, stalls=False)
    pulsar.lose_metadata(lost, loaded=is_open)
    kept = {ledger_id for ledger_id, owners in pulsar.references().items() if f"layout, by {lost}" in owners}
    assert kept
    pulsar.recover_open_ledgers()
    _service_runs(cluster)
    assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in kept)


def test_a_list_that_is_rolled_back_keeps_what_its_loaded_segment_may_know() -> None:
    cluster = _started()
    pulsar = _scalable(cluster)
    name = pulsar.names()[0]
    pulsar.roll_back_list(name)
    (newest,) = set(pulsar.topics[name].ledgers) - pulsar.written[managed_ledger_path(name)]
    pulsar.recover_open_ledgers()
    _service_runs(cluster)
    assert exists(cluster.tree, path_of(newest))


@pytest.mark.parametrize("is_cached", [True, False], ids=["brokers have the newer layout", "and brokers read it"])
def test_a_layout_that_is_rolled_back_affects_no_ledger_of_a_segment_that_exists(*, is_cached: bool) -> None:
    cluster = _started(splits=1)
    pulsar = _scalable(cluster)
    pulsar.settle()
    pulsar.roll_back_layout(is_cached=is_cached)
    _service_runs(cluster)
    assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in pulsar.references())


def test_a_migrated_topic_keeps_its_ledgers_after_its_segment_is_pruned() -> None:
    """No broker deletes it, so it stays an ordinary topic, which is terminated."""
    cluster = Cluster(ScalablePulsar)
    pulsar = _scalable(cluster)
    pulsar.create_topic(TOPIC, stalls=False)
    pulsar.roll_over(TOPIC, stalls=False)
    pulsar.migrate()
    pulsar.open_scalable(steps=ALL_STEPS)
    pulsar.prune(0, steps=ALL_STEPS, lost=True)
    for ledger in list(pulsar.ledgers.values()):
        cluster.publish(ledger.request)
    cluster.take_over(0)
    _service_runs(cluster)
    assert len(pulsar.topics[TOPIC].ledgers) == 2
    assert cluster.deletions == []


@pytest.mark.parametrize("restores", [True, False], ids=["and its list", "alone"])
def test_a_pruned_segment_keeps_its_ledgers_from_the_moment_that_its_layout_is_restored(*, restores: bool) -> None:
    """Brokers still answer with the layout after the prune, so ZooKeeper's layout is the only witness."""
    cluster = _started(splits=1)
    pulsar = _scalable(cluster)
    pruned = "public/default/segment/orders/0000-7fff-0"
    pulsar.prune(0, steps=ALL_STEPS, lost=True)
    pulsar.pass_time(DAY_MS)
    pulsar.roll_back_layout(is_cached=True)
    kept = {ledger_id for ledger_id, owners in pulsar.references().items() if f"layout, by {pruned}" in owners}
    assert kept
    for _ in range(3):
        cluster.sweep(0, cluster.due())
        pulsar.pass_time(11 * MINUTE_MS)
    if restores:
        pulsar.restore_segment(pruned)
    _service_runs(cluster)
    assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in kept)


def _unreadable(cluster: Cluster) -> None:
    cluster.unreadable.add(LAYOUT_PATH)


def _of_a_newer_version(cluster: Cluster) -> None:
    layout = json.loads(cluster.tree.read(LAYOUT_PATH).data)
    cluster.tree.write(LAYOUT_PATH, json.dumps(layout | {"unknown": 1}).encode())


@pytest.mark.parametrize("change", [_unreadable, _of_a_newer_version])
def test_nothing_of_a_segment_is_deleted_while_its_layout_is_not_understood(change: Callable[[Cluster], None]) -> None:
    cluster = _started(splits=1)
    pulsar = _scalable(cluster)
    pulsar.settle()
    name = "public/default/segment/orders/0000-3fff-2"
    pulsar.trim(name, written=True, lost=True)
    pulsar.unload(name, lost=True)
    pulsar.prune(0, steps=ALL_STEPS, lost=True)
    change(cluster)
    _service_runs(cluster)
    assert cluster.deletions == []

    cluster.unreadable.clear()
    assert pulsar.layout is not None
    cluster.tree.write(LAYOUT_PATH, pulsar.layout.data())
    _service_runs(cluster)
    assert {deletion.owner for deletion in cluster.deletions} >= {
        f"data:{name}",
        "data:public/default/segment/orders/0000-7fff-0",
    }
