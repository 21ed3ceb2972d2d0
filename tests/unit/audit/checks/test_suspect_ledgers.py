"""The result of checking a suspect, from its ledger, topic and broker, and from paths that the walk could not read."""

from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.audit import audit_columns as a
from streaming.audit.checks.suspect_ledgers import SuspectChecker
from streaming.audit.checks.suspect_objects import ObjectChecker
from streaming.audit.walk.suspects import LedgerReader, suspect_row
from streaming.clock import ManualClock
from streaming.in_use.loader import InUseLoader
from streaming.sweep.pace import Pace
from tests.builders import (
    DAY_MS,
    LAYOUT_PATH,
    NOW_MS,
    ROOT,
    SEGMENT,
    TOPIC,
    data_custom,
    layout_znode,
    list_znode,
    metadata,
    put,
)
from tests.model.service import POLICY
from tests.world import path_of
from udfs import columns as c
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.managed_ledger import ManagedCursorInfo, ManagedLedgerInfo, serialize_cursor, serialize_managed_ledger
from udfs.owners.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR
from udfs.paths import Layout, cursor_path, ledger_path, managed_ledger_path
from udfs.records import BrokerView, Presence
from udfs.verdicts.finding_classes import FindingClass

GONE_LEDGER = 7


class OneAnswer:
    """Brokers that give the same answer for every topic."""

    def __init__(self, view: BrokerView) -> None:
        self._view = view

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        return [self._view] * len(managed_ledgers)

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        return [self._view] * len(segments)

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        return [self._view] * len(schema_ids)

    def require_answers(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(
            BrokerView(presence=Presence.PRESENT, compacted_ledger=9),
            FindingClass.GONE,
            id="the broker reads from another",
        ),
        pytest.param(BrokerView(presence=Presence.PRESENT), FindingClass.GONE, id="the broker reads from none"),
        pytest.param(
            BrokerView(presence=Presence.PRESENT, compacted_ledger=GONE_LEDGER),
            FindingClass.MISSING,
            id="the broker needs it",
        ),
        pytest.param(BrokerView(presence=Presence.UNREADABLE), FindingClass.UNKNOWN, id="the broker does not answer"),
        pytest.param(None, FindingClass.UNKNOWN, id="the broker is not asked"),
    ],
)
def test_a_compacted_ledger_is_missing_only_if_its_broker_needs_it(
    view: BrokerView | None, expected: FindingClass
) -> None:
    tree, clock = MemoryTree(), ManualClock(1)
    compaction = ManagedCursorInfo(cursors_ledger_id=-1, properties={COMPACTED_LEDGER_PROPERTY: GONE_LEDGER})
    store = MemoryStore(tree)
    store.create(managed_ledger_path(TOPIC), serialize_managed_ledger(ManagedLedgerInfo(())), parents=True)
    store.create(cursor_path(TOPIC, COMPACTION_CURSOR), serialize_cursor(compaction), parents=True)
    reader = LedgerReader(store, Layout.HIERARCHICAL, ROOT, Pace(0))
    loader = InUseLoader(store, OneAnswer(view) if view else None, clock)
    checker = SuspectChecker(
        reader=reader,
        objects=cast(ObjectChecker, None),
        loader=loader,
        clock=clock,
        policy=POLICY,
        unreadable=frozenset(),
    )
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in a.SUSPECT)
    row = nothing | {
        c.LEDGER_ID: GONE_LEDGER,
        c.LEDGER_TYPE: "LEDGER",
        c.COMPONENT: "COMPACTED_LEDGER",
        c.REFERENCE_KEY: f"compacted:{TOPIC}",
        a.MANAGED_LEDGER: TOPIC,
        a.IS_REFERENCE: True,
    }

    (look,) = checker.check([row], is_second=False)

    assert look[a.CLASS] == expected


