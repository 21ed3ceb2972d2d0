"""The topics that a pattern matches, and those that no pattern may match."""

import pytest

from udfs.requests.topic_pattern import parse_pattern

ANY = r"persistent://[^/]+/.*/.*"


@pytest.mark.parametrize(
    ("pattern", "topic", "is_taken"),
    [
        pytest.param("persistent://acme/reaper/requests", "persistent://acme/reaper/requests", True, id="itself"),
        pytest.param("persistent://acme/reaper/requests", "persistent://acme/reaper/requests2", False, id="as a whole"),
        pytest.param("persistent://acme/reaper/a|b", "persistent://acme/reaper/b", True, id="alternatives in a part"),
        pytest.param("persistent://(a|b)/[^/]+/d.*", "persistent://b/x/deletions", True, id="a slash in a class"),
        pytest.param(r"persistent://a/[]/=\]]+/d", "persistent://a/==/d", True, id="a bracket in a class"),
        pytest.param("persistent://.*/__ledger_deletion/.*", "persistent://a/b/x", False, id="no part over a slash"),
        pytest.param(ANY, "persistent://acme/reaper/__ledger_deletion", True, id="PIP-186's name in a namespace"),
        pytest.param(ANY, "non-persistent://acme/reaper/x", False, id="not persistent"),
        pytest.param(ANY, "persistent://acme/cluster/reaper/x", False, id="a V1 name"),
        pytest.param(ANY, "persistent://acme/reaper/x-RETRY", False, id="retries"),
        pytest.param(ANY, "persistent://acme/reaper/x-sub-DLQ", False, id="dead letters of any subscription"),
        pytest.param(ANY, "persistent://acme/reaper/__ledger_deletion-RECEIPT", False, id="receipts"),
        pytest.param(ANY, "persistent://acme/reaper/x-partition-0", False, id="a partition"),
        pytest.param(ANY, "persistent://acme/reaper/__change_events", False, id="policies"),
        pytest.param(ANY, "persistent://acme/reaper/__transaction_buffer_snapshot", False, id="transactions"),
        pytest.param(ANY, "persistent://acme/reaper/x-s__transaction_pending_ack", False, id="pending acks"),
        pytest.param(ANY, "persistent://acme/reaper/x,y", False, id="two topics, to the connector"),
        pytest.param(ANY, "persistent://acme/reaper/x ", False, id="another topic, to the connector"),
        pytest.param(ANY, "persistent://acme/reaper/x y", True, id="a blank in the middle"),
        pytest.param("persistent://a/.*/d", "persistent://a/]]/d", False, id="no name at all"),
        pytest.param(ANY, "persistent://pulsar/system/x", False, id="Pulsar's own tenant"),
        pytest.param("persistent://pulsar/system/x", "persistent://pulsar/system/x", False, id="even by name"),
        pytest.param(ANY, "persistent://sla-monitor/c/h", False, id="the monitor's tenant"),
    ],
)
def test_a_topic_matches_by_its_whole_name_and_pulsars_own_never_do(pattern: str, topic: str, is_taken: bool) -> None:
    assert parse_pattern(pattern).matches(topic) is is_taken


@pytest.mark.parametrize(
    ("pattern", "tenant", "namespace"),
    [
        pytest.param("persistent://acme/reaper-1/x.*", "acme", "reaper-1", id="one namespace"),
        pytest.param("persistent://acme/.*/x", "acme", None, id="all of a tenant"),
        pytest.param("persistent://a.*/reaper/x", None, "reaper", id="a namespace of each tenant"),
    ],
)
def test_the_pattern_limits_the_tenants_and_namespaces_to_search(
    pattern: str, tenant: str | None, namespace: str | None
) -> None:
    parsed = parse_pattern(pattern)
    assert (parsed.only_tenant, parsed.only_namespace) == (tenant, namespace)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        pytest.param("acme/reaper/.*", "a pattern is persistent://", id="no scheme"),
        pytest.param("persistent://acme/.*", "a pattern is persistent://", id="two parts"),
        pytest.param("persistent://a/b/c/d", "a pattern is persistent://", id="four parts"),
        pytest.param("persistent://a//c", "a pattern is persistent://", id="an empty part"),
        pytest.param("persistent://(a/b|c/d)/x", "is persistent://", id="an alternative over a slash"),
        pytest.param("persistent://a/b/(c", "(c is not a regular expression", id="no regular expression"),
    ],
)
def test_a_text_that_is_no_pattern_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_pattern(pattern)
    assert says in str(refused.value)
