"""The command line. Every command is thin: it loads the configuration, calls one function, prints the answer.

Exit codes: 0 done, 1 fault of ours, 2 configuration, 3 a service is unreachable, 4 refused for safety.
"""

import sys

if not __package__ and sys.path:
    # started by its path (spark-submit): this folder must not offer its modules (requests, …) as top-level ones
    sys.path.pop(0)

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from streaming.cli import audit as cli_audit
from streaming.cli import check as cli_ops
from streaming.cli import sandbox as cli_cluster
from streaming.config.load import load
from streaming.errors import ConfigError, ReaperError

app = typer.Typer(
    name="ledger-reaper",
    help="Deletes what Apache Pulsar has stopped using, in BookKeeper and tiered storage, and never anything else.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(cli_cluster.app, name="cluster")
cli_ops.register(app)
cli_audit.register(app)

Config = Annotated[Path, typer.Option("--config", help="Configuration file (TOML)", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines")]


@app.command()
def run(
    config: Config,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no request is waiting, retries included")
    ] = False,
) -> None:
    """Run the service until SIGTERM or SIGINT."""
    settings = load(config)
    from streaming import app as application
    from streaming.spark.session import jars_for

    application.run(settings, lambda: jars_for(settings), until_idle=until_idle)


@app.command()
def request(
    config: Config,
    file: Annotated[str, typer.Argument(help="File with one JSON object a line; - reads standard input")] = "-",
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Send lines as they are, valid or not")] = False,
) -> None:
    """Publish deletion requests. Invalid lines are named and not sent (exit 2); the valid ones are."""
    from streaming.clients import command_clients
    from streaming.topics.requests import publish_lines

    settings = load(config)
    if file != "-" and not Path(file).is_file():
        raise ConfigError(f"no file {file}")
    with command_clients(settings) as clients, sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
        report = publish_lines(settings, clients.pulsar.admin, lines, unchecked=unchecked)
    typer.echo(f"{report.published} requests published to {settings.topics.requests[0]}", err=True)
    if report.invalid:
        shown = "\n".join(f"  line {number}: {why}" for number, why in report.invalid[:20])
        more = f"\n  … and {len(report.invalid) - 20} more" if len(report.invalid) > 20 else ""
        raise ConfigError(f"{len(report.invalid)} lines are no requests and were not sent:\n{shown}{more}")


@app.command()
def receipts(
    config: Config,
    json_lines: Json = False,
    ledger: Annotated[int | None, typer.Option("--ledger", help="Only this ledger id")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic (any form of its name)")] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", help="DELETED, ALREADY_GONE, RETRY or DEAD_LETTER")
    ] = None,
) -> None:
    """Show what became of requests, oldest first."""
    from streaming.cli.receipts import print_receipts
    from streaming.state.hold import noted
    from streaming.state.outcomes import receipts_of

    settings = load(config)
    found = receipts_of(settings, ledger=ledger, topic=topic, outcome=outcome)
    if json_lines:
        for row in found:
            typer.echo(json.dumps(row))
    else:
        print_receipts(found)
    why, since_ms = noted(settings.state.dir)
    if why:
        typer.echo(f"held since {datetime.fromtimestamp(since_ms / 1000, UTC):%F %T} UTC: {why}", err=True)


@app.command()
def backlog(config: Config, json_lines: Json = False) -> None:
    """Show how many requests wait, per topic, RETRY included (PIP-186's estimated in-flight count)."""
    from streaming.cli.receipts import print_backlog
    from streaming.clients import command_clients
    from streaming.reconcile.backlog import backlog_of

    settings = load(config)
    with command_clients(settings) as clients:
        counted = backlog_of(settings, clients.pulsar)
    if json_lines:
        typer.echo(json.dumps(counted))
    else:
        print_backlog(counted)


@app.command()
def pause(
    config: Config,
    why: Annotated[str, typer.Option("--why", help="Shown to whoever asks why nothing is deleted")] = "by an operator",
) -> None:
    """Stop deleting, in every instance of the cluster, before the next group of deletes (a second's worth)."""
    from streaming.cli.control import pause as set_pause
    from streaming.clients import command_clients

    settings = load(config)
    with command_clients(settings) as clients:
        typer.echo(set_pause(settings, clients.store, why))


@app.command()
def resume(config: Config) -> None:
    """Let every instance of the cluster delete again."""
    from streaming.cli.control import resume as clear_pause
    from streaming.clients import command_clients

    settings = load(config)
    with command_clients(settings) as clients:
        typer.echo(clear_pause(settings, clients.store))


@app.command()
def jars(
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration file (TOML): S3A too, if its checkpoints need it")
    ] = None,
) -> None:
    """Print the jars that spark-submit needs, for --jars; fetches them if they are not in the cache."""
    from streaming.spark.session import fetched_jars

    found = fetched_jars(load(config))
    typer.echo(",".join(str(jar) for jar in (*found.everywhere, *found.driver)))


_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose JVM is then our parent


def _start_logging() -> None:
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    logging.getLogger("ledger-reaper").setLevel(logging.INFO)
    # says a second time, with a traceback, what foreachBatch raised
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)


def main() -> None:
    """Entry point: turns this program's errors into one clear line and an exit code."""
    _start_logging()
    try:
        app()
    except ReaperError as error:
        typer.echo(f"ledger-reaper: {error}", err=True)
        _leave(error.exit_code)
    except SystemExit as ended:
        _leave(ended.code)


def _leave(code: str | int | None) -> NoReturn:
    if _SUBMITTED in os.environ and "pyspark" in sys.modules:
        from streaming.spark.session import end_jvm

        end_jvm(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)


if __name__ == "__main__":
    main()
