"""Calls of the admin API follow redirects, try again what may pass, and carry the role's secret to no other machine."""

import json
from collections.abc import Iterator

import pytest

from ledger_reaper_client import ForbiddenError, RefusedError, Settings, Token, UnavailableError
from ledger_reaper_client.admin import Admin
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub

LANE = "persistent://acme/ledger-deletion/__ledger_deletion"
PATH = "/admin/v2/persistent/acme/ledger-deletion/__ledger_deletion"
STATS = {
    "ledgers": [{"ledgerId": 3, "entries": 9, "offloaded": True}, {"ledgerId": 5, "entries": 0}],
    "currentLedgerEntries": 2,
    "cursors": {"a+b": {"markDeletePosition": "3:4"}},
    "lastConfirmedEntry": "5:1",
}


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as opened:
        yield opened


@pytest.fixture
def admin(stub: HttpStub) -> Admin:
    return Admin(admin_settings(stub.url))


def admin_settings(url: str, token: str = "") -> Settings:
    credentials = Token(token) if token else None
    return Settings("pulsar://127.0.0.1:1", url, lanes="tenant", timeout_seconds=2, credentials=credentials)


def test_a_redirect_is_followed_with_the_token_and_a_missing_topic_is_none(stub: HttpStub) -> None:
    elsewhere = CannedAnswer(307, headers=(("Location", f"{stub.url}/other{PATH}/partitions?x=1"),))
    stub.answer_with(f"{PATH}/partitions", elsewhere)
    stub.answer_with(f"/other{PATH}/partitions", CannedAnswer(200, b'{"partitions":3}'), CannedAnswer(404))
    admin = Admin(admin_settings(stub.url, "t"))
    assert admin.partitions(LANE) == 3
    assert admin.partitions(LANE) is None
    assert {request.authorization for request in stub.requests} == {"Bearer t"}
    assert stub.requests[0].path == f"{PATH}/partitions?checkAllowAutoCreation=false"
    assert stub.requests[1].path.endswith("?x=1")


def test_a_redirect_to_another_machine_without_tls_gets_no_token(stub: HttpStub) -> None:
    stub.answer_with(f"{PATH}/partitions", CannedAnswer(307, headers=(("Location", "http://192.0.2.1:1/x"),)))
    with pytest.raises(UnavailableError, match="no secret is sent there"):
        Admin(admin_settings(stub.url, "t")).partitions(LANE)


def test_what_may_pass_is_tried_again_at_each_host(stub: HttpStub) -> None:
    stub.answer_with(f"{PATH}/partitions", CannedAnswer(503), CannedAnswer(500), CannedAnswer(200, b'{"partitions":1}'))
    assert Admin(admin_settings(stub.url)).partitions(LANE) == 1
    port = stub.url.rpartition(":")[2]
    assert Admin(admin_settings(f"http://127.0.0.1:1,127.0.0.1:{port}")).partitions(LANE) == 1
    with pytest.raises(UnavailableError, match="check admin_url"):
        Admin(admin_settings("http://127.0.0.1:1")).partitions(LANE)


def test_endless_redirects_end(stub: HttpStub) -> None:
    stub.answer_with(f"{PATH}/partitions", CannedAnswer(307, headers=(("Location", f"{stub.url}{PATH}/partitions"),)))
    with pytest.raises(UnavailableError, match="redirects"):
        Admin(admin_settings(stub.url)).partitions(LANE)


@pytest.mark.parametrize(("status", "error"), [(401, ForbiddenError), (403, ForbiddenError), (412, RefusedError)])
def test_a_refusal_contains_the_brokers_reason(
    stub: HttpStub, admin: Admin, status: int, error: type[Exception]
) -> None:
    stub.answer_with(f"{PATH}/internalStats", CannedAnswer(status, b'{"reason":"because"}'))
    with pytest.raises(error, match="because"):
        admin.internal_stats(LANE)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"partitions":"3"}', b"[" * 100_000])
def test_an_answer_of_another_form_is_no_number_of_partitions(stub: HttpStub, admin: Admin, body: bytes) -> None:
    stub.answer_with(f"{PATH}/partitions", CannedAnswer(200, body))
    with pytest.raises(UnavailableError, match="unknown format"):
        admin.partitions(LANE)


def test_internal_stats_name_ledgers_cursors_and_the_newest_entry(stub: HttpStub, admin: Admin) -> None:
    stub.answer_with(f"{PATH}/internalStats", CannedAnswer(200, json.dumps(STATS).encode()), CannedAnswer(200, b"{}"))
    stats = admin.internal_stats(LANE)
    assert stats.ledgers == ((3, 9, True), (5, 2, False))
    assert (stats.cursors, stats.last) == ({"a+b": (3, 4)}, (5, 1))
    with pytest.raises(UnavailableError, match="unknown format"):
        admin.internal_stats(LANE)


def test_a_subscription_that_exists_stays_and_a_busy_one_is_tried_again(stub: HttpStub, admin: Admin) -> None:
    stub.answer_with(f"{PATH}/subscription/a%20b", CannedAnswer(409))
    stub.answer_with(f"{PATH}/internalStats", CannedAnswer(200, json.dumps(STATS).encode()))
    admin.subscribe(LANE, "a b")
    stub.answer_with(f"{PATH}/subscription/new", CannedAnswer(412), CannedAnswer(204))
    admin.subscribe(LANE, "new")
    assert [json.loads(each.body) for each in stub.requests if each.method == "PUT"] == 3 * [
        {"ledgerId": -1, "entryId": -1}
    ]
