"""`ledger-reaper pause` and `resume`."""

from typing import Annotated

import typer

from streaming.cli.options import Config, settings_of
from streaming.terminal import say


def pause(
    config: Config,
    why: Annotated[
        str, typer.Option("--why", help="Reason, shown to everybody who asks why nothing is deleted")
    ] = "by an operator",
) -> None:
    """Stop every service of the cluster from deleting, within about a second.

    The services go on running, and requests wait. `ledger-reaper resume` ends the pause.
    """
    from streaming.cli import control
    from streaming.clients import command_clients

    settings = settings_of(config)
    with command_clients(settings) as clients:
        say(control.pause(settings, clients.store, why))


def resume(config: Config) -> None:
    """Let every service of the cluster delete again, also after a limit of [limits] stopped this one."""
    from streaming.cli import control
    from streaming.clients import command_clients

    settings = settings_of(config)
    with command_clients(settings) as clients:
        say(control.resume(settings, clients.store))
