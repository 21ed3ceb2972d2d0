"""Queries that begin, wait and end while the service runs: request topics by pattern, subscriptions that are held."""

import json
import math
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from streaming.adapters.pulsar.publish import client
from streaming.clients import admin_for
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from tests.integration.conftest import Deploy, Deployment, add_request_topics, kill, payload, stop, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NOWHERE = "public/default/persistent/nowhere"
FIRST = 5 * 10**15


def _send(service: Deployment, topic: str, *payloads: bytes) -> None:
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(topic)
        for each in payloads:
            producer.send(each)


@contextmanager
def _in_front_of(admin_url: str, held: float, topic: str = "") -> Iterator[str]:
    """A proxy that answers the first resets of cursors as a broker does that still works at one for a run that died.

    topic: those of this one's partitions only; otherwise of all.
    """
    left, of = [held], f"{topic.removeprefix('persistent:/')}-partition-" if topic else ""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.endswith("/resetcursor") and of in self.path and left[0] > 0:
                left[0] -= 1
                reason = b'{"reason":"Failed for Subscription Busy: Failed to fence subscription"}'
                return self._answer(412, reason, "application/json")
            kind = self.headers.get("Content-Type", "application/json")
            with httpx.Client(trust_env=False, timeout=30) as http:
                told = http.request(self.command, admin_url + self.path, content=body, headers={"Content-Type": kind})
            return self._answer(told.status_code, told.content, told.headers.get("Content-Type", "application/json"))

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_subscription_that_is_held_when_the_service_starts_is_waited_for(cluster: Cluster, deploy: Deploy) -> None:
    service = deploy()
    service.request([payload(NOWHERE, FIRST + n) for n in range(3)])
    text = service.config.read_text()
    with _in_front_of(cluster.addresses.admin, held=3) as front:
        service.config.write_text(text.replace(cluster.addresses.admin, front))
        said = service.run("run", "--until-idle")
    assert 1 <= said.count("is waited for, 90 s at most") <= 2  # the queries of requests and of RETRY
    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 3}
    service.config.write_text(text)
    assert "PROBLEM" not in service.run("check")


@pytest.fixture
def tenants(cluster: Cluster) -> tuple[str, str]:
    """Two tenants, each with a namespace `reaper`."""
    named = (f"acme-{uuid.uuid4().hex[:8]}", f"rival-{uuid.uuid4().hex[:8]}")
    known = json.loads(topics.admin(cluster, "GET", "clusters"))
    for name in named:
        topics.admin(cluster, "PUT", f"tenants/{name}", {"allowedClusters": known, "adminRoles": []})
        topics.admin(cluster, "PUT", f"namespaces/{name}/reaper")
    return named


def test_request_topics_by_pattern_come_and_go_while_the_service_runs(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, tenants: tuple[str, str]
) -> None:
    acme, rival = tenants
    service, log = deploy(), tmp_path / "run.log"
    text = service.config.read_text()
    pattern = f"persistent://({acme}|{rival})/reaper/d.*"
    service.config.write_text(text.replace("[two_phase]", f'requests_pattern = "{pattern}"\n[two_phase]'))
    (first,) = service.settings.topics.requests
    acmes, later = f"persistent://{acme}/reaper/d1", f"persistent://{rival}/reaper/d2"
    with admin_for(service.settings) as admin:
        admin.create_partitioned_topic(acmes, 2)
        admin.create_partitioned_topic(f"{acmes}-RETRY", 2)
        running = service.start("run", log=log)
        try:
            wait_until(lambda: f"reading {acmes}, which matches" in log.read_text(), running, log)
            theirs = f"{rival}/reaper/persistent/t"
            _send(service, acmes, payload(f"{acme}/reaper/persistent/t", FIRST), payload(theirs, FIRST + 1))
            _send(service, first, payload(NOWHERE, FIRST + 2))
            wait_until(lambda: len(service.receipts()) == 3, running, log)
            admin.create_partitioned_topic(later, 2)
            wait_until(lambda: f"reading {later}, which matches" in log.read_text(), running, log)
            _send(service, later, payload(theirs, FIRST + 3))
            wait_until(lambda: len(service.receipts()) == 4, running, log)
            assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 3, ("DEAD_LETTER", "OTHER_TENANT"): 1}
            kill(running)
            _send(service, acmes, payload(f"{acme}/reaper/persistent/t", FIRST + 4))

            running = service.start("run", log=log)  # from its checkpoint: nothing twice, nothing lost
            wait_until(lambda: len(service.receipts()) == 5, running, log)
            admin.delete_topic(later, force=True)
            wait_until(lambda: f"{later} is gone" in log.read_text(), running, log)
            _send(service, acmes, payload(f"{acme}/reaper/persistent/t", FIRST + 5))
            wait_until(lambda: len(service.receipts()) == 6, running, log)
            stop(running)
        finally:
            kill(running)
        said = " ".join(service.run("check").split())
        assert "PROBLEM" not in said
        assert f"1 topic matches {pattern}" in said
        assert f"ok topic {acmes}" in said
        assert f"{later}, which {service.settings.checkpoints.dir}/requests-" in said
        assert service.run("run", "--until-idle").count(f"{later}, which") == 1
        assert len(service.receipts()) == 6
        assert f"{acmes}-RETRY" not in log.read_text()


def test_a_subscription_that_brokers_move_for_nobody_parks_its_topic_and_its_requests_are_done_all_the_same(
    cluster: Cluster, deploy: Deploy
) -> None:
    service = deploy()
    first, other = add_request_topics(service, "-other")
    _send(service, first, payload(NOWHERE, FIRST))
    _send(service, other, payload(NOWHERE, FIRST + 1))
    text = service.config.read_text()
    with _in_front_of(cluster.addresses.admin, held=math.inf, topic=other) as front:
        service.config.write_text(text.replace(cluster.addresses.admin, front))
        said = service.run("run", "--until-idle", seconds=400)
        assert "no topic is parked" in service.call("check")  # the fallback has processed all its messages
    assert f"{other} is parked, and the other topics go on" in said
    assert f"{first} is parked" not in said
    assert "has been held by another client for 90 s" in said
    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 2}


def test_whoever_consumes_by_our_subscription_keeps_nothing_back(deploy: Deploy) -> None:
    service = deploy()
    (topic,) = service.settings.topics.requests
    service.request([payload(NOWHERE, FIRST + n) for n in range(3)])
    with client(service.settings.pulsar) as opened:
        consumer = opened.subscribe(f"{topic}-partition-0", service.settings.topics.subscription)
        consumer.acknowledge_cumulative(consumer.receive(timeout_millis=30_000))
        said = service.run("run", "--until-idle")
        assert consumer.is_connected()
    assert "is waited for" not in said
    assert "is parked" not in said
    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 3}
