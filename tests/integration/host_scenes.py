"""What hosts with the service on them go through: they are cut off, die and join, in one run after the other."""

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
from streaming.sandbox import part_clients, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, REGION
from streaming.sandbox.ledger_list import every_ledger
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
HALF = ("spark.cores.max=2",)  # of the cores: another run finds some while the first one's are not given back
BY_NEED = (
    "spark.dynamicAllocation.enabled=true",
    "spark.dynamicAllocation.shuffleTracking.enabled=true",
    "spark.dynamicAllocation.executorIdleTimeout=20s",
)
_FENCED = "another instance of this service has taken over"
IN_USE = 5  # ledgers that are asked for and in use, each four times


@dataclass(slots=True)
class Field:
    """A cluster of Pulsar, and hosts with Spark that reach it."""

    cluster: Cluster
    spark: SparkHosts
    here: Path

    def service(self, *, limits: str = "", chunk_rows: int = 50_000, rate: int = RATE) -> Deployment:
        """A configuration whose folder drivers can read, and no worker has."""
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
    """How many ledgers have gone, looked at again and again by a thread of its own."""

    service: Deployment
    seen: list[tuple[float, int]] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Gone":
        self._before = self._there()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def now(self) -> int:
        return self.seen[-1][1] if self.seen else 0

    def most_within(self, seconds: float) -> int:
        """The most that went within so long."""
        return max(
            later - before
            for begun, (began_s, before) in enumerate(self.seen)
            for at_s, later in self.seen[begun:]
            if at_s - began_s <= seconds
        )

    def _look(self) -> None:
        while not self._done.wait(0.25):
            self.seen.append((time.monotonic(), self._before - self._there()))

    def _there(self) -> int:
        return count_ledgers(clients_for(self.service.settings).store, LEDGERS_ROOT)

    _before: int = 0
    _thread: threading.Thread = field(default_factory=threading.Thread)


def _ran_to_its_end(driver: Driver, seconds: float) -> int:
    try:
        return driver.process.wait(seconds)
    except subprocess.TimeoutExpired:
        pytest.fail(driver.log.read_text(errors="replace")[-6000:])


@dataclass(slots=True)
class Asked:
    """What was asked for: ledgers that have leaked, and ledgers in use, each of these four times."""

    owners: list[str] = field(default_factory=list)
    leaked: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.leaked) + 4 * len(self.used)


