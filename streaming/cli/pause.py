"""`ledger-reaper pause` and `resume`."""

from typing import Annotated

import typer

from streaming.cli.history import Why, record
from streaming.cli.options import Config, settings_of
from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError
from streaming.terminal import say


def pause(
    config: Config,
    why: Annotated[str, typer.Option("--why", help="Reason, shown by status, check and the log")] = "no reason given",
    lasts: Annotated[
        str, typer.Option("--for", help="End the pause after this time, for example 2h", show_default="until `resume`")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a pause that has already been set")] = False,
) -> None:
    """Stop every service of the cluster from deleting, within about a second.

    The services continue to run, and requests wait. `ledger-reaper resume` ends the pause. The exit code is 4 if a
    pause is set already, perhaps by another operator; --force replaces it.
    """
    from streaming.cli import control
    from streaming.clients import command_clients

    for_ms = seconds_of(lasts, "--for") * 1000 if lasts else None
    if for_ms == 0:
        raise ConfigError(f"--for {lasts}: the pause must last longer than 0")
    settings = settings_of(config)
    with command_clients(settings) as clients:
        done = control.pause(settings, clients.store, why, for_ms=for_ms, force=force)
        record(settings, "pause", done.removeprefix("paused: "), why=why, store=clients.store)
    say(done)


def resume(
    config: Config,
    limit: Annotated[
        bool, typer.Option("--limit", help="Let this service delete again after it reached a limit of [limits]")
    ] = False,
    tenant: Annotated[str, typer.Option("--tenant", help="Let this service delete again for this tenant")] = "",
    why: Why = "",
) -> None:
    """End the pause of every service of the cluster, or, with an option, end a hold of this service.

    A hold is a reason why a service deletes nothing, or nothing of a tenant: the pause, a limit that was reached, or a
    tenant for which the service has stopped deleting. The command ends one hold, and lists the other holds, each with
    the command that ends it.
    """
    from streaming.check.now import holds_of
    from streaming.cli import control
    from streaming.clients import command_clients

    if limit and tenant:
        raise ConfigError("--limit and --tenant release two different holds: run `resume` once for each")
    settings = settings_of(config)
    with command_clients(settings) as clients:
        if limit:
            done = control.resume_limit(settings, clients.store)
        elif tenant:
            done = control.resume_tenant(settings, clients.store, tenant)
        else:
            done = control.resume(settings, clients.store)
        say(done)
        record(settings, "resume", done, why=why, store=clients.store)
        for hold in holds_of(settings, clients.store):
            say(f"another hold remains, {hold.what}: {hold.why}{f' -> {hold.do}' if hold.do else ''}")
