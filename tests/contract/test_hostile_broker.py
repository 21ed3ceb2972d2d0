"""A broker that answers 500s, nothing, slow bytes or endless redirects does not delay the topics of another broker.

No times are measured here: the hostile broker answers only after the honest broker got the requests for all its topics,
or never, and its requests are counted. bench/hostile_broker.py measures times.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from streaming.adapters.pulsar.admin_api import loaded
from streaming.adapters.pulsar.admin_api.broker import AdminBroker
from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp
from streaming.adapters.pulsar.silence import silence
from streaming.config.hosts import hosts_of
from streaming.errors import UnavailableError
from udfs.records import Presence

TOPICS = 40
CONCURRENCY = 8
LOADED = "/admin/v2/broker-stats/bookieops"
STATS = json.dumps({"ledgers": [], "cursors": {}, "schemaLedgers": [], "compactedLedger": {"ledgerId": -1}}).encode()
WAIT_S = 60  # longer than any test takes

Misbehave = Callable[[BaseHTTPRequestHandler, "Server"], None]


class Server:
    """A broker with topics of its own.

    Args:
        misbehave: handles requests about its topics; None: it answers them.
        tenants: of its topics, besides a tenant with the server's name.
    """

    def __init__(
        self,
        name: str,
        misbehave: Misbehave | None = None,
        *,
        tenants: Sequence[str] = (),
        is_silent_about_all: bool = False,
    ) -> None:
        self.name, self.misbehave, self.is_silent_about_all = name, misbehave, is_silent_about_all
        self.tenants = (name, *tenants)
        self.url = ""
        self.requests = 0
        self.counted = threading.Lock()
        self.has_all_requests = threading.Event()
        self.ended = threading.Event()

    @property
    def names(self) -> list[str]:
        return self.of(self.name)

    def of(self, tenant: str) -> list[str]:
        return [f"{tenant}/ns/persistent/{number}" for number in range(TOPICS)]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == LOADED and not self.is_silent_about_all:
            loaded: dict[str, dict[str, dict[str, int]]] = {
                f"{tenant}/ns": {f"persistent://{tenant}/ns/{number}": {} for number in range(TOPICS)}
                for tenant in self.tenants
            }
            answer_with(handler, 200, json.dumps(loaded).encode())
            return
        with self.counted:
            self.requests += 1
            if self.requests == TOPICS:
                self.has_all_requests.set()
        if self.misbehave is None:
            answer_with(handler, 200, STATS)
        else:
            self.misbehave(handler, self)


def answer_with(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, text in (("Content-Length", str(len(body))), *headers.items()):
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    opened = []
    for server in servers:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            misbehaving = server

            def do_GET(self) -> None:
                with suppress(OSError):
                    self.misbehaving.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http_server.daemon_threads = True
        server.url = f"http://127.0.0.1:{http_server.server_address[1]}"
        threading.Thread(target=http_server.serve_forever, args=(0.05,), daemon=True).start()
        opened.append(http_server)
    silence.forget()
    try:
        yield
    finally:
        for server, http_server in zip(servers, opened, strict=True):
            server.ended.set()
            http_server.shutdown()
            http_server.server_close()


def fails(handler: BaseHTTPRequestHandler, _server: Server) -> None:
    answer_with(handler, 500, b"{}")


def is_silent(_handler: BaseHTTPRequestHandler, server: Server) -> None:
    server.ended.wait(WAIT_S)


def dribbles(handler: BaseHTTPRequestHandler, server: Server) -> None:
    """Send a complete header, then a body that never ends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not server.ended.wait(0.05):
        handler.wfile.write(b" ")


def dribbles_headers(handler: BaseHTTPRequestHandler, server: Server) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Y: ")
    while not server.ended.wait(0.05):
        handler.wfile.write(b"z")


def redirects(handler: BaseHTTPRequestHandler, server: Server) -> None:
    answer_with(handler, 307, b"", Location=f"{server.url}{handler.path}")


RARE = (dribbles, redirects)
EVERY = [
    pytest.param(fault, id=fault.__name__, marks=pytest.mark.long if fault in RARE else ())
    for fault in (fails, is_silent, dribbles, dribbles_headers, redirects)
]


def _broker(honest: Server, *others: Server, timeout_seconds: float = 2.0) -> AdminBroker:
    settings = PulsarAdminSettings(admin_url=honest.url, timeout_seconds=timeout_seconds, concurrency=CONCURRENCY)
    return AdminBroker(settings, lambda: [honest.url, *(other.url for other in others)])


