"""A real RocketMQ on this machine: a name server and a broker, started from the published jars."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.sandbox.cluster import State
from streaming.sandbox.home import Home as ClusterHome
from streaming.sandbox.home import pick
from streaming.sandbox.parts import process
from streaming.sandbox.parts.launch import tail
from streaming.sandbox.parts.part_settings import render
from streaming.sandbox.rocketmq import network, remoting
from streaming.sandbox.rocketmq.broker_home import BROKER_NAME, PORTS, RocketHome, RocketPart, RocketSpec, StoreMode
from streaming.sandbox.rocketmq.broker_jars import class_path
from streaming.sandbox.rocketmq.broker_settings import settings
from streaming.spark.ivy import Progress, java, locked

READY_SECONDS = 180.0
# A broker that flushes its RocksDB and its files takes up to half a minute to stop, and more on a busy machine.
GRACE_SECONDS = 120.0
_BOOTED = "boot success"
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_IPV4_ONLY = "-Djava.net.preferIPv4Stack=true"
_OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")
_MEMORY = {
    RocketPart.NAME_SERVER: ("-Xms32m", "-Xmx96m"),
    RocketPart.BROKER: ("-Xms128m", "-Xmx384m", "-XX:MaxDirectMemorySize=384m"),
}
_MAIN = {
    RocketPart.NAME_SERVER: "org.apache.rocketmq.namesrv.NamesrvStartup",
    RocketPart.BROKER: "org.apache.rocketmq.broker.BrokerStartup",
}

# Takes a line of progress for the operator.
Say = Callable[[str], None]


def _silent(_text: str) -> None:
    """Discard the text."""


@dataclass(frozen=True, slots=True)
class RocketMQ:
    """The RocketMQ in the folder `home`, running or not."""

    home: RocketHome

    @property
    def spec(self) -> RocketSpec:
        """Version, addresses and settings, read from the disk each time. Raises UnavailableError if there is none."""
        spec = self.home.load()
        if spec is None:
            raise UnavailableError(
                f"there is no RocketMQ in {self.home.root}: run `ledger-reaper sandbox up --rocketmq`"
            )
        return spec

    @property
    def store(self) -> Path:
        """The broker's store."""
        return self.home.store

    def runs(self, part: RocketPart) -> bool:
        """Whether the part's process runs."""
        return process.find(self.home.record(part)) is not None

    def state(self, part: RocketPart) -> State:
        """Whether the part runs and answers."""
        if not self.runs(part):
            return State.DOWN
        return State.RUNNING if self.serves(part) else State.STUCK

    def serves(self, part: RocketPart) -> bool:
        """Whether clients can use the part. For a broker: it is up, and the name server has a route to it."""
        if not self.runs(part):
            return False
        if part is RocketPart.BROKER:
            return remoting.knows_topic(self.spec.name_server, BROKER_NAME) and _BOOTED in self._output(part)
        return _BOOTED in self._output(part)

    def start_broker(
        self, mode: StoreMode | None = None, broker_settings: Mapping[str, str] | None = None, *, version: str = ""
    ) -> None:
        """Start the broker on its store and return when clients can use it.

        mode, broker_settings (which replace the earlier settings) and version keep their values unless given. Raises
        ReaperError with the last lines of its log if it ends, UnavailableError if it takes too long.
        """
        spec = self.spec
        chosen = spec.settings if broker_settings is None else broker_settings
        self.home.save(replace(spec, mode=mode or spec.mode, settings=chosen, version=version or spec.version))
        self.start(RocketPart.BROKER)

    def start(self, part: RocketPart) -> None:
        """Start a part that does not run. Raises what start_broker() raises."""
        if not self.runs(part):
            self._launch(part)
        deadline = time.monotonic() + READY_SECONDS
        while not self.serves(part):
            if not self.runs(part):
                raise ReaperError(self._explain(part, "ended before it served"))
            if time.monotonic() > deadline:
                raise UnavailableError(self._explain(part, f"did not serve within {READY_SECONDS:.0f} s"))
            time.sleep(0.2)

    def stop(self, part: RocketPart) -> None:
        """Stop a part by SIGTERM, and wait. Raises ReaperError if the broker left its store as after a crash."""
        if process.stop(self.home.record(part), grace_seconds=GRACE_SECONDS) and self._stopped_uncleanly(part):
            raise ReaperError(self._explain(part, f"did not end cleanly within {GRACE_SECONDS:.0f} s"))

    def stop_broker(self) -> None:
        """Stop the broker; its store is then at rest."""
        self.stop(RocketPart.BROKER)

    def kill_broker(self) -> None:
        """Kill the broker, as a crash would."""
        process.kill(self.home.record(RocketPart.BROKER))

    def _stopped_uncleanly(self, part: RocketPart) -> bool:
        return part is RocketPart.BROKER and (self.home.store / "abort").exists()

    def _launch(self, part: RocketPart) -> None:
        spec, home = self.spec, self.home
        home.conf(part).write_text(render(settings(home, part, spec)), encoding="utf-8")
        home.log(part).unlink(missing_ok=True)  # "boot success" of an earlier start proves nothing
        opened = [word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        options = [*_MEMORY[part], *_JVM, f"-Duser.home={home.user}", f"-XX:ErrorFile={home.logs}/hs_err_%p.log"]
        if ":" not in spec.settings.get("bindAddress", ""):  # no IPv6 address
            options.append(_IPV4_ONLY)
        exported = ["--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"]
        command = [java(), *options, *opened, *exported, "-cp", class_path(spec.version)]
        process.start(
            [*network.inside(home.network), *command, _MAIN[part], "-c", str(home.conf(part))],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "ROCKETMQ_HOME": str(home.user)},
            log=home.log(part),
            record=home.record(part),
            cwd=home.root,
        )

    def _output(self, part: RocketPart) -> str:
        log = self.home.log(part)
        return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""

    def _explain(self, part: RocketPart, what: str) -> str:
        return f"{part} {what}; read {self.home.log(part)} and {self.home.user}/logs\n{tail(self.home.log(part))}"


