"""The operator's commands against the real cluster: dead letters, undo, the preflight."""

import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from streaming.adapters.bookkeeper.bookies import HttpBookies
from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.read import read
from streaming.cli.main import app
from streaming.clients import admin_for, bookies_for, clients_for, command_clients, reader_for
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.dlq.expiry import expire
from streaming.dlq.replay import REPLAY_ID, REPLAY_OF, REPLAY_ORIGIN
from streaming.errors import ConfigError
from streaming.ports import Pulsar, StoredMessage
from streaming.reconcile import backlog_count
from streaming.sandbox import cluster_faults, disk_usage, ledger_list, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from streaming.state.journal import JournalEntry, ParquetJournal
from streaming.state.settlements import SettlementFolder
from streaming.topics.requests import publish_lines
from streaming.topics.setup import ensure_topics
from streaming.undo.bookie_answers import own_control_entries
from streaming.undo.restore_ledgers import undo_ledgers
from streaming.undo.undo_report import Undone, UndoSelection
from tests.builders import reference
from tests.integration.conftest import FIRST_SYNTHETIC, Deploy, Deployment, create_tenant, leak, new_topic, payload
from udfs.formats.acl import OPEN, acl_bytes
from udfs.formats.bookie_info import http_addresses

pytestmark = pytest.mark.cluster

NOWHERE = 10**15  # above every id of a real cluster


def _with_topics(service: Deployment) -> Deployment:
    """Create the service's topics, which stay empty."""
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    return service


def _bury(settings: Settings, payloads: Iterable[bytes], **properties: str) -> list[str]:
    """Publish dead letters as the service would; return their ids."""
    results: list[Any] = []
    common_properties = {"REASON": "IN_USE: listed", "RECONSUMETIMES": "3", "ORIGIN_MESSAGE_ID": "1:2:3"} | properties
    with client(settings.pulsar) as opened:
        producer = opened.create_producer(
            settings.topics.dead_letter, max_pending_messages=1000, block_if_queue_full=True
        )
        for body in payloads:
            producer.send_async(
                body,
                lambda result, message_id: results.append((result, message_id)),
                properties=common_properties,
                partition_key="k",
            )
        producer.flush()
    assert {result for result, _ in results} <= {pulsar.Result.Ok}
    return [f"{stored.ledger_id()}:{stored.entry_id()}:{stored.partition()}" for _, stored in results]


def _requests(settings: Settings) -> list[StoredMessage]:
    with admin_for(settings) as admin:
        last = admin.last_positions(settings.topics.requests[0])
    return list(read(settings.pulsar, last))


def _states(service: Deployment) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in service.call("dlq", "list", "--json").splitlines():
        group = json.loads(line)
        counts[group["state"]] += group["messages"]
    return counts


