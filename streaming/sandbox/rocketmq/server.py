"""A real RocketMQ on this machine: a name server and a broker, started from the published jars."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.sandbox import process
from streaming.sandbox.cluster import State
from streaming.sandbox.home import Home as ClusterHome
from streaming.sandbox.home import pick
from streaming.sandbox.launch import tail
from streaming.sandbox.rocketmq import network, remoting
from streaming.sandbox.rocketmq.distribution import class_path
from streaming.sandbox.rocketmq.home import BROKER_NAME, PORTS, Home, Part, Spec, StoreMode
from streaming.sandbox.rocketmq.settings import settings
from streaming.sandbox.settings import render
from streaming.spark.ivy import Progress, java, locked

READY_SECONDS = 180.0
# A broker that writes its RocksDB and its files takes up to half a minute to end, and more on a busy machine.
GRACE_SECONDS = 120.0
_BOOTED = "boot success"
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_IPV4_ONLY = "-Djava.net.preferIPv4Stack=true"
_OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")
_MEMORY = {
    Part.NAME_SERVER: ("-Xms32m", "-Xmx96m"),
    Part.BROKER: ("-Xms128m", "-Xmx384m", "-XX:MaxDirectMemorySize=384m"),
}
_MAIN = {
    Part.NAME_SERVER: "org.apache.rocketmq.namesrv.NamesrvStartup",
    Part.BROKER: "org.apache.rocketmq.broker.BrokerStartup",
}

# Takes a text that tells people what is being done.
Say = Callable[[str], None]


def _silent(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class RocketMQ:
    """The RocketMQ in the folder `home`. Its parts may run or not."""

    home: Home

    @property
    def spec(self) -> Spec:
        """Version, addresses and settings, read from the disk each time. Raises UnavailableError if there are none."""
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

    def runs(self, part: Part) -> bool:
        """Whether the part's process runs."""
        return process.find(self.home.record(part)) is not None

    def state(self, part: Part) -> State:
        """Whether the part runs and answers."""
        if not self.runs(part):
            return State.DOWN
        return State.RUNNING if self.serves(part) else State.STUCK

    def serves(self, part: Part) -> bool:
        """Whether clients can work with the part: of a broker, whether it came up and the name server sends to it."""
        if not self.runs(part):
            return False
        if part is Part.BROKER:
            return remoting.knows_topic(self.spec.name_server, BROKER_NAME) and _BOOTED in self._said(part)
        return _BOOTED in self._said(part)

    def start_broker(
        self, mode: StoreMode | None = None, broker_settings: Mapping[str, str] | None = None, *, version: str = ""
    ) -> None:
        """Start the broker over its store and return when clients can work with it.

        mode, broker_settings (which replace the ones before) and version stay as they were where none are given.
        Raises ReaperError with the last lines of its log if it ends, UnavailableError if it takes too long.
        """
        spec = self.spec
        chosen = spec.settings if broker_settings is None else broker_settings
        self.home.save(replace(spec, mode=mode or spec.mode, settings=chosen, version=version or spec.version))
        self.start(Part.BROKER)

    def start(self, part: Part) -> None:
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

    def stop(self, part: Part) -> None:
        """End a part by SIGTERM, and wait. Raises ReaperError if the broker left its store as a crash would."""
        if process.stop(self.home.record(part), grace_seconds=GRACE_SECONDS) and self._was_cut_short(part):
            raise ReaperError(self._explain(part, f"did not end cleanly within {GRACE_SECONDS:.0f} s"))

    def stop_broker(self) -> None:
        """End the broker; its store is then at rest."""
        self.stop(Part.BROKER)

    def kill_broker(self) -> None:
        """End the broker as a crash would."""
        process.kill(self.home.record(Part.BROKER))

    def _was_cut_short(self, part: Part) -> bool:
        return part is Part.BROKER and (self.home.store / "abort").exists()

    def _launch(self, part: Part) -> None:
        spec, home = self.spec, self.home
        home.conf(part).write_text(render(settings(home, part, spec)), encoding="utf-8")
        home.log(part).unlink(missing_ok=True)  # "boot success" of an earlier start says nothing of this one
        opened = [word for each in _OPENED for word in ("--add-opens", f"{each}=ALL-UNNAMED")]
        options = [*_MEMORY[part], *_JVM, f"-Duser.home={home.user}", f"-XX:ErrorFile={home.logs}/hs_err_%p.log"]
        if ":" not in spec.settings.get("bindAddress", ""):  # no address of IPv6
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

    def _said(self, part: Part) -> str:
        log = self.home.log(part)
        return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""

    def _explain(self, part: Part, what: str) -> str:
        return f"{part} {what}; read {self.home.log(part)} and {self.home.user}/logs\n{tail(self.home.log(part))}"