@pytest.mark.parametrize("misbehave", EVERY)
def test_a_hostile_brokers_topics_are_unreadable_in_bounded_time_and_all_others_are_read(misbehave: Misbehave) -> None:
    honest, hostile = Server("honest"), Server("hostile", misbehave)
    with serving(honest, hostile):
        broker = _broker(honest, hostile)
        mixed = [name for pair in zip(hostile.names, honest.names, strict=True) for name in pair]

        views = dict(zip(mixed, broker.views(mixed), strict=True))

        assert {views[name].presence for name in honest.names} == {Presence.PRESENT}
        assert {views[name].presence for name in hostile.names} == {Presence.UNREADABLE}
        if misbehave not in (fails, redirects):  # those cost no time
            before = hostile.requests
            assert before <= 2 * CONCURRENCY, "requests after two timeouts in a row"
            broker.views(mixed)
            assert hostile.requests <= before + 1, "more than a try every ten seconds"
        broker.close()


def test_an_honest_brokers_topics_are_requested_before_a_hostile_broker_answers() -> None:
    honest = Server("honest")

    def waits(handler: BaseHTTPRequestHandler, _server: Server) -> None:
        answer_with(handler, 200 if honest.has_all_requests.wait(WAIT_S) else 500, STATS)

    hostile = Server("hostile", waits)
    with serving(honest, hostile):
        broker = _broker(honest, hostile, timeout_seconds=WAIT_S)

        views = broker.views([*hostile.names, *honest.names])

        assert {view.presence for view in views} == {Presence.PRESENT}, (
            "the hostile broker answers after the honest broker"
        )
        broker.close()


@pytest.mark.parametrize("misbehave", EVERY)
def test_a_broker_without_a_list_hides_only_topics_that_no_other_has_loaded(misbehave: Misbehave) -> None:
    honest, hostile = Server("honest"), Server("hostile", misbehave, is_silent_about_all=True)
    with serving(honest, hostile):
        broker = _broker(honest, hostile)
        names = [*hostile.names, *honest.names]

        for _chunk in range(3):
            presences = [view.presence for view in broker.views(names)]
            assert presences == [Presence.UNREADABLE] * TOPICS + [Presence.PRESENT] * TOPICS
        assert hostile.requests <= 2 * 4, (
            "more than one round of requests, and a try every ten seconds after two timeouts"
        )
        broker.close()


