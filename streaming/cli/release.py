"""`ledger-reaper release`."""

from typing import Annotated

import typer

from streaming.cli.history import Why, record
from streaming.cli.options import Config, Yes, confirm, settings_of
from streaming.errors import ConfigError
from streaming.terminal import count_of, say


def release(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="This topic, for example shop/prod/carts")] = None,
    *,
    all_topics: Annotated[bool, typer.Option("--all", help="Every topic of this service")] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Instead of topics, the state directory, if it is lost for good")
    ] = False,
    why: Why = "",
    yes: Yes = False,
) -> None:
    """Release topics of this service, so that another service may read them; or forget its lost state directory.

    The service must be stopped. It takes the topics of its configuration again at its next start, unless another
    service has them by then. Repeat --topic for several topics.
    """
    from streaming.cli import control
    from streaming.clients import command_clients

    if bool(topic) + all_topics + state != 1:
        raise ConfigError("choose one of --topic T (which may be given several times), --all and --state")
    settings = settings_of(config)
    with command_clients(settings) as clients, control.stopped(settings, clients.store):
        if state:
            confirm("Is the state directory lost for good?", yes=yes)
            done = control.release_state(settings, clients.store)
        else:
            topics = control.releasable(settings, clients.store, topic or [])
            confirm(f"Release {count_of(len(topics), 'topic')} of service {settings.service.name}?", yes=yes)
            done = control.release(settings, clients.store, topics)
        say(done)
        record(settings, "release", done, why=why, store=clients.store)
