"""The embedded real cluster: ZooKeeper, bookie, broker (one of each, or several) and an S3 server.

Each part is a process, so that a test can kill it like a crash.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil

from streaming.errors import ConfigError, ReaperError, UnavailableError
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
from streaming.sandbox.parts import launch, part_clients, process
from streaming.sandbox.parts.distribution import PULSAR_VERSION, pulsar_home, supports_change
from streaming.sandbox.parts.part_settings import interface_of
from streaming.spark.ivy import Progress, java, locked

READY_SECONDS = 120.0
GRACE_SECONDS = 20.0
PORT_TRIES = 5
# A starting broker fails with these errors if znodes of a killed broker expire between its listing and its read.
_EXPIRING = ("NoNode for /namespace/", "NoNode for /loadbalance/")
PORT_WAIT_SECONDS = 3.0

Say = Callable[[str], None]  # takes a text about progress, for people


def _silent(_text: str) -> None:
    """Print nothing."""


class State(StrEnum):
    """The state of a part."""

    RUNNING = "running"
    STUCK = "stuck"  # its process runs but does not answer: it is frozen, starting, or broken
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster in the folder `home`. Its parts may run or not."""

    home: Home

    @property
    def pulsar(self) -> Path:
        """The folder of the cluster's version of Pulsar, which is fetched if it is missing."""
        return pulsar_home(self.spec.pulsar)

    @property
    def spec(self) -> Spec:
        """Ports and settings, read from the disk each time, because a restart may have changed a port."""
        spec = self.home.load()
        if spec is None:
            raise UnavailableError(
                f"there is no cluster in {self.home.root}: run `ledger-reaper sandbox up --home {self.home.root}`"
            )
        return spec

    @property
    def addresses(self) -> Addresses:
        """The addresses of all parts."""
        return addresses(self.spec)

    @property
    def serving(self) -> Addresses:
        """The addresses of parts that are neither dead nor frozen; if a kind has none, of all parts of that kind."""
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
        """Start the parts together and wait until all serve. A part whose port is in use gets another port.

        A part that runs already is not changed. Raises ReaperError with the last lines of the log if a part ends,
        UnavailableError if a start takes too long.
        """
        for part in parts:  # all ports before the first start, because members of an ensemble know each other's ports
            self._settle_ports(part)
        for part in parts:
            self._launch(part)
        for part in parts:
            for _attempt in range(PORT_TRIES):
                if self._has_started(part):
                    break
                self._settle_ports(part)
                self._launch(part)
            else:
                raise ReaperError(self._explain(part, f"did not start in {PORT_TRIES} attempts"))

    def stop(self, part: Instance) -> None:
        """End the part with SIGTERM, and later with SIGKILL. Do nothing if it does not run."""
        process.stop(self.home.record(part), grace_seconds=GRACE_SECONDS)

    def wait_ready(self, part: Instance, seconds: float = READY_SECONDS) -> None:
        """Wait until the part serves. Raises like start()."""
        deadline = time.monotonic() + seconds
        while not launch.is_ready(part, self.spec):
            if process.find(self.home.record(part)) is None:
                raise ReaperError(self._explain(part, "ended before it served"))
            if time.monotonic() > deadline:
                raise UnavailableError(self._explain(part, f"did not serve within {seconds:.0f} s"))
            time.sleep(0.1)

    def _is_awake(self, part: Instance) -> bool:
        process = self.process(part)
        return process is not None and process.status() != psutil.STATUS_STOPPED

    def _launch(self, part: Instance) -> None:
        if self.process(part) is None:
            launch.start(self.home, part, self.spec, self.pulsar)

    def _has_started(self, part: Instance) -> bool:
        """Wait until the part serves; return False if another attempt may help."""
        try:
            self.wait_ready(part)
        except ReaperError:
            if process.find(self.home.record(part)) is not None:
                raise
            # Another process may have taken the port between the check and the part's bind.
            lost_its_port = bool(_taken(part, self.spec))
            log = launch.tail(self.home.log(part), lines=100)
            met_an_expiring_session = part.kind is Part.BROKER and any(node in log for node in _EXPIRING)
            # a program that can't start says why; this one was killed, or its machine had no room for it for a moment
            has_said_nothing = not log.strip()
            if not (lost_its_port or met_an_expiring_session or has_said_nothing):
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
        """Raise ReaperError for a ZooKeeper whose ensemble runs."""
        others = [other for other in spec.all_of(part.kind) if other != part and self.process(other) is not None]
        # the other members know its old ports
        if part.kind is Part.ZOOKEEPER and others:
            down = f"`ledger-reaper sandbox down --home {self.home.root}`"
            raise ReaperError(
                f"another process took a port of {part}, which the other members use: run {down}, then `up` again"
            )

    def _waits(self, deadline: float) -> bool:
        """Whether to wait longer for a free port: if the cluster has run before, clients know its ports."""
        return self.home.config.is_file() and time.monotonic() < deadline

    def _explain(self, part: Instance, what: str) -> str:
        log = self.home.log(part)
        return f"{part} {what}; read {log}\n{launch.tail(log)}"


