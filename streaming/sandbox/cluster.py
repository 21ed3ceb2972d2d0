"""The embedded real cluster: one ZooKeeper, one bookie, one broker and an S3 server, each a process of its own.

Separate processes, so that one of them can be killed as a crash would.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil

from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.sandbox import clients, launch, process
from streaming.sandbox.distribution import pulsar_home
from streaming.sandbox.home import (
    BUCKET,
    CLUSTER_NAME,
    HOST,
    PORTS,
    REGION,
    Addresses,
    Home,
    Part,
    Spec,
    addresses,
    is_free,
    pick_ports,
)
from streaming.sandbox.local_config import write_local_files
from streaming.sandbox.settings import interface_of
from streaming.spark.ivy import Progress, java, locked

READY_SECONDS = 120.0
GRACE_SECONDS = 20.0
PORT_TRIES = 5
# A starting broker fails with these if znodes of a killed broker expire between its listing and its read.
_EXPIRING = ("NoNode for /namespace/", "NoNode for /loadbalance/")
PORT_WAIT_SECONDS = 3.0

# Takes a text that tells people what is being done.
Say = Callable[[str], None]


def _silent(_text: str) -> None:
    """Say nothing."""


class State(StrEnum):
    """State of a part. STUCK: its process runs but does not answer (it is stopped, starting, or broken)."""

    RUNNING = "running"
    STUCK = "stuck"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster in the folder `home`. Its parts may run or not."""

    home: Home

    @property
    def pulsar(self) -> Path:
        """The unpacked distribution; it is fetched if it is missing."""
        return pulsar_home()

    @property
    def spec(self) -> Spec:
        """Ports and settings, read from the disk each time: a restart may have moved a port."""
        spec = self.home.load()
        if spec is None:
            raise UnavailableError(
                f"there is no cluster in {self.home.root}: run `ledger-reaper sandbox up --home {self.home.root}`"
            )
        return spec

    @property
    def addresses(self) -> Addresses:
        """Where clients reach the parts."""
        return addresses(self.spec)

    @property
    def bucket(self) -> str:
        """The bucket that the broker offloads to."""
        return BUCKET

    @property
    def region(self) -> str:
        """The bucket's region."""
        return REGION

    def state(self, part: Part) -> State:
        """Whether the part runs and answers."""
        if process.find(self.home.record(part)) is None:
            return State.DOWN
        return State.RUNNING if launch.is_ready(part, self.spec) else State.STUCK

    def process(self, part: Part) -> psutil.Process | None:
        """The part's process, None if it does not run."""
        return process.find(self.home.record(part))

    def start(self, *parts: Part) -> None:
        """Start the parts together and return when all serve. A part whose port is taken gets another one.

        Raises ReaperError with the last lines of the log if a part ends, UnavailableError if it takes too long. A part
        that runs already stays as it is.
        """
        for part in parts:
            self._launch(part)
        for part in parts:
            for _attempt in range(PORT_TRIES):
                if self._serves_or_is_to_be_tried_again(part):
                    break
                self._launch(part)
            else:
                raise ReaperError(self._explain(part, f"did not start in {PORT_TRIES} tries"))

    def stop(self, part: Part) -> None:
        """End the part gently (SIGTERM, then SIGKILL); nothing happens if it does not run."""
        process.stop(self.home.record(part), grace_seconds=GRACE_SECONDS)

    def wait_ready(self, part: Part, seconds: float = READY_SECONDS) -> None:
        """Return when the part serves. Raises what start() raises."""
        deadline = time.monotonic() + seconds
        while not launch.is_ready(part, self.spec):
            if process.find(self.home.record(part)) is None:
                raise ReaperError(self._explain(part, "ended before it served"))
            if time.monotonic() > deadline:
                raise UnavailableError(self._explain(part, f"did not serve within {seconds:.0f} s"))
            time.sleep(0.1)

    def _launch(self, part: Part) -> None:
        if process.find(self.home.record(part)) is None:
            self._settle_ports(part)
            launch.start(self.home, part, self.spec, self.pulsar)

    def _serves_or_is_to_be_tried_again(self, part: Part) -> bool:
        try:
            self.wait_ready(part)
        except ReaperError:
            if process.find(self.home.record(part)) is not None:
                raise
            # Another process may have taken the port between our look and the part's bind.
            lost_its_port = bool(_taken(part, self.spec))
            said = launch.tail(self.home.log(part), lines=100)
            met_an_expiring_session = part is Part.BROKER and any(node in said for node in _EXPIRING)
            if not (lost_its_port or met_an_expiring_session):
                raise
            return False
        return True

    def _settle_ports(self, part: Part) -> None:
        spec = self.spec
        deadline = time.monotonic() + PORT_WAIT_SECONDS
        while (taken := _taken(part, spec)) and self._waits(deadline):
            time.sleep(0.1)
        if taken:
            others = {name: port for name, port in spec.ports.items() if name not in taken}
            fresh = pick_ports({}, spec.listen)
            self.home.save(replace(spec, ports={**others, **{name: fresh[name] for name in taken}}))
            write_local_files(self.home, self.spec)

    def _waits(self, deadline: float) -> bool:
        """Whether to wait for a port a little longer: clients know the ports of a cluster that ran before."""
        return self.home.config.is_file() and time.monotonic() < deadline

    def _explain(self, part: Part, what: str) -> str:
        log = self.home.log(part)
        return f"{part} {what}; read {log}\n{launch.tail(log)}"


