"""What operators do, against the real cluster: dead letters worked off, deletes undone, the preflight."""

import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.read import read
from streaming.clients import admin_for, bookies_for, clients_for, command_clients, reader_for
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.dlq.expiry import expire
from streaming.dlq.replay import REPLAY_ID, REPLAY_OF, REPLAY_ORIGIN
from streaming.errors import ConfigError, ReaperError
from streaming.ports import Pulsar, StoredMessage
from streaming.reconcile import backlog
from streaming.sandbox import clients, disk, faults, ledgers, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.state.journal import JournalEntry, ParquetJournal
from streaming.state.settlements import SettlementFolder
from streaming.topics.requests import publish_lines
from streaming.topics.setup import ensure_topics
from streaming.undo.control import control_entries
from tests.builders import reference
from tests.integration.conftest import Deploy, Deployment, leak, new_topic, payload
from udfs.formats.acl import OPEN, acl_bytes
from udfs.formats.bookie_info import http_addresses

pytestmark = pytest.mark.cluster

NOWHERE = 10**15  # no cluster gets that far


def _made(service: Deployment) -> Deployment:
    """With its topics, and nothing in them."""
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    return service


def _bury(settings: Settings, payloads: Iterable[bytes], **properties: str) -> list[str]:
    """Put dead letters into the topic, as the service would; returns their ids."""
    stored: list[Any] = []
    about = {"REASON": "IN_USE: listed", "RECONSUMETIMES": "3", "ORIGIN_MESSAGE_ID": "1:2:3"} | properties
    with client(settings.pulsar) as opened:
        producer = opened.create_producer(
            settings.topics.dead_letter, max_pending_messages=1000, block_if_queue_full=True
        )
        for each in payloads:
            producer.send_async(
                each, lambda result, at: stored.append((result, at)), properties=about, partition_key="k"
            )
        producer.flush()
    assert {result for result, _ in stored} <= {pulsar.Result.Ok}
    return [f"{at.ledger_id()}:{at.entry_id()}:{at.partition()}" for _, at in stored]


def _requests(settings: Settings) -> list[StoredMessage]:
    with admin_for(settings) as admin:
        last = admin.last_positions(settings.topics.requests[0])
    return list(read(settings.pulsar, last))


def _states(service: Deployment) -> Counter[str]:
    counted: Counter[str] = Counter()
    for line in service.call("dlq", "list", "--json").splitlines():
        group = json.loads(line)
        counted[group["state"]] += group["messages"]
    return counted


def test_dead_letters_are_worked_off_and_deletes_undone(cluster: Cluster, deploy: Deploy) -> None:
    topic = new_topic("ops")
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 3)
    before = clients.read_znodes(cluster.addresses.zookeeper, [ledgers.path_of(each) for each in leaked])
    service = _made(deploy())
    own = service.settings.topics.requests[0]
    about = {"REAL_TOPIC": own, "DELAY_TIME": "604800000", "mine": "kept"}
    first, second = _bury(service.settings, [payload(topic, leaked[0])], **about), _bury(service.settings, [b"\xff"])
    with command_clients(service.settings) as opened:
        publish_lines(service.settings, opened.pulsar.admin, [payload(topic, ledger_id) for ledger_id in leaked[1:]])
        assert backlog.backlog_of(service.settings, opened.pulsar)["messages"] == 2

    assert "1 dead letter would be replayed" in service.call("dlq", "replay", first[0], "--to", own, "--dry-run")
    assert "nothing was done" in service.call("dlq", "replay", first[0], "9:9:9", "--to", own, code=2)
    assert "1 stay: no receipt of this service shows" in service.call("dlq", "replay", first[0], code=4)
    assert _states(service) == {"WAITING": 2}
    assert json.loads(service.call("dlq", "replay", first[0], "--to", own, "--json"))["settled"] == 1
    assert json.loads(service.call("dlq", "write-off", "--all", "--yes", "--why", "not ours", "--json"))["settled"] == 1
    assert _states(service) == {"REPLAYED": 1, "WRITTEN_OFF": 1}

    (sent,) = [each for each in _requests(service.settings) if REPLAY_OF in each.properties]
    assert sent.payload == payload(topic, leaked[0])
    assert {name: sent.properties.get(name) for name in (REPLAY_OF, REPLAY_ORIGIN, "mine")} == {
        REPLAY_OF: first[0],
        REPLAY_ORIGIN: "1:2:3",
        "mine": "kept",
    }
    assert not {"REAL_TOPIC", "DELAY_TIME", "RECONSUMETIMES", "ORIGIN_MESSAGE_ID", "REASON"} & set(sent.properties)

    service.run("run", "--until-idle")

    with command_clients(service.settings) as opened:
        assert backlog.backlog_of(service.settings, opened.pulsar)["messages"] == 0
    (replayed,) = service.final()[sent.id]
    assert (replayed["outcome"], replayed["attempt"]) == ("DELETED", 0)
    (written_off,) = [row for row in service.receipts() if row["reason"] == "WRITTEN_OFF"]
    assert (written_off["outcome"], written_off["message_id"]) == ("DEAD_LETTER", "1:2:3")
    assert "not ours" in written_off["detail"]
    shown = json.loads(service.call("dlq", "show", first[0], "--json"))
    assert (shown["state"], shown["replayed_as"][0]["message_id"]) == ("REPLAYED", sent.id)
    assert json.loads(service.call("dlq", "show", second[0], "--json"))["payload_hex"] == "ff"

    assert "WOULD_PUT_BACK" in service.call("undo", "--topic", topic, "--dry-run")
    assert not any(_exists(cluster, each) for each in leaked)
    # made-up ledgers: no bookie ever had their entries, so nothing stays
    assert "3 TOO_LATE" in service.call("undo", "--yes", "--topic", topic, "--since", "1h", code=1)
    assert not any(_exists(cluster, each) for each in leaked)
    with faults.paused(cluster, Part.BOOKIE):  # nobody answers
        assert "3 PUT_BACK" in service.call("undo", "--yes", "--topic", topic, "--since", "1h")
    assert clients.read_znodes(cluster.addresses.zookeeper, list(before)) == before
    assert "exists" in service.call("undo", "--ledger", str(leaked[0]), code=4)
    assert "has no such ledger" in service.call("undo", "--ledger", "5", "--since", "1s", code=2)


