"""The embedded real cluster: ZooKeeper, bookie, broker (one of each, or several) and an S3 server.

Each is a process of its own, so that it can be killed as a crash would.
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
    REGION,
    Addresses,
    Home,
    Instance,
    Part,
    Spec,
    addresses,
    is_free,
    pick_ports,
    port_names,
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
    def serving(self) -> Addresses:
        """Addresses without those of parts that are dead or frozen; of a kind that has no other, all of its parts'."""
        spec = self.spec
        awake = [part for part in spec.parts if self._is_awake(part)]
        kinds = {part.kind for part in awake}
        return addresses(spec, [*awake, *(part for part in spec.parts if part.kind not in kinds)])

    @property
    def bucket(self) -> str:
        """The bucket that the broker offloads to."""
        return BUCKET

    @property
    def region(self) -> str:
        """The bucket's region."""
        return REGION

    def state(self, part: Instance) -> State:
        """Whether the part runs and answers."""
        if process.find(self.home.record(part)) is None:
            return State.DOWN
        return State.RUNNING if launch.is_ready(part, self.spec) else State.STUCK

    def process(self, part: Instance) -> psutil.Process | None:
        """The part's process, None if it does not run."""
        return process.find(self.home.record(part))

    def start(self, *parts: Instance) -> None:
        """Start the parts together and return when all serve. A part whose port is taken gets another one.

        Raises ReaperError with the last lines of the log if a part ends, UnavailableError if it takes too long. A part
        that runs already stays as it is.
        """
        for part in parts:  # of all, before the first starts: members of an ensemble know each other's ports
            self._settle_ports(part)
        for part in parts:
            self._launch(part)
        for part in parts:
            for _attempt in range(PORT_TRIES):
                if self._serves_or_is_to_be_tried_again(part):
                    break
                self._settle_ports(part)
                self._launch(part)
            else:
                raise ReaperError(self._explain(part, f"did not start in {PORT_TRIES} tries"))

    def stop(self, part: Instance) -> None:
        """End the part gently (SIGTERM, then SIGKILL); nothing happens if it does not run."""
        process.stop(self.home.record(part), grace_seconds=GRACE_SECONDS)

    def wait_ready(self, part: Instance, seconds: float = READY_SECONDS) -> None:
        """Return when the part serves. Raises what start() raises."""
        deadline = time.monotonic() + seconds
        while not launch.is_ready(part, self.spec):
            if process.find(self.home.record(part)) is None:
                raise ReaperError(self._explain(part, "ended before it served"))
            if time.monotonic() > deadline:
                raise UnavailableError(self._explain(part, f"did not serve within {seconds:.0f} s"))
            time.sleep(0.1)

    def _is_awake(self, part: Instance) -> bool:
        found = self.process(part)
        return found is not None and found.status() != psutil.STATUS_STOPPED

    def _launch(self, part: Instance) -> None:
        if self.process(part) is None:
            launch.start(self.home, part, self.spec, self.pulsar)

    def _serves_or_is_to_be_tried_again(self, part: Instance) -> bool:
        try:
            self.wait_ready(part)
        except ReaperError:
            if process.find(self.home.record(part)) is not None:
                raise
            # Another process may have taken the port between our look and the part's bind.
            lost_its_port = bool(_taken(part, self.spec))
            said = launch.tail(self.home.log(part), lines=100)
            met_an_expiring_session = part.kind is Part.BROKER and any(node in said for node in _EXPIRING)
            if not (lost_its_port or met_an_expiring_session):
                raise
            return False
        return True

    def _settle_ports(self, part: Instance) -> None:
        if self.process(part) is not None:
            return
        spec = self.spec
        deadline = time.monotonic() + PORT_WAIT_SECONDS
        while (taken := _taken(part, spec)) and self._waits(deadline):
            time.sleep(0.1)
        if taken:
            self._refuse_to_move_a_member(part, spec)
            others = {name: port for name, port in spec.ports.items() if name not in taken}
            fresh = pick_ports({}, spec.listen, spec.counts)
            self.home.save(replace(spec, ports={**others, **{name: fresh[name] for name in taken}}))
            write_local_files(self.home, self.spec)

    def _refuse_to_move_a_member(self, part: Instance, spec: Spec) -> None:
        """A ZooKeeper of an ensemble can't move while others run, which know the ports that it had."""
        others = [each for each in spec.all_of(part.kind) if each != part and self.process(each) is not None]
        if part.kind is Part.ZOOKEEPER and others:
            where = f"`ledger-reaper sandbox down --home {self.home.root}`"
            raise ReaperError(f"another process took a port of {part}, which others know: run {where}, then `up` again")

    def _waits(self, deadline: float) -> bool:
        """Whether to wait for a port a little longer: clients know the ports of a cluster that ran before."""
        return self.home.config.is_file() and time.monotonic() < deadline

    def _explain(self, part: Instance, what: str) -> str:
        log = self.home.log(part)
        return f"{part} {what}; read {log}\n{launch.tail(log)}"


