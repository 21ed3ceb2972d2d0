"""The whole service against the real cluster: what it deletes and refuses, and when it waits for the operator.

Many tests inspect the same two runs: one processes a request of every kind, a limit holds the other.
"""

import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pulsar import CompressionType

from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for
from streaming.ports import StoredMessage
from streaming.prometheus.table import TABLE
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import (
    Deploy,
    Deployment,
    deployment,
    gone_owner,
    killed_at_the_end,
    leak,
    new_topic,
    payload,
    stop,
    wait_until,
)
from udfs.requests.request_format import MAX_REQUEST_BYTES
from udfs.requests.retry import CUT_FROM

pytestmark = pytest.mark.cluster

LARGE = 8 << 20
LONG_KEY = "k" * (1 << 20)
MANY = {f"name-{number}": "value" for number in range(20_000)}


@dataclass(frozen=True)
class LargeRequests:
    """Requests with many properties and with long keys: for leaked ledgers, and one of each for a ledger in use."""

    leaked: list[int]
    in_use: set[int]
    by_properties: bytes
    by_key: bytes


@dataclass(frozen=True)
class Processed:
    """A service that has processed every request, and the state before."""

    service: Deployment
    topic: str
    listed: list[int]
    leaked: list[int]
    of_a_gone_owner: tuple[int, ...]
    large: LargeRequests
    messages: list[bytes]

    def outcomes(self, of: Collection[int] = ()) -> Counter[tuple[str, str]]:
        """Count the final outcomes of these ledgers; by default of all but the gone owner's and the large requests'."""
        rows = [row for final in self.service.final().values() for row in final]
        others = {*self.of_a_gone_owner, *self.large.leaked, *self.large.in_use}
        return Counter(
            (row["outcome"], row["reason"]) for row in rows if (row["ledger_id"] in (of or others)) is bool(of)
        )


@pytest.fixture(scope="module")
def processed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Processed:
    topic, other = new_topic("busy"), new_topic("other")
    for name, count in ((topic, 4), (other, 2)):
        topics.fill(cluster, name, count, ["s"])
    gone, owned = gone_owner(cluster)
    leaked, listed = leak(cluster, topic, 30), topics.data_ledgers(cluster, topic)
    messages = topics.read_all(cluster, topic)
    service = deployment(cluster, tmp_path_factory.mktemp("processed"))

    _send_a_large_message(service)
    large = _send_large_requests(cluster, service)
    service.request(
        [
            *(payload(topic, ledger_id) for ledger_id in leaked),
            *([payload(topic, leaked[0])] * 2),
            payload(topic, listed[0]),
            payload(topic, topics.data_ledgers(cluster, other)[0]),
            payload(topic, 987_654_321),
            payload(topic, leaked[1], ledgerComponent="MANAGED_CURSOR", cursorName="s"),
            payload(topic, -5),
            b"\xff\x00 no json",
            *(payload(gone, ledger_id) for ledger_id in owned),
        ]
    )
    service.console.run("run", "--until-idle")
    return Processed(
        service=service,
        topic=topic,
        listed=listed,
        leaked=leaked,
        of_a_gone_owner=owned,
        large=large,
        messages=messages,
    )


def _send_a_large_message(service: Deployment) -> None:
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(service.settings.topics.requests[0], compression_type=CompressionType.ZLib)
        producer.send(bytes(LARGE))


def _send_large_requests(cluster: Cluster, service: Deployment) -> LargeRequests:
    used = [new_topic("large"), new_topic("large")]
    for topic in used:
        topics.fill(cluster, topic, 2, ["s"])
    leaked, in_use = leak(cluster, used[0], 4), [topics.data_ledgers(cluster, topic)[0] for topic in used]
    by_properties, by_key = (payload(topic, ledger_id) for topic, ledger_id in zip(used, in_use, strict=True))
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(service.settings.topics.requests[0], batching_enabled=False)
        for body in (*(payload(used[0], ledger_id) for ledger_id in leaked[:2]), by_properties):
            producer.send(body, properties=MANY)
        for body in (*(payload(used[0], ledger_id) for ledger_id in leaked[2:]), by_key):
            producer.send(body, partition_key=LONG_KEY)
    return LargeRequests(leaked, set(in_use), by_properties, by_key)


