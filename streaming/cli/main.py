"""The command line: every command, in the order in which an operator needs them."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from streaming.cli import dlq, rocketmq, sandbox, snapshots
from streaming.cli.accept import accept
from streaming.cli.audit import audit
from streaming.cli.backlog import backlog
from streaming.cli.check import check
from streaming.cli.explain import explain
from streaming.cli.pause import pause, resume
from streaming.cli.receipts import receipts
from streaming.cli.release import release
from streaming.cli.request import request
from streaming.cli.run_service import jars, run
from streaming.cli.space import space
from streaming.cli.status import status
from streaming.cli.submit import submit_args
from streaming.cli.undo import undo
from streaming.cli.watch import watch
from streaming.terminal import say

ORDER_OF_USE = (
    "check",
    "space",
    "audit",
    "explain",
    "run",
    "status",
    "watch",
    "request",
    "receipts",
    "backlog",
    "dlq",
    "undo",
    "accept",
    "pause",
    "resume",
    "release",
    "jars",
    "submit-args",
    "snapshots",
    "rocketmq",
    "sandbox",
    "cluster",
)


class _InOrderOfUse(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER_OF_USE.index)


app = typer.Typer(
    name="ledger-reaper",
    cls=_InOrderOfUse,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    check,
    space,
    audit,
    explain,
    run,
    status,
    watch,
    request,
    receipts,
    backlog,
    undo,
    accept,
    pause,
    resume,
    release,
    jars,
    submit_args,
):
    app.command()(command)
app.add_typer(dlq.app, name="dlq")
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(rocketmq.app, name="rocketmq")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(sandbox.app, name="cluster", hidden=True)  # the older name


def _print_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

        say(f"ledger-reaper {version('ledger-reaper')}")
        raise typer.Exit


@app.callback()
def ledger_reaper(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """Delete what Apache Pulsar has stopped using in BookKeeper and tiered storage, and never anything else.

    Start with `check`, `space` and `audit`, which delete nothing.

    Exit codes: 0 done; 1 a fault of this program, or a service refused something; 2 the configuration or an option is
    wrong; 3 a service can't be reached; 4 an operator must decide: refused because data in use could be deleted, data
    missing or in danger, an incomplete audit or `space`, or only requests left that wait for an operator; 130 or 143
    stopped by Ctrl-C or SIGTERM.
    """
