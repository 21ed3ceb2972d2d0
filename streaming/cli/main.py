"""The command line: every command, in the order in which an operator needs them.

A command's module is loaded when the command is called, so that no command waits for the imports of the others.
"""

from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from types import CodeType
from typing import Annotated, Any

import typer
from typer.core import MarkupMode, TyperCommand, TyperGroup
from typer.main import get_command

from streaming.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LogFormat, LogLevel, choose_log
from streaming.terminal import say

# name of the command: its module in streaming.cli, and its function (of a group: the callback of the module's `app`)
COMMANDS = {
    "init": "init.init",
    "check": "check.check",
    "space": "space.space",
    "audit": "audit.audit",
    "explain": "explain.explain",
    "run": "run_service.run",
    "status": "status.status",
    "watch": "watch.watch",
    "request": "request.request",
    "receipts": "receipts.receipts",
    "backlog": "backlog.backlog",
    "dlq": "dlq.dlq",
    "undo": "undo.undo",
    "accept": "accept.accept",
    "pause": "pause.pause",
    "resume": "pause.resume",
    "history": "history.history",
    "release": "release.release",
    "checkpoints": "checkpoints.checkpoints",
    "config": "config.config",
    "jars": "run_service.jars",
    "submit-args": "submit.submit_args",
    "snapshots": "snapshots.snapshots",
    "rocketmq": "rocketmq.rocketmq",
    "sandbox": "sandbox.sandbox",
    "cluster": "sandbox.sandbox",
}
_OLDER_NAME = "cluster"
_MARKUP: MarkupMode = "markdown"


class Listed(TyperCommand):
    """A command's name and help, for the list of commands and the shell's completion."""

    def __init__(self, name: str) -> None:
        self._module, _, self._function = f"streaming.cli.{COMMANDS[name]}".rpartition(".")
        super().__init__(name, help=_help_of(self._module, self._function), hidden=name == _OLDER_NAME)

    def load(self) -> Any:
        """Return the whole command."""
        module = import_module(self._module)
        holder = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=self.name, hidden=self.hidden)
            return get_command(holder).commands[self.name]  # type: ignore[attr-defined]
        holder.command(self.name, hidden=self.hidden)(getattr(module, self._function))
        return get_command(holder)


def _help_of(module: str, function: str) -> str:
    """Return a function's docstring without loading its module: from the compiled code, which Python caches."""
    spec: Any = find_spec(module)
    constants = spec.loader.get_code(module).co_consts
    [code] = [each for each in constants if isinstance(each, CodeType) and each.co_name == function]
    return cleandoc(code.co_consts[0] or "")  # `python -OO` removes docstrings


class _Commands(TyperGroup):
    def __init__(self, *, commands: dict[str, Any], **how: Any) -> None:
        names: dict[str, Any] = dict.fromkeys(COMMANDS)  # for suggestions after a mistyped name
        super().__init__(commands=names | commands, **how)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return Listed(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, others = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Listed) else command, others


app = typer.Typer(
    name="ledger-reaper",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=_MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level",
            envvar=LEVEL_VARIABLE,
            case_sensitive=False,
            help="Log what is at least as severe; at debug and info, libraries and Spark log one level less",
        ),
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", envvar=FORMAT_VARIABLE, case_sensitive=False, help="Log text or JSON lines"),
    ] = LogFormat.TEXT,
) -> None:
    """Delete what Apache Pulsar has stopped using in BookKeeper and tiered storage, and never anything else.

    Start with `check`, `space` and `audit`, which delete nothing.

    Exit codes: 0 done; 1 a fault of this program, or a service refused something; 2 the configuration or an option is
    wrong; 3 a service can't be reached; 4 an operator must decide: refused because data in use could be deleted, data
    missing or in danger, an incomplete audit or `space`, or only requests left that wait for an operator; 130 or 143
    stopped by Ctrl-C or SIGTERM.
    """
    if (log_level, log_format) != (LogLevel.INFO, LogFormat.TEXT):
        choose_log(log_level, log_format)


def program() -> Any:
    """Return the whole command line, with the command of each name loaded below `commands`."""
    top: Any = get_command(app)
    top.commands = {name: Listed(name).load() for name in COMMANDS}
    return top
