"""The commands that `space --leftovers` prints, executed as printed on a real cluster."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import create_tenant, running_cluster
from tests.integration.printed_commands import run_printed
from tests.integration.space_scenes import PER_LEDGER, RUN, SUBSCRIPTION, World, service_of
from udfs.formats.schema_locator import ledger_ids
from udfs.paths import SCHEMAS_ROOT, managed_ledger_name, managed_ledger_path

pytestmark = [pytest.mark.cluster, pytest.mark.long]

VERSIONS = 2  # of each topic's schema, each with a ledger of its own


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_cluster(tmp_path_factory.mktemp("scenes"), counts={Part.BOOKIE: 3}) as cluster:
        yield World(cluster, service_of(cluster, tmp_path_factory.mktemp("service")))


def _znodes(cluster: Cluster, *roots: str) -> dict[str, Any]:
    """Return each znode below the roots, with kazoo's ZnodeStat."""
    found: dict[str, Any] = {}
    with part_clients.zookeeper(cluster.addresses.zookeeper) as client:
        paths = [root for root in roots if client.exists(root)]
        while paths:
            path = paths.pop()
            stat = client.exists(path)
            if stat is not None:
                found[path] = stat
                paths += [f"{path}/{child}" for child in client.get_children(path)]
    return found


def _leftovers(world: World, tenant: str = "") -> dict[str, dict[str, str]]:
    found = world.service.document("space", "--leftovers")["leftovers"]
    assert not [each for each in found if each["kind"] == "unreadable"]
    return {each["path"]: each for each in found if tenant in each["path"]}


def _with_schema(cluster: Cluster, tenant: str, *, namespace: str = "ns") -> str:
    create_tenant(cluster, tenant, namespace)
    topic = f"persistent://{tenant}/{namespace}/o'clock"
    topics.post_schema_versions(cluster, topic, VERSIONS)
    topics.fill(cluster, topic, 1, [SUBSCRIPTION])
    topics.unload(cluster, topic)
    return topic


def _forget(cluster: Cluster, *paths: str) -> None:
    for path in paths:
        part_clients.delete_znode(cluster.addresses.zookeeper, path)


def _delete_as_an_admin(cluster: Cluster, tenant: str) -> None:
    """Delete a tenant with all that it has, through the brokers."""
    _with_schema(cluster, tenant)
    topics.admin(cluster, "DELETE", f"namespaces/{tenant}/ns?force=true")
    topics.admin(cluster, "DELETE", f"tenants/{tenant}?force=true")


def _schema_of_deleted_topic(cluster: Cluster, tenant: str) -> None:
    topic = _with_schema(cluster, tenant)
    _forget(cluster, managed_ledger_path(managed_ledger_name(topic)))


def _schema_of_deleted_namespace(cluster: Cluster, tenant: str) -> None:
    _with_schema(cluster, tenant)
    topics.admin(cluster, "PUT", f"namespaces/{tenant}/ns/unload")
    _forget(cluster, f"/managed-ledgers/{tenant}/ns", f"/admin/policies/{tenant}/ns")


def _schema_of_deleted_tenant(cluster: Cluster, tenant: str) -> None:
    _schema_of_deleted_namespace(cluster, tenant)
    _forget(cluster, f"/admin/policies/{tenant}")


def _empty_znodes(cluster: Cluster, tenant: str) -> None:
    znodes = (f"/managed-ledgers/{tenant}/ns/persistent", f"/schemas/{tenant}/ns")
    part_clients.create_znodes(cluster.addresses.zookeeper, [(path, b"") for path in znodes])


def _folder(cluster: Cluster, tenant: str) -> None:
    del tenant
    part_clients.create_znodes(cluster.addresses.zookeeper, [("/ledgers/77/7777", b"")])


