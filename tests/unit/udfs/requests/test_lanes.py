"""The lane of an owner, and what a lane's requests may name."""

from dataclasses import replace

import pytest

from tests.builders import data_request
from udfs.records import PendingDelete, Reason, Rejection
from udfs.requests.admission import Admission, admit
from udfs.requests.lanes import Lanes, fair_by_tenant

PUBLICS = "persistent://public/ledger-deletion/__ledger_deletion"
DEFAULTS = "persistent://public/default/__ledger_deletion"
SYSTEM = "persistent://pulsar/system/__ledger_deletion"
OWNERS = ("public/default/persistent/t", "persistent://public/default/t", "persistent://public/default/t-partition-3")


@pytest.mark.parametrize("owner", OWNERS)
def test_an_owner_uses_the_lane_of_its_tenant_or_of_its_namespace(owner: str) -> None:
    assert (Lanes.ONE.of(owner), Lanes.TENANT.of(owner), Lanes.NAMESPACE.of(owner)) == (None, PUBLICS, DEFAULTS)


def test_a_segment_uses_the_lane_of_its_scalable_topic() -> None:
    assert Lanes.TENANT.of("public/default/segment/orders/0000-ffff-0") == PUBLICS


@pytest.mark.parametrize("lanes", Lanes)
def test_v1_names_have_no_lane(lanes: Lanes) -> None:
    assert lanes.of("persistent://public/west/default/t") is None


@pytest.mark.parametrize(
    "topic",
    [
        pytest.param(f"{PUBLICS}-partition-0", id="a partition"),
        pytest.param("persistent://public/ledger-deletion/other", id="another topic of its namespace"),
        pytest.param("persistent://public/ledger-deletion/__ledger_deletion/x", id="a longer name"),
        pytest.param("persistent://public/west/ledger-deletion/__ledger_deletion", id="a V1 name"),
        pytest.param("non-persistent://public/ledger-deletion/__ledger_deletion", id="not persistent"),
        pytest.param("persistent://public", id="a tenant"),
        pytest.param("", id="no name"),
        pytest.param("persistent:////__ledger_deletion", id="empty parts"),
    ],
)
def test_no_other_topic_is_a_lane(topic: str) -> None:
    assert not any(lanes.has(topic) for lanes in Lanes)


def test_each_kind_of_lane_is_one_only_if_it_is_configured() -> None:
    assert [lanes.has(PUBLICS) for lanes in (Lanes.ONE, Lanes.TENANT)] == [False, True]
    assert [lanes.has(DEFAULTS) for lanes in (Lanes.ONE, Lanes.TENANT, Lanes.NAMESPACE)] == [False, False, True]


def _refused(lanes: Lanes, lane: str, request: PendingDelete) -> bool:
    rules = Admission(request_topics=frozenset({SYSTEM}), trusted_tenants=frozenset({"pulsar"}), lanes=lanes)
    answer = admit(request, lane, rules)
    assert answer == request or (isinstance(answer, Rejection) and answer.reason is Reason.OTHER_TENANT)
    return isinstance(answer, Rejection)


@pytest.mark.parametrize(
    ("lanes", "lane", "is_refused"),
    [
        (Lanes.TENANT, PUBLICS, False),
        (Lanes.TENANT, "persistent://rival/ledger-deletion/__ledger_deletion", True),
        (Lanes.NAMESPACE, DEFAULTS, False),
        (Lanes.NAMESPACE, "persistent://public/other/__ledger_deletion", True),
        (Lanes.NAMESPACE, "persistent://rival/default/__ledger_deletion", True),
        (Lanes.NAMESPACE, SYSTEM, False),
    ],
)
def test_a_lane_requests_ledgers_of_its_own_only(lanes: Lanes, lane: str, is_refused: bool) -> None:
    assert _refused(lanes, lane, data_request(5)) is is_refused


def test_a_listed_topic_with_a_lanes_name_is_no_lane() -> None:
    rules = Admission(
        request_topics=frozenset({SYSTEM, DEFAULTS}), trusted_tenants=frozenset({"pulsar"}), lanes=Lanes.NAMESPACE
    )
    request = replace(data_request(5), managed_ledger="public/other/persistent/t")
    assert admit(request, DEFAULTS, rules) == request


def test_each_tenants_first_topic_comes_before_any_tenants_second() -> None:
    a, b, c = (f"persistent://a/{name}/x" for name in "abc")
    other = "persistent://b/a/x"
    assert fair_by_tenant([c, other, b, a]) == [a, other, b, c]