def up(  # noqa: PLR0913  each is asked for by its name
    root: Path,
    *,
    broker_settings: Mapping[str, str] | None = None,
    counts: Mapping[Part, int] | None = None,
    listen: str | None = None,
    say: Say = _silent,
    progress: Progress | None = None,
) -> Cluster:
    """Start the parts that do not run of the cluster in `root`, and return when it works. A new cluster is made first.

    If one part fails, every part that this call started is stopped again. broker_settings are added to those of earlier
    calls and take effect when the broker starts. counts says how many of each part a new cluster has, by default one;
    it keeps that number. listen is the IPv4 address of this machine that all parts listen on,
    by default the one of the earlier call, or loopback. Raises ReaperError or UnavailableError, which name the log to
    read, and ConfigError for an address that this machine has not or that parts that run don't listen on, and
    for another number of parts.
    """
    home = Home(root.resolve())
    if any(character.isspace() for character in str(home.root)):
        raise ConfigError(f"Pulsar's scripts don't work in a folder with a blank in its name: {home.root}")
    if (home.root / "rocketmq.json").is_file():
        raise ConfigError(f"{home.root} holds a RocketMQ: name another folder (--home)")
    java()
    pulsar_home(progress=progress)
    home.make_folders()
    with locked(home.root / "run" / "up.lock"):
        cluster = Cluster(home)
        before = home.load()
        running = [part for part in _parts(before) if cluster.process(part) is not None]
        known = _settle(before, listen, counts or {}, is_running=bool(running))
        home.make_folders(known.parts)
        home.save(replace(known, broker_settings={**known.broker_settings, **(broker_settings or {})}))
        try:
            _start_parts(cluster, say)
        except BaseException:
            home.save(replace(cluster.spec, broker_settings=known.broker_settings))
            for part in reversed(known.parts):
                if part not in running:
                    cluster.stop(part)
            raise
        write_local_files(home, cluster.spec)
    return cluster


def down(root: Path, say: Say = _silent) -> bool:
    """Stop the cluster's processes; its data stay. False if none ran."""
    home = Home(root.resolve())
    ran = False
    for part in reversed(_parts(home.load())):
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


def _parts(spec: Spec | None) -> tuple[Instance, ...]:
    return spec.parts if spec else tuple(Part)


def _settle(known: Spec | None, listen: str | None, counts: Mapping[Part, int], *, is_running: bool) -> Spec:
    address = listen or (known.listen if known else HOST)
    interface_of(address)
    if known is None:
        several = {str(kind): number for kind, number in counts.items() if number != 1}
        return Spec(pick_ports({}, address, several), listen=address, counts=several)
    for kind, number in counts.items():
        if (now := len(known.all_of(kind))) != number:
            raise ConfigError(f"this cluster was made with {now} of {kind}, not {number}: make another one (--home)")
    if is_running and address != known.listen:
        raise ConfigError(f"this cluster runs on {known.listen}: run `ledger-reaper sandbox down` first")
    return replace(known, listen=address)


def _taken(part: Instance, spec: Spec) -> list[str]:
    return [name for name in port_names(part, spec.counts) if not is_free(spec.ports[name], spec.listen)]


def _start_parts(cluster: Cluster, say: Say) -> None:
    spec = cluster.spec
    _start(cluster, say, "Starting ZooKeeper and S3", *spec.all_of(Part.ZOOKEEPER), Part.S3)
    if not clients.znode_exists(cluster.addresses.zookeeper, f"/admin/clusters/{CLUSTER_NAME}"):
        say("Writing Pulsar's metadata")
        launch.initialize_metadata(cluster.home, cluster.spec, cluster.pulsar)
    bookies, brokers = spec.all_of(Part.BOOKIE), spec.all_of(Part.BROKER)
    plural = (
        "bookies and brokers" if len(bookies) + len(brokers) > len((Part.BOOKIE, Part.BROKER)) else "bookie and broker"
    )
    _start(cluster, say, f"Starting {plural}", *bookies, *brokers)
    _make_bucket_and_namespaces(cluster)
    _announce_addresses(cluster)


def _start(cluster: Cluster, say: Say, text: str, *parts: Instance) -> None:
    if any(cluster.process(part) is None for part in parts):
        say(text)
    cluster.start(*parts)


def _make_bucket_and_namespaces(cluster: Cluster) -> None:
    clients.make_bucket(cluster.addresses.s3, BUCKET, REGION)
    for namespace in ("public/default", "pulsar/system"):
        path = f"namespaces/{namespace}"
        if _admin(cluster, "GET", path).status == 404:
            _admin(cluster, "PUT", path, body={})
        if not (reply := _admin(cluster, "GET", path)).ok:
            raise UnavailableError(f"namespace {namespace} could not be made: {reply.status} {reply.text[:200]}")


def _announce_addresses(cluster: Cluster) -> None:
    """Write the addresses into Pulsar's record of the cluster: they may have moved since the record was made."""
    where = cluster.addresses
    path = f"clusters/{CLUSTER_NAME}"
    known = json.loads(_admin(cluster, "GET", path).text)
    if (known["serviceUrl"], known["brokerServiceUrl"]) != (where.admin, where.pulsar):
        _admin(cluster, "POST", path, body={**known, "serviceUrl": where.admin, "brokerServiceUrl": where.pulsar})


def _admin(cluster: Cluster, method: str, path: str, body: object = None) -> clients.Reply:
    return clients.http_any(method, cluster.serving.admin, f"admin/v2/{path}", body=body)