def test_leaks_are_deleted_and_everything_else_is_refused_with_its_reason(
    cluster: Cluster, processed: Processed
) -> None:
    expected = Counter(
        {
            ("DELETED", "UNREFERENCED"): 30,
            ("ALREADY_GONE", "DUPLICATE"): 2,
            ("DEAD_LETTER", "IN_USE"): 1,
            ("DEAD_LETTER", "OTHER_OWNER"): 1,
            ("ALREADY_GONE", "NOT_FOUND"): 1,
            ("DEAD_LETTER", "BAD_LEDGER_ID"): 1,
            ("DEAD_LETTER", "NOT_JSON"): 1,
            ("DEAD_LETTER", "TOO_LARGE"): 1,
        }
    )
    # the cursor request may be processed after the data request deleted the ledger
    cursor_outcomes = ("DEAD_LETTER", "OTHER_COMPONENT"), ("ALREADY_GONE", "NOT_FOUND")
    assert processed.outcomes() in [expected + Counter([outcome]) for outcome in cursor_outcomes]
    assert all(len(rows) == 1 for rows in processed.service.final().values())
    left = ledger_list.listed_by_bookie(cluster)
    assert not left & set(processed.leaked)
    assert set(processed.listed) <= left
    assert topics.read_all(cluster, processed.topic) == processed.messages


def test_a_gone_owner_needs_a_second_check(processed: Processed) -> None:
    rows = [row for row in processed.service.receipts() if row["ledger_id"] in processed.of_a_gone_owner]
    assert Counter((row["outcome"], row["reason"]) for row in rows) == {
        ("RETRY", "OWNER_ABSENT_ONCE"): len(processed.of_a_gone_owner),
        ("DELETED", "OWNER_GONE"): len(processed.of_a_gone_owner),
    }


def _dead_letters(processed: Processed) -> list[StoredMessage]:
    settings = processed.service.settings
    with admin_for(settings) as admin:
        return list(read(settings.pulsar, admin.last_positions(settings.topics.dead_letter)))


def test_a_message_that_is_too_large_once_decompressed_becomes_a_dead_letter_that_fits(processed: Processed) -> None:
    (cut,) = [letter for letter in _dead_letters(processed) if CUT_FROM in letter.properties]
    assert (cut.payload, cut.properties[CUT_FROM]) == (bytes(MAX_REQUEST_BYTES + 1), str(LARGE))


def test_requests_with_many_properties_or_long_keys_are_processed(processed: Processed) -> None:
    large = processed.large
    assert processed.outcomes(large.leaked) == {("DELETED", "UNREFERENCED"): 4}
    assert processed.outcomes(large.in_use) == {("DEAD_LETTER", "IN_USE"): 2}
    assert all(len(rows) == 1 for rows in processed.service.final().values())
    letters = [letter for letter in _dead_letters(processed) if letter.payload in (large.by_properties, large.by_key)]
    assert {letter.payload for letter in letters} == {large.by_properties, large.by_key}
    assert not any(letter.key or MANY.keys() & letter.properties.keys() for letter in letters)


def test_a_checkpoint_of_another_cluster_is_refused(processed: Processed) -> None:
    identity_file = Path(processed.service.settings.checkpoints.dir, "cluster.json")
    identity = identity_file.read_text()
    identity_file.write_text(identity.replace('"instance_id": "', '"instance_id": "another-'))
    try:
        output = processed.service.console.run("run", "--until-idle", code=4)
    finally:
        identity_file.write_text(identity)
    assert "belongs to another cluster" in output


def test_invalid_requests_are_reported_by_line_and_the_others_are_sent(deploy: Deploy) -> None:
    service = deploy()
    lines = [payload("public/default/persistent/t", 10**12), b"{", b'{"ledgerId": true}']
    output = service.run("request", stdin=b"\n".join(lines), code=2)
    assert "1 request published" in output
    assert "line 2: NOT_JSON" in output
    assert "line 3" in output
    assert "3 requests published" in service.run("request", "--unchecked", stdin=b"\n".join(lines))


@dataclass(frozen=True)
class Held:
    """Outputs and ledgers while a limit held a service, and after the operator resumed it."""

    until_idle: str
    log: str
    leaked: set[int]
    while_held: set[int]  # the bookie's ledgers
    second_start: str
    second_on_its_port: str
    other_on_its_port: str
    pid: int
    check: str
    receipts: str
    resume: str
    port: "Port"
    outcomes: Counter[tuple[str, str]]


class Answered(NamedTuple):
    status: int
    text: str


NOT_ASKED = Answered(0, "")


