"""The watcher against the real cluster: it requests ledgers that brokers drop from their lists; leaks are deleted."""

import json
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from streaming.phase_one.deletable_ledgers import deletable_ledgers
from streaming.phase_one.watcher.pulsar_publication import WATCH_ID
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import CLUSTER_NAME, Part
from streaming.sandbox.orphans import WORKER, consume_and_trim
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import (
    Deploy,
    Deployment,
    deployment,
    kill,
    killed_at_the_end,
    new_topic,
    running_cluster,
    stop,
    stored_requests,
    wait_until,
)
from udfs.formats.managed_ledger import in_use_ids, parse_managed_ledger
from udfs.paths import managed_ledger_path
from udfs.phase_one.marks import Marks, read_marks

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1500)]

PATIENCE_SECONDS = 600  # a wait ends as soon as its condition holds
WATCH = "\n[watch]\nenabled = true\npoll_seconds = 15\nunlisted_after_seconds = 20\n"


def requested(service: Deployment) -> list[tuple[str, int]]:
    """Return number and ledger of each request that a watcher sent."""
    messages = stored_requests(service.settings, service.settings.topics.watch)
    requests = [message for message in messages if WATCH_ID in message.properties]
    return [(request.properties[WATCH_ID], json.loads(request.payload)["ledgerId"]) for request in requests]


def requested_ledgers(service: Deployment) -> set[int]:
    """Return the ledgers that a watcher requested; no request may be sent twice."""
    sent = requested(service)
    twice = [number for number, n in Counter(number for number, _ledger in sent).items() if n > 1]
    assert not twice, f"requests that were sent twice: {twice}"
    return {ledger for _number, ledger in sent}


def is_watching(log: Path) -> bool:
    return "watching the names in topics" in log.read_text()


@pytest.fixture
def leaky(cluster: Cluster) -> str:
    """A topic with nine full ledgers, which a subscription has not read yet."""
    topic = new_topic("watched")
    topics.fill(cluster, topic, 9, [WORKER])
    topics.consume(cluster, topic, WORKER, 1)
    return topic


def test_the_watcher_requests_what_a_broker_leaks_and_the_service_deletes_it(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    before = topics.data_ledgers(cluster, leaky)
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: is_watching(log) and "reading persistent" in log.read_text(), running, log)
        state = service.config.parent / "state" / "watcher.json"
        wait_until(state.exists, running, log)
        with cluster_faults.crash_with_metadata_fault(cluster):
            consume_and_trim(cluster, leaky, WORKER, 5 * topics.ENTRIES_PER_LEDGER - 1)
        leaked = set(ledger_list.orphans(cluster, leaky).data)
        assert leaked >= set(before[:5])
        wait_until(lambda: leaked <= requested_ledgers(service), running, log)
        wait_until(lambda: not set(before[:5]) & ledger_list.every_ledger(cluster).keys(), running, log)
        listed = topics.data_ledgers(cluster, leaky)
        assert set(listed) <= ledger_list.every_ledger(cluster).keys(), "listed ledgers stay"
        assert len(topics.read_all(cluster, leaky)) >= 4 * topics.ENTRIES_PER_LEDGER
        stop(running)


