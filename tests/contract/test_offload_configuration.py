"""The offload configuration of brokers: the cluster's name, and the policies of namespaces."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.pulsar.admin_api.offload_policies import BrokerOffload
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.errors import RefusedError, UnavailableError
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from udfs.offload_drivers import Target, target_of

RUNTIME = "/admin/v2/brokers/configuration/runtime"
CLUSTERS = "/admin/v2/clusters"
POLICIES = "/admin/v2/namespaces/tenant/ns/offloadPolicies"


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as running:
        yield running


@pytest.fixture
def brokers(stub: HttpStub) -> Iterator[BrokerOffload]:
    opened = BrokerOffload(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=1))
    yield opened
    opened.close()


def answer_of(body: Any) -> CannedAnswer:
    return CannedAnswer(200, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("runtime", "clusters", "expected"),
    [
        pytest.param(
            answer_of({"clusterName": "east"}), answer_of(["east", "west"]), "east", id="the broker's configuration"
        ),
        pytest.param(CannedAnswer(403), answer_of(["east"]), "east", id="no super user, one cluster"),
        pytest.param(CannedAnswer(403), answer_of(["east", "global"]), "east", id="the global cluster does not count"),
        pytest.param(CannedAnswer(403), answer_of(["east", "west"]), "", id="no super user, two clusters"),
        pytest.param(CannedAnswer(403), CannedAnswer(401), "", id="no rights"),
        pytest.param(answer_of({}), answer_of([]), "", id="empty answers"),
        pytest.param(CannedAnswer(200, b"<html>"), answer_of(["east"]), "east", id="no JSON"),
    ],
)
def test_the_clusters_name_is_returned_or_unknown(
    stub: HttpStub, brokers: BrokerOffload, runtime: CannedAnswer, clusters: CannedAnswer, expected: str
) -> None:
    stub.answer_with(RUNTIME, runtime)
    stub.answer_with(CLUSTERS, clusters)

    assert brokers.cluster_name() == expected


def test_a_configured_name_is_not_requested(stub: HttpStub) -> None:
    assert BrokerOffload(PulsarAdminSettings(admin_url=stub.url), "named").cluster_name() == "named"
    assert stub.requests == []


def test_a_known_name_is_cached_and_an_unknown_name_is_requested_again(stub: HttpStub, brokers: BrokerOffload) -> None:
    stub.answer_with(RUNTIME, CannedAnswer(403), answer_of({"clusterName": "east"}))
    stub.answer_with(CLUSTERS, answer_of(["east", "west"]))

    assert [brokers.cluster_name() for _ in range(3)] == ["", "east", "east"]
    assert [request.path for request in stub.requests].count(RUNTIME) == 2


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        pytest.param(
            answer_of(
                {
                    "managedLedgerOffloadBucket": "b",
                    "s3Driver": True,
                    "managedLedgerOffloadMaxThreads": 2,
                    "managedLedgerOffloadDriver": "S3",
                }
            ),
            {"managedLedgerOffloadBucket": "b", "managedLedgerOffloadDriver": "S3"},
            id="texts only",
        ),
        pytest.param(CannedAnswer(200), {}, id="none are set"),
        pytest.param(CannedAnswer(404, b'{"reason":"Namespace does not exist"}'), {}, id="the namespace is gone"),
    ],
)
def test_policies_are_returned(
    stub: HttpStub, brokers: BrokerOffload, policies: CannedAnswer, expected: dict[str, str]
) -> None:
    stub.answer_with(POLICIES, policies)

    assert brokers.offload_policies("tenant/ns") == expected


def test_policies_without_permission_are_refused(stub: HttpStub, brokers: BrokerOffload) -> None:
    stub.answer_with(POLICIES, CannedAnswer(403, b'{"reason":"Unauthorized"}'))

    with pytest.raises(RefusedError, match="tenant/ns"):
        brokers.offload_policies("tenant/ns")


def test_policies_that_a_broker_can_not_read_are_refused(stub: HttpStub, brokers: BrokerOffload) -> None:
    stub.answer_with(POLICIES, CannedAnswer(500))

    with pytest.raises(RefusedError, match="tenant/ns"):
        brokers.offload_policies("tenant/ns")


def test_a_broker_that_does_not_answer_is_unavailable(stub: HttpStub, brokers: BrokerOffload) -> None:
    stub.answer_with(POLICIES, CannedAnswer(503))
    stub.answer_with(RUNTIME, CannedAnswer(503))

    with pytest.raises(UnavailableError):
        brokers.offload_policies("tenant/ns")
    with pytest.raises(UnavailableError):
        brokers.cluster_name()


def test_v1_namespaces_have_no_policies(stub: HttpStub, brokers: BrokerOffload) -> None:
    assert brokers.offload_policies("tenant/cluster/ns") == {}
    assert stub.requests == []


@pytest.mark.cluster
def test_a_real_broker_returns_both(cluster: Cluster) -> None:
    brokers = BrokerOffload(PulsarAdminSettings(admin_url=cluster.addresses.admin))
    namespace = f"public/contract-{uuid4().hex[:12]}"
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    try:
        assert brokers.cluster_name() == "sandbox"
        assert brokers.offload_policies(namespace) == {}
        assert brokers.offload_policies("public/never-created") == {}
        body = {
            "managedLedgerOffloadDriver": "S3",
            "managedLedgerOffloadBucket": cluster.bucket,
            "managedLedgerOffloadRegion": cluster.region,
            "managedLedgerOffloadServiceEndpoint": cluster.addresses.s3,
        }
        topics.admin(cluster, "POST", f"namespaces/{namespace}/offloadPolicies", body)
        policies = brokers.offload_policies(namespace)
        assert target_of("", policies) == Target("S3", cluster.addresses.s3, cluster.bucket)
    finally:
        topics.admin(cluster, "DELETE", f"namespaces/{namespace}?force=true")
        brokers.close()
