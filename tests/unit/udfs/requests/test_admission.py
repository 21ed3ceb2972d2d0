"""The rights of a request: those of the topic to which it was first published, limited by the configuration."""

from dataclasses import replace

import pytest

from tests.builders import TOPIC, cursor_request, data_request, segment_request, snapshot_request
from udfs.owners.sightings import OWNER_ABSENT_SINCE
from udfs.records import LedgerComponent, PendingDelete, Reason, Rejection
from udfs.requests.admission import Admission, admit, first_topic
from udfs.requests.retry import ORIGIN_MESSAGE_ID, REAL_TOPIC, RECONSUMETIMES, as_original
from udfs.requests.topic_pattern import parse_pattern
from udfs.snapshots.keys import SnapshotKind

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
OURS, THEIRS = "persistent://public/reaper/requests", "persistent://rival/reaper/requests"
RULES = Admission(request_topics=frozenset({SYSTEM, OURS, THEIRS}), trusted_tenants=frozenset({"pulsar"}))


@pytest.mark.parametrize(
    ("requester", "rules", "reason"),
    [
        pytest.param(SYSTEM, RULES, None, id="a trusted tenant's topic names any owner"),
        pytest.param(OURS, RULES, None, id="a tenant's own topic names its own"),
        pytest.param(THEIRS, RULES, Reason.OTHER_TENANT, id="a tenant's ledger, requested by another tenant"),
        pytest.param(THEIRS, replace(RULES, trusted_tenants=frozenset({"rival"})), None, id="unless it is trusted"),
        pytest.param(SYSTEM, replace(RULES, namespaces=frozenset({"public/default"})), None, id="namespace allowed"),
        pytest.param(SYSTEM, replace(RULES, namespaces=frozenset({"public"})), None, id="its tenant allowed"),
        pytest.param(
            SYSTEM,
            replace(RULES, namespaces=frozenset({"public/other"})),
            Reason.REQUESTER_NOT_ALLOWED,
            id="another namespace allowed",
        ),
        pytest.param(
            SYSTEM,
            replace(RULES, components=frozenset({LedgerComponent.SCHEMA_STORAGE})),
            Reason.REQUESTER_NOT_ALLOWED,
            id="another component allowed",
        ),
    ],
)
def test_a_request_is_refused_unless_its_topic_has_the_right_to_it(
    requester: str, rules: Admission, reason: Reason | None
) -> None:
    answer = admit(data_request(5), requester, rules)
    assert answer == data_request(5) if reason is None else isinstance(answer, Rejection) and answer.reason is reason


@pytest.mark.parametrize("asked", [snapshot_request(SnapshotKind.SINGLE, 0, (100, 0)), segment_request()])
def test_what_brokers_delete_is_removed_only_if_the_configuration_names_its_component(asked: PendingDelete) -> None:
    for components in (frozenset[LedgerComponent](), frozenset({LedgerComponent.MANAGED_LEDGER})):
        answer = admit(asked, SYSTEM, replace(RULES, components=components))
        assert isinstance(answer, Rejection)
        assert answer.reason is Reason.REQUESTER_NOT_ALLOWED
    assert admit(asked, SYSTEM, replace(RULES, components=frozenset(LedgerComponent))) == asked


@pytest.mark.parametrize("topic", ["pulsar/x/persistent/t", "publicx/y/persistent/t"])
def test_a_tenant_is_not_another_tenant_with_the_same_prefix(topic: str) -> None:
    assert isinstance(admit(cursor_request(5, topic), OURS, RULES), Rejection)


@pytest.mark.parametrize(
    ("source", "claimed", "first"),
    [
        pytest.param(
            f"{THEIRS}-partition-3",
            SYSTEM,
            THEIRS,
            id="a request topic has its own rights, whatever the property names",
        ),
        pytest.param(f"{SYSTEM}-RETRY-partition-0", THEIRS, THEIRS, id="a retry speaks for its first topic"),
        pytest.param(f"{SYSTEM}-RETRY", None, f"{SYSTEM}-RETRY", id="a retry without the property"),
        pytest.param(
            "persistent://rival/reaper/requests-RETRY",
            "persistent://pulsar/system/anything",
            "persistent://rival/reaper/requests-RETRY",
            id="a topic that is none of ours is no authority",
        ),
    ],
)
def test_a_request_has_the_rights_of_the_topic_it_was_first_published_to(
    source: str, claimed: str | None, first: str
) -> None:
    assert first_topic(source, {REAL_TOPIC: claimed}, RULES) == first


def test_a_message_on_a_request_topic_counts_as_first_published_there() -> None:
    forged = {
        RECONSUMETIMES: "9",
        REAL_TOPIC: SYSTEM,
        ORIGIN_MESSAGE_ID: "1:1:1",
        OWNER_ABSENT_SINCE: "1:signature",
        "a": TOPIC,
    }
    assert as_original(forged) == {"a": TOPIC}


def test_a_topic_of_the_pattern_has_its_own_tenants_rights_also_in_a_copy_and_after_it_is_gone() -> None:
    rules = Admission(
        request_topics=frozenset({SYSTEM}),
        trusted_tenants=frozenset({"pulsar"}),
        requests_pattern=parse_pattern("persistent://.*/r/d"),
    )
    theirs = "persistent://rival/r/d"
    retry = "persistent://pulsar/ledger-deletion/r-RETRY-partition-1"
    assert first_topic(f"{theirs}-partition-2", {REAL_TOPIC: SYSTEM}, rules) == theirs
    assert first_topic(retry, {REAL_TOPIC: theirs}, rules) == theirs
    assert first_topic(retry, {REAL_TOPIC: "persistent://]/r/d"}, rules) == retry.removesuffix("-partition-1")
    refused = admit(data_request(), theirs, rules)
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.OTHER_TENANT