@dataclass
class Port:
    """What the metrics' port of a held service answered."""

    url: str
    held: dict[str, Answered] = field(default_factory=dict)  # by path
    paused: Answered = NOT_ASKED  # /readyz
    resumed: Answered = NOT_ASKED  # /readyz after the pause, and still held
    ready: Answered = NOT_ASKED  # /readyz after the hold
    worked: str = ""  # the metrics after the work

    def ask(self, path: str) -> Answered:
        try:
            with urlopen(f"{self.url}{path}", timeout=30) as answer:
                return Answered(answer.status, answer.read().decode())
        except HTTPError as error:
            return Answered(error.code, error.read().decode())

    def ask_until(self, path: str, fits: Callable[[Answered], bool]) -> Answered:
        topics.wait_for(lambda: fits(self.ask(path)), f"another answer to {path}", seconds=60)
        return self.ask(path)


@pytest.fixture(scope="module")
def held(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Held:
    here = tmp_path_factory.mktemp("held")
    topic, log = new_topic("flood"), here / "run.log"
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 60)
    service = deployment(cluster, here, limits="max_deletes_per_hour_per_owner = 40")
    service.request(payload(topic, ledger_id) for ledger_id in leaked)
    until_idle = service.console.run("run", "--until-idle", code=4)
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: "LIMIT REACHED" in log.read_text(), running, log)
        held_log, while_held = log.read_text(), ledger_list.listed_by_bookie(cluster)
        second = service.console.run("run", "--until-idle", code=4)
        same = _with_the_port_of(service, held_log)
        on_port, other = same.console.run("run", code=4), _with_another_name(same).console.run("run", code=2)
        check = service.call("check", code=4)
        port = _asked_while_held(service, held_log)
        receipts, resume = service.call("receipts"), service.call("resume", "--limit")
        wait_until(lambda: len(service.receipts()) == 60, running, log)
        port.ready = port.ask_until("/readyz", lambda answer: answer.status == 200)
        port.worked = port.ask_until("/metrics", lambda answer: _is_all_counted(answer.text)).text
        stop(running)
    outputs = (second, on_port, other, running.pid, check, receipts, resume, port)
    return Held(until_idle, held_log, set(leaked), while_held, *outputs, service.outcomes())


def _asked_while_held(service: Deployment, log: str) -> Port:
    """Ask the port of a service that a limit holds, during a pause and after it."""
    (url,) = re.findall(r"metrics: (\S+)/metrics", log)
    port = Port(url)
    port.ask_until("/readyz", lambda answer: "LIMIT REACHED" in answer.text and "starting" not in answer.text)
    port.ask_until("/metrics", lambda answer: "ledger_reaper_dead_letters_read_timestamp_seconds" in answer.text)
    port.ask_until("/metrics/spark", lambda answer: answer.status == 200)  # a busy JVM may answer too late at first
    port.held = {path: port.ask(path) for path in ("/metrics", "/metrics/spark", "/healthz", "/readyz", "/foo")}
    service.call("pause", "--why", "an upgrade")
    try:
        port.paused = port.ask_until("/readyz", lambda answer: "PAUSED" in answer.text)
    finally:
        service.call("resume")
    port.resumed = port.ask_until("/readyz", lambda answer: "PAUSED" not in answer.text)
    return port


def _is_all_counted(text: str) -> bool:
    """Return whether the work is in the metrics: deletes count when they happen, requests and batches at their ends."""
    return _value(text, "requests_total", "UNREFERENCED") >= 60 and _value(text, "batch_seconds_count") >= 1


def _value(text: str, name: str, label: str = "") -> float:
    """Return the value of a series of ours whose labels contain a text; -1: there is none."""
    return next(iter(_values(text, name, label)), -1)


def _values(text: str, name: str, label: str = "") -> list[float]:
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"ledger_reaper_{name}" and label in str(sample.labels)
    ]


def test_a_scrape_of_a_service_matches_the_table_of_metrics(held: Held) -> None:
    for text in (held.port.held["/metrics"].text, held.port.worked):
        families = list(text_string_to_metric_families(text))
        assert families
        for family in families:
            metric = TABLE[family.name]
            assert (family.type, family.documentation) == (metric.kind, metric.text) or not metric.is_own
            names = {"instance_name", "cluster", *(label.name for label in metric.labels)}
            assert all(set(sample.labels) - {"le"} == names for sample in family.samples)
            assert {sample.labels["cluster"] for sample in family.samples} <= {"sandbox"}
        assert not [name for name in TABLE if "watcher" in name and any(family.name == name for family in families)]


