"""The whole service against the real cluster: what it deletes, what it refuses, and when it stops for a person.

Two runs are looked at by many tests: one that works off a request of every kind, and one that a limit holds.
"""

import re
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar import CompressionType

from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.read import read
from streaming.clients import admin_for
from streaming.ports import StoredMessage
from streaming.sandbox import bookie, topics
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
from udfs.retry import CUT_FROM
from udfs.wire import MAX_REQUEST_BYTES

pytestmark = pytest.mark.cluster

LARGE = 8 << 20
LONG_KEY = "k" * (1 << 20)
MANY = {f"name-{number}": "value" for number in range(20_000)}


@dataclass(frozen=True)
class Wordy:
    """Requests with many properties and with long keys: for leaks, and one of each for a ledger in use."""

    leaked: list[int]
    in_use: set[int]
    by_properties: bytes
    by_key: bytes


@dataclass(frozen=True)
class Worked:
    """A service that has worked off every request, and what was there before."""

    service: Deployment
    topic: str
    listed: list[int]
    leaked: list[int]
    of_a_gone_owner: tuple[int, ...]
    wordy: Wordy
    messages: list[bytes]

    def outcomes(self, of: Collection[int] = ()) -> Counter[tuple[str, str]]:
        """Final outcomes of these ledgers; without any, of all but the gone owner's and those of wordy requests."""
        rows = [row for some in self.service.final().values() for row in some]
        others = {*self.of_a_gone_owner, *self.wordy.leaked, *self.wordy.in_use}
        return Counter(
            (row["outcome"], row["reason"]) for row in rows if (row["ledger_id"] in (of or others)) is bool(of)
        )