def test_dead_letters_are_replayed_or_written_off_and_deletes_are_undone(cluster: Cluster, deploy: Deploy) -> None:
    topic = new_topic("ops")
    topics.fill(cluster, topic, 2, ["s"])
    *leaked, foreign = leak(cluster, topic, 4)
    before = part_clients.read_znodes(
        cluster.addresses.zookeeper, [ledger_list.path_of(ledger_id) for ledger_id in leaked]
    )
    service = _with_topics(deploy())
    own = service.settings.topics.requests[0]
    properties = {"REAL_TOPIC": own, "DELAY_TIME": "604800000", "mine": "kept"}
    first, second = (
        _bury(service.settings, [payload(topic, leaked[0])], **properties),
        _bury(service.settings, [b"\xff"]),
    )
    with command_clients(service.settings) as opened:
        publish_lines(service.settings, opened.pulsar.admin, [payload(topic, ledger_id) for ledger_id in leaked[1:]])
        assert backlog_count.backlog_of(service.settings, opened.pulsar)["messages"] == 2

    assert "1 dead letter would be replayed" in service.call("dlq", "replay", first[0], "--to", own, "--dry-run")
    assert "nothing was done" in service.call("dlq", "replay", first[0], "9:9:9", "--to", own, code=2)
    assert "1 can't be published: no receipt of this service shows" in service.call("dlq", "replay", first[0], code=4)
    assert _states(service) == {"WAITING": 2}
    assert json.loads(service.call("dlq", "replay", first[0], "--to", own, "--json"))["settled"] == 1
    assert json.loads(service.call("dlq", "write-off", "--all", "--yes", "--why", "not ours", "--json"))["settled"] == 1
    assert _states(service) == {"REPLAYED": 1, "WRITTEN_OFF": 1}

    (sent,) = [request for request in _requests(service.settings) if REPLAY_OF in request.properties]
    assert sent.payload == payload(topic, leaked[0])
    assert {name: sent.properties.get(name) for name in (REPLAY_OF, REPLAY_ORIGIN, "mine")} == {
        REPLAY_OF: first[0],
        REPLAY_ORIGIN: "1:2:3",
        "mine": "kept",
    }
    assert not {"REAL_TOPIC", "DELAY_TIME", "RECONSUMETIMES", "ORIGIN_MESSAGE_ID", "REASON"} & set(sent.properties)

    theirs = _request_of_another_tenant(cluster, service, payload(topic, foreign))
    service.console.run("run", "--until-idle")

    with command_clients(service.settings) as opened:
        assert backlog_count.backlog_of(service.settings, opened.pulsar)["messages"] == 0
    (replayed,) = service.final()[sent.id]
    assert (replayed["outcome"], replayed["attempt"]) == ("DELETED", 0)
    (written_off,) = [row for row in service.receipts() if row["reason"] == "WRITTEN_OFF"]
    assert (written_off["outcome"], written_off["message_id"]) == ("DEAD_LETTER", "1:2:3")
    assert "not ours" in written_off["detail"]
    shown = json.loads(service.call("dlq", "show", first[0], "--json"))
    assert (shown["state"], shown["replayed_as"][0]["message_id"]) == ("REPLAYED", sent.id)
    assert json.loads(service.call("dlq", "show", second[0], "--json"))["payload_hex"] == "ff"

    assert service.outcomes()["DEAD_LETTER", "OTHER_TENANT"] == 1
    _is_replayed_to_its_own_topic_or_stays(service, theirs)
    assert _exists(cluster, foreign)

    # synthetic ledgers: no bookie ever had their entries, and the metadata does not come back
    assert "3 TOO_LATE" in service.call("undo", "--topic", topic, "--dry-run", code=1)
    assert not any(_exists(cluster, ledger_id) for ledger_id in leaked)
    assert "3 TOO_LATE" in service.call("undo", "--yes", "--topic", topic, "--since", "1h", code=1)
    assert not any(_exists(cluster, ledger_id) for ledger_id in leaked)
    with cluster_faults.paused(cluster, Part.BOOKIE):  # no bookie answers
        assert _undone(service, UndoSelection(topic=topic)) == [Undone.PUT_BACK] * 3
    assert part_clients.read_znodes(cluster.addresses.zookeeper, list(before)) == before
    assert "exists" in service.call("undo", "--ledger", str(leaked[0]), code=4)
    assert "has no such ledger" in service.call("undo", "--ledger", "5", "--since", "1s", code=2)


def _request_of_another_tenant(cluster: Cluster, service: Deployment, body: bytes) -> str:
    """Publish a request to a tenant's own topic, which a pattern matches from now on; return the topic."""
    tenant = f"acme-{uuid.uuid4().hex[:8]}"
    create_tenant(cluster, tenant, "reaper")
    theirs = f"persistent://{tenant}/reaper/deletions"
    text = service.config.read_text()
    service.config.write_text(text.replace("[two_phase]", f'requests_pattern = "{theirs}"\n[two_phase]'))
    with admin_for(service.settings) as admin, client(service.settings.pulsar) as opened:
        admin.create_partitioned_topic(theirs, 1)
        admin.ensure_subscription(theirs, service.settings.topics.subscription)
        opened.create_producer(theirs).send(body)
    return theirs


def _is_replayed_to_its_own_topic_or_stays(service: Deployment, theirs: str) -> None:
    """The only dead letter that waits came from a tenant's topic, which is deleted in between."""
    own, before = service.settings.topics.requests[0], _requests(service.settings)
    assert json.loads(service.call("dlq", "replay", "--all", "--dry-run", "--json"))["to"] == {theirs: 1}
    assert "1 can't be published: they came from a topic" in service.call(
        "dlq", "replay", "--all", "--yes", "--to", own, code=4
    )
    with admin_for(service.settings) as admin:
        admin.delete_topic(theirs, force=True)
    assert f"no partitioned topic {theirs}" in service.call("dlq", "replay", "--all", "--yes", code=4)
    assert len(_requests(service.settings)) == len(before)
    text = service.config.read_text()
    service.config.write_text(text.replace(f'requests_pattern = "{theirs}"\n', ""))


