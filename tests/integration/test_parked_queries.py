"""Queries that start, wait and end while the service runs: request topics by pattern, subscriptions held by others."""

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
from streaming.sandbox.cluster import Cluster
from streaming.topics.setup import ensure_topics
from tests.combinations import with_connector
from tests.integration.conftest import (
    Deploy,
    Deployment,
    add_request_topics,
    create_tenant,
    kill,
    killed_at_the_end,
    payload,
    stop,
    wait_until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NOWHERE = "public/default/persistent/nowhere"
FIRST = 5 * 10**15


def _send(service: Deployment, topic: str, *payloads: bytes) -> None:
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(topic)
        for body in payloads:
            producer.send(body)


@contextmanager
def _refusing_resets(admin_url: str, held: float, topic: str = "") -> Iterator[str]:
    """Run a proxy that refuses resets of cursors like a broker that is still busy with a reset for a dead run.

    Args:
        held: the number of refusals.
        topic: the topic whose partitions are concerned; empty for all topics.
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
                reply = http.request(self.command, admin_url + self.path, content=body, headers={"Content-Type": kind})
            return self._answer(reply.status_code, reply.content, reply.headers.get("Content-Type", "application/json"))

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


@with_connector  # it resets the cursor at each start
def test_the_service_waits_for_a_subscription_that_is_held_at_its_start(cluster: Cluster, deploy: Deploy) -> None:
    service = deploy()
    service.request([payload(NOWHERE, FIRST + n) for n in range(3)])
    text = service.config.read_text()
    with _refusing_resets(cluster.addresses.admin, held=3) as front:
        service.config.write_text(text.replace(cluster.addresses.admin, front))
        output = service.run("run", "--until-idle")
    assert 1 <= output.count("is waited for, 90 s at most") <= 2  # the queries of requests and of RETRY
    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 3}
    service.config.write_text(text)
    assert "PROBLEM" not in service.run("check")


@pytest.fixture
def tenants(cluster: Cluster) -> tuple[str, str]:
    """Two tenants, each with a namespace `reaper`."""
    names = (f"acme-{uuid.uuid4().hex[:8]}", f"rival-{uuid.uuid4().hex[:8]}")
    for name in names:
        create_tenant(cluster, name, "reaper")
    return names


def test_request_topics_by_pattern_are_added_and_removed_while_the_service_runs(
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
            wait_until(lambda: f"topics.requests_pattern: {acmes}" in log.read_text(), running, log)
            theirs = f"{rival}/reaper/persistent/t"
            _send(service, acmes, payload(f"{acme}/reaper/persistent/t", FIRST), payload(theirs, FIRST + 1))
            _send(service, first, payload(NOWHERE, FIRST + 2))
            wait_until(lambda: len(service.receipts()) == 3, running, log)
            admin.create_partitioned_topic(later, 2)
            wait_until(lambda: f"topics.requests_pattern: {later}" in log.read_text(), running, log)
            _send(service, later, payload(theirs, FIRST + 3))
            wait_until(lambda: len(service.receipts()) == 4, running, log)
            assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 3, ("DEAD_LETTER", "OTHER_TENANT"): 1}
            kill(running)
            _send(service, acmes, payload(f"{acme}/reaper/persistent/t", FIRST + 4))

            running = service.start("run", log=log)  # after its receipts, without a loss or a repetition
            wait_until(lambda: len(service.receipts()) == 5, running, log)
            admin.delete_topic(later, force=True)
            wait_until(lambda: f"gone, with its unread messages: {later}" in log.read_text(), running, log)
            _send(service, acmes, payload(f"{acme}/reaper/persistent/t", FIRST + 5))
            wait_until(lambda: len(service.receipts()) == 6, running, log)
            stop(running)
        finally:
            kill(running)
        output = " ".join(service.run("check").split())
        assert "PROBLEM" not in output
        assert f"1 topic matches {pattern}" in output
        assert f"ok topic {acmes}" in output
        service.run("run", "--until-idle")
        assert len(service.receipts()) == 6
        assert f"{acmes}-RETRY" not in log.read_text()


def test_a_topic_that_moves_between_list_and_pattern_loses_and_repeats_nothing(
    deploy: Deploy, tmp_path: Path, tenants: tuple[str, str]
) -> None:
    tenant = tenants[0]
    service, topic, owner = deploy(), f"persistent://{tenant}/reaper/d", f"{tenant}/reaper/persistent/t"
    text = service.config.read_text()
    (first,) = service.settings.topics.requests
    listed = text.replace(f'requests = ["{first}"]', f'requests = ["{first}", "{topic}"]')
    matching = text.replace("[two_phase]", f'requests_pattern = "{topic}"\n[two_phase]')
    service.config.write_text(listed)
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        _send(service, topic, *(payload(owner, FIRST + sent + number) for number in range(count)))
        sent += count

    for config in (listed, matching, listed, matching):
        service.config.write_text(config)
        send(3)
        log = tmp_path / "run.log"
        with killed_at_the_end(service.start("run", log=log)) as running:
            wait_until(lambda: len(service.receipts()) == sent, running, log)
            send(2)  # it is killed while it reads them, or before, or after
        service.run("run", "--until-idle")
        assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): sent}
        assert len(service.receipts()) == sent
    assert "PROBLEM" not in service.run("check")


@with_connector  # it resets the cursor at each start
def test_a_topic_whose_subscription_can_not_be_reset_is_parked_and_its_requests_are_still_processed(
    cluster: Cluster, deploy: Deploy
) -> None:
    service = deploy()
    first, other = add_request_topics(service, "-other")
    _send(service, first, payload(NOWHERE, FIRST))
    _send(service, other, payload(NOWHERE, FIRST + 1))
    text = service.config.read_text()
    with _refusing_resets(cluster.addresses.admin, held=math.inf, topic=other) as front:
        service.config.write_text(text.replace(cluster.addresses.admin, front))
        output = service.run("run", "--until-idle", seconds=400)
        assert "no topic is parked" in service.call("check")  # the fallback has processed all its messages
    assert f"{other} is parked, and the other topics continue" in output
    assert f"{first} is parked" not in output
    assert "has been held by another client for 90 s" in output
    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 2}


def test_another_consumer_of_our_subscription_delays_no_request(deploy: Deploy) -> None:
    service = deploy()
    (topic,) = service.settings.topics.requests
    service.request([payload(NOWHERE, FIRST + n) for n in range(3)])
    with client(service.settings.pulsar) as opened:
        consumer = opened.subscribe(f"{topic}-partition-0", service.settings.topics.subscription)
        consumer.acknowledge_cumulative(consumer.receive(timeout_millis=30_000))
        output = service.run("run", "--until-idle")
        assert consumer.is_connected()
    assert "is waited for" not in output
    assert "is parked" not in output
    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 3}