@pytest.fixture(scope="module")
def worked(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Worked:
    topic, other = new_topic("busy"), new_topic("other")
    for name, count in ((topic, 4), (other, 2)):
        topics.fill(cluster, name, count, ["s"])
    gone, owned = gone_owner(cluster)
    leaked, listed = leak(cluster, topic, 30), topics.data_ledgers(cluster, topic)
    messages = topics.read_all(cluster, topic)
    service = deployment(cluster, tmp_path_factory.mktemp("worked"))

    _send_a_large_one(service)
    wordy = _send_wordy_ones(cluster, service)
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
    service.run("run", "--until-idle")
    return Worked(service, topic, listed, leaked, owned, wordy, messages)


def _send_a_large_one(service: Deployment) -> None:
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(service.settings.topics.requests[0], compression_type=CompressionType.ZLib)
        producer.send(bytes(LARGE))


def _send_wordy_ones(cluster: Cluster, service: Deployment) -> Wordy:
    used = [new_topic("wordy"), new_topic("wordy")]
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
    return Wordy(leaked, set(in_use), by_properties, by_key)


def test_leaks_are_deleted_and_everything_else_is_refused_with_its_reason(cluster: Cluster, worked: Worked) -> None:
    said = Counter(
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
    # the cursor request may meet its ledger after the data request deleted it
    of_the_cursor = ("DEAD_LETTER", "OTHER_COMPONENT"), ("ALREADY_GONE", "NOT_FOUND")
    assert worked.outcomes() in [said + Counter([each]) for each in of_the_cursor]
    assert all(len(some) == 1 for some in worked.service.final().values())
    left = bookie.list_ledgers(cluster)
    assert not left & set(worked.leaked)
    assert set(worked.listed) <= left
    assert topics.read_all(cluster, worked.topic) == worked.messages


def test_a_gone_owner_needs_a_second_look(worked: Worked) -> None:
    rows = [row for row in worked.service.receipts() if row["ledger_id"] in worked.of_a_gone_owner]
    assert Counter((row["outcome"], row["reason"]) for row in rows) == {
        ("RETRY", "OWNER_ABSENT_ONCE"): len(worked.of_a_gone_owner),
        ("DELETED", "OWNER_GONE"): len(worked.of_a_gone_owner),
    }


def _letters(worked: Worked) -> list[StoredMessage]:
    settings = worked.service.settings
    with admin_for(settings) as admin:
        return list(read(settings.pulsar, admin.last_positions(settings.topics.dead_letter)))


def test_a_message_that_is_too_large_once_decompressed_becomes_a_dead_letter_that_fits(worked: Worked) -> None:
    (letter,) = [each for each in _letters(worked) if CUT_FROM in each.properties]
    assert (letter.payload, letter.properties[CUT_FROM]) == (bytes(MAX_REQUEST_BYTES + 1), str(LARGE))


def test_many_properties_and_long_keys_keep_no_request_from_its_end(worked: Worked) -> None:
    wordy = worked.wordy
    assert worked.outcomes(wordy.leaked) == {("DELETED", "UNREFERENCED"): 4}
    assert worked.outcomes(wordy.in_use) == {("DEAD_LETTER", "IN_USE"): 2}
    assert all(len(some) == 1 for some in worked.service.final().values())
    letters = [each for each in _letters(worked) if each.payload in (wordy.by_properties, wordy.by_key)]
    assert {each.payload for each in letters} == {wordy.by_properties, wordy.by_key}
    assert not any(each.key or MANY.keys() & each.properties.keys() for each in letters)


def test_another_cluster_behind_the_same_checkpoint_is_refused(worked: Worked) -> None:
    known = Path(worked.service.settings.checkpoints.dir, "cluster.json")
    right = known.read_text()
    known.write_text(right.replace('"instance_id": "', '"instance_id": "another-'))
    try:
        said = worked.service.run("run", "--until-idle", code=4)
    finally:
        known.write_text(right)
    assert "belongs to another cluster" in said


def test_requests_that_are_none_are_named_by_line_and_the_others_are_sent(deploy: Deploy) -> None:
    service = deploy()
    lines = [payload("public/default/persistent/t", 10**12), b"{", b'{"ledgerId": true}']
    said = service.run("request", stdin=b"\n".join(lines), code=2)
    assert "1 request published" in said
    assert "line 2: NOT_JSON" in said
    assert "line 3" in said
    assert "3 requests published" in service.run("request", "--unchecked", stdin=b"\n".join(lines))


@dataclass(frozen=True)
class Held:
    """What was said, and what was there, while a limit held a service, and after a person had resumed it."""

    until_idle: str
    log: str
    leaked: set[int]
    while_held: set[int]
    second_start: str
    second_on_its_port: str
    other_on_its_port: str
    pid: int
    check: str
    receipts: str
    resume: str
    outcomes: Counter[tuple[str, str]]


@pytest.fixture(scope="module")
def held(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Held:
    here = tmp_path_factory.mktemp("held")
    topic, log = new_topic("flood"), here / "run.log"
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 60)
    service = deployment(cluster, here, limits="max_deletes_per_hour_per_owner = 40")
    service.request(payload(topic, ledger_id) for ledger_id in leaked)
    until_idle = service.run("run", "--until-idle", code=4)
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: "LIMIT REACHED" in log.read_text(), running, log)
        text, there = log.read_text(), bookie.list_ledgers(cluster)
        second = service.run("run", "--until-idle", code=4)
        same = _on_the_port_of(service, text)
        on_port, other = same.run("run", code=4), _named_otherwise(same).run("run", code=2)
        check = service.call("check", code=4)
        receipts, resume = service.call("receipts"), service.call("resume", "--limit")
        wait_until(lambda: len(service.receipts()) == 60, running, log)
        stop(running)
    said = (second, on_port, other, running.pid, check, receipts, resume)
    held = Held(until_idle, text, set(leaked), there, *said, service.outcomes())
    service.run("run", "--until-idle")
    return held


def test_a_flood_above_the_limit_deletes_nothing_more_until_a_person_resumes(held: Held) -> None:
    assert "max_deletes_per_hour_per_owner is 40" in held.log
    assert held.leaked <= held.while_held
    assert "LIMIT REACHED, nothing more is deleted: 60 deletes" in held.check
    assert "LIMIT REACHED" in held.receipts.rpartition("held since")[2]
    assert "limit that held it: 60 deletes" in held.resume
    assert held.outcomes == Counter({("DELETED", "UNREFERENCED"): 60})


def test_a_run_until_idle_that_a_limit_holds_ends_and_says_who_is_waited_for(held: Held) -> None:
    said = held.until_idle.splitlines()[-1]
    assert "what is left waits for the operator: LIMIT REACHED, nothing more is deleted: 60 deletes" in said
    assert "`ledger-reaper resume --limit`" in said


def _on_the_port_of(service: Deployment, log: str) -> Deployment:
    """The same service, with the port for metrics that its first instance has."""
    (port,) = re.findall(r"metrics: http://127\.0\.0\.1:(\d+)/", log)
    return _changed(service, "[metrics]\nport = 0", f"[metrics]\nport = {port}")


def _named_otherwise(service: Deployment) -> Deployment:
    return _changed(service, f'name = "{service.settings.service.name}"', 'name = "another"')


def _changed(service: Deployment, old: str, new: str) -> Deployment:
    text = service.config.read_text()
    assert text.count(old) == 1
    config = service.config.with_name(f"{uuid.uuid4().hex}.toml")
    config.write_text(text.replace(old, new))
    return Deployment(config)


def test_a_second_instance_is_refused_and_names_the_first(held: Held) -> None:
    assert f"pid {held.pid}" in held.second_start


def test_a_port_that_is_taken_by_the_first_instance_is_not_blamed(held: Held) -> None:
    assert f"already runs: pid {held.pid} on" in held.second_on_its_port
    assert "metrics can't be served" in held.other_on_its_port
