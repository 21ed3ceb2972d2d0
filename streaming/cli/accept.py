"""`ledger-reaper accept`."""

from typing import Annotated

import typer

from streaming.cli.options import Config, Yes, confirm, settings_of
from streaming.cli.state import settings_with_state
from streaming.errors import ConfigError
from streaming.terminal import say


def accept(
    config: Config,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="This topic, as in shop/prod/carts")] = None,
    *,
    all_owners: Annotated[bool, typer.Option("--all", help="Every topic")] = False,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Request messages that Pulsar deleted before the service read them")
    ] = False,
    yes: Yes = False,
) -> None:
    """Confirm that you have looked at something suspicious and that it is right.

    If a topic's list suddenly names far fewer ledgers than before (reason SOURCE_SHRANK), the service deletes nothing
    of that topic. `accept --topic T` says that the new list is right. Several topics need --topic several times.

    If Pulsar deleted request messages before the service read them, the service raises an alarm. `accept --gaps` says
    that you have sent these requests again or do not need them; the alarm ends.
    """
    from streaming.cli import control
    from streaming.clients import command_clients

    if bool(topic) + all_owners + gaps != 1:
        raise ConfigError("choose one of --topic T (which may stand several times), --all and --gaps")
    settings = settings_with_state(config) if gaps else settings_of(config)
    if all_owners:
        confirm("Accept the lists of all topics as they are now, however short they have become?", yes=yes)
    with command_clients(settings) as clients:
        say(
            control.accept_vanished(settings, clients.pulsar)
            if gaps
            else control.accept(settings, clients.store, topic or [])
        )
