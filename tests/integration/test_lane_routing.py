"""Each command's requests arrive in the lanes of their tenants, and nothing of a tenant exists before its request."""

import uuid
from pathlib import Path

import pytest

from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for
from streaming.phase_one.deletable_ledgers import deletable_ledgers
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.orphans import orphan_everything
from tests.integration.conftest import Deploy, Deployment, create_tenant, payload
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

pytestmark = [pytest.mark.cluster, pytest.mark.long]


class Tenant:
    """A tenant with an application's namespace, whose topic leaks ledgers."""

    def __init__(self, cluster: Cluster, lanes: str) -> None:
        self.name = f"lane-{uuid.uuid4().hex[:8]}"
        self.namespace = f"{self.name}/app"
        create_tenant(cluster, self.name, "app")
        self.topic = f"persistent://{self.namespace}/orders"
        where = "ledger-deletion" if lanes == "tenant" else "app"
        self.lane = f"persistent://{self.name}/{where}/__ledger_deletion"


def _requested(service: Deployment, tenant: Tenant) -> set[int] | None:
    """Return the ledgers for which the tenant's lane has requests; None: there is no lane, and no namespace for it."""
    with admin_for(service.settings) as admin:
        if admin.partitions(tenant.lane) is None:
            assert admin.namespaces(tenant.name) == [tenant.namespace]
            return None
        last = admin.last_positions(tenant.lane)
    requests = [decode(message.payload) for message in read(service.settings.pulsar, last)]
    assert {each.managed_ledger.partition("/")[0] for each in requests if isinstance(each, PendingDelete)} <= {
        tenant.name
    }
    return {each.ledger_id for each in requests if isinstance(each, PendingDelete)}


@pytest.mark.parametrize("lanes", ["tenant", "namespace"])
def test_requests_audits_and_marks_use_the_lane_of_each_tenant_and_create_it(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, lanes: str
) -> None:
    service = deploy()
    text = service.config.read_text()
    service.config.write_text(text.replace("[topics]\n", f'[topics]\nlanes = "{lanes}"\n', 1))
    asks, marks, audited = tenants = [Tenant(cluster, lanes) for _ in range(3)]
    leaked = orphan_everything(cluster, [tenant.topic for tenant in tenants], ledgers=3)
    asked, marked = (min(leaked[tenant.topic].data) for tenant in (asks, marks))

    file = tmp_path / "requests"
    file.write_bytes(b"\n".join([payload(asks.topic, asked), payload(f"persistent://ghost-{asks.name}/a/b", 10**15)]))
    assert [_requested(service, tenant) for tenant in tenants] == [None] * 3
    shown = service.call("request", str(file), code=1)
    assert f"1 request published to {asks.lane}" in shown
    assert f"1 request of tenant ghost-{asks.name} not sent" in shown
    assert [_requested(service, tenant) for tenant in tenants] == [{asked}, None, None]

    with deletable_ledgers(service.settings) as api:
        api.mark_deletable_ledgers(marks.topic, [marked])
        assert _requested(service, marks) is None, "a mark alone requests nothing"
        api.remove_all_deletable_ledgers(marks.topic)
    assert [_requested(service, tenant) for tenant in tenants] == [{asked}, {marked}, None]

    audit = ("audit", "--publish", "--yes", "--recheck-seconds", "1", "--namespace")
    for tenant in (audited, asks):
        service.run(*audit, tenant.namespace, code=(0, 4))
        assert (_requested(service, tenant) or set()) >= set(leaked[tenant.topic].every)
    assert _requested(service, marks) == {marked}
    with admin_for(service.settings) as admin:
        assert admin.partitions(service.settings.topics.requests[0]) is None, "no request needed the shared topic"
