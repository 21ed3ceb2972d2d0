"""Running brokers are read from ZooKeeper; an unreadable record never means that there is one broker less."""

import json
import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.pulsar.admin_api import loaded as module
from streaming.adapters.pulsar.admin_api.loaded import KIND, LoadedTopics, running_brokers
from streaming.adapters.pulsar.http import Answer, PulsarHttp
from streaming.adapters.pulsar.silence import silence
from streaming.clock import ManualClock
from streaming.errors import UnavailableError
from tests.builders import NOW_MS, put
from udfs.paths import BROKERS


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree(ManualClock(NOW_MS))


def _broker(tree: MemoryTree, name: str, **known: object) -> None:
    put(tree, f"{BROKERS}/{name}", json.dumps(known).encode())


def test_each_broker_is_used_at_its_advertised_address(tree: MemoryTree) -> None:
    _broker(tree, "b:8080", webServiceUrl="http://b:8080", webServiceUrlTls="https://b:8443/")
    _broker(tree, "a:8080", webServiceUrl="http://a:8080", webServiceUrlTls="https://a:8443")

    assert running_brokers(MemoryStore(tree), use_tls=False) == ["http://a:8080", "http://b:8080"]
    assert running_brokers(MemoryStore(tree), use_tls=True) == ["https://a:8443", "https://b:8443"]


def test_a_broker_without_an_address_of_the_scheme_is_an_error(tree: MemoryTree) -> None:
    _broker(tree, "a:8080", webServiceUrl="http://a:8080")
    _broker(tree, "b:8443", webServiceUrlTls="https://b:8443", webServiceUrl=None)

    for use_tls in (True, False):
        with pytest.raises(UnavailableError, match="has no http"):
            running_brokers(MemoryStore(tree), use_tls=use_tls)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"[" * 100_000], ids=["empty", "half", "a list", "nested"])
def test_an_unknown_format_is_an_error(tree: MemoryTree, data: bytes) -> None:
    put(tree, f"{BROKERS}/a:8080", data)

    with pytest.raises(UnavailableError, match="unknown format"):
        running_brokers(MemoryStore(tree), use_tls=False)


def test_a_store_without_registered_brokers_is_an_error(tree: MemoryTree) -> None:
    with pytest.raises(UnavailableError, match="chroot included"):
        running_brokers(MemoryStore(tree), use_tls=False)


class HangingHttp:
    """A broker that blocks the requesting thread, and answers at the end."""

    def __init__(self) -> None:
        self.was_asked, self.ended = threading.Event(), threading.Event()

    def get_from(self, _host: str, _path: str, *, deadline: float, kind: str) -> Answer:
        del deadline, kind
        self.was_asked.set()
        self.ended.wait(60)
        return Answer(200, {}, "")


def test_a_hanging_broker_is_not_waited_for_while_a_thread_is_blocked() -> None:
    host, http = "http://hangs:8080", HangingHttp()
    loaded = LoadedTopics(cast(PulsarHttp, http), lambda: [host])
    deadline = time.monotonic() + 60
    thread = threading.Thread(target=loaded.at, args=(host, deadline))
    thread.start()
    assert http.was_asked.wait(60)
    silence.timed_out(f"{host}{KIND}")
    silence.timed_out(f"{host}{KIND}")

    found = loaded.at(host, deadline)

    assert "left two requests in a row unanswered" in found.error
    http.ended.set()
    thread.join(60)
    silence.drop(host)


class TimedHttp:
    """A broker that takes a while for each answer, or gives none."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.takes_s: float | None = 0.1  # None: it gives no answer

    def get_from(self, _host: str, _path: str, *, deadline: float, kind: str) -> Answer:
        del kind
        if self.takes_s is None:
            self.now_s = deadline
            raise UnavailableError("no answer")
        self.now_s += self.takes_s
        return Answer(200, {"t/ns": {"persistent://t/ns/x": {}}}, "")


def test_a_broker_without_an_answer_is_not_waited_for_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    host, http = "http://a:8080", TimedHttp()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: http.now_s))
    loaded = LoadedTopics(cast(PulsarHttp, http), lambda: [host])

    def ask() -> float:
        http.now_s += 60  # no earlier answer is used
        loaded.at(host, http.now_s + 30)
        return loaded.patience_s(host, 30)

    assert loaded.patience_s(host, 30) == 30, "how long it takes is not known"
    assert ask() == 10
    http.takes_s = 2
    assert ask() == 20
    http.takes_s = 4
    assert ask() == 30
    http.takes_s = None
    assert ask() == 0
    assert ask() == 0
    http.takes_s = 0.1
    assert ask() == 10