def test_a_dead_letter_goes_back_to_the_topic_it_came_from_or_stays(cluster: Cluster, deploy: Deploy) -> None:
    """A tenant's own topic, which a pattern takes, asked for what is another tenant's. Then the topic goes."""
    tenant, service, topic = f"acme-{uuid.uuid4().hex[:8]}", deploy(), new_topic("ops")
    known = json.loads(topics.admin(cluster, "GET", "clusters"))
    topics.admin(cluster, "PUT", f"tenants/{tenant}", {"allowedClusters": known, "adminRoles": []})
    topics.admin(cluster, "PUT", f"namespaces/{tenant}/reaper")
    own, theirs = service.settings.topics.requests[0], f"persistent://{tenant}/reaper/deletions"
    text = service.config.read_text()
    service.config.write_text(text.replace("[two_phase]", f'requests_pattern = "{theirs}"\n[two_phase]'))
    topics.fill(cluster, topic, 2, ["s"])
    (foreign,) = leak(cluster, topic, 1)
    with admin_for(service.settings) as admin:
        admin.create_partitioned_topic(theirs, 1)
        admin.ensure_subscription(theirs, service.settings.topics.subscription)
        with client(service.settings.pulsar) as opened:
            opened.create_producer(theirs).send(payload(topic, foreign))
        service.run("run", "--until-idle")
        assert service.outcomes() == {("DEAD_LETTER", "OTHER_TENANT"): 1}

        assert json.loads(service.call("dlq", "replay", "--all", "--dry-run", "--json"))["to"] == {theirs: 1}
        assert "1 stay: they came from a topic" in service.call("dlq", "replay", "--all", "--yes", "--to", own, code=4)
        admin.delete_topic(theirs, force=True)
        assert f"no partitioned topic {theirs}" in service.call("dlq", "replay", "--all", "--yes", code=4)
    assert _requests(service.settings) == []
    assert _exists(cluster, foreign)


def test_letters_that_anybody_wrote_are_shown_as_they_are(deploy: Deploy) -> None:
    service = _made(deploy())
    asked = payload("public/default/persistent/orders%5Bblink%5D-x%E2%80%AE", NOWHERE)
    hostile = "a\x1b[2J\n2026 INFO forged\u202e"
    _bury(service.settings, [asked, b"\x1b[31m"], REASON=f"IN_USE: {hostile}", mine=hostile)
    listed, shown = service.call("dlq", "list"), service.call("dlq", "show")
    assert "orders[blink]-x\\u202e" in "".join(listed.split())
    assert "IN_USE: a\\x1b[2J\\n2026 INFO forged\\u202e" in shown
    assert all(line.isprintable() for line in (*listed.splitlines(), *shown.splitlines()))
    raw = [json.loads(line) for line in service.call("dlq", "show", "--json").splitlines()]
    assert {each["properties"]["mine"] for each in raw} == {hostile}