@pytest.mark.parametrize("harm", ["killed", "away", "its session expired"])
def test_a_watcher_requests_ledgers_that_were_dropped_while_it_was_down(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str, harm: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    running = service.start("watch", log=log)
    state = service.config.parent / "state" / "watcher.json"
    try:
        wait_until(state.exists, running, log)
        before = topics.data_ledgers(cluster, leaky)
        if harm == "its session expired":
            running.send_signal(signal.SIGSTOP)
        else:
            kill(running)
        consume_and_trim(cluster, leaky, WORKER, 5 * topics.ENTRIES_PER_LEDGER - 1)
        if harm == "its session expired":
            time.sleep(15)  # the session times out after six seconds
            running.send_signal(signal.SIGCONT)
        else:
            time.sleep(20 if harm == "away" else 0)
            running = service.start("watch", log=log)
        wait_until(lambda: set(before[:5]) <= requested_ledgers(service), running, log)
        assert not set(topics.data_ledgers(cluster, leaky)) & requested_ledgers(service)
        stop(running)
    finally:
        if running.poll() is None:
            kill(running)


def test_a_topic_whose_name_holds_a_newline_is_watched(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> None:
    topic, service, log = f"{new_topic('odd')}new\nline\ttab", deploy(extra=WATCH), tmp_path / "log"
    topics.fill(cluster, topic, 5, [WORKER])
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        before = topics.data_ledgers(cluster, topic)
        consume_and_trim(cluster, topic, WORKER, 3 * topics.ENTRIES_PER_LEDGER)
        wait_until(lambda: set(before[:2]) <= requested_ledgers(service), running, log)
        assert json.loads((service.config.parent / "state" / "watcher.json").read_text())["unwatched"] == 0
        stop(running)


def test_a_watcher_that_is_killed_repeatedly_requests_each_ledger_once(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    chance = random.Random(7)
    running = service.start("watch", log=log)
    try:
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        oldest = set(topics.data_ledgers(cluster, leaky)[:5])
        for _round in range(5):
            consume_and_trim(cluster, leaky, WORKER, topics.ENTRIES_PER_LEDGER)
            time.sleep(chance.uniform(0, 6))
            kill(running)
            running = service.start("watch", log=log)
            time.sleep(chance.uniform(2, 6))
            kill(running)
            before = len(log.read_text())
            running = service.start("watch", log=log)
        wait_until(
            lambda: "watching the names in topics" in log.read_text()[before:], running, log
        )  # from here on SIGTERM works
        wait_until(
            lambda: oldest - set(topics.data_ledgers(cluster, leaky)) <= requested_ledgers(service), running, log
        )
        assert len(requested_ledgers(service) & oldest) >= 4
        stop(running)
    finally:
        if running.poll() is None:
            kill(running)


def test_the_watcher_waits_while_the_broker_is_down_and_then_continues(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        before = topics.data_ledgers(cluster, leaky)
        consume_and_trim(cluster, leaky, WORKER, 5 * topics.ENTRIES_PER_LEDGER - 1)
        cluster_faults.kill(cluster, Part.BROKER)
        time.sleep(10)
        cluster_faults.restart(cluster, Part.BROKER)
        wait_until(lambda: set(before[:5]) <= requested_ledgers(service), running, log)
        stop(running)


def listed_in_zookeeper(cluster: Cluster, topic: str) -> set[int]:
    path = managed_ledger_path(topic)
    return set(in_use_ids(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path]).ids)


def test_ledgers_leaked_by_a_topic_with_a_v1_name_are_requested_and_deleted(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    space = f"public/{CLUSTER_NAME}/v1"
    answer = part_clients.http_any("PUT", cluster.serving.admin, f"admin/namespaces/{space}", body={})
    assert answer.ok or answer.status == 409, answer
    topic = f"persistent://{space}/{new_topic('old').rpartition('/')[2]}"
    url = cluster.serving.pulsar
    part_clients.subscribe(url, topic, [WORKER])
    part_clients.publish(url, topic, topics.payloads(9 * topics.ENTRIES_PER_LEDGER, 64))
    service, log = deploy(extra=WATCH), tmp_path / "log"
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: is_watching(log) and "reading persistent" in log.read_text(), running, log)
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        before = listed_in_zookeeper(cluster, topic)
        with cluster_faults.crash_with_metadata_fault(cluster):
            part_clients.consume(url, topic, WORKER, 5 * topics.ENTRIES_PER_LEDGER)
            part_clients.publish(
                url, topic, topics.payloads(2 * topics.ENTRIES_PER_LEDGER, 64)
            )  # new ledgers cause a trim
            topics.wait_for(lambda: len(before - listed_in_zookeeper(cluster, topic)) >= 4, "the trim")
        leaked = before - listed_in_zookeeper(cluster, topic)
        assert leaked <= ledger_list.every_ledger(cluster).keys(), "the broker deleted some"
        wait_until(lambda: not leaked & ledger_list.every_ledger(cluster).keys(), running, log)
        assert listed_in_zookeeper(cluster, topic) <= ledger_list.every_ledger(cluster).keys(), "listed ledgers stay"
        stop(running)


@pytest.fixture(scope="module")
def two_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("two"), counts={Part.BROKER: 2}) as running:
        yield running


def retrying(act: Callable[[], object]) -> None:
    """Repeat an action that fails while the topic moves to another broker."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            act()
        except Exception:  # Pulsar's client raises no specific class
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return


def owner_of(cluster: Cluster, topic: str) -> str:
    path = f"lookup/v2/topic/{topics.resource(topic)}"
    return str(json.loads(part_clients.http_any("GET", cluster.serving.admin, path).text)["brokerUrl"])


def test_ledgers_leaked_by_topics_that_move_between_two_brokers_are_requested_once(
    two_brokers: Cluster, tmp_path: Path
) -> None:
    cluster, log = two_brokers, tmp_path / "log"
    (here := tmp_path / "service").mkdir()
    service = deployment(cluster, here, extra=WATCH)
    names = [new_topic("moved") for _ in range(6)]
    for topic in names:
        topics.fill(cluster, topic, 9, [WORKER])
        topics.consume(cluster, topic, WORKER, 1)
    owners: dict[str, set[str]] = defaultdict(set)
    before = {topic: set(topics.data_ledgers(cluster, topic)) for topic in names}
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until((here / "state" / "watcher.json").exists, running, log)
        for part in cluster.spec.all_of(Part.BROKER):
            with cluster_faults.metadata_fault(cluster):
                for topic in names:
                    retrying(lambda moving=topic: owners[moving].add(owner_of(cluster, moving)))  # type: ignore[misc]
                    retrying(lambda moving=topic: topics.consume(cluster, moving, WORKER, 25))  # type: ignore[misc]
                    retrying(lambda moving=topic: topics.trim(cluster, moving))  # type: ignore[misc]
                time.sleep(3)
                cluster_faults.kill(cluster, part)
            cluster_faults.restart(cluster, part)
            topics.admin(cluster, "PUT", "namespaces/public/default/unload")
        listed = {topic: listed_in_zookeeper(cluster, topic) for topic in names}
        dropped = {ledger_id for topic in names for ledger_id in before[topic] - listed[topic]}
        leaked = dropped & ledger_list.every_ledger(cluster).keys()
        wait_until(lambda: dropped <= requested_ledgers(service), running, log)
        assert not requested_ledgers(service) & {
            ledger_id for topic in names for ledger_id in listed_in_zookeeper(cluster, topic)
        }
        stop(running)
    assert any(len(brokers) > 1 for brokers in owners.values()), f"no topic moved: {dict(owners)}"
    assert len(dropped) >= 4 * len(names), f"too little was dropped: {len(dropped)}"
    assert leaked, "nothing leaked"


RETENTION = {"retentionTimeInMinutes": 3, "retentionSizeInMB": -1}  # short enough that a watcher marks at once
AHEAD = f"{WATCH}mark_ahead = true\n".replace("poll_seconds = 15", "poll_seconds = 5")


def marks_of(cluster: Cluster, topic: str) -> Marks:
    """Return the marks in a topic's own metadata."""
    path = managed_ledger_path(topic)
    info = parse_managed_ledger(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    return read_marks(info.properties).all


def marked(cluster: Cluster, topic: str) -> set[int]:
    return set(marks_of(cluster, topic).ledgers)


def is_marked(cluster: Cluster, topic: str, ledger_id: int) -> bool:
    return ledger_id in marked(cluster, topic)


def has_scanned(service: Deployment) -> bool:
    return (service.config.parent / "state" / "watcher.json").exists()


def all_requests(service: Deployment) -> list[int]:
    """Return the ledger of each request, of any sender."""
    messages = stored_requests(service.settings, service.settings.topics.requests[0])
    return [json.loads(message.payload)["ledgerId"] for message in messages]


def crash_of_watcher_and_broker(cluster: Cluster, service: Deployment, log: Path, topic: str) -> set[int]:
    """Lose a watcher, its state and the broker when a topic reaches the end of its retention.

    The watcher is killed shortly before the end of retention. Then the broker drops ledgers that it can't delete, and
    is killed, too.

    Returns:
        The leaked ledgers.
    """
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until(lambda: has_scanned(service), running, log)
        topics.fill(cluster, topic, 9, [WORKER])
        topics.admin(cluster, "POST", f"{topics.resource(topic)}/retention", RETENTION)
        before = topics.data_ledgers(cluster, topic)
        topics.consume(cluster, topic, WORKER, 5 * topics.ENTRIES_PER_LEDGER)
        if service.settings.watch.mark_ahead:
            wait_until(lambda: set(before[:5]) <= marked(cluster, topic), running, log)
        else:
            time.sleep(20)  # three scans
        listed = listed_in_zookeeper(cluster, topic)
        assert set(before[:5]) <= listed, "the broker dropped ledgers before the marks were written"
        assert marked(cluster, topic) <= set(before[:6]), "a ledger that a subscription has not read is marked"
        kill(running)
    shutil.rmtree(service.config.parent / "state")
    with cluster_faults.crash_with_metadata_fault(cluster):
        topics.wait_for(
            lambda: not set(before[:5]) & listed_in_zookeeper(cluster, topic), "the end of retention", seconds=300
        )
    leaked = set(before) - listed_in_zookeeper(cluster, topic)
    assert leaked <= ledger_list.every_ledger(cluster).keys(), "the broker deleted some"
    assert not set(all_requests(service)) & leaked, "some were requested already"
    return leaked


def test_ledgers_marked_ahead_are_requested_after_watcher_broker_and_state_were_lost(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    service, topic = deploy(extra=AHEAD), new_topic("ahead")
    leaked = crash_of_watcher_and_broker(cluster, service, tmp_path / "first", topic)
    assert marked(cluster, topic) >= leaked
    topics.internal_stats(cluster, topic)  # loads the topic, as its users do: the marks of an unloaded topic wait
    log = tmp_path / "second"
    with killed_at_the_end(service.start("run", log=log)) as running:
        # the watcher reads marks less and less often
        wait_until(
            lambda: not leaked & ledger_list.every_ledger(cluster).keys(), running, log, seconds=PATIENCE_SECONDS
        )
        assert leaked <= set(all_requests(service))
        wait_until(lambda: not leaked & marked(cluster, topic), running, log, seconds=PATIENCE_SECONDS)
        assert listed_in_zookeeper(cluster, topic) <= ledger_list.every_ledger(cluster).keys(), "listed ledgers stay"
        assert len(topics.read_all(cluster, topic)) >= 4 * topics.ENTRIES_PER_LEDGER
        stop(running)


def test_without_marks_ahead_only_the_audit_finds_leaks_after_watcher_broker_and_state_were_lost(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    service, topic = deploy(extra=AHEAD.replace("mark_ahead = true", "mark_ahead = false")), new_topic("behind")
    leaked = crash_of_watcher_and_broker(cluster, service, tmp_path / "first", topic)
    assert marked(cluster, topic) == set()
    marked_by_hand = min(leaked)
    with deletable_ledgers(service.settings) as marks:
        marks.mark_deletable_ledgers(topic, [marked_by_hand])
    log = tmp_path / "second"
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: has_scanned(service), running, log)
        time.sleep(30)
        assert leaked <= ledger_list.every_ledger(cluster).keys()
        assert not leaked & set(all_requests(service))
        assert marked(cluster, topic) == {marked_by_hand}, "a watcher without the feature changed marks"
        stop(running)
    output = service.run("audit", "--recheck-seconds", "1", "--json", code=(0, 4))  # other tests lose data
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert leaked <= {line["ledger_id"] for line in lines if line.get("class") == "ORPHAN"}


def test_with_retention_by_size_the_next_ledger_is_marked_before_it_is_dropped(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    service, log, namespace = deploy(extra=AHEAD), tmp_path / "log", f"public/{new_topic('size').rpartition('/')[2]}"
    topic, ledger_bytes = f"persistent://{namespace}/orders", 200 * 1024
    topics.admin(cluster, "PUT", f"namespaces/{namespace}", {})
    by_size = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1}
    topics.admin(cluster, "POST", f"namespaces/{namespace}/retention", by_size)
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until(lambda: has_scanned(service), running, log)
        topics.fill(cluster, topic, 3, [WORKER], entry_bytes=ledger_bytes // topics.ENTRIES_PER_LEDGER)
        topics.consume(cluster, topic, WORKER, 3 * topics.ENTRIES_PER_LEDGER)
        time.sleep(30)  # several scans
        assert marked(cluster, topic) == set(), "the limit leaves space for more than one ledger"
        seen: set[int] = set()
        rest = topics.ENTRIES_PER_LEDGER - 1
        for _ in range(7):
            before = listed_in_zookeeper(cluster, topic)
            topics.publish(cluster, topic, 1)  # starts a new ledger if there is none yet
            topics.consume(cluster, topic, WORKER, 1)
            stats = topics.internal_stats(cluster, topic)
            oldest = stats["ledgers"][0]
            if stats["totalSize"] - oldest["size"] + ledger_bytes > 1 << 20:  # dropped when the newest ledger is full
                wait_until(partial(is_marked, cluster, topic, oldest["ledgerId"]), running, log)
            seen |= marked(cluster, topic)
            topics.publish(cluster, topic, rest, entry_bytes=ledger_bytes // topics.ENTRIES_PER_LEDGER)
            topics.consume(cluster, topic, WORKER, rest)
            dropped = before - listed_in_zookeeper(cluster, topic)
            assert dropped <= seen, "a ledger was dropped without a mark"
        assert seen, "no ledger was marked"
        stop(running)


def test_an_offloaded_ledger_is_marked_ahead_as_an_upload(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> None:
    service, log, topic = deploy(extra=AHEAD), tmp_path / "log", new_topic("uploaded")
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until(lambda: has_scanned(service), running, log)
        topics.fill(cluster, topic, 4, [WORKER])
        topics.offload(cluster, topic)
        uploaded = set(topics.data_ledgers(cluster, topic)[:2])
        topics.admin(cluster, "POST", f"{topics.resource(topic)}/retention", RETENTION)
        topics.consume(cluster, topic, WORKER, 3 * topics.ENTRIES_PER_LEDGER)
        topics.publish(
            cluster, topic, 2 * topics.ENTRIES_PER_LEDGER
        )  # a changed list shows the watcher that the topic is loaded
        wait_until(
            lambda: uploaded <= {ledger_id for ledger_id, _uuid in marks_of(cluster, topic).uploads}, running, log
        )
        assert not uploaded & marked(cluster, topic), "marked a ledger without a copy in BookKeeper"
        stop(running)


def test_marking_ahead_loads_no_topic(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> None:
    service, log, topic = deploy(extra=AHEAD), tmp_path / "log", new_topic("unloaded")
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until(lambda: has_scanned(service), running, log)
        topics.fill(cluster, topic, 9, [WORKER])
        topics.admin(cluster, "POST", f"{topics.resource(topic)}/retention", RETENTION)
        topics.consume(cluster, topic, WORKER, 5 * topics.ENTRIES_PER_LEDGER)
        topics.unload(cluster, topic)
        time.sleep(1)
        listed = listed_in_zookeeper(cluster, topic)
        time.sleep(40)
        # a broker that loads a topic creates a new ledger
        assert listed_in_zookeeper(cluster, topic) == listed
        assert marked(cluster, topic) == set()
        stop(running)


@pytest.fixture(scope="module")
def by_default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose brokers have transactions and a default retention."""
    retention = {"defaultRetentionTimeInMinutes": "3", "defaultRetentionSizeInMB": "-1"}
    settings = {"transactionCoordinatorEnabled": "true", **retention}
    with running_cluster(tmp_path_factory.mktemp("default"), broker_settings=settings) as running:
        yield running


def test_with_default_retention_and_transactions_loaded_topics_are_marked_and_no_other_is_loaded(
    by_default: Cluster, tmp_path: Path
) -> None:
    cluster, log = by_default, tmp_path / "log"
    (here := tmp_path / "service").mkdir()
    service = deployment(cluster, here, extra=AHEAD)
    loaded, unloaded = new_topic("loaded"), new_topic("unloaded")
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until(lambda: has_scanned(service), running, log)
        for topic in (unloaded, loaded):
            topics.fill(cluster, topic, 9, [WORKER])
            topics.consume(cluster, topic, WORKER, 5 * topics.ENTRIES_PER_LEDGER)
            if topic == unloaded:
                topics.unload(cluster, topic)
        time.sleep(1)
        listed = listed_in_zookeeper(cluster, unloaded)
        before = topics.data_ledgers(cluster, loaded)
        wait_until(lambda: set(before[:5]) <= marked(cluster, loaded), running, log)
        assert set(before) <= listed_in_zookeeper(cluster, loaded), (
            "the broker dropped ledgers before the marks were written"
        )
        assert marked(cluster, loaded) <= set(before[:6]), "a ledger that a subscription has not read is marked"
        time.sleep(40)
        assert listed_in_zookeeper(cluster, unloaded) == listed, "a new ledger: the topic was loaded"
        assert marked(cluster, unloaded) == set()
        # the broker drops and deletes them; then their marks are removed
        topics.wait_for(
            lambda: not set(before[:5]) & listed_in_zookeeper(cluster, loaded), "the end of retention", seconds=300
        )
        wait_until(lambda: not set(before[:5]) & marked(cluster, loaded), running, log, seconds=480)
        stop(running)