def asked(cluster: Cluster, service: Deployment, count: int) -> Asked:
    """Let topics leak so many ledgers, and ask for them."""
    made = Asked()
    requests = []
    for number in range(OWNERS):
        owner = new_topic(f"hosts{number}")
        made.owners.append(owner)
        topics.fill(cluster, owner, 1, ["s"])
        leaked = leak(cluster, owner, count // OWNERS)
        made.leaked += leaked
        requests += [payload(owner, each) for each in leaked]
        if number < IN_USE:
            made.used.append(topics.data_ledgers(cluster, owner)[0])
            requests += [payload(owner, made.used[-1])] * 4
    service.request(requests)
    return made


def hosts_come_and_go(field: Field, count: int, *, chunk_rows: int) -> None:
    """One run through all that may happen to hosts, and the reckoning after it."""
    spark = field.spark
    spark.begin(["one", "two"])
    service = field.service(chunk_rows=chunk_rows)
    wanted = asked(field.cluster, service, count)
    first, second = (spark.add_driver(name, service.config) for name in ("first", "second"))
    part = count // 12
    with Gone(service) as gone:

        def further(driver: Driver, seconds: float = 300) -> None:
            enough = gone.now + part
            until(lambda: gone.now >= enough or driver.process.poll() is not None, driver.log, seconds)
            assert driver.process.poll() is None, driver.log.read_text()[-5000:]
            log.info("%s of %s have gone", gone.now, count)

        log.info("a driver begins")
        begun = spark.drive(first, service.config, "run", conf=HALF)
        further(begun)
        _is_paused_everywhere(service, gone)
        further(begun)

        log.info("host one is cut off")
        spark.workers["one"].cut()
        further(begun)
        spark.workers["one"].join()
        further(begun)

        log.info("host two dies")
        spark.workers["two"].kill()
        further(begun)
        spark.add_worker("three")
        further(begun)

        log.info("the driver's host is cut off or dies, and another driver begins elsewhere")
        if first.is_separate:
            first.cut()
        else:  # a frozen process of this machine is alive, and would rightly be told so
            first.kill()
        again = spark.drive(second, service.config, "run", "--until-idle", conf=(*HALF, *BY_NEED))
        assert _ran_to_its_end(again, 600) == 0
        if first.is_separate:
            log.info("the other driver has ended; the first one is back")
            first.join()
            assert _ran_to_its_end(begun, 120) in (3, 4), "it has to notice that it is outdated"

    assert gone.most_within(5) <= RATE * (5 + 1), "a task sends a second's worth of its share at once"
    fenced = sum(spark.said(name).count(_FENCED) for name in spark.workers)
    log.info("at most %s a second within 5 s; %s attempts were fenced", gone.most_within(5) / 5, fenced)
    _reckoned(field, service, wanted)
    # the third is the only one with free cores where a silent driver's executors hold those of the first
    for name in ("one", "two", "three")[: 3 if first.is_separate else 2]:
        assert spark.unpacked(name), f"no executor has run on {name}"


LIMIT = 750  # deletes within an hour
_ONLY_A_PERSON_CAN_HELP = 4


def a_host_dies_while_a_bounded_chunk_is_swept(field: Field) -> None:
    """The stage of the sweep starts over, and its tasks do not get what was planned for them once more.

    Half of the owners can't be read at the dry run, and can be read later: the plan is below the limit, and as much
    again becomes deletable while it is carried out.
    """
    spark = field.spark
    spark.begin(["one", "two"])
    service = field.service(limits=f"max_deletes_per_hour = {LIMIT}", rate=20)
    wanted = asked(field.cluster, service, 1_200)
    assert LIMIT < len(wanted.leaked) < 2 * LIMIT
    zookeeper = field.cluster.addresses.zookeeper
    lists = {managed_ledger_path(owner): b"" for owner in wanted.owners[OWNERS // 2 :]}
    lists = part_clients.read_znodes(zookeeper, list(lists))
    _write(zookeeper, dict.fromkeys(lists, b"\xff no list"))
    host = spark.add_driver("first", service.config)
    with Gone(service) as gone:
        driver = spark.drive(host, service.config, "run", "--until-idle", conf=HALF)
        until(lambda: gone.now >= 40 or driver.process.poll() is not None, driver.log, 300)
        _write(zookeeper, lists)
        log.info("%s have gone; host two dies", gone.now)
        spark.workers["two"].kill()
        until(lambda: "LIMIT REACHED" in driver.log.read_text(errors="replace"), driver.log, 400)
        time.sleep(5)  # what still runs of the first attempt
        assert gone.now <= LIMIT, driver.log.read_text(errors="replace")[-6000:]
        log.info("%s have gone when the limit holds the chunk", gone.now)
        assert _ran_to_its_end(driver, 500) == _ONLY_A_PERSON_CAN_HELP
        service.call("resume", "--limit")
        driver = spark.drive(host, service.config, "run", "--until-idle", conf=HALF)
        assert _ran_to_its_end(driver, 500) == 0
    _reckoned(field, service, wanted)
    text = driver.log.read_text(errors="replace")
    log.info("stages started over: %s", text.count("FetchFailed"))


def _write(hosts: str, znodes: Mapping[str, bytes]) -> None:
    with part_clients.zookeeper(hosts) as client:
        for path, data in znodes.items():
            client.set(path, data)


def _reckoned(field: Field, service: Deployment, wanted: Asked) -> None:
    """Every request has one final receipt, nothing in use has gone, and every copy was stored once."""
    found = reckon(service.settings)
    assert (found.requests, found.open, found.wrong) == (wanted.requests, 0, [])
    outcomes = Counter(row["outcome"] for some in service.final().values() for row in some)
    assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == len(wanted.leaked)
    assert outcomes["DEAD_LETTER"] == 4 * len(wanted.used)
    left = every_ledger(field.cluster)
    assert set(wanted.leaked).isdisjoint(left)
    assert set(wanted.used) <= set(left)
    assert {row["ledger_id"] for row in journal.entries(service.settings.state_dir)} == set(wanted.leaked)
    log.info("%s", outcomes)


def _is_paused_everywhere(service: Deployment, gone: Gone) -> None:
    service.call("pause", "--why", "a look")
    time.sleep(2.5)  # executors look once a second, before a delete
    before = gone.now
    time.sleep(2)
    assert gone.now == before
    service.call("resume")