def test_control_characters_of_dead_letters_are_escaped(deploy: Deploy) -> None:
    service = _with_topics(deploy())
    request = payload("public/default/persistent/orders%5Bblink%5D-x%E2%80%AE", NOWHERE)
    hostile = "a\x1b[2J\n2026 INFO forged\u202e"
    _bury(service.settings, [request, b"\x1b[31m"], REASON=f"IN_USE: {hostile}", mine=hostile)
    listed, shown = service.call("dlq", "list"), service.call("dlq", "show")
    assert "orders[blink]-x\\u202e" in "".join(listed.split())
    assert "IN_USE: a\\x1b[2J\\n2026 INFO forged\\u202e" in shown
    assert all(line.isprintable() for line in (*listed.splitlines(), *shown.splitlines()))
    letters = [json.loads(line) for line in service.call("dlq", "show", "--json").splitlines()]
    assert {letter["properties"]["mine"] for letter in letters} == {hostile}


def _exists(cluster: Cluster, ledger_id: int) -> bool:
    return part_clients.znode_exists(cluster.addresses.zookeeper, ledger_list.path_of(ledger_id))


@pytest.mark.long
def test_a_replay_that_is_killed_is_resumed_and_sends_each_message_once(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    count = 4000
    service = _with_topics(deploy())
    _bury(service.settings, (payload("public/default/persistent/gone", NOWHERE + number) for number in range(count)))
    own = service.settings.topics.requests[0]
    running = service.start("dlq", "replay", "--all", "--yes", "--to", own, log=tmp_path / "replay.log")
    while len(_requests(service.settings)) < count // 20:
        assert running.poll() is None, (tmp_path / "replay.log").read_text()
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    sent_before = len(_requests(service.settings))
    assert _states(service) == {"REPLAYING": count}

    report = json.loads(service.call("dlq", "replay", "--json").splitlines()[-1])

    requests = _requests(service.settings)
    assert len(requests) == count
    assert len({request.payload for request in requests}) == count
    assert len({request.properties[REPLAY_ID] for request in requests}) == count
    assert sent_before < count
    # the broker may still store messages that it received before the process died: the resumed run waits for these
    assert report["resumed"] <= count - sent_before
    assert _states(service) == {"REPLAYED": count}


def test_an_undo_in_time_makes_a_ledger_readable_again_and_a_late_one_does_not(
    cluster: Cluster, deploy: Deploy
) -> None:
    topic = new_topic("ops")
    topics.fill(cluster, topic, 3, ["s"])
    ledger_id = topics.data_ledgers(cluster, topic)[0]
    service = _with_topics(deploy())
    with admin_for(service.settings) as admin:
        assert own_control_entries(service.settings, admin) == []
        for body in (b"1", b"2", b"3"):  # three entries
            _bury(service.settings, [body])
        control = own_control_entries(service.settings, admin)
    with cluster_faults.paused(cluster, Part.BOOKIE):  # the paused bookie neither collects garbage nor answers
        _delete_journaled(cluster, service.settings, ledger_id)
        assert _undone(service, UndoSelection(ledger_id)) == [Undone.PUT_BACK]
    # after a pause longer than its ZooKeeper session, the bookie registers again
    topics.wait_for(lambda: shell.can_read(cluster, ledger_id, 0), "the bookie's registration")

    bookies = bookies_for(service.settings, clients_for(service.settings).store)
    positions = [(ledger_id, 9), (NOWHERE, 0)]

    def answers() -> list[bool | None]:
        return bookies.readable(http_addresses(bookies.registered()), positions, lambda: control)

    topics.wait_for(lambda: None not in answers(), "the bookie's answers")
    assert answers() == [True, False]
    urls = http_addresses(bookies.registered())
    assert bookies.readable(urls, positions, lambda: [(NOWHERE, 0)]) == [True, None]

    # a bookie's "none" counts if it stores an entry of the newest ledgers; those of other tests never had any
    synthetic = [each for each in ledger_list.every_ledger(cluster) if each >= FIRST_SYNTHETIC]
    ledger_list.remove_synthetic(cluster, synthetic)
    _delete_journaled(cluster, service.settings, ledger_id)
    disk_usage.collect_garbage(cluster)
    for _again in range(2):  # a late undo changes nothing, and can be repeated
        assert "1 TOO_LATE" in service.call("undo", "--ledger", str(ledger_id), code=1)
        assert not _exists(cluster, ledger_id)


def _undone(service: Deployment, selection: UndoSelection) -> list[Undone]:
    """Undo while the only bookie is paused, before its session ends: without a session it would count as away."""
    with command_clients(service.settings) as opened:
        assert isinstance(opened.bookies, HttpBookies)
        opened.bookies = replace(opened.bookies, timeout_seconds=0.5)
        return [result.status for result in undo_ledgers(service.settings, opened, selection).results]


def _delete_journaled(cluster: Cluster, settings: Settings, ledger_id: int) -> None:
    """Delete a ledger as the service does, without its checks."""
    path = ledger_list.path_of(ledger_id)
    data = part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path]
    entry = JournalEntry(
        ledger_id=ledger_id, path=path, data=data, version=0, acl=acl_bytes(OPEN), reference=reference()
    )
    ParquetJournal(settings.state.dir, "requests", 1, SystemClock()).write([entry])
    part_clients.delete_znode(cluster.addresses.zookeeper, path)