def up(  # noqa: PLR0913  callers name each argument
    root: Path,
    version: str,
    *,
    mode: StoreMode | None = None,
    broker_settings: Mapping[str, str] | None = None,
    say: Say = _silent,
    progress: Progress | None = None,
) -> RocketMQ:
    """Start name server and broker in `root`, created if missing, and return when clients can use them.

    mode and broker_settings are those of the last start unless given. Raises ConfigError if the running broker has
    other settings, and what RocketMQ.start_broker() raises; the parts that this call started are then stopped.
    """
    home = RocketHome(root.resolve())
    if ClusterHome(home.root).load() is not None:
        raise ConfigError(f"{home.root} contains a Pulsar cluster: name another folder (--home)")
    class_path(version, progress=progress)
    home.make_folders()
    server = RocketMQ(home)
    with locked(home.root / "run" / "up.lock"):
        running = [part for part in RocketPart if server.runs(part)]
        last = home.load()
        spec = _settle(home, last, version, is_running=bool(running))
        spec = replace(
            spec,
            mode=mode or spec.mode,
            settings=spec.settings if broker_settings is None else broker_settings,
        )
        if RocketPart.BROKER in running and spec != last:
            raise ConfigError(
                f"a broker runs in {home.root} with other settings: run `ledger-reaper sandbox down` first"
            )
        home.save(spec)
        _start(server, running, say)
    return server


def _start(server: RocketMQ, running: Collection[RocketPart], say: Say) -> None:
    """Start the parts that do not run; if one of them fails, stop them again."""
    try:
        for part in RocketPart:
            if part not in running:
                say(f"Starting RocketMQ's {part}")
            server.start(part)
    except BaseException:
        for part in reversed(RocketPart):
            if part not in running:
                process.stop(server.home.record(part), grace_seconds=GRACE_SECONDS)
        if not running:
            network.end(server.home.network)
        raise


def down(root: Path, say: Say = _silent) -> bool:
    """Stop broker and name server; the store stays. False if neither ran. Raises what RocketMQ.stop() raises."""
    server = RocketMQ(RocketHome(root.resolve()))
    running = [part for part in reversed(RocketPart) if server.runs(part)]
    try:
        for part in running:
            say(f"Stopping RocketMQ's {part}")
            server.stop(part)
    finally:
        process.stop(server.home.record(RocketPart.NAME_SERVER), grace_seconds=GRACE_SECONDS)
        network.end(server.home.network)
    return bool(running)


def attach(root: Path) -> RocketMQ:
    """Return the RocketMQ in `root`, running or not. Raises UnavailableError if there is none."""
    server = RocketMQ(RocketHome(root.resolve()))
    _ = server.spec
    return server


def is_here(root: Path) -> bool:
    """Whether a RocketMQ was created in the folder."""
    return RocketHome(root.resolve()).load() is not None


def _settle(home: RocketHome, last: RocketSpec | None, version: str, *, is_running: bool) -> RocketSpec:
    """Return the RocketSpec of this start, with an address that exists now, and free ports."""
    if last is not None and is_running:
        return replace(last, version=version)
    # the namespace of an earlier start is still open if RocketMQ died without `down` or a restart of the machine
    network.end(home.network)
    address = network.make(home.network, home.logs / "network.log", home.root)
    ports = pick(PORTS, last.ports if last else {})
    return (
        replace(last, version=version, address=address, ports=ports)
        if last
        else RocketSpec(version=version, address=address, ports=ports)
    )
