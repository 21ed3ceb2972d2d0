"""`ledger-reaper explain N`: what the owners of a ledger know of it."""

import pytest

from streaming.space.explain.explain_ledger import needs_of
from streaming.space.explain.explain_missing import needed_fields
from tests.builders import SCHEMA, TOPIC, cursor_custom, locator_znode, put
from tests.unit.space.cluster import Cluster, path_of
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import managed_ledger_path, topic_of
from udfs.records import LedgerComponent
from udfs.space.space_report import NeededLedger

DATA, CURSOR, SCHEMAS = (
    str(LedgerComponent.MANAGED_LEDGER),
    str(LedgerComponent.MANAGED_CURSOR),
    str(LedgerComponent.SCHEMA_STORAGE),
)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic(1, 2, 3, missing=[2])
    cluster.cursor("billing", (1, 4))
    cluster.cursor("audit", (1, 9), ledger=20)
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(23, 24))
    return cluster


def needs(cluster: Cluster, ledger_id: int, *components: str) -> list[NeededLedger]:
    owners = [(each, TOPIC) for each in components]
    found, unread = needs_of(cluster.store, cluster.broker, "/ledgers", ledger_id, owners)
    assert not unread
    return found


@pytest.mark.parametrize("ledger_id", [1, 2], ids=["that exists", "that is missing"])
def test_the_list_describes_a_data_ledger(cluster: Cluster, ledger_id: int) -> None:
    (need,) = needs(cluster, ledger_id, DATA)
    fields = needed_fields(need)
    assert (fields["topic"], fields["entries"], fields["bytes"]) == (topic_of(TOPIC), 10, 1_000)
    assert {each["subscription"]: each["unread"] for each in fields["needed_by"]} == {
        "billing": 5 if ledger_id == 1 else 10,
        "audit": None,
    }


def test_a_cursors_ledger_is_needed_by_its_subscription(cluster: Cluster) -> None:
    (need,) = needs(cluster, 20, CURSOR)
    assert (need.component, need.cursor) == (LedgerComponent.MANAGED_CURSOR, "audit")


def test_a_schemas_ledger_is_needed_by_its_topic(cluster: Cluster) -> None:
    (need,) = needs(cluster, 23, SCHEMAS)
    assert (need.component, need.topic, need.is_last) == (LedgerComponent.SCHEMA_STORAGE, topic_of(TOPIC), False)


def test_a_ledger_without_owners_is_needed_by_nobody(cluster: Cluster) -> None:
    assert needs(cluster, 2) == []


def test_an_owner_that_cannot_be_read_is_named(cluster: Cluster) -> None:
    path = managed_ledger_path(TOPIC)
    cluster.store.unreadable.add(path)
    found, unread = needs_of(cluster.store, None, "/ledgers", 2, [(DATA, TOPIC)])
    assert not found
    assert [each.partition(":")[0] for each in unread] == [path]


def test_a_migration_to_another_metadata_store_is_named(cluster: Cluster) -> None:
    put(cluster.tree, MIGRATION_PATH, b'{"phase":"COMPLETED","targetUrl":"oxia://oxia1:6648/default"}')
    found, (unread,) = needs_of(cluster.store, cluster.broker, "/ledgers", 1, [(DATA, TOPIC)])
    assert len(found) == 1
    assert unread.startswith("whether ZooKeeper's content is current: Pulsar's migration")


def test_a_command_moves_a_subscription_to_the_next_ledger_that_exists(cluster: Cluster) -> None:
    cluster.topic(11, 12, 13, 14, 15, missing=[12, 13])
    (need,) = needs(cluster, 12, DATA)
    assert need.next_id == 14


def test_it_is_shown_although_no_ledger_can_be_read(cluster: Cluster) -> None:
    cluster.ledger(20, custom=cursor_custom())
    cluster.store.unreadable |= {path_of(each) for each in (1, 3, 20)}
    assert [need.ledger_id for need in needs(cluster, 2, DATA)] == [2]
