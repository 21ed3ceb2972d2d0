"""`ledger-reaper run` and `jars`."""

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import Config, OptionalConfig, settings_of
from streaming.config.listening import listen
from streaming.errors import ConfigError, UnavailableError
from streaming.terminal import say

if TYPE_CHECKING:
    from streaming.config.settings import Settings


def run(
    config: Config,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle", help="End when no request waits, or when all that wait need an operator (exit code 4)"
        ),
    ] = False,
) -> None:
    """Run the service until it gets SIGTERM or SIGINT."""
    settings = settings_of(config)
    listener = listen_alone(settings, settings.service.name)
    from streaming.queries.early_start import starting_spark

    with starting_spark(settings) as spark:  # Spark starts while the rest of the program is loaded
        from streaming import app

        app.run(settings, spark, listener, until_idle=until_idle, config=str(config))


def listen_alone(settings: "Settings", lock: str) -> socket.socket | None:
    """Listen for Prometheus; None if the configuration disables it.

    Raises SafetyError if that is impossible and another instance has the lock, else ConfigError.
    """
    try:
        return listen(settings.metrics)
    except ConfigError:
        from streaming.clients import command_clients
        from streaming.coordination.lock import refuse_second

        # if ZooKeeper does not answer, we only know that the port is not free
        with contextlib.suppress(UnavailableError), command_clients(settings) as clients:
            refuse_second(clients.store, settings.zookeeper.own_root, lock)
        raise


def jars(
    config: OptionalConfig = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Copy all jars that any configuration needs into this folder, with SHA512SUMS"),
    ] = None,
) -> None:
    """Print the jars for spark-submit's --jars, and fetch those that are not in the cache.

    Without a configuration, the command prints the jars that every service needs. Checkpoints on S3 need more jars.
    A service that is started with LEDGER_REAPER_JARS=<folder> takes its jars from there, and fetches none.
    """
    from streaming.spark.jars import copied
    from streaming.spark.session import fetched_jars, fetches_logged

    if to is not None:
        names = copied(to, fetches_logged())
    else:
        service_jars = fetched_jars(settings_of(config))
        names = [*service_jars.everywhere, *service_jars.driver]
    say(",".join(map(str, names)))
