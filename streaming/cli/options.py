"""Options that several commands share: where the configuration is, JSON output, and the question before a big step."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.errors import ConfigError, SafetyError

if TYPE_CHECKING:
    from streaming.config.settings import Settings

CONFIG_VARIABLE = "LEDGER_REAPER_CONFIG"
SYSTEM_CONFIG = Path("/etc/ledger-reaper/config.toml")


def found_config(context: typer.Context, named: Path | None) -> Path | None:
    """The file that --config or the variable names, or else the system's (context.obj, if given); None if none is."""
    if named is not None:
        return named
    system = context.find_object(Path) or SYSTEM_CONFIG
    return system if system.is_file() else None


def required_config(context: typer.Context, named: Path | None) -> Path:
    """As found_config. Raises ConfigError, which says where a configuration may be, if there is none."""
    found = found_config(context, named)
    if found is None:
        system = context.find_object(Path) or SYSTEM_CONFIG
        raise ConfigError(
            f"no configuration was given: name a file with --config or in {CONFIG_VARIABLE}, or write {system}. "
            "conf/production.example.toml is a start; conf/default.toml explains every key"
        )
    return found


_NAMED = "Configuration file (TOML)"
Config = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        callback=required_config,
        default_factory=lambda: None,
        show_default=str(SYSTEM_CONFIG),
        help=_NAMED,
    ),
]
OptionalConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        callback=found_config,
        show_default=f"{SYSTEM_CONFIG}, if it exists",
        help=_NAMED,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what the command would do, and do nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; only a terminal is ever asked")]


def settings_of(config: Path | None) -> "Settings":
    """Load the configuration. Raises ConfigError that names every fault."""
    from streaming.config.load import load

    return load(config)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the person at the terminal; a script, whose standard input is no terminal, is not asked.

    Raises SafetyError unless the answer is yes.
    """
    if yes or not sys.stdin.isatty():
        return
    if not typer.confirm(question, err=True):
        raise SafetyError("nothing was done: the question was not answered with yes (--yes answers it beforehand)")


def require_answer(question: str, *, yes: bool, why: str = "") -> None:
    """Ask, unless --yes was given. Raises SafetyError where nobody can answer (why: it asks), or the answer is no."""
    if not yes and not sys.stdin.isatty():
        raise SafetyError(f"nothing was done: {why}say --yes, or answer the question on a terminal")
    confirm(question, yes=yes)


def utc(at_ms: int) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
