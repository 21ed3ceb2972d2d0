"""Brokers delete segments: what the service may rely on, and what a broker's answers mean."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from streaming.adapters.memory.segments import MemorySegmentRemover
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.pulsar.admin_api.segment_removal import BrokerSegmentRemover
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.clock import SystemClock
from streaming.errors import ReaperError, RefusedError, UnavailableError
from streaming.ports import SegmentRemover
from tests.builders import LAYOUT_PATH, ROOT, SEGMENT, layout_znode, list_znode, put
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from udfs.paths import Layout, managed_ledger_path

LAYOUT = "/admin/v2/scalable/public/default/orders"
CALL = "/admin/v2/segments/public/default/orders/0000-7fff-0"
UNNAMED = CannedAnswer(200, layout_znode(1, 2))
NO_TOPIC = CannedAnswer(404, b'{"reason": "Scalable topic not found: topic://public/default/orders"}')
CONNECTED = json.dumps(
    {
        "reason": "\n --- An unexpected error occurred ---\n\nMessage: Topic has 1 client\n\nStacktrace:\n\n"
        + "at x\n" * 999
    }
).encode()


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as running:
        running.answer_with(LAYOUT, UNNAMED)
        running.answer_with(CALL, CannedAnswer(204))
        yield running


@contextmanager
def _remover(*urls: str, timeout_seconds: float = 5.0) -> Iterator[BrokerSegmentRemover]:
    settings = PulsarAdminSettings(admin_url="http://127.0.0.1:1", timeout_seconds=timeout_seconds)
    remover = BrokerSegmentRemover(settings, lambda: list(urls))
    try:
        yield remover
    finally:
        remover.close()


def _delete(stub: HttpStub, segment: str = SEGMENT, *, may_send: Callable[[], bool] = lambda: True) -> bool:
    with _remover(stub.url) as remover:
        return remover.delete(segment, may_send)


def _calls(stub: HttpStub) -> list[str]:
    return [request.path for request in stub.requests if request.method == "DELETE"]


@pytest.fixture(params=["memory", "http"])
def remover(request: pytest.FixtureRequest, stub: HttpStub) -> Iterator[tuple[SegmentRemover, Callable[[bytes], None]]]:
    """Return a remover, and a function that replaces the layout."""
    if request.param == "http":

        def replace(layout: bytes) -> None:
            stub.answers[LAYOUT].clear()
            stub.answer_with(LAYOUT, CannedAnswer(200, layout))

        with _remover(stub.url) as remover:
            yield remover, replace
        return
    tree = MemoryTree(SystemClock())
    put(tree, LAYOUT_PATH, layout_znode(1, 2))
    put(tree, managed_ledger_path(SEGMENT), list_znode(5))
    memory = MemorySegmentRemover(tree, Layout.HIERARCHICAL, ROOT)
    yield memory, lambda layout: put(tree, LAYOUT_PATH, layout)


Remover = tuple[SegmentRemover, Callable[[bytes], None]]


def test_a_segment_that_no_layout_names_is_deleted(remover: Remover) -> None:
    assert remover[0].delete(SEGMENT, lambda: True)


def test_nothing_is_sent_unless_the_caller_allows_it(remover: Remover) -> None:
    assert not remover[0].delete(SEGMENT, lambda: False)


def test_a_segment_that_the_brokers_layout_names_is_kept(remover: Remover) -> None:
    remover[1](layout_znode(0, 1))
    assert not remover[0].delete(SEGMENT, lambda: True)


def test_a_layout_that_is_not_understood_keeps_the_segment(remover: Remover) -> None:
    remover[1](b"{}")
    with pytest.raises(UnavailableError):
        remover[0].delete(SEGMENT, lambda: True)


@pytest.mark.parametrize(
    "name",
    [
        "public/default/segment/a+b/0000-ffff-0",
        "public/default/segment/a%2520b/0000-ffff-0",
        "public/default/segment/persistent/0000-ffff-0",
        "public/default/persistent/orders",
    ],
)
def test_a_name_that_no_request_can_have_is_refused(remover: Remover, name: str) -> None:
    with pytest.raises(RefusedError, match="no request to a broker"):
        remover[0].delete(name, lambda: True)


@pytest.mark.parametrize(
    "name", ["../x/segment/y/0000-ffff-0", "t/../segment/y/0000-ffff-0", "t/n/segment/../0000-ffff-0"]
)
def test_a_name_that_would_lead_to_another_path_is_refused(stub: HttpStub, name: str) -> None:
    with suppress(ReaperError), pytest.raises(ValueError, match=r"."):
        _delete(stub, name)
    assert not stub.requests


def test_a_call_names_the_segment_exactly_and_never_forces(stub: HttpStub) -> None:
    stub.answers[LAYOUT].clear()
    stub.answer_with(LAYOUT, NO_TOPIC)
    assert _delete(stub)
    assert _calls(stub) == [CALL]


def test_nothing_is_sent_without_the_callers_word(stub: HttpStub) -> None:
    assert not _delete(stub, may_send=lambda: False)
    assert not _calls(stub)


@pytest.mark.parametrize(
    "answer",
    [
        CannedAnswer(200, layout_znode(0, 1)),
        CannedAnswer(200, b"{}"),
        CannedAnswer(404, b'{"reason": "Not Found"}'),
        CannedAnswer(404),
        CannedAnswer(500),
        CannedAnswer(403),
        CannedAnswer(307, headers=(("Location", "http://x/"),)),
    ],
    ids=["names it", "unknown form", "a broker before 5.0", "a proxy", "fails", "refuses", "redirects"],
)
def test_nothing_is_sent_unless_the_same_broker_has_just_returned_such_a_layout(
    stub: HttpStub, answer: CannedAnswer
) -> None:
    stub.answers[LAYOUT].clear()
    stub.answer_with(LAYOUT, answer)
    with suppress(UnavailableError):
        assert not _delete(stub)
    assert not _calls(stub)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(CannedAnswer(500, CONNECTED), RefusedError, id="clients are connected"),
        pytest.param(CannedAnswer(401), RefusedError, id="not authenticated"),
        pytest.param(CannedAnswer(403), RefusedError, id="not allowed"),
        pytest.param(CannedAnswer(404), RefusedError, id="a broker before 5.0"),
        pytest.param(CannedAnswer(405), RefusedError, id="another method"),
        pytest.param(CannedAnswer(429), UnavailableError, id="busy"),
        pytest.param(CannedAnswer(503), UnavailableError, id="starting"),
        pytest.param(CannedAnswer(504), UnavailableError, id="a proxy gave up"),
    ],
)
def test_only_a_success_counts_and_the_call_is_never_repeated(
    stub: HttpStub, answer: CannedAnswer, error: type[ReaperError]
) -> None:
    stub.answers[CALL].clear()
    stub.answer_with(CALL, answer)
    with pytest.raises(error) as raised:
        _delete(stub)
    assert len(_calls(stub)) == 1
    assert len(str(raised.value)) < 600


def test_a_broker_that_hangs_gets_one_call(stub: HttpStub) -> None:
    stub.answers[CALL].clear()
    stub.answer_with(CALL, CannedAnswer(204, after_seconds=3))
    with _remover(stub.url, timeout_seconds=0.5) as remover, pytest.raises(UnavailableError):
        remover.delete(SEGMENT, lambda: True)
    assert len(_calls(stub)) == 1


def _redirect(url: str, query: str = "?authoritative=true") -> CannedAnswer:
    return CannedAnswer(307, headers=(("Location", f"{url}{CALL}{query}"),))


def test_before_each_hop_the_caller_and_the_next_broker_are_asked_again(stub: HttpStub) -> None:
    asked: list[int] = []
    with http_stub() as owner:
        owner.answer_with(LAYOUT, UNNAMED)
        owner.answer_with(CALL, CannedAnswer(204))
        stub.answers[CALL].clear()
        stub.answer_with(CALL, _redirect(owner.url))
        with _remover(stub.url, owner.url) as remover:
            assert remover.delete(SEGMENT, lambda: asked.append(1) or True)  # type: ignore[func-returns-value]
        assert [request.path for request in owner.requests] == [LAYOUT, f"{CALL}?authoritative=true"]
    assert len(asked) == 2


def test_a_change_between_two_hops_keeps_the_segment(stub: HttpStub) -> None:
    answers = iter([True, False])
    with http_stub() as owner:
        owner.answer_with(LAYOUT, UNNAMED)
        stub.answers[CALL].clear()
        stub.answer_with(CALL, _redirect(owner.url))
        with _remover(stub.url, owner.url) as remover:
            assert not remover.delete(SEGMENT, lambda: next(answers))
        assert not _calls(owner)


@pytest.mark.parametrize("query", ["", "?force=true", "?authoritative=true&force=true"])
def test_a_redirect_adds_nothing_to_the_call(stub: HttpStub, query: str) -> None:
    with http_stub() as owner:
        owner.answer_with(LAYOUT, UNNAMED)
        owner.answer_with(CALL, CannedAnswer(204))
        stub.answers[CALL].clear()
        stub.answer_with(CALL, _redirect(owner.url, query))
        with _remover(stub.url, owner.url) as remover:
            remover.delete(SEGMENT, lambda: True)
        assert "force" not in _calls(owner)[0]


@pytest.mark.parametrize("where", ["another cluster", "another segment", "nowhere", "itself"])
def test_a_redirect_leads_only_to_this_segment_at_a_running_broker(stub: HttpStub, where: str) -> None:
    with http_stub() as other:
        other.answer_with(LAYOUT, UNNAMED)
        stub.answers[CALL].clear()
        answer = {
            "another cluster": _redirect(other.url),
            "another segment": CannedAnswer(307, headers=(("Location", f"{stub.url}{CALL}0"),)),
            "nowhere": CannedAnswer(307, headers=(("Location", ""),)),
            "itself": _redirect(stub.url),
        }[where]
        stub.answer_with(CALL, answer)
        with pytest.raises((UnavailableError, RefusedError)):
            _delete(stub)
        assert not other.requests
        assert len(_calls(stub)) <= 3


def test_without_a_running_broker_nothing_is_sent() -> None:
    with _remover() as remover, pytest.raises(UnavailableError, match="no broker runs"):
        remover.delete(SEGMENT, lambda: True)
