"""`ledger-reaper accept`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.history import Why, record
from streaming.cli.options import Config, Yes, confirm, require_terminal, settings_of, settings_with_state, state_fault
from streaming.clock import SystemClock
from streaming.errors import ConfigError
from streaming.terminal import count_of, say
from udfs import columns as c
from udfs.records import Reason
from udfs.units import DAY_MS

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_LATELY_MS = 7 * DAY_MS


def accept(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="This topic, for example shop/prod/carts")] = None,
    *,
    all_owners: Annotated[bool, typer.Option("--all", help="Every topic")] = False,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Request messages that Pulsar deleted before the service read them")
    ] = False,
    why: Why = "",
    yes: Yes = False,
) -> None:
    """Confirm that a suspicious change, which you have checked, is right.

    If a topic's list suddenly names far fewer ledgers than before (reason SOURCE_SHRANK), the service deletes nothing
    of that topic. `accept --topic T` confirms the new list. Repeat --topic for several topics.

    If Pulsar deleted request messages before the service read them, the service raises an alarm. `accept --gaps`
    confirms that you have sent these requests again or do not need them, and ends the alarm.
    """
    from streaming.cli import control
    from streaming.clients import command_clients

    if bool(topic) + all_owners + gaps != 1:
        raise ConfigError("choose one of --topic T (which may be given several times), --all and --gaps")
    settings = settings_with_state(config) if gaps else settings_of(config)
    if all_owners:
        require_terminal(yes=yes)
        shrunk = "" if yes else f" ({_shrunk(settings, config)})"
        confirm(f"Accept the lists of all topics as they are now, however short they have become{shrunk}?", yes=yes)
    with command_clients(settings) as clients:
        done = (
            control.accept_vanished(settings, clients.pulsar)
            if gaps
            else control.accept(settings, clients.store, topic or [])
        )
        say(done)
        record(settings, "accept", done, why=why, store=clients.store)


def _shrunk(settings: "Settings", config: Path) -> str:
    """Return how many topics had receipts with SOURCE_SHRANK recently, as text for the question."""
    load_datasets()
    import pyarrow.dataset as ds

    from streaming.state import receipts

    if state_fault(settings, config):
        return "how many lists have shrunk is not known without a state directory"
    since_ms = SystemClock().now_ms() - _LATELY_MS
    kept = (ds.field(c.REASON) == str(Reason.SOURCE_SHRANK)) & (ds.field(c.AT_MS) > since_ms)
    topics = {row[c.TOPIC_NAME] for row in receipts.rows(settings.state_dir, kept, columns=[c.TOPIC_NAME])}
    return f"the lists of {count_of(len(topics), 'topic')} in the last week, according to the receipts"
