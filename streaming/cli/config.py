"""`ledger-reaper config`: shows the effective configuration, and validates a file, both without a cluster."""

import re
import shlex
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import Config, Json, OptionalConfig, settings_of
from streaming.errors import ConfigError
from streaming.terminal import say, say_json, say_lines

if TYPE_CHECKING:
    from streaming.config.load import EffectiveValue

_PASSWORD_OPTION = re.compile(r"(-D[^=]*(?:pass|pwd|secret|token|credential|key)[^=]*=).*", re.IGNORECASE | re.DOTALL)

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the effective configuration, or validate a file, both without a cluster."""


@app.command()
def show(
    config_file: OptionalConfig = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only keys that your file or the environment sets")
    ] = False,
    json_lines: Json = False,
) -> None:
    """Print every key with its value and its source: the default, your file, or an environment variable.

    The output is a valid configuration. It contains no secret: a configuration only names the files with secrets, and
    the values of Java options that look like passwords are left out.
    """
    from streaming.config.load import effective_values

    values = [value for value in effective_values(config_file) if not changed or value.source != "default"]
    if json_lines:
        for value in values:
            say_json({"key": f"{value.section}.{value.key}", "value": _shown(value), "source": value.source})
        return
    for number, (section, keys) in enumerate(groupby(values, key=lambda value: value.section)):
        if number:
            say("")
        say(f"[{section}]")
        for value in keys:
            say(_line(value))


def _line(value: "EffectiveValue") -> str:
    from streaming.config.toml_text import toml_value

    return f"{value.key} = {toml_value(_shown(value))}  # {value.source}"


def _shown(value: "EffectiveValue") -> object:
    return _without_passwords(value.value) if value.key == "java_options" else value.value


def _without_passwords(options: str) -> str:
    try:
        parts = shlex.split(options)  # a password may contain a blank
    except ValueError:
        return "…"
    shown = [_PASSWORD_OPTION.sub(r"\1…", part) for part in parts]
    return options if shown == parts else " ".join(shown)


@app.command()
def validate(config_file: Config, json_lines: Json = False) -> None:
    """Check a configuration file without a cluster; every fault is named at once (exit code 2).

    The files with tokens and certificates may be missing on this machine: a note names them.
    """
    from streaming.check.questions import missing_files

    try:
        missing = missing_files(settings_of(config_file))
    except ConfigError as error:
        if json_lines:
            say_json({"file": str(config_file), "valid": False, "faults": str(error).split("\n  ")[1:] or [str(error)]})
            raise typer.Exit(error.exit_code) from error
        raise
    if json_lines:
        say_json({"file": str(config_file), "valid": True, "faults": [], "unreadable_files": missing})
        return
    say(f"{config_file}: valid")
    for key, fault in missing.items():
        say_lines(f"note: {key}: {fault}")