@pytest.mark.parametrize(
    ("layout", "presence", "expected"),
    [
        pytest.param(layout_znode(1, 2), Presence.GONE, FindingClass.ORPHAN_SEGMENT, id="no layout names it"),
        pytest.param(layout_znode(0, 1), Presence.GONE, FindingClass.IN_USE, id="its layout names it by now"),
        pytest.param(layout_znode(1, 2), Presence.PRESENT, FindingClass.IN_USE, id="the brokers' layout names it"),
        pytest.param(layout_znode(1, 2), Presence.UNREADABLE, FindingClass.UNKNOWN, id="brokers do not answer"),
    ],
)
@pytest.mark.parametrize("is_second", [False, True], ids=["first check", "second check"])
def test_a_ledger_of_an_unnamed_segment_has_the_class_of_its_segment(
    layout: bytes, presence: Presence, expected: FindingClass, is_second: bool
) -> None:
    tree, clock = MemoryTree(ManualClock(NOW_MS)), ManualClock(NOW_MS + 30 * DAY_MS)
    put(tree, managed_ledger_path(SEGMENT), list_znode(5))
    put(tree, LAYOUT_PATH, layout)
    put(tree, path_of(5), serialize_v3(metadata(data_custom(SEGMENT), length_bytes=77)))
    store = MemoryStore(tree)
    checker = SuspectChecker(
        reader=LedgerReader(store, Layout.HIERARCHICAL, ROOT, Pace(0)),
        objects=cast(ObjectChecker, None),
        loader=InUseLoader(store, OneAnswer(BrokerView(presence=presence)), clock),
        clock=clock,
        policy=POLICY,
        unreadable=frozenset(),
    )
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in a.SUSPECT)
    row = nothing | {
        c.LEDGER_ID: 5,
        c.LEDGER_TYPE: "LEDGER",
        c.COMPONENT: "MANAGED_LEDGER",
        c.REFERENCE_KEY: f"data:{SEGMENT}",
        c.REASON: "SEGMENT_UNNAMED",
        a.MANAGED_LEDGER: SEGMENT,
        a.IS_REFERENCE: True,
    }

    (look,) = checker.check([row], is_second=is_second)

    assert look[a.CLASS] == expected
    assert look[c.BYTES] == 77
    assert look[a.CANDIDATE] is (expected is FindingClass.ORPHAN_SEGMENT)


@pytest.mark.parametrize(
    ("unreadable", "expected"),
    [
        pytest.param(set(), FindingClass.ORPHAN, id="the walk read everything"),
        pytest.param({"/managed-ledgers/public/other"}, FindingClass.ORPHAN, id="another namespace was unreadable"),
        pytest.param({"/managed-ledgers/public"}, FindingClass.UNKNOWN, id="its tenant was unreadable"),
        pytest.param({managed_ledger_path(TOPIC)}, FindingClass.UNKNOWN, id="its topic was unreadable"),
        pytest.param({"/"}, FindingClass.UNKNOWN, id="the audit believes nothing"),
    ],
)
@pytest.mark.parametrize("is_second", [False, True], ids=["first check", "second check"])
def test_a_finding_that_depends_on_an_unreadable_path_is_unknown(
    unreadable: set[str], expected: FindingClass, is_second: bool
) -> None:
    tree, clock = MemoryTree(), ManualClock(NOW_MS)
    put(tree, managed_ledger_path(TOPIC), list_znode(9))
    put(tree, ledger_path(Layout.HIERARCHICAL, ROOT, 5), serialize_v3(metadata(data_custom())))
    store = MemoryStore(tree)
    loader = InUseLoader(store, None, clock)
    clock.advance(DAY_MS)
    reader = LedgerReader(store, Layout.HIERARCHICAL, ROOT, Pace(0))
    checker = SuspectChecker(
        reader=reader,
        objects=cast(ObjectChecker, None),
        loader=loader,
        clock=clock,
        policy=POLICY,
        unreadable=frozenset(unreadable),
    )
    (facts,) = reader.facts([5])
    assert facts is not None
    row = dict.fromkeys(field.name for field in a.SUSPECT) | suspect_row(5, facts, NOW_MS)

    (look,) = checker.check([row], is_second=is_second)

    assert look[a.CLASS] == expected