def test_a_restart_keeps_what_zookeeper_and_state_hold(held: Held) -> None:
    """Another process reached the limit, and noted it before this one started."""
    text = held.port.held["/metrics"].text
    assert (_value(text, "limit_reached"), _value(text, "paused"), _value(text, "ready")) == (1, 0, 0)
    started_s = next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "process_start_time_seconds"
    )
    assert 0 < _value(text, "limit_reached_since_timestamp_seconds") < started_s
    assert _value(text, "paused_since_timestamp_seconds") == 0
    assert sorted(_values(text, "backlog_requests")) == [0, 60]
    assert 0 < _value(text, "backlog_oldest_timestamp_seconds") < started_s
    assert _value(text, "retries_waiting") == 0
    assert _value(text, "requests_total") == -1, "nothing was processed yet"


def test_the_work_is_counted_once(held: Held) -> None:
    text = held.port.worked
    assert _value(text, "requests_total", "UNREFERENCED") == 60
    assert "ledger_deletion_ledgers_deleted_total{" in text
    assert _value(text, "deleted_bytes_total") > 0
    assert _value(text, "chunk_seconds_count") == _value(text, "chunks_committed_total") >= 1
    assert _value(text, "batch_seconds_count") >= 1
    assert (_value(text, "limit_reached"), _value(text, "limit_reached_since_timestamp_seconds")) == (0, 0)
    assert _value(text, "ready") == 1


def test_probes_name_what_holds_the_service(held: Held) -> None:
    port = held.port
    assert port.held["/healthz"] == (200, "ok\n")
    assert port.held["/readyz"].status == port.paused.status == port.resumed.status == 503
    assert port.held["/readyz"].text.startswith("LIMIT REACHED: 60 deletes")
    assert "PAUSED: an upgrade (by " in port.paused.text
    assert port.resumed.text == port.held["/readyz"].text
    assert port.ready == (200, "ok\n")
    assert port.held["/foo"].status == 404


def test_sparks_own_metrics_come_through_the_same_port(held: Held) -> None:
    status, text = held.port.held["/metrics/spark"]
    assert status == 200
    assert "metrics_ledger_reaper_driver_" in text
    assert "jvm_heap_used" in text or "JVMHeapMemory" in text


def test_requests_above_the_limit_wait_until_the_operator_resumes(held: Held) -> None:
    assert "max_deletes_per_hour_per_owner is 40" in held.log
    assert held.leaked <= held.while_held
    assert "LIMIT REACHED, nothing more is deleted: 60 deletes" in held.check
    assert "LIMIT REACHED" in held.receipts.rpartition("held since")[2]
    assert "a limit held the service: 60 deletes" in held.resume
    assert held.outcomes == Counter({("DELETED", "UNREFERENCED"): 60})


def test_a_run_until_idle_that_a_limit_holds_ends_and_names_the_command_to_resume(held: Held) -> None:
    last_line = held.until_idle.splitlines()[-1]
    assert "what is left waits for the operator: LIMIT REACHED, nothing more is deleted: 60 deletes" in last_line
    assert "`ledger-reaper resume --limit`" in last_line


def _with_the_port_of(service: Deployment, log: str) -> Deployment:
    """Return the same service with the metrics port of the first instance."""
    (port,) = re.findall(r"metrics: http://127\.0\.0\.1:(\d+)/", log)
    return _with_change(service, "[metrics]\nport = 0", f"[metrics]\nport = {port}")


def _with_another_name(service: Deployment) -> Deployment:
    return _with_change(service, f'name = "{service.settings.service.name}"', 'name = "another"')


def _with_change(service: Deployment, old: str, new: str) -> Deployment:
    text = service.config.read_text()
    assert text.count(old) == 1
    config = service.config.with_name(f"{uuid.uuid4().hex}.toml")
    config.write_text(text.replace(old, new))
    return Deployment(config)


def test_a_second_instance_is_refused_and_names_the_first(held: Held) -> None:
    assert f"pid {held.pid}" in held.second_start


def test_a_second_instance_reports_the_first_and_not_the_port_that_it_occupies(held: Held) -> None:
    assert f"already runs: pid {held.pid} on" in held.second_on_its_port
    assert "metrics can't be served" in held.other_on_its_port
