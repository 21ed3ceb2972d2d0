"""`ledger-reaper sandbox` (older name: `cluster`): runs a real Pulsar cluster, or RocketMQ, for experiments."""

import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.options import completes
from streaming.config.amounts import one_of, seconds_of
from streaming.errors import ConfigError, UnavailableError
from streaming.sandbox.rocketmq.broker_home import StoreMode
from streaming.terminal import say, say_json

if TYPE_CHECKING:
    from streaming.sandbox.cluster import Cluster
    from streaming.sandbox.home import Instance
    from streaming.sandbox.rocketmq.server import RocketMQ


def _completed_pulsar(incomplete: str) -> list[str]:
    from streaming.sandbox.parts.distribution import versions

    return completes(versions())(incomplete)


def _completed_rocketmq(incomplete: str) -> list[str]:
    from streaming.sandbox.rocketmq.broker_jars import versions

    return completes(versions())(incomplete)


app = typer.Typer(no_args_is_help=True)
HomeOption = Annotated[Path, typer.Option("--home", help="Folder of the cluster; each folder has its own cluster")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text")]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="IPv4 address of this machine on which all parts listen; every client that reaches it has full access "
        "(default: that of the last start, at first 127.0.0.1)",
        show_default=False,
    ),
]
_KEEPS = "fixed when the cluster is created (default: 1)"
ZooKeepersOption = Annotated[
    int | None,
    typer.Option(
        "--zookeepers", min=1, max=9, help=f"Number of ZooKeepers, as an ensemble; {_KEEPS}", show_default=False
    ),
]
BrokersOption = Annotated[
    int | None, typer.Option("--brokers", min=1, max=9, help=f"Number of brokers; {_KEEPS}", show_default=False)
]
BookiesOption = Annotated[
    int | None,
    typer.Option(
        "--bookies",
        min=1,
        max=9,
        help=f"Number of bookies; with two or more, entries have two copies, and bookies replace lost copies; {_KEEPS}",
        show_default=False,
    ),
]
PulsarOption = Annotated[
    str | None,
    typer.Option(
        "--pulsar",
        metavar="VERSION",
        autocompletion=_completed_pulsar,
        help="Version of Pulsar (default: that of the last start). Another one than that is started on the cluster's "
        "data, as in an upgrade",
        show_default=False,
    ),
]
RocketMQOption = Annotated[
    str | None,
    typer.Option(
        "--rocketmq",
        metavar="VERSION",
        autocompletion=_completed_rocketmq,
        help="Start a RocketMQ of this version (name server and broker) instead of Pulsar, with small files, in a "
        "separate network if this machine permits that",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="|".join(StoreMode),
        autocompletion=completes(StoreMode),
        help="Store of the consume queues and offsets of --rocketmq's broker (default: that of its last start, at "
        "first file)",
        show_default=False,
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--broker-setting",
        metavar="KEY=VALUE",
        help="A line of broker.conf; may be given several times. The cluster remembers it; running brokers are "
        "restarted for it",
        show_default=False,
    ),
]
GcWaitOption = Annotated[
    str | None,
    typer.Option(
        "--gc-wait",
        metavar="TIME",
        help="Time between two garbage collections of a bookie, for example 15m; `undo` can restore a ledger until the "
        "next one (default: that of the last start, at first 3s). Running bookies are restarted for it",
        show_default=False,
    ),
]
DEFAULT_HOME = Path(".cluster")
_MOST_GC_WAIT_SECONDS = 30 * 24 * 3600


@app.callback()
def sandbox() -> None:
    """A real cluster on this machine for experiments: Pulsar with ZooKeeper, BookKeeper and S3, or RocketMQ."""


