"""Scenes in which the service's hosts are cut off, die and join."""

import logging
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streaming.clients import clients_for
from streaming.limits.census import count_ledgers
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, REGION
from streaming.sandbox.ledger_list import every_ledger
from streaming.sandbox.parts import part_clients
from streaming.sandbox.reckoning import reckon
from streaming.state import journal
from tests.integration.conftest import Deployment, config_text, leak, new_topic, payload
from tests.integration.hosts import until
from tests.integration.spark_hosts import Driver, SparkHosts
from udfs.paths import managed_ledger_path

log = logging.getLogger(__name__)

RATE = 1_000  # deletes a second, over all executors
OWNERS = 10
BUCKET = "of-all-hosts"
HALF = ("spark.cores.max=2",)  # half of the cores: another run finds some while the first run's are not released
BY_NEED = (
    "spark.dynamicAllocation.enabled=true",
    "spark.dynamicAllocation.shuffleTracking.enabled=true",
    "spark.dynamicAllocation.executorIdleTimeout=20s",
)
_FENCED = "another instance of this service has taken over"
IN_USE = 5  # requested ledgers in use, each with four requests


@dataclass(slots=True)
class Field:
    """A cluster of Pulsar, and hosts with Spark that reach it."""

    cluster: Cluster
    spark: SparkHosts
    here: Path

    def service(self, *, limits: str = "", chunk_rows: int = 50_000, rate: int = RATE) -> Deployment:
        """Write a configuration into a folder that drivers can read, and workers do not have."""
        folder = self.here / "etc"
        folder.mkdir()
        (folder / "aws-credentials").write_text("[default]\naws_access_key_id = any\naws_secret_access_key = any\n")
        text = config_text(
            self.cluster,
            name="hosts",
            chunk_rows=chunk_rows,
            home=folder,
            here="/nowhere",
            limits=limits,
            classes="-XX:+UseSerialGC",
        )
        for old, new in (
            ('dir = "/nowhere/state"', f'dir = "s3://{BUCKET}/state"'),
            ('dir = "/nowhere/checkpoints"', f'dir = "s3://{BUCKET}/checkpoints"'),
            ('local_dir = "/nowhere/spark"', ""),
            ("deletes_per_second = 0", f"deletes_per_second = {rate}"),
            ("[two_phase]", "[two_phase]\nledger_deletion_parallelism = 2"),
        ):
            assert old in text
            text = text.replace(old, new)
        config = folder / "config.toml"
        config.write_text(f'{text}\n[s3]\nendpoint = "{self.cluster.addresses.s3}"\n')
        part_clients.make_bucket(self.cluster.addresses.s3, BUCKET, REGION)
        return Deployment(config)


@dataclass(slots=True)
class Gone:
    """Counts the deleted ledgers in a thread."""

    service: Deployment
    seen: list[tuple[float, int]] = field(default_factory=list)  # time (s) and deleted ledgers
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Gone":
        self._before = self._existing()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def now(self) -> int:
        return self.seen[-1][1] if self.seen else 0

    def most_within(self, seconds: float) -> int:
        """Return the highest number of deletes within a period of this length."""
        return max(
            later - before
            for first, (start_s, before) in enumerate(self.seen)
            for end_s, later in self.seen[first:]
            if end_s - start_s <= seconds
        )

    def _poll(self) -> None:
        while not self._done.wait(0.25):
            self.seen.append((time.monotonic(), self._before - self._existing()))

    def _existing(self) -> int:
        return count_ledgers(clients_for(self.service.settings).store, LEDGERS_ROOT)

    _before: int = 0
    _thread: threading.Thread = field(default_factory=threading.Thread)


def _exit_code_of(driver: Driver, seconds: float) -> int:
    try:
        return driver.process.wait(seconds)
    except subprocess.TimeoutExpired:
        pytest.fail(driver.log.read_text(errors="replace")[-6000:])


@dataclass(slots=True)
class Requested:
    """The requested ledgers: leaked ledgers, and ledgers in use with four requests each."""

    owners: list[str] = field(default_factory=list)
    leaked: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.leaked) + 4 * len(self.used)


