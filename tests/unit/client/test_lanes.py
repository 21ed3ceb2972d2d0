"""No request is sent where it could be lost: the rules of a request topic, with the answers that brokers give."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ledger_reaper_client import ForbiddenError, RefusedError, Settings, UnavailableError
from ledger_reaper_client.admin import Admin
from ledger_reaper_client.lanes import check_stored, ensure_request_topic
from ledger_reaper_client.settings import MOST_PARTITIONS
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub

SPACE = "acme/ledger-deletion"
LANE = f"persistent://{SPACE}/__ledger_deletion"
OTHER = "persistent://acme/app/deletions"
FORBIDDEN = CannedAnswer(401, b'{"reason":"no right"}')
MISSING = CannedAnswer(404, b'{"reason":"not found"}')
DONE = CannedAnswer(204)


def path(topic: str) -> str:
    return f"/admin/v2/persistent/{topic.partition('://')[2]}"


def partitions(count: int) -> CannedAnswer:
    return CannedAnswer(200, json.dumps({"partitions": count}).encode())


def stats(*subscriptions: str, entries: int = 0) -> CannedAnswer:
    body = {
        "ledgers": [{"ledgerId": 3, "entries": entries, "offloaded": False}],
        "currentLedgerEntries": entries,
        "cursors": {name: {"markDeletePosition": "3:-1"} for name in subscriptions},
        "lastConfirmedEntry": f"3:{entries - 1}",
    }
    return CannedAnswer(200, json.dumps(body).encode())


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    """A lane with a partition, its subscription and a message, and a role that may only produce."""
    with http_stub() as opened:
        for topic in (LANE, OTHER):
            opened.answer_with(f"{path(topic)}/partitions", partitions(1))
            opened.answer_with(f"{path(topic)}-partition-0/internalStats", stats("ledger-reaper", entries=1))
            opened.answer_with(f"{path(topic)}-partition-0/subscription/ledger-reaper", FORBIDDEN)
            for policy in ("messageTTL", "backlogQuotaMap"):
                opened.answer_with(f"{path(topic)}/{policy}", FORBIDDEN)
        for space in (SPACE, "acme/app"):
            opened.answer_with(f"/admin/v2/namespaces/{space}", FORBIDDEN)
        yield opened


def change(stub: HttpStub, at: str, *answers: CannedAnswer) -> None:
    stub.answers[at].clear()
    stub.answer_with(at, *answers)


def settings(stub: HttpStub) -> Settings:
    return Settings("pulsar://127.0.0.1:1", stub.url, lanes="tenant", timeout_seconds=2)


def ensure(stub: HttpStub, topic: str = LANE) -> int:
    return ensure_request_topic(Admin(settings(stub)), settings(stub), topic)


def check(stub: HttpStub) -> None:
    check_stored(Admin(settings(stub)), settings(stub), LANE)


def changed(stub: HttpStub) -> list[str]:
    return [request.path.partition("?")[0] for request in stub.requests if request.method != "GET"]


@pytest.mark.parametrize("topic", [LANE, OTHER])
def test_a_role_that_may_only_produce_can_use_a_complete_topic(stub: HttpStub, topic: str) -> None:
    assert ensure(stub, topic) == 1
    assert changed(stub) == []
    check(stub)


@pytest.mark.parametrize("topic", [LANE, OTHER])
def test_a_partition_without_the_services_subscription_is_refused(stub: HttpStub, topic: str) -> None:
    change(stub, f"{path(topic)}/partitions", partitions(2))
    stub.answer_with(f"{path(topic)}-partition-1/internalStats", stats("another"))
    stub.answer_with(f"{path(topic)}-partition-1/subscription/ledger-reaper", FORBIDDEN)
    with pytest.raises(RefusedError, match="-partition-1 has no subscription ledger-reaper"):
        ensure(stub, topic)


@pytest.mark.parametrize("topic", [LANE, OTHER])
def test_a_topic_without_partitions_is_refused(stub: HttpStub, topic: str) -> None:
    change(stub, f"{path(topic)}/partitions", partitions(0))
    with pytest.raises(RefusedError, match="is not partitioned"):
        ensure(stub, topic)


def test_a_lane_with_more_partitions_than_the_service_reads_is_refused(stub: HttpStub) -> None:
    change(stub, f"{path(LANE)}/partitions", partitions(MOST_PARTITIONS + 1))
    with pytest.raises(RefusedError, match="reads no lane of more than 64"):
        ensure(stub)
    with pytest.raises(UnavailableError, match="may be lost"):
        check(stub)
    assert not any("internalStats" in request.path for request in stub.requests)
    change(stub, f"{path(OTHER)}/partitions", partitions(MOST_PARTITIONS + 1))
    for number in range(1, MOST_PARTITIONS + 1):
        stub.answer_with(f"{path(OTHER)}-partition-{number}/internalStats", stats("ledger-reaper", entries=1))
    assert ensure(stub, OTHER) == MOST_PARTITIONS + 1, "the operator lists this topic"


def test_a_missing_topic_that_is_no_lane_is_not_created(stub: HttpStub) -> None:
    change(stub, f"{path(OTHER)}/partitions", MISSING)
    with pytest.raises(RefusedError, match="there is no topic"):
        ensure(stub, OTHER)
    assert changed(stub) == []


def test_a_role_without_the_right_to_create_a_lane_gets_the_remedy(stub: HttpStub) -> None:
    change(stub, f"{path(LANE)}/partitions", MISSING)
    with pytest.raises(ForbiddenError, match="have the tenant's administrator send the first request"):
        ensure(stub)


def test_a_lane_gets_its_subscriptions_before_its_policies(stub: HttpStub) -> None:
    change(stub, f"{path(LANE)}/partitions", MISSING, DONE, partitions(1))
    change(stub, f"{path(LANE)}-partition-0/internalStats", stats())
    change(stub, f"{path(LANE)}-partition-0/subscription/ledger-reaper", DONE)
    change(stub, f"/admin/v2/namespaces/{SPACE}", MISSING, DONE, CannedAnswer(200, b"{}"))
    stub.answer_with(f"/admin/v2/namespaces/{SPACE}/autoTopicCreation", CannedAnswer(200), DONE)
    for policy in ("retention", "messageTTL", "backlogQuota"):
        change(stub, f"{path(LANE)}/{policy}", DONE)
    assert ensure(stub) == 1
    assert changed(stub) == [
        f"/admin/v2/namespaces/{SPACE}",
        f"/admin/v2/namespaces/{SPACE}/autoTopicCreation",
        f"{path(LANE)}/partitions",
        f"{path(LANE)}-partition-0/subscription/ledger-reaper",
        *(f"{path(LANE)}/{policy}" for policy in ("retention", "messageTTL", "backlogQuota", "backlogQuota")),
    ]


def test_a_lane_that_has_messages_keeps_its_policies(stub: HttpStub) -> None:
    for policy in ("retention", "messageTTL", "backlogQuota"):
        change(stub, f"{path(LANE)}/{policy}", CannedAnswer(200, b"0"))
    ensure(stub)
    assert changed(stub) == []


@pytest.mark.parametrize(
    ("policy", "body", "named"),
    [
        ("messageTTL", 60, "message TTL"),
        ("backlogQuotaMap", {"message_age": {"limitTime": 9, "policy": "consumer_backlog_eviction"}}, "evicts"),
        ("backlogQuotaMap", {"destination_storage": {"limitSize": 9, "policy": "consumer_backlog_eviction"}}, "evicts"),
    ],
)
def test_a_topic_that_discards_unread_requests_is_refused(stub: HttpStub, policy: str, body: Any, named: str) -> None:
    change(stub, f"{path(LANE)}/{policy}", CannedAnswer(200, json.dumps(body).encode()))
    with pytest.raises(RefusedError, match=named):
        ensure(stub)


def test_a_namespaces_quota_counts_unless_the_topic_has_its_own(stub: HttpStub) -> None:
    evicting = {"destination_storage": {"limitSize": 9, "policy": "consumer_backlog_eviction"}}
    policies = json.dumps({"backlog_quota_map": evicting}).encode()
    change(stub, f"/admin/v2/namespaces/{SPACE}", CannedAnswer(200, policies))
    with pytest.raises(RefusedError, match="evicts"):
        ensure(stub)
    own = {"destination_storage": {"limitSize": -1, "policy": "producer_request_hold"}}
    change(stub, f"{path(LANE)}/backlogQuotaMap", CannedAnswer(200, json.dumps(own).encode()))
    assert ensure(stub) == 1


@pytest.mark.parametrize("answer", [MISSING, partitions(0)])
def test_requests_that_were_stored_in_a_deleted_lane_may_be_lost(stub: HttpStub, answer: CannedAnswer) -> None:
    change(stub, f"{path(LANE)}/partitions", answer)
    with pytest.raises(UnavailableError, match="may be lost"):
        check(stub)


def test_requests_that_were_stored_in_a_lane_without_its_subscription_may_be_lost(stub: HttpStub) -> None:
    change(stub, f"{path(LANE)}-partition-0/internalStats", stats("another"))
    with pytest.raises(UnavailableError, match="may be lost"):
        check(stub)