@app.command()
def up(  # noqa: PLR0913  typer reads each option from a parameter
    home: HomeOption = DEFAULT_HOME,
    *,
    zookeepers: ZooKeepersOption = None,
    brokers: BrokersOption = None,
    bookies: BookiesOption = None,
    listen: ListenOption = None,
    pulsar: PulsarOption = None,
    rocketmq: RocketMQOption = None,
    store: StoreOption = None,
    broker_setting: SettingOption = None,
    gc_wait: GcWaitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the cluster and return when it works. The first start downloads Pulsar, or RocketMQ.

    HOME/local.toml is then a configuration for this cluster: set LEDGER_REAPER_CONFIG to it, or name it with --config.
    For RocketMQ, the printed store is the --store of `ledger-reaper rocketmq`, once `down` has stopped the broker.
    """
    if rocketmq is not None or store is not None:
        if rocketmq is None or (zookeepers, brokers, bookies, listen, pulsar, broker_setting, gc_wait) != (None,) * 7:
            raise ConfigError("--rocketmq VERSION starts a RocketMQ; it can only be combined with --home and --store")
        _up_rocketmq(home, rocketmq, store, as_json=as_json)
        return
    from streaming.cli.step_progress import steps
    from streaming.sandbox import cluster as sandbox
    from streaming.sandbox.home import Part

    lines = _broker_settings(broker_setting or ())
    gc_wait_seconds = None if gc_wait is None else _gc_wait_seconds(gc_wait)
    before = _running(home)
    # SIGTERM cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    numbers = {Part.ZOOKEEPER: zookeepers, Part.BROKER: brokers, Part.BOOKIE: bookies}
    counts = {part: number for part, number in numbers.items() if number is not None}
    with steps() as shown:
        cluster = sandbox.up(
            home,
            broker_settings=lines,
            counts=counts,
            listen=listen,
            gc_wait_seconds=gc_wait_seconds,
            pulsar=pulsar,
            say=shown.say,
            progress=shown.advance,
        )
    if before == _running(home):
        _say(f"The cluster in {cluster.home.root} was running already.")
    _print(facts(cluster), as_json=as_json)


@app.command()
def down(home: HomeOption = DEFAULT_HOME) -> None:
    """Stop the cluster's processes. Its data stay, and `up` starts it again."""
    from streaming.sandbox import cluster as sandbox
    from streaming.sandbox.rocketmq import server

    stopped = (server if server.is_here(home) else sandbox).down(home, say=_say)
    _say(f"Stopped the cluster in {home}." if stopped else f"No cluster was running in {home}.")


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Print the addresses of the cluster's parts and whether they run. The exit code is 3 unless all of them run."""
    from streaming.sandbox import cluster as sandbox
    from streaming.sandbox.rocketmq import server

    cluster_facts = rocketmq_facts(server.attach(home)) if server.is_here(home) else facts(sandbox.attach(home))
    _print(cluster_facts, as_json=as_json)
    if not cluster_facts["running"]:
        raise typer.Exit(UnavailableError.exit_code)


def facts(cluster: "Cluster") -> dict[str, Any]:
    """Return the object that `status --json` prints."""
    from streaming.sandbox.cluster import State

    where = cluster.addresses
    parts = {str(part): cluster.state(part).value for part in cluster.spec.parts}
    return {
        "running": all(state == State.RUNNING for state in parts.values()),
        "version": cluster.spec.pulsar,
        **asdict(where),
        "bucket": cluster.bucket,
        "config": str(cluster.home.config),
        "home": str(cluster.home.root),
        "parts": parts,
    }


def rocketmq_facts(made: "RocketMQ") -> dict[str, Any]:
    """Return the object that `status --json` prints for RocketMQ."""
    from streaming.sandbox.rocketmq.broker_home import RocketPart

    spec = made.spec
    parts = {str(part): made.state(part).value for part in RocketPart}
    return {
        "running": all(state == "running" for state in parts.values()),
        "version": spec.version,
        "name_server": spec.name_server,
        "broker": spec.broker,
        "mode": spec.mode.value,
        "store": str(made.store),
        "broker_conf": str(made.home.conf(RocketPart.BROKER)),
        "home": str(made.home.root),
        "parts": parts,
    }


def _up_rocketmq(home: Path, version: str, store: str | None, *, as_json: bool) -> None:
    from streaming.cli.step_progress import steps
    from streaming.sandbox.rocketmq import server

    mode = None if store is None else StoreMode(one_of(store, StoreMode, "--store"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with steps() as shown:
        made = server.up(home, version, mode=mode, say=shown.say, progress=shown.advance)
    _print(rocketmq_facts(made), as_json=as_json)


def _say(text: str) -> None:
    say(text, err=True)


def _broker_settings(lines: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE. Raises ConfigError."""
    settings = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not key.strip() or not equals or not line.isprintable():
            raise ConfigError(f"--broker-setting {line!r}: expected KEY=VALUE, a line of broker.conf")
        settings[key.strip()] = value.strip()
    return settings


def _gc_wait_seconds(text: str) -> int:
    seconds = seconds_of(text, "--gc-wait")
    if not 1 <= seconds <= _MOST_GC_WAIT_SECONDS:
        raise ConfigError(f"--gc-wait {text}: a bookie of the sandbox takes 1s to 30d")
    return seconds


def _running(home: Path) -> "dict[Instance, int]":
    """Return the process id of each part that runs."""
    from streaming.sandbox import cluster as sandbox

    try:
        cluster = sandbox.attach(home)
    except UnavailableError:
        return {}
    found = {part: cluster.process(part) for part in cluster.spec.parts}
    return {part: process.pid for part, process in found.items() if process is not None}


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    for key, value in found.items():
        text = ", ".join(f"{part} {state}" for part, state in value.items()) if isinstance(value, dict) else value
        say(f"{key:12} {'yes' if text is True else 'no' if text is False else text}")