def _exists(cluster: Cluster, ledger_id: int) -> bool:
    return clients.znode_exists(cluster.addresses.zookeeper, ledgers.path_of(ledger_id))


def test_a_replay_that_is_killed_is_finished_and_sends_each_once(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    count = 4000
    service = _made(deploy())
    _bury(service.settings, (payload("public/default/persistent/gone", NOWHERE + each) for each in range(count)))
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
    assert len({each.payload for each in requests}) == count
    assert len({each.properties[REPLAY_ID] for each in requests}) == count
    assert sent_before < count
    # the broker goes on storing what it had received when the process died: that is what the resumed run waits for
    assert report["resumed"] <= count - sent_before
    assert _states(service) == {"REPLAYED": count}


def test_an_undo_in_time_makes_a_ledger_readable_again_and_a_late_one_does_not(
    cluster: Cluster, deploy: Deploy
) -> None:
    topic = new_topic("ops")
    topics.fill(cluster, topic, 3, ["s"])
    ledger_id = topics.data_ledgers(cluster, topic)[0]
    service = _made(deploy())
    with admin_for(service.settings) as admin:
        assert control_entries(service.settings, admin) == []
        for each in (b"1", b"2", b"3"):  # an entry each
            _bury(service.settings, [each])
        control = control_entries(service.settings, admin)
    with faults.paused(cluster, Part.BOOKIE):  # it can't collect meanwhile, nor answer
        _delete_journaled(cluster, service.settings, ledger_id)
        assert "readledger" in service.call("undo", "--ledger", str(ledger_id))
    assert _is_readable(cluster, ledger_id)

    bookies = bookies_for(service.settings, clients_for(service.settings).store)
    # after a pause longer than its ZooKeeper session, the bookie registers again
    topics.wait_for(lambda: http_addresses(bookies.registered()) != [], "the bookie's registration")
    urls = http_addresses(bookies.registered())
    asked = [(ledger_id, 9), (NOWHERE, 0)]
    assert bookies.readable(urls, asked, lambda: control) == [True, False]
    assert bookies.readable(urls, asked, lambda: [(NOWHERE, 0)]) == [True, None]

    _delete_journaled(cluster, service.settings, ledger_id)
    disk.collect_garbage(cluster)
    for _again in range(2):  # it leaves nothing behind, so it can be asked for once more
        assert "1 TOO_LATE" in service.call("undo", "--ledger", str(ledger_id), code=1)
        assert not _exists(cluster, ledger_id)


def _delete_journaled(cluster: Cluster, settings: Settings, ledger_id: int) -> None:
    """What the service does to a ledger, without asking whether it may."""
    path = ledgers.path_of(ledger_id)
    data = clients.read_znodes(cluster.addresses.zookeeper, [path])[path]
    entry = JournalEntry(
        ledger_id=ledger_id, path=path, data=data, version=0, acl=acl_bytes(OPEN), reference=reference()
    )
    ParquetJournal(settings.state.dir, "requests", 1, SystemClock()).write([entry])
    clients.delete_znode(cluster.addresses.zookeeper, path)


def _is_readable(cluster: Cluster, ledger_id: int) -> bool:
    try:
        return f"Lid={ledger_id}, Eid=0, EntrySize=" in shell.read_ledger(cluster, ledger_id, 0, 0)
    except ReaperError:
        return False


def test_dead_letters_that_nobody_worked_off_are_given_up_when_they_are_old(deploy: Deploy) -> None:
    service = _made(deploy())
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


def test_topics_whose_making_was_cut_short_are_finished_unless_somebody_has_published(deploy: Deploy) -> None:
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


def test_the_preflight_names_what_is_wrong_and_ends_with_the_worst(deploy: Deploy) -> None:
    service = deploy()
    assert "does not exist yet" in service.call("check")
    _made(service)
    service.call("pause")
    try:
        said = service.call("check")
    finally:
        service.call("resume")
    assert "PROBLEM" not in said
    assert "paused" in said

    Path(service.settings.state.dir).mkdir(parents=True)  # `check` did not make it
    Path(service.settings.state.dir, "cluster.json").write_text(json.dumps({"instance_id": "another"}))
    text = service.config.read_text()
    service.config.write_text(text.replace('bucket = "', 'bucket = "no-such-'))
    lines = [json.loads(line) for line in service.call("check", "--json", code=4).splitlines()]
    wrong = {line["what"]: line["exit_code"] for line in lines if line["status"] == "PROBLEM"}
    assert sorted(wrong.values()) == [2, 4]
    assert all(line["do"] for line in lines if line["status"] == "PROBLEM")