def request_ledgers(cluster: Cluster, service: Deployment, count: int) -> Requested:
    """Leak ledgers of several topics, and request them and some ledgers in use."""
    requested = Requested()
    requests = []
    for number in range(OWNERS):
        owner = new_topic(f"hosts{number}")
        requested.owners.append(owner)
        topics.fill(cluster, owner, 1, ["s"])
        leaked = leak(cluster, owner, count // OWNERS)
        requested.leaked += leaked
        requests += [payload(owner, ledger_id) for ledger_id in leaked]
        if number < IN_USE:
            requested.used.append(topics.data_ledgers(cluster, owner)[0])
            requests += [payload(owner, requested.used[-1])] * 4
    service.request(requests)
    return requested


def hosts_come_and_go(field: Field, count: int, *, chunk_rows: int) -> None:
    """Run the service through all faults of hosts, and check the reckoning at the end."""
    spark = field.spark
    spark.start(["one", "two"])
    service = field.service(chunk_rows=chunk_rows)
    requested = request_ledgers(field.cluster, service, count)
    first, second = (spark.add_driver(name, service.config) for name in ("first", "second"))
    share = count // 12
    with Gone(service) as gone:

        def wait_for_deletes(driver: Driver, seconds: float = 300) -> None:
            enough = gone.now + share  # deleted ledgers
            until(lambda: gone.now >= enough or driver.process.poll() is not None, driver.log, seconds)
            assert driver.process.poll() is None, driver.log.read_text()[-5000:]
            log.info("%s of %s are deleted", gone.now, count)

        log.info("a driver starts")
        driver = spark.drive(first, service.config, "run", conf=HALF)
        wait_for_deletes(driver)
        _check_pause(service, gone)
        wait_for_deletes(driver)

        log.info("host one is cut off")
        spark.workers["one"].cut()
        wait_for_deletes(driver)
        spark.workers["one"].join()
        wait_for_deletes(driver)

        log.info("host two dies")
        spark.workers["two"].kill()
        wait_for_deletes(driver)
        spark.add_worker("three")
        wait_for_deletes(driver)

        log.info("the driver's host is cut off or dies, and another driver starts elsewhere")
        if first.is_separate:
            first.cut()
        else:  # a process of this machine that is only frozen counts as alive, and would keep the second driver out
            first.kill()
        again = spark.drive(second, service.config, "run", "--until-idle", conf=(*HALF, *BY_NEED))
        assert _exit_code_of(again, 600) == 0
        if first.is_separate:
            log.info("the other driver has ended; the first driver is back")
            first.join()
            assert _exit_code_of(driver, 120) in (3, 4), "the first driver did not notice that it is outdated"

    assert gone.most_within(5) <= RATE * (5 + 1), (
        "a task may send at once the deletes of one second of its share, but no more"
    )
    fenced = sum(spark.output(name).count(_FENCED) for name in spark.workers)
    log.info("at most %s a second within 5 s; %s attempts were fenced", gone.most_within(5) / 5, fenced)
    _check(field, service, requested)
    # if a silent driver's executors hold the cores of the first host, only the third host has free cores
    for name in ("one", "two", "three")[: 3 if first.is_separate else 2]:
        assert spark.unpacked(name), f"no executor has run on {name}"


LIMIT = 750  # deletes within an hour
_WAITS_FOR_THE_OPERATOR = 4


def a_host_dies_while_a_bounded_chunk_is_swept(field: Field) -> None:
    """The stage of the sweep is repeated, and its tasks do not get their planned deletes a second time.

    Half of the owners can't be read at the dry run, but can be read later: the plan is below the limit, and as many
    further ledgers become deletable while the plan is executed.
    """
    spark = field.spark
    spark.start(["one", "two"])
    service = field.service(limits=f"max_deletes_per_hour = {LIMIT}", rate=20)
    requested = request_ledgers(field.cluster, service, 1_200)
    assert LIMIT < len(requested.leaked) < 2 * LIMIT
    zookeeper = field.cluster.addresses.zookeeper
    lists = {managed_ledger_path(owner): b"" for owner in requested.owners[OWNERS // 2 :]}
    lists = part_clients.read_znodes(zookeeper, list(lists))
    _write(zookeeper, dict.fromkeys(lists, b"\xff no list"))
    host = spark.add_driver("first", service.config)
    with Gone(service) as gone:
        driver = spark.drive(host, service.config, "run", "--until-idle", conf=HALF)
        until(lambda: gone.now >= 40 or driver.process.poll() is not None, driver.log, 300)
        _write(zookeeper, lists)
        log.info("%s are deleted; host two dies", gone.now)
        spark.workers["two"].kill()
        until(lambda: "LIMIT REACHED" in driver.log.read_text(errors="replace"), driver.log, 400)
        time.sleep(5)  # for tasks of the first attempt that still run
        assert gone.now <= LIMIT, driver.log.read_text(errors="replace")[-6000:]
        log.info("%s are deleted when the limit holds the chunk", gone.now)
        assert _exit_code_of(driver, 500) == _WAITS_FOR_THE_OPERATOR
        service.call("resume", "--limit")
        driver = spark.drive(host, service.config, "run", "--until-idle", conf=HALF)
        assert _exit_code_of(driver, 500) == 0
    _check(field, service, requested)
    text = driver.log.read_text(errors="replace")
    log.info("repeated stages: %s", text.count("FetchFailed"))


def _write(hosts: str, znodes: Mapping[str, bytes]) -> None:
    with part_clients.zookeeper(hosts) as client:
        for path, data in znodes.items():
            client.set(path, data)


def _check(field: Field, service: Deployment, requested: Requested) -> None:
    """Check that every request has one final receipt, ledgers in use exist, and every copy was stored once."""
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (requested.requests, 0, [])
    outcomes = Counter(row["outcome"] for rows in service.final().values() for row in rows)
    assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == len(requested.leaked)
    assert outcomes["DEAD_LETTER"] == 4 * len(requested.used)
    left = every_ledger(field.cluster)
    assert set(requested.leaked).isdisjoint(left)
    assert set(requested.used) <= set(left)
    assert {row["ledger_id"] for row in journal.entries(service.settings.state_dir)} == set(requested.leaked)
    log.info("%s", outcomes)


def _check_pause(service: Deployment, gone: Gone) -> None:
    service.call("pause", "--why", "a check")
    before = -1
    for _ in range(10):  # executors check once a second, before a delete; on a busy machine, a delete takes seconds
        if gone.now == before:
            break
        before = gone.now
        time.sleep(2)
    else:
        raise AssertionError(f"deletes continue during a pause: {before} ledgers are gone")
    time.sleep(2)
    assert gone.now == before
    service.call("resume")