def test_a_caller_waits_once_for_a_broker_that_starts_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(loaded, "_USED_SECONDS", -1.0)  # no earlier answer is used
    server, hangs, unanswered = Server("honest"), threading.Event(), threading.Semaphore(0)
    gone = "honest/ns/persistent/gone"
    answer = server.answer

    def hangs_for_its_list(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/admin/v2/persistent/honest/ns?"):
            answer_with(handler, 200, b"[]")
            return
        if handler.path == LOADED and hangs.is_set():
            unanswered.release()
            server.ended.wait(10 * WAIT_S)
        answer(handler)

    server.answer = hangs_for_its_list  # type: ignore[method-assign]
    with serving(server), ThreadPoolExecutor() as threads:
        broker = _broker(server, timeout_seconds=10 * WAIT_S)

        def presence() -> Presence:
            (view,) = threads.submit(broker.views, [gone]).result(WAIT_S)
            return view.presence

        assert presence() is Presence.GONE
        hangs.set()
        assert [presence() for _ in range(3)] == [Presence.UNREADABLE] * 3
        assert unanswered.acquire(timeout=WAIT_S)
        assert not unanswered.acquire(blocking=False), "more than one request while the broker has not answered"
        hangs.clear()
        server.ended.set()
        while presence() is not Presence.GONE:
            pass
        broker.close()


def test_a_timeout_after_a_redirect_counts_for_the_owner() -> None:
    owner = Server("owner", is_silent)

    def to_the_owner(handler: BaseHTTPRequestHandler, _server: Server) -> None:
        answer_with(handler, 307, b"", Location=f"{owner.url}{handler.path}")

    first, second = Server("first", to_the_owner), Server("second", to_the_owner)
    with serving(owner, first, second):
        url = f"{first.url},{second.url.removeprefix('http://')}"
        with PulsarHttp(PulsarAdminSettings(admin_url=url, timeout_seconds=0.3)) as http:
            for _ in range(5):
                with pytest.raises(UnavailableError):
                    http.get("v2/persistent/t/ns/x/internalStats")

        assert hosts_of(url).in_order == (first.url, second.url)
        assert second.requests == 0, "the second broker would redirect to the same owner"
        assert owner.requests == 2, "requests after two timeouts in a row"


def test_retries_at_a_failing_broker_are_limited() -> None:
    """The third time, its topics are requested once, without retries."""
    hostile = Server("hostile", fails)
    with serving(hostile):
        broker = _broker(hostile, timeout_seconds=WAIT_S)
        for times in (4, 4, 1):
            hostile.requests = 0
            assert {view.presence for view in broker.views(hostile.names)} == {Presence.UNREADABLE}
            assert hostile.requests == times * TOPICS
        broker.close()


def test_a_successful_retry_ends_the_limit() -> None:
    hostile = Server(
        "hostile", lambda handler, server: answer_with(handler, 500 if server.requests <= TOPICS else 200, STATS)
    )
    with serving(hostile):
        broker = _broker(hostile, timeout_seconds=WAIT_S)
        for _ in range(3):
            hostile.requests = 0
            assert {view.presence for view in broker.views(hostile.names)} == {Presence.PRESENT}
        broker.close()


def _is_silent_about(*tenants: str) -> Misbehave:
    def misbehave(handler: BaseHTTPRequestHandler, server: Server) -> None:
        if handler.path.removeprefix("/admin/v2/persistent/").startswith(tuple(f"{tenant}/" for tenant in tenants)):
            server.ended.wait(WAIT_S)
        else:
            answer_with(handler, 200, STATS)

    return misbehave


@pytest.mark.parametrize(
    "noisy",
    [
        pytest.param(("noisy",), id="one tenant", marks=pytest.mark.long),
        pytest.param(("noisy", "loud"), id="two tenants"),
    ],
)
def test_tenants_with_hanging_topics_hide_no_topic_of_another_tenant(noisy: tuple[str, ...]) -> None:
    """Eight hanging topics used to take all threads of their broker, and then counted as a hanging broker."""
    server = Server("honest", _is_silent_about(*noisy), tenants=noisy)
    with serving(server):
        broker = _broker(server)
        hanging = [name for tenant in noisy for name in server.of(tenant)]
        for chunk in ([*hanging, *server.names], [*server.names, *hanging], hanging, [*hanging, *server.names]):
            views = dict(zip(chunk, broker.views(chunk), strict=True))
            assert {views[name].presence for name in hanging} == {Presence.UNREADABLE}
            assert {views[name].presence for name in server.names if name in views} <= {Presence.PRESENT}
        broker.close()


def test_one_answer_resets_a_broker_that_hung_for_some_tenants() -> None:
    server = Server("honest", _is_silent_about("noisy", "loud"), tenants=("noisy", "loud"))
    with serving(server):
        broker = _broker(server)
        hanging = [*server.of("noisy"), *server.of("loud")]
        broker.views([name for pair in zip(server.of("noisy"), server.of("loud"), strict=True) for name in pair])

        views = broker.views([*hanging, *server.names])

        assert {view.presence for view in views[: len(hanging)]} == {Presence.UNREADABLE}
        assert {view.presence for view in views[len(hanging) :]} == {Presence.PRESENT}
        broker.close()


def test_a_broker_that_hangs_for_all_tenants_costs_no_timeout_per_tenant() -> None:
    tenants = [f"tenant-{number}" for number in range(TOPICS)]
    server = Server("first", is_silent, tenants=tenants)
    with serving(server):
        broker = _broker(server)
        names = [server.of(tenant)[0] for tenant in tenants]
        assert {view.presence for view in broker.views(names)} == {Presence.UNREADABLE}
        before = server.requests
        assert before <= 2 * CONCURRENCY, "requests after timeouts of two tenants"
        for _chunk in range(3):
            assert {view.presence for view in broker.views(names)} == {Presence.UNREADABLE}
        assert server.requests <= before + 2, (
            "more than two tries every ten seconds: for slow tenants and for the others"
        )
        broker.close()


def test_hanging_lists_of_namespaces_hide_no_loaded_topic() -> None:
    """Two lists without an answer used to count for the broker, or for all topics of their tenant there."""
    server = Server("honest")
    hanging = ["hangs/a", "b-hangs/b", "honest/a", "honest/b"]
    answer = server.answer

    def hangs_for_lists(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.partition("?")[0].removeprefix("/admin/v2/persistent/") in hanging:
            server.ended.wait(WAIT_S)
        elif handler.path.partition("?")[0] == "/admin/v2/persistent/idle/ns":
            answer_with(handler, 200, b'["persistent://idle/ns/1"]')
        else:
            answer(handler)

    server.answer = hangs_for_lists  # type: ignore[method-assign]
    with serving(server):
        broker = _broker(server)
        unlisted = [f"{namespace}/persistent/1" for namespace in hanging]
        for _ in range(3):
            views = broker.views([*unlisted, "idle/ns/persistent/1", *server.names])
            assert {view.presence for view in views[: len(unlisted)]} == {Presence.UNREADABLE}
            assert {view.presence for view in views[len(unlisted) :]} == {Presence.PRESENT}
        broker.close()


def test_threads_of_brokers_that_no_longer_run_end() -> None:
    """Brokers may get other addresses after a restart, for example in containers."""
    servers = [Server(f"tenant-{number}") for number in range(3)]
    with serving(*servers):
        running: list[str] = []
        broker = AdminBroker(PulsarAdminSettings(admin_url=servers[0].url, concurrency=1), lambda: running)
        before, of_a_broker = set(threading.enumerate()), []
        for server in servers:
            running[:] = [server.url]
            assert {view.presence for view in broker.views(server.names)} == {Presence.PRESENT}
            admin_threads = {thread for thread in threading.enumerate() if thread.name.startswith("admin")}
            of_a_broker.append(admin_threads - before)
            before |= of_a_broker[-1]
        assert all(of_a_broker), "a broker without its own threads"
        for thread in of_a_broker[0] | of_a_broker[1]:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        broker.close()
