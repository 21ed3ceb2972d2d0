"""`ledger-reaper cluster`: the embedded real cluster from the command line."""

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from streaming.cli.progress import steps
from streaming.errors import UnavailableError
from streaming.sandbox import cluster as sandbox
from streaming.sandbox.home import Part

app = typer.Typer(no_args_is_help=True, help="The embedded real cluster: Pulsar, ZooKeeper, BookKeeper and S3.")
HomeOption = Annotated[Path, typer.Option(help="Folder that holds the cluster; one cluster per folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
DEFAULT_HOME = Path(".cluster")


@app.command()
def up(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Start the cluster (fetching Pulsar the first time) and return when it works."""
    console = Console(stderr=True)
    before = _running_parts(home)
    # Ended by a supervisor, it must leave as little behind as ended by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with steps() as shown:
        made = sandbox.up(home, say=shown.say, progress=shown.advance)
    if len(before) == len(Part):
        console.print(f"The cluster in {made.home.root} was running already.")
    _print(facts(made), as_json=as_json)


@app.command()
def down(home: HomeOption = DEFAULT_HOME) -> None:
    """Stop the cluster's processes; what it stored stays."""
    console = Console(stderr=True)
    stopped = sandbox.down(home, say=console.print)
    console.print(f"Stopped {home}." if stopped else f"Nothing was running in {home}.")


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Say where the parts are and how they do; exit 3 when not all of them run."""
    found = facts(sandbox.attach(home))
    _print(found, as_json=as_json)
    if not found["running"]:
        raise typer.Exit(UnavailableError.exit_code)


def facts(cluster: sandbox.Cluster) -> dict[str, Any]:
    """What `status --json` prints."""
    where = cluster.addresses
    parts = {part.value: cluster.state(part).value for part in Part}
    return {
        "running": all(state == sandbox.State.RUNNING for state in parts.values()),
        **asdict(where),
        "bucket": cluster.bucket,
        "config": str(cluster.home.config),
        "home": str(cluster.home.root),
        "parts": parts,
    }


def _running_parts(home: Path) -> list[Part]:
    try:
        cluster = sandbox.attach(home)
    except UnavailableError:
        return []
    return [part for part in Part if cluster.process(part) is not None]


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    for key, value in found.items():
        text = ", ".join(f"{part} {state}" for part, state in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{key:12} {'yes' if text is True else 'no' if text is False else text}")


if __name__ == "__main__":
    app()