LEFTOVERS = {
    "admin": _delete_as_an_admin,
    "schema": _schema_of_deleted_topic,
    "schema-ns": _schema_of_deleted_namespace,
    "schema-tenant": _schema_of_deleted_tenant,
    "empty": _empty_znodes,
    "folder": _folder,
}
ROOTS = ("/admin/policies", "/admin/partitioned-topics", "/managed-ledgers", "/schemas", "/ledgers")
# that change by themselves, or as names are cached
VOLATILE = re.compile(r"/ledgers/(idgen|available|underreplication|cookies|INSTANCEID)|/managed-ledgers/pulsar")


@pytest.mark.parametrize("name", LEFTOVERS)
def test_the_printed_commands_remove_leftovers_and_nothing_else(world: World, name: str) -> None:
    cluster, tenant = world.cluster, f"left-{name}-{RUN}"
    LEFTOVERS[name](cluster, tenant)
    mark = "/ledgers/77" if name == "folder" else tenant
    rounds = 0
    while found := _leftovers(world, mark):
        rounds += 1
        assert rounds <= 4, found  # an empty parent is a leftover only once its children are gone
        for path, leftover in found.items():
            # the commands for a schema also delete empty znodes of its namespace and tenant, as their text says
            if part_clients.znode_exists(cluster.addresses.zookeeper, path):
                _check_removal(cluster, leftover)
    assert rounds or name == "admin"  # the broker itself leaves nothing


def _check_removal(cluster: Cluster, leftover: dict[str, str]) -> None:
    """Run the command of a leftover, which must remove the leftover, with all ledgers of a schema, and nothing else."""
    path = leftover["path"]
    before = _znodes(cluster, *ROOTS)
    named = {path}
    if leftover["kind"] == "schema":
        (data,) = part_clients.read_znodes(cluster.addresses.zookeeper, [path]).values()
        ids = ledger_ids(data)
        assert len(ids) == VERSIONS or path.endswith("/__change_events")
        named |= {ledger_list.path_of(each) for each in ids}
    owners = {ledger_list.path_of(each): found for each, found in ledger_list.every_ledger(cluster).items()}

    run_printed(cluster, leftover["command"])

    after = _znodes(cluster, *ROOTS)
    removed = before.keys() - after.keys()
    # empty znodes of the deleted namespace and tenant; ZooKeeper itself removes all empty containers within a minute
    empty = {
        each for each in removed if not before[each].dataLength and ("/left-" in each or path.startswith(f"{each}/"))
    }
    # a broker that loads the new namespace may create its __change_events again, with a schema, which the next round
    # removes
    again = path in after and path.endswith("/__change_events") and before[path].czxid != after[path].czxid
    named -= {path} if again else set()
    assert removed - (empty - {path}) == named, (leftover, {each: owners.get(each) for each in removed ^ named})
    changed = {each for each in after if each not in before or before[each].version != after[each].version}
    allowed = {path, *_of_schema(cluster, path)} if again else set()
    assert {each for each in changed if not VOLATILE.match(each)} <= allowed, leftover


def _of_schema(cluster: Cluster, path: str) -> set[str]:
    """Return the znodes of all ledgers that name a schema as their owner."""
    schema_id = path.removeprefix(f"{SCHEMAS_ROOT}/").encode()
    found = ledger_list.every_ledger(cluster).items()
    return {ledger_list.path_of(each) for each, at in found if at.custom_metadata.get("pulsar/schemaId") == schema_id}


def test_the_printed_command_repairs_a_namespace_that_lost_its_policies(world: World) -> None:
    cluster, tenant = world.cluster, f"left-repair-{RUN}"
    topic = _with_schema(cluster, tenant)
    _forget(cluster, f"/admin/policies/{tenant}")
    roots = f"/managed-ledgers/{tenant}", f"/schemas/{tenant}"
    before = _znodes(cluster, *roots)
    (leftover,) = _leftovers(world, tenant).values()
    assert (leftover["kind"], leftover["path"]) == ("namespace", f"/managed-ledgers/{tenant}/ns")

    run_printed(cluster, leftover["command"])

    assert {*before} <= {*_znodes(cluster, *roots)}
    assert _leftovers(world, tenant) == {}
    assert len(topics.read_all(cluster, topic)) == PER_LEDGER