def up(
    root: Path,
    *,
    broker_settings: Mapping[str, str] | None = None,
    listen: str | None = None,
    say: Say = _silent,
    progress: Progress | None = None,
) -> Cluster:
    """Start the parts that do not run of the cluster in `root`, and return when it works. A new cluster is made first.

    If one part fails, every part that this call started is stopped again. broker_settings are added to those of earlier
    calls and take effect when the broker starts. listen is the IPv4 address of this machine that all parts listen on,
    by default the one of the earlier call, or loopback. Raises ReaperError or UnavailableError, which name the log to
    read, and ConfigError for an address that this machine has not, or that parts that run don't listen on.
    """
    home = Home(root.resolve())
    if any(character.isspace() for character in str(home.root)):
        raise ConfigError(f"Pulsar's scripts don't work in a folder with a blank in its name: {home.root}")
    java()
    pulsar_home(progress=progress)
    home.make_folders()
    with locked(home.root / "run" / "up.lock"):
        cluster = Cluster(home)
        running = [part for part in Part if process.find(home.record(part)) is not None]
        known = _settle_address(home.load(), listen, running)
        home.save(replace(known, broker_settings={**known.broker_settings, **(broker_settings or {})}))
        try:
            _start_parts(cluster, say)
        except BaseException:
            home.save(replace(cluster.spec, broker_settings=known.broker_settings))
            for part in reversed(Part):
                if part not in running:
                    cluster.stop(part)
            raise
        write_local_files(home, cluster.spec)
    return cluster


def down(root: Path, say: Say = _silent) -> bool:
    """Stop the cluster's processes; its data stay. False if none ran."""
    home = Home(root.resolve())
    ran = False
    for part in reversed(Part):
        if process.find(home.record(part)) is not None:
            say(f"Stopping {part}")
        ran |= process.stop(home.record(part), grace_seconds=GRACE_SECONDS)
    return ran


def attach(root: Path) -> Cluster:
    """The cluster in `root`, running or not. Raises UnavailableError if there is none."""
    home = Home(root.resolve())
    if home.load() is None:
        raise UnavailableError(f"there is no cluster in {home.root}: run `ledger-reaper sandbox up --home {root}`")
    return Cluster(home)


def _settle_address(known: Spec | None, listen: str | None, running: list[Part]) -> Spec:
    address = listen or (known.listen if known else HOST)
    interface_of(address)
    if known is None:
        return Spec(pick_ports({}, address), listen=address)
    if running and address != known.listen:
        raise ConfigError(f"this cluster runs on {known.listen}: run `ledger-reaper sandbox down` first")
    return replace(known, listen=address)


def _taken(part: Part, spec: Spec) -> list[str]:
    return [name for name in PORTS[part] if not is_free(spec.ports[name], spec.listen)]


def _start_parts(cluster: Cluster, say: Say) -> None:
    _start(cluster, say, "Starting ZooKeeper and S3", Part.ZOOKEEPER, Part.S3)
    if not clients.znode_exists(cluster.addresses.zookeeper, f"/admin/clusters/{CLUSTER_NAME}"):
        say("Writing Pulsar's metadata")
        launch.initialize_metadata(cluster.home, cluster.spec, cluster.pulsar)
    _start(cluster, say, "Starting bookie and broker", Part.BOOKIE, Part.BROKER)
    _make_bucket_and_namespaces(cluster)
    _announce_addresses(cluster)


def _start(cluster: Cluster, say: Say, text: str, *parts: Part) -> None:
    if any(cluster.process(part) is None for part in parts):
        say(text)
    cluster.start(*parts)


def _make_bucket_and_namespaces(cluster: Cluster) -> None:
    where = cluster.addresses
    clients.make_bucket(where.s3, BUCKET, REGION)
    for namespace in ("public/default", "pulsar/system"):
        url = f"{where.admin}/admin/v2/namespaces/{namespace}"
        if clients.http("GET", url).status == 404:
            clients.http("PUT", url, body={})
        if not (reply := clients.http("GET", url)).ok:
            raise UnavailableError(f"namespace {namespace} could not be made: {reply.status} {reply.text[:200]}")


def _announce_addresses(cluster: Cluster) -> None:
    """Write the addresses into Pulsar's record of the cluster: they may have moved since the record was made."""
    where = cluster.addresses
    url = f"{where.admin}/admin/v2/clusters/{CLUSTER_NAME}"
    known = json.loads(clients.http("GET", url).text)
    if (known["serviceUrl"], known["brokerServiceUrl"]) != (where.admin, where.pulsar):
        clients.http("POST", url, body={**known, "serviceUrl": where.admin, "brokerServiceUrl": where.pulsar})
