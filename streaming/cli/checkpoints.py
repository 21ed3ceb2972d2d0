"""`ledger-reaper checkpoints`: converts the checkpoints of a stopped service."""

from typing import TYPE_CHECKING

import typer

from streaming.arrow import load_datasets
from streaming.cli.history import Unchanged, Why, record
from streaming.cli.options import Config, DryRun, Yes, confirm, require_terminal, settings_with_state
from streaming.clock import SystemClock
from streaming.errors import ConfigError, UnavailableError
from streaming.terminal import count_of, say

if TYPE_CHECKING:
    from threading import Event

    from streaming.clients import CommandClients
    from streaming.config.settings import Settings
    from streaming.queries.conversion import Plan

app = typer.Typer(no_args_is_help=True)


@app.callback()
def checkpoints() -> None:
    """Convert the checkpoints of a stopped service, so that another PySpark resumes them."""


@app.command()
def convert(config: Config, *, dry_run: DryRun = False, why: Why = "", yes: Yes = False) -> None:
    """Convert the checkpoints of a stopped service to the form that the installed PySpark resumes.

    PySpark 3.5 reads Pulsar through the pulsar-spark connector, and PySpark 4 through the source "pulsar-frames"; the
    one can't resume what the other wrote. All checkpoints are converted, or none: the exit code is 4 if it can't be
    proven that no request is lost or processed twice, and the message names the reason. The old files stay in a folder
    beside each checkpoint. Run the command again if it was interrupted; no service starts before.
    """
    from streaming.cli import control
    from streaming.clients import command_clients

    load_datasets()
    if not dry_run:
        require_terminal(yes=yes)
    settings = settings_with_state(config)
    with command_clients(settings) as clients, control.stopped(settings, clients.store) as lost:
        _require_own(settings, clients)
        done = _completed(settings, dry_run=dry_run) or _converted(settings, clients, lost, dry_run=dry_run, yes=yes)
        say(done)
        record(settings, "checkpoints convert", done, why=why, store=clients.store)


def _completed(settings: "Settings", *, dry_run: bool) -> str:
    """Complete an interrupted conversion; return a message about it, "" if there is none."""
    from streaming.queries.conversion import carry_out, interrupted

    plan = interrupted(settings)
    if plan is None:
        return ""
    if dry_run:
        return Unchanged(f"would complete an interrupted conversion of {_counted(plan)}")
    carry_out(settings, plan)
    return f"completed the interrupted conversion of {_counted(plan)}"


def _converted(settings: "Settings", clients: "CommandClients", lost: "Event", *, dry_run: bool, yes: bool) -> str:
    from streaming.queries.checkpoints import installed_writer
    from streaming.queries.conversion import carry_out, plan

    planned = plan(settings, clients.pulsar.admin, installed_writer(), str(SystemClock().now_ms()))
    if not planned.checkpoints:
        return Unchanged(f"no checkpoint is of another PySpark; all are of {planned.writer}")
    for each in planned.checkpoints:
        say(each.says)
    if dry_run:
        return Unchanged(f"would convert {_counted(planned)}")
    confirm(f"Convert {_counted(planned)}?", yes=yes)
    if lost.is_set():  # the answer may have taken hours, and the positions are those of the plan
        raise UnavailableError("the session with ZooKeeper has ended, so a service may have run; run the command again")
    carry_out(settings, planned)
    return f"converted {_counted(planned)}; the old files are in the folders {planned.aside} beside them"


def _counted(plan: "Plan") -> str:
    return f"{count_of(len(plan.checkpoints), 'checkpoint')} for {plan.writer}"


def _require_own(settings: "Settings", clients: "CommandClients") -> None:
    """Check that checkpoints and state are of this cluster and service: positions of another cluster mean nothing here.

    Raises SafetyError, ConfigError, UnavailableError.
    """
    from streaming.check.questions import own_state
    from streaming.coordination import identity
    from streaming.queries.checkpoints import root_of
    from streaming.state.filesystem import shown

    cluster = identity.of_cluster(settings, clients.store, clients.pulsar.admin)
    for directory in (root_of(settings), settings.state_dir):
        if not identity.compare(cluster, directory):
            raise ConfigError(f"{shown(directory)}: no service has used this directory")
    own_state(clients.store, settings)
