"""The audit while brokers and operators act, and crashes happen, at any of its reads: an orphan stays garbage.

The phases are the audit's own functions in the audit's order, without Spark. LEDGER_REAPER_MODEL_EXAMPLES is the number
of runs.
"""

import os
from collections.abc import Callable
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.adapters.memory.store import MemoryStore
from streaming.audit import audit_columns as a
from streaming.audit.checks.suspect_ledgers import SuspectChecker
from streaming.audit.checks.suspect_objects import ObjectChecker
from streaming.audit.walk.listing import find_folders, ids_in
from streaming.audit.walk.owner_listing import find_namespaces
from streaming.audit.walk.reference_scan import ReferenceReader
from streaming.audit.walk.suspects import LedgerReader, suspect_row
from streaming.in_use.loader import InUseLoader
from streaming.sweep.pace import Pace
from tests.builders import DAY_MS, HOUR_MS, ROOT, exists
from tests.model.pulsar import CURSORS, TOPICS, Pulsar
from tests.model.service import POLICY, Cluster
from tests.model.test_safety import ACTS, acts, times
from tests.world import confirmed, path_of
from udfs import columns as c
from udfs.paths import Layout
from udfs.verdicts.finding_classes import FindingClass

EXAMPLES = int(os.environ.get("LEDGER_REAPER_MODEL_EXAMPLES", "60"))
MODEL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
)
Row = dict[str, Any]
# An operator who lists garbage again makes it used; an operator who removes the list of a loaded topic makes its
# broker's memory the only record of free BookKeeper copies.
broker_acts = st.sampled_from(sorted(ACTS.keys() - {"restore list", "lose metadata"}))


def _audit(cluster: Cluster, hook: Callable[[], None]) -> dict[int, FindingClass]:
    """List ledgers, read references, check suspects twice; return the class of each finding by ledger.

    Args:
        cluster: the cluster.
        hook: called before each read.
    """
    store = MemoryStore(cluster.tree)
    store.faults.before(lambda _operation, _paths: hook())
    folders = find_folders(store, ROOT, Layout.HIERARCHICAL)
    listed = ids_in(ROOT, folders.paths, store.children_many(folders.paths), [])
    references = _references(store)
    reader = LedgerReader(store, Layout.HIERARCHICAL, ROOT, Pace(0))
    suspects = _suspects(reader, sorted(set(listed) - references.keys()), cluster)
    missing = [_missing(row) for ledger_id, row in references.items() if ledger_id not in set(listed)]
    loader = InUseLoader(store, cluster.pulsar, cluster.clock)
    no_objects = cast(ObjectChecker, None)
    checker = SuspectChecker(
        reader=reader,
        objects=no_objects,
        loader=loader,
        clock=cluster.clock,
        policy=POLICY,
        unreadable=frozenset(),
        confirm=confirmed,
    )
    first = checker.check([row for row in suspects if not row.get(a.CLASS)] + missing, is_second=False)
    cluster.pulsar.pass_time(POLICY.absence_interval_ms)
    second = checker.check([row for row in first if row[a.CANDIDATE]], is_second=True)
    final = [row for row in suspects if row.get(a.CLASS)] + [row for row in first if not row[a.CANDIDATE]] + second
    return {row[c.LEDGER_ID]: FindingClass(row[a.CLASS]) for row in final}


def _references(store: MemoryStore) -> dict[int, Row]:
    paths = []
    namespaces = find_namespaces(store).paths
    for namespace, children in zip(namespaces, store.children_many(namespaces), strict=True):
        paths += [f"{namespace}/{name}" for name in cast(list[str], children or [])]
    rows = ReferenceReader(store, Pace(0)).rows(paths)
    return {row[c.LEDGER_ID]: row for row in rows if row.get(a.IN_BOOKKEEPER)}


def _suspects(reader: LedgerReader, ids: list[int], cluster: Cluster) -> list[Row]:
    facts = zip(ids, reader.facts(ids), strict=True)
    now_ms = cluster.clock.now_ms()
    nothing: dict[str, object] = dict.fromkeys(field.name for field in a.SUSPECT)
    return [nothing | suspect_row(ledger_id, read, now_ms) for ledger_id, read in facts if read is not None]


def _missing(reference: Row) -> Row:
    nothing: Row = dict.fromkeys(field.name for field in a.SUSPECT)
    return nothing | reference | {c.LEDGER_TYPE: "LEDGER", a.IS_REFERENCE: True}


def _history(pulsar: Pulsar) -> None:
    """Use and leak ledgers of every kind, old and new."""
    name, cursor = TOPICS[0], CURSORS[0]
    for _ in range(2):
        pulsar.put_schema(stalls=False, lost=True)
        pulsar.create_topic(name, stalls=False)
        pulsar.open_cursor(name, cursor)
        for _ in range(3):
            pulsar.roll_over(name, stalls=False)
            pulsar.switch_cursor(name, cursor, stalls=False, lost=True)
            pulsar.compact(name, durable=True, lost=True)
            pulsar.seal_bucket(name, cursor, stalls=False)
        pulsar.drop_bucket(name, cursor, lost=True)
        pulsar.trim(name, written=True, lost=True)
        pulsar.trim(name, written=False, lost=True)
        pulsar.offload(name, lost=True)
        pulsar.delete_schema(lost=True)
        pulsar.pass_time(DAY_MS - HOUR_MS)