def up(  # noqa: PLR0913  each is asked for by its name
    root: Path,
    version: str,
    *,
    mode: StoreMode | None = None,
    broker_settings: Mapping[str, str] | None = None,
    say: Say = _silent,
    progress: Progress | None = None,
) -> RocketMQ:
    """Start name server and broker in `root`, and return when clients can work with them. Made first if there is none.

    mode and broker_settings are those of the last start unless they are given. Raises ConfigError if the broker runs
    otherwise than asked for, and what RocketMQ.start_broker() raises; whatever this call started is then stopped.
    """
    home = Home(root.resolve())
    if ClusterHome(home.root).load() is not None:
        raise ConfigError(f"{home.root} holds a Pulsar cluster: name another folder (--home)")
    class_path(version, progress=progress)
    home.make_folders()
    made = RocketMQ(home)
    with locked(home.root / "run" / "up.lock"):
        running = [part for part in Part if made.runs(part)]
        known = home.load()
        wanted = _settle(home, known, version, is_running=bool(running))
        wanted = replace(
            wanted,
            mode=mode or wanted.mode,
            settings=wanted.settings if broker_settings is None else broker_settings,
        )
        if Part.BROKER in running and wanted != known:
            raise ConfigError(f"a broker runs in {home.root} in another way: run `ledger-reaper sandbox down` first")
        home.save(wanted)
        _start(made, running, say)
    return made


def _start(made: RocketMQ, running: Collection[Part], say: Say) -> None:
    """Start what does not run; if one part fails, stop it again."""
    try:
        for part in Part:
            if part not in running:
                say(f"Starting RocketMQ's {part}")
            made.start(part)
    except BaseException:
        for part in reversed(Part):
            if part not in running:
                process.stop(made.home.record(part), grace_seconds=GRACE_SECONDS)
        if not running:
            network.end(made.home.network)
        raise


def down(root: Path, say: Say = _silent) -> bool:
    """Stop broker and name server; the store stays. False if none ran. Raises what RocketMQ.stop() raises."""
    made = RocketMQ(Home(root.resolve()))
    ran = [part for part in reversed(Part) if made.runs(part)]
    try:
        for part in ran:
            say(f"Stopping RocketMQ's {part}")
            made.stop(part)
    finally:
        process.stop(made.home.record(Part.NAME_SERVER), grace_seconds=GRACE_SECONDS)
        network.end(made.home.network)
    return bool(ran)


def attach(root: Path) -> RocketMQ:
    """The RocketMQ in `root`, running or not. Raises UnavailableError if there is none."""
    made = RocketMQ(Home(root.resolve()))
    _ = made.spec
    return made


def is_here(root: Path) -> bool:
    """Whether a RocketMQ was made in the folder."""
    return Home(root.resolve()).load() is not None


def _settle(home: Home, known: Spec | None, version: str, *, is_running: bool) -> Spec:
    """The Spec with addresses that exist: a namespace ends with the machine's uptime, or by `down`."""
    if known is not None and is_running:
        return replace(known, version=version)
    network.end(home.network)  # one that lost its processes
    address = network.make(home.network, home.logs / "network.log", home.root)
    ports = pick(PORTS, known.ports if known else {})
    return replace(known, version=version, address=address, ports=ports) if known else Spec(version, address, ports)