def up(  # noqa: PLR0913  keyword arguments
    root: Path,
    *,
    broker_settings: Mapping[str, str] | None = None,
    counts: Mapping[Part, int] | None = None,
    listen: str | None = None,
    gc_wait_seconds: int | None = None,
    pulsar: str | None = None,
    say: Say = _silent,
    progress: Progress | None = None,
) -> Cluster:
    """Start the parts of the cluster in `root` that do not run, and wait until it works; create it if necessary.

    Running brokers or bookies are restarted if their settings change, and all of Pulsar if its version changes. If a
    part fails, all parts that this call started or restarted are stopped. Raises ReaperError or UnavailableError, which
    name the log to read, and ConfigError for arguments that don't fit this machine or the existing cluster.

    Args:
        broker_settings: added to those of earlier calls.
        counts: how many processes of each kind a new cluster gets, by default one; the numbers can't be changed later.
        listen: the IPv4 address of this machine that all parts listen on; by default that of the earlier call, or
            loopback.
        gc_wait_seconds: time between two garbage collections of a bookie, by default that of the earlier call, or 3.
        pulsar: version, by default that of the earlier call, or PULSAR_VERSION.
    """
    home = Home(root.resolve())
    if any(character.isspace() for character in str(home.root)):
        raise ConfigError(f"Pulsar's scripts don't work in a folder with a space in its name: {home.root}")
    if (home.root / "rocketmq.json").is_file():
        raise ConfigError(f"{home.root} contains a RocketMQ: name another folder (--home)")
    java()
    pulsar_home(_version(home.load(), pulsar), progress=progress)
    home.make_folders()
    with locked(home.root / "run" / "up.lock"):
        cluster = Cluster(home)
        before = home.load()
        version = _version(before, pulsar)
        running = [part for part in _parts(before) if cluster.process(part) is not None]
        spec = _settle(before, listen, counts or {}, is_running=bool(running))
        home.make_folders(spec.parts)
        settings, gc_wait = {**spec.broker_settings, **(broker_settings or {})}, gc_wait_seconds or spec.gc_wait_seconds
        changed = {Part.BROKER: settings != spec.broker_settings, Part.BOOKIE: gc_wait != spec.gc_wait_seconds}
        if version != spec.pulsar:
            changed = dict.fromkeys((Part.ZOOKEEPER, Part.BOOKIE, Part.BROKER), True)
        kept = [part for part in running if not changed.get(part.kind)]
        home.save(replace(spec, broker_settings=settings, gc_wait_seconds=gc_wait, pulsar=version))
        try:
            what = "settings change" if version == spec.pulsar else "version changes"
            for part in (part for part in reversed(running) if part not in kept):  # ZooKeeper last, its clients first
                say(f"Stopping {part}, because its {what}")
                cluster.stop(part)
            _start_parts(cluster, say)
        except BaseException:
            earlier = replace(cluster.spec, broker_settings=spec.broker_settings, gc_wait_seconds=spec.gc_wait_seconds)
            home.save(earlier)
            for part in reversed(spec.parts):
                if part not in kept:
                    cluster.stop(part)
            raise
        write_local_files(home, cluster.spec)
    return cluster


def down(root: Path, say: Say = _silent) -> bool:
    """Stop the cluster's processes and keep its data; return False if none ran."""
    home = Home(root.resolve())
    ran = False
    for part in reversed(_parts(home.load())):
        if process.find(home.record(part)) is not None:
            say(f"Stopping {part}")
        ran |= process.stop(home.record(part), grace_seconds=GRACE_SECONDS)
    return ran