def _stall(pulsar: Pulsar, data: st.DataObject) -> None:
    """Stop brokers between the creation of a ledger and its publication; bookies may recover open ledgers."""
    name, cursor = TOPICS[0], CURSORS[0]
    stalls: list[Callable[[], None]] = [
        lambda: pulsar.roll_over(name, stalls=True),
        lambda: pulsar.switch_cursor(name, cursor, stalls=True, lost=False),
        lambda: pulsar.seal_bucket(name, cursor, stalls=True),
        lambda: pulsar.compact(name, durable=True, lost=False, stalls=True),
        lambda: pulsar.put_schema(stalls=True, lost=False),
    ]
    for stall in data.draw(st.lists(st.sampled_from(stalls), max_size=2)):
        stall()
    if data.draw(st.booleans(), label="bookies recover"):
        pulsar.recover_open_ledgers()
    pulsar.pass_time(data.draw(times))


def _lose(cluster: Cluster, data: st.DataObject) -> set[int]:
    """Delete the metadata of one to three ledgers that znodes name; return their ids."""
    named = {ledger_id for ids in cluster.pulsar.written.values() for ledger_id in ids}
    in_use = sorted(ledger_id for ledger_id in named if exists(cluster.tree, path_of(ledger_id)))
    lost = data.draw(st.sets(st.sampled_from(in_use), min_size=1, max_size=3), label="lost")
    for ledger_id in lost:
        cluster.tree.remove(path_of(ledger_id))
    return lost


def _given_up(pulsar: Pulsar) -> set[int]:
    return {ledger_id for topic in pulsar.topics.values() for ledger_id in topic.given_up}


def _orphans(findings: dict[int, FindingClass]) -> set[int]:
    return {ledger_id for ledger_id, kind in findings.items() if kind is FindingClass.ORPHAN}


@MODEL
@given(st.data())
def test_no_broker_refers_to_an_orphan_again(data: st.DataObject) -> None:
    """An operator who lists garbage again is excluded here: the sweep judges again (tests/model/test_safety.py)."""
    cluster = Cluster()
    pulsar = cluster.pulsar
    _history(pulsar)
    _stall(pulsar, data)
    for name in data.draw(st.lists(acts, max_size=4)):
        ACTS[name](pulsar, data)
    left = [data.draw(st.integers(0, 8))]

    def hook() -> None:
        if left[0] and data.draw(st.booleans(), label="a disturbance"):
            left[0] -= 1
            ACTS[data.draw(broker_acts)](pulsar, data)

    # A BookKeeper copy that a broker gave up stays free, even if an operator deletes the znodes that record it.
    given_up = _given_up(pulsar)
    orphans = _orphans(_audit(cluster, hook)) - given_up - _given_up(pulsar)

    assert not orphans & pulsar.references().keys()
    for name in data.draw(st.lists(broker_acts, max_size=4)):
        ACTS[name](pulsar, data)
        assert not orphans & pulsar.references().keys()
    while pulsar.stalled:
        pulsar.wake(0)
        assert not orphans & pulsar.references().keys()


@MODEL
@given(st.data())
def test_an_existing_or_unused_ledger_is_never_missing(data: st.DataObject) -> None:
    cluster = Cluster()
    pulsar = cluster.pulsar
    _history(pulsar)
    _lose(cluster, data)

    def hook() -> None:
        if data.draw(st.booleans(), label="a disturbance"):
            ACTS[data.draw(acts)](pulsar, data)

    missing = {i for i, kind in _audit(cluster, hook).items() if kind is FindingClass.MISSING}

    for ledger_id in missing:
        assert ledger_id in pulsar.references()
        assert not exists(cluster.tree, path_of(ledger_id))


@MODEL
@given(st.data())
def test_without_disturbances_every_lost_ledger_is_missing(data: st.DataObject) -> None:
    cluster = Cluster()
    _history(cluster.pulsar)
    cluster.pulsar.pass_time(2 * DAY_MS)
    lost = _lose(cluster, data)

    assert {i for i, kind in _audit(cluster, lambda: None).items() if kind is FindingClass.MISSING} == lost


@MODEL
@given(st.data())
def test_without_disturbances_all_garbage_is_found(data: st.DataObject) -> None:
    cluster = Cluster()
    pulsar = cluster.pulsar
    _history(pulsar)
    for name in data.draw(st.lists(acts, max_size=10)):
        ACTS[name](pulsar, data)
    pulsar.crash()
    pulsar.pass_time(2 * DAY_MS)

    orphans = _orphans(_audit(cluster, lambda: None))

    remembered = {ledger_id for topic in pulsar.topics.values() for ledger_id in topic.ledgers}
    garbage = {ledger_id for ledger_id in pulsar.ledgers if pulsar.is_garbage(ledger_id)}
    # a broker keeps every listed ledger, even if its BookKeeper copy was given up
    assert orphans | (garbage & remembered) == garbage