def test_unsettled_dead_letters_expire_when_they_are_old(deploy: Deploy) -> None:
    service = _with_topics(deploy())
    settings = service.settings
    _bury(settings, [b"x", b"y"])
    SettlementFolder(settings.state.dir).write_off(1_000, [])
    with admin_for(settings) as admin:
        subscription, topic = settings.topics.subscription, settings.topics.dead_letter
        expire(settings, Pulsar(admin, reader_for(settings)), SystemClock().now_ms())
        assert admin.backlog(topic, subscription) == 2
        assert list(Path(settings.state.dir, "dead-letters").iterdir()) == []
        time.sleep(2.1)
        admin.expire_messages(topic, subscription, older_than_seconds=1)
        topics.wait_for(lambda: admin.backlog(topic, subscription) == 0, "expiry")


def test_topics_whose_creation_was_interrupted_are_completed_unless_a_message_was_published(deploy: Deploy) -> None:
    empty, used = deploy(folder="empty").settings, deploy(folder="used").settings
    with admin_for(empty) as admin:
        for settings in (empty, used):
            admin.ensure_namespace(settings.topics.retry)
            admin.create_partitioned_topic(settings.topics.retry, 4)
        with client(used.pulsar) as opened:
            opened.create_producer(used.topics.retry).send(b"may be doubled")

        ensure_topics(admin, empty)
        with pytest.raises(ConfigError, match="no deduplication"):
            ensure_topics(admin, used)

        assert admin.deduplication(empty.topics.retry)


def test_a_first_configuration_names_the_clusters_own_zookeeper(cluster: Cluster, tmp_path: Path) -> None:
    file, addresses = tmp_path / "my.toml", cluster.addresses
    urls = ["--admin-url", addresses.admin, "--service-url", addresses.pulsar]
    done = CliRunner().invoke(app, ["init", "--out", str(file), *urls])
    assert done.exit_code == 0, done.output + str(done.exception)
    assert load(file).zookeeper.hosts == addresses.zookeeper, "as the broker reported it"
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["ok"] * 3


def test_the_preflight_reports_every_problem_and_exits_with_the_gravest_code(deploy: Deploy) -> None:
    service = deploy()
    assert "does not exist yet" in service.call("check")
    _with_topics(service)
    service.call("pause")
    try:
        output = service.call("check")
    finally:
        service.call("resume")
    assert "PROBLEM" not in output
    assert "paused" in output

    Path(service.settings.state.dir).mkdir(parents=True)  # `check` did not create it
    Path(service.settings.state.dir, "cluster.json").write_text(json.dumps({"instance_id": "another"}))
    text = service.config.read_text()
    service.config.write_text(text.replace('bucket = "', 'bucket = "no-such-'))
    lines = [json.loads(line) for line in service.call("check", "--json", code=4).splitlines()]
    problems = {line["what"]: line["exit_code"] for line in lines if line["status"] == "PROBLEM"}
    assert sorted(problems.values()) == [2, 4]
    assert all(line["do"] for line in lines if line["status"] == "PROBLEM")