def attach(root: Path) -> Cluster:
    """Return the cluster in `root`, running or not. Raises UnavailableError if there is none."""
    home = Home(root.resolve())
    if home.load() is None:
        raise UnavailableError(f"there is no cluster in {home.root}: run `ledger-reaper sandbox up --home {root}`")
    return Cluster(home)


def _parts(spec: Spec | None) -> tuple[Instance, ...]:
    return spec.parts if spec else tuple(Part)


def _settle(saved: Spec | None, listen: str | None, counts: Mapping[Part, int], *, is_running: bool) -> Spec:
    address = listen or (saved.listen if saved else HOST)
    interface_of(address)
    if saved is None:
        several = {str(kind): number for kind, number in counts.items() if number != 1}
        return Spec(pick_ports({}, address, several), listen=address, counts=several)
    for kind, number in counts.items():
        if (now := len(saved.all_of(kind))) != number:
            raise ConfigError(f"this cluster was created with {now} of {kind}, not {number}: create another (--home)")
    if is_running and address != saved.listen:
        raise ConfigError(f"this cluster runs on {saved.listen}: run `ledger-reaper sandbox down` first")
    return replace(saved, listen=address)


def _version(saved: Spec | None, wanted: str | None) -> str:
    """Return the version to start. Raises ConfigError if Pulsar does not support the change to it."""
    if saved is None:
        return wanted or PULSAR_VERSION
    if wanted is not None and not supports_change(saved.pulsar, wanted):
        raise ConfigError(
            f"this cluster ran Pulsar {saved.pulsar}, and Pulsar supports no change from there to {wanted}: its major "
            "version may change by one at a time (PIP-175)"
        )
    return wanted or saved.pulsar


def _taken(part: Instance, spec: Spec) -> list[str]:
    return [name for name in port_names(part, spec.counts) if not is_free(spec.ports[name], spec.listen)]


def _start_parts(cluster: Cluster, say: Say) -> None:
    spec = cluster.spec
    _start(cluster, say, "Starting ZooKeeper and S3", *spec.all_of(Part.ZOOKEEPER), Part.S3)
    if not part_clients.znode_exists(cluster.addresses.zookeeper, f"/admin/clusters/{CLUSTER_NAME}"):
        say("Writing Pulsar's metadata")
        launch.initialize_metadata(cluster.home, cluster.spec, cluster.pulsar)
    bookies, brokers = spec.all_of(Part.BOOKIE), spec.all_of(Part.BROKER)
    plural = (
        "bookies and brokers" if len(bookies) + len(brokers) > len((Part.BOOKIE, Part.BROKER)) else "bookie and broker"
    )
    _start(cluster, say, f"Starting {plural}", *bookies, *brokers)
    _create_bucket_and_namespaces(cluster)
    _announce_addresses(cluster)


def _start(cluster: Cluster, say: Say, text: str, *parts: Instance) -> None:
    if missing := [part for part in parts if cluster.process(part) is None]:
        say(text if len(missing) == len(parts) else f"Starting {', '.join(map(str, missing))}")
    cluster.start(*parts)


def _create_bucket_and_namespaces(cluster: Cluster) -> None:
    part_clients.make_bucket(cluster.addresses.s3, BUCKET, REGION)
    for namespace in ("public/default", "pulsar/system"):
        path = f"namespaces/{namespace}"
        if _admin(cluster, "GET", path).status == 404:
            _admin(cluster, "PUT", path, body={})
        if not (reply := _admin(cluster, "GET", path)).ok:
            raise UnavailableError(f"namespace {namespace} could not be created: {reply.status} {reply.text[:200]}")


def _announce_addresses(cluster: Cluster) -> None:
    """Write the addresses into Pulsar's record of the cluster."""
    now = cluster.addresses
    path = f"clusters/{CLUSTER_NAME}"
    recorded = json.loads(_admin(cluster, "GET", path).text)
    # a port may have changed
    if (recorded["serviceUrl"], recorded["brokerServiceUrl"]) != (now.admin, now.pulsar):
        _admin(cluster, "POST", path, body={**recorded, "serviceUrl": now.admin, "brokerServiceUrl": now.pulsar})


def _admin(cluster: Cluster, method: str, path: str, body: object = None) -> part_clients.Reply:
    return part_clients.http_any(method, cluster.serving.admin, f"admin/v2/{path}", body=body)
