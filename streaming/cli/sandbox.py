"""`ledger-reaper sandbox` (older name: `cluster`): a real Pulsar cluster on this machine, to try things out."""

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.errors import UnavailableError
from streaming.terminal import say, say_json

if TYPE_CHECKING:
    from streaming.sandbox.cluster import Cluster
    from streaming.sandbox.home import Instance

app = typer.Typer(
    no_args_is_help=True,
    help="A real cluster on this machine to try things out: Pulsar, ZooKeeper, BookKeeper and an S3 server.",
)
HomeOption = Annotated[Path, typer.Option("--home", help="Folder of the cluster; each folder holds one cluster")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text")]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="IPv4 address of this machine on which all parts listen; whoever reaches it may do anything with them "
        "(default: that of the last start, at first 127.0.0.1)",
        show_default=False,
    ),
]
_KEEPS = "a cluster keeps the number that it was made with (default: 1)"
ZooKeepersOption = Annotated[
    int | None,
    typer.Option(
        "--zookeepers", min=1, max=9, help=f"So many ZooKeepers, as an ensemble; {_KEEPS}", show_default=False
    ),
]
BrokersOption = Annotated[
    int | None, typer.Option("--brokers", min=1, max=9, help=f"So many brokers; {_KEEPS}", show_default=False)
]
BookiesOption = Annotated[
    int | None,
    typer.Option(
        "--bookies",
        min=1,
        max=9,
        help=f"So many bookies; from two on, each entry has two copies and bookies replace what one has lost; {_KEEPS}",
        show_default=False,
    ),
]
DEFAULT_HOME = Path(".cluster")


@app.command()
def up(  # noqa: PLR0913  one parameter an option: that is what typer reads
    home: HomeOption = DEFAULT_HOME,
    *,
    zookeepers: ZooKeepersOption = None,
    brokers: BrokersOption = None,
    bookies: BookiesOption = None,
    listen: ListenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the cluster and return when it works. The first start downloads Pulsar.

    HOME/local.toml is then a configuration for this cluster: set LEDGER_REAPER_CONFIG to it, or name it with --config.
    """
    from streaming.cli.progress import steps
    from streaming.sandbox import cluster as sandbox
    from streaming.sandbox.home import Part

    before = _running_parts(home)
    # Whoever ends this command by SIGTERM gets the same tidying as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = {Part.ZOOKEEPER: zookeepers, Part.BROKER: brokers, Part.BOOKIE: bookies}
    counts = {kind: number for kind, number in asked.items() if number is not None}
    with steps() as shown:
        made = sandbox.up(home, counts=counts, listen=listen, say=shown.say, progress=shown.advance)
    if len(before) == len(made.spec.parts):
        _say(f"The cluster in {made.home.root} was running already.")
    _print(facts(made), as_json=as_json)


@app.command()
def down(home: HomeOption = DEFAULT_HOME) -> None:
    """Stop the cluster's processes. Its data stay, and `up` starts it again."""
    from streaming.sandbox import cluster as sandbox

    stopped = sandbox.down(home, say=_say)
    _say(f"Stopped the cluster in {home}." if stopped else f"No cluster was running in {home}.")


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Print the addresses of the cluster's parts and whether they run. The exit code is 3 unless all of them run."""
    from streaming.sandbox import cluster as sandbox

    found = facts(sandbox.attach(home))
    _print(found, as_json=as_json)
    if not found["running"]:
        raise typer.Exit(UnavailableError.exit_code)


def facts(cluster: "Cluster") -> dict[str, Any]:
    """What `status --json` prints."""
    from streaming.sandbox.cluster import State

    where = cluster.addresses
    parts = {str(part): cluster.state(part).value for part in cluster.spec.parts}
    return {
        "running": all(state == State.RUNNING for state in parts.values()),
        **asdict(where),
        "bucket": cluster.bucket,
        "config": str(cluster.home.config),
        "home": str(cluster.home.root),
        "parts": parts,
    }


def _say(text: str) -> None:
    say(text, err=True)


def _running_parts(home: Path) -> "list[Instance]":
    from streaming.sandbox import cluster as sandbox

    try:
        cluster = sandbox.attach(home)
    except UnavailableError:
        return []
    return [part for part in cluster.spec.parts if cluster.process(part) is not None]


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    for key, value in found.items():
        text = ", ".join(f"{part} {state}" for part, state in value.items()) if isinstance(value, dict) else value
        say(f"{key:12} {'yes' if text is True else 'no' if text is False else text}")
