"""A namespace's guard is told where it stands, and what nobody can tell counts as not guarded."""

from typing import Any, cast

import pytest

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.snapshot_store import GUARD
from streaming.adapters.pulsar.snapshot_topics import system_topic
from streaming.check.preflight import Status
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.snapshots import columns as s
from streaming.snapshots.facts import segments_topics
from streaming.snapshots.preflight import line_of
from tests.builders import list_znode
from tests.unit.snapshots.fakes import Admin, Node, Store
from udfs import columns as c
from udfs.formats.internal_stats import InternalStats
from udfs.paths import managed_ledger_path
from udfs.snapshots.keys import SnapshotKind

SPACE = "t/ns"
PATH = managed_ledger_path(system_topic(SPACE, SnapshotKind.SEGMENT))
NODE = Znode(list_znode(70), 0, 0, 0)
GUARDED = InternalStats(((70, 5),), {GUARD: (70, 1)}, 0)
TREE = {"/managed-ledgers": ["t"], "/managed-ledgers/t": ["ns"], "/managed-ledgers/t/ns": ["persistent"]}


def _rows(node: Node, admin: Admin) -> list[dict[str, Any]]:
    return segments_topics(cast(MetadataStore, Store({PATH: node})), cast(PulsarAdmin, admin), [SPACE])


def test_a_guard_is_told_with_its_place() -> None:
    (row,) = _rows(NODE, Admin(GUARDED))
    assert (row[s.GUARD_LEDGER], row[s.GUARD_ENTRY], row[s.KEEPS_ALL], row[s.SEGMENT_LEDGERS]) == (70, 1, False, [70])


def test_a_namespace_without_segments_has_no_row() -> None:
    assert _rows(None, Admin()) == []


def test_retention_without_limit_keeps_all_and_a_limited_one_does_not() -> None:
    assert _rows(NODE, Admin(retentions=(-1, -1)))[0][s.KEEPS_ALL]
    assert not _rows(NODE, Admin(retentions=(-1, 10)))[0][s.KEEPS_ALL]


def test_what_nobody_can_tell_counts_as_not_guarded() -> None:
    (row,) = _rows(NODE, Admin(GUARDED, is_up=False))
    assert (row.get(s.GUARD_LEDGER), row[s.KEEPS_ALL]) == (None, False)
    assert row[c.DETAIL]
    (torn,) = _rows(Unreadable("no right"), Admin(GUARDED))
    assert torn[s.SEGMENT_LEDGERS] == []


@pytest.mark.parametrize(
    ("admin", "status", "says"),
    [
        (Admin(GUARDED), Status.OK, "1 namespaces with segments, all guarded"),
        (Admin(retentions=(-1, -1)), Status.OK, "all guarded"),
        (Admin(), Status.NOTE, "1 of 1 namespaces with segments have none: t/ns"),
        (Admin(is_up=False), Status.NOTE, "no broker answers"),
    ],
)
def test_check_says_which_namespaces_have_no_guard(admin: Admin, status: Status, says: str) -> None:
    line = line_of(cast(MetadataStore, Store({PATH: NODE}, TREE)), cast(PulsarAdmin, admin))
    assert line.status is status
    assert says in line.says
    assert bool(line.do) == (status is not Status.OK)


def test_check_is_content_without_segments() -> None:
    assert line_of(cast(MetadataStore, Store({}, TREE)), cast(PulsarAdmin, Admin())).says == "no segments"
