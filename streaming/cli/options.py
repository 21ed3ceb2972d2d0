"""Options that several commands share: configuration, state directory, JSON output, the question before a change."""

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.errors import ConfigError, ReaperError, SafetyError, UnavailableError
from streaming.terminal import say_open
from udfs.paths import MAX_LEDGER_ID

if TYPE_CHECKING:
    from streaming.config.settings import Settings

CONFIG_VARIABLE = "LEDGER_REAPER_CONFIG"
SYSTEM_CONFIG = Path("/etc/ledger-reaper/config.toml")


def found_config(context: typer.Context, named: Path | None) -> Path | None:
    """Return the file that --config or the variable names, else the system's (context.obj, if given), if it exists."""
    if named is not None:
        return named
    system = context.find_object(Path) or SYSTEM_CONFIG
    return system if system.is_file() else None


def required_config(context: typer.Context, named: Path | None) -> Path:
    """Return the same as found_config. Raises ConfigError, which lists the possible files, if there is none."""
    file = found_config(context, named)
    if file is None:
        system = context.find_object(Path) or SYSTEM_CONFIG
        raise ConfigError(
            f"no configuration was given: name a file with --config or in {CONFIG_VARIABLE}, or write {system}. "
            "`ledger-reaper init` writes a first one; conf/default.toml explains every key"
        )
    return file


def completes(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function with which the shell completes an option's value."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def refuse_ignored(context: typer.Context, *rules: tuple[bool, tuple[str, ...], str]) -> None:
    """Raise ConfigError for options on the command line that would change nothing.

    Args:
        context: the command and its arguments.
        rules: a condition, the options that would change nothing if it holds, and a text with the reason and a remedy.
    """
    faults = [
        f"{'/'.join((*parameter.opts, *parameter.secondary_opts))} would change nothing: {why}"
        for is_ignored, options, why in rules
        for parameter in context.command.params
        if is_ignored and not {*options}.isdisjoint(parameter.opts) and _is_given(context, parameter.name or "")
    ]
    if faults:
        raise ConfigError("; ".join(faults))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def require_namespace(namespace: str, tenant: str = "") -> None:
    """Raise ConfigError for an invalid tenant or namespace."""
    # a search in an invalid namespace would find nothing, as if all were well
    if "/" in tenant:
        raise ConfigError(f"--tenant {tenant}: that is not a tenant; --namespace takes a namespace")
    if namespace and not (namespace.count("/") in (1, 2) and all(namespace.split("/"))):
        raise ConfigError(f"--namespace {namespace}: give tenant and namespace, as in shop/prod")
    if namespace and tenant and not namespace.startswith(f"{tenant}/"):
        raise ConfigError(f"--namespace {namespace} is not in the tenant {tenant}: leave out --tenant")


_CONFIG_HELP = "Configuration file (TOML)"
Config = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        callback=required_config,
        default_factory=lambda: None,
        show_default=str(SYSTEM_CONFIG),
        help=_CONFIG_HELP,
    ),
]
OptionalConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        callback=found_config,
        show_default=f"{SYSTEM_CONFIG}, if it exists",
        help=_CONFIG_HELP,
    ),
]
OneLedger = Annotated[int | None, typer.Option("--ledger", help="Only this ledger id", min=0, max=MAX_LEDGER_ID)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line")]
ReadsPerSecond = Annotated[
    int, typer.Option("--reads-per-second", min=0, help="Read at most this many znodes per second; 0: no limit")
]
READS_PER_SECOND = 50_000
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what the command would do, and change nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="Answer the question with yes; required without a terminal")]


def settings_of(config: Path | None) -> "Settings":
    """Load the configuration. Raises ConfigError that names every fault."""
    from streaming.config.load import load

    return load(config)


class NoStateError(UnavailableError):
    """There is no state directory: the service has not run yet, or runs elsewhere."""


def settings_with_state(config: Path) -> "Settings":
    """Load the configuration, and refuse a missing state directory, which would be read as if nothing had happened.

    Raises ConfigError, which names the key, if there is no state directory; UnavailableError if this is unknown.
    """
    settings = settings_of(config)
    if isinstance(fault := state_fault(settings, config), NoStateError):
        raise ConfigError(str(fault))
    if fault:
        raise fault
    return settings


def state_fault(settings: "Settings", config: Path) -> ReaperError | None:
    """Return why the state directory can't be read; None if it exists.

    The error is a NoStateError if there is none, a ConfigError if a file has its name, and an UnavailableError if a
    service does not answer.
    """
    from pyarrow.fs import FileType

    from streaming.config.stores import is_on_s3
    from streaming.state.filesystem import open_filesystem

    try:
        filesystem, path = open_filesystem(settings.state_dir)
        file_type = filesystem.get_file_info(path).type
    except OSError as error:
        return UnavailableError(f"the state directory {settings.state.dir} can't be read: {error}")
    if file_type is FileType.Directory:
        return None
    named = f"The key state.dir in {config} names it"
    if file_type is not FileType.NotFound:
        return ConfigError(f"{settings.state.dir} is a file, not a directory. {named}: name a directory")
    where = "" if is_on_s3(settings.state.dir) else ", on this machine"
    return NoStateError(
        f"the state directory {settings.state.dir} does not exist. {named}, and the service creates it at its first "
        f"start: did it run with this configuration{where}?"
    )


def require_terminal(*, yes: bool, why: str = "") -> None:
    """Raise ConfigError unless a question can be answered: on a terminal, or by --yes beforehand.

    Commands call this first if they have to work before they know what to ask.

    Args:
        yes: whether --yes was given.
        why: the reason of the question, for the error.
    """
    if not yes and not sys.stdin.isatty():
        raise ConfigError(
            f"nothing was done: {why}this command asks first, but standard input is no terminal; --yes answers the "
            "question beforehand"
        )


def confirm(question: str, *, yes: bool, why: str = "") -> None:
    """Ask the operator at the terminal, unless --yes was given.

    Raises ConfigError if there is no terminal, SafetyError unless the answer is yes; Ctrl-C is a KeyboardInterrupt.
    """
    require_terminal(yes=yes, why=why)
    if not yes and not yes_or_no(question):
        raise SafetyError("nothing was done: the question was not answered with yes")


def ask(question: str, proposed: str = "") -> str:
    """Ask the operator at the terminal for a text. Return the proposal for Enter and for the end of input."""
    say_open(f"{question} [{proposed}]: " if proposed else f"{question}: ")
    return sys.stdin.readline().strip() or proposed


def yes_or_no(question: str) -> bool:
    """Ask the operator at the terminal. Enter and the end of input are no; the question is repeated otherwise."""
    while True:
        say_open(f"{question} [y/N]: ")
        answer = sys.stdin.readline()
        if answer.strip().lower() in ("y", "yes"):
            return True
        if answer.strip().lower() in ("", "n", "no"):
            return False


def utc(at_ms: int) -> str:
    """Format a date and time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
