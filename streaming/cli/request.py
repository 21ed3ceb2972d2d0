"""`ledger-reaper request`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.options import Config, settings_of
from streaming.errors import ConfigError
from streaming.terminal import say

_SHOWN = 20


def request(
    config: Config,
    file: Annotated[str, typer.Argument(help="File with one JSON object a line; - is standard input")] = "-",
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Publish every line as it is, even if it is not a valid request")
    ] = False,
) -> None:
    """Publish deletion requests.

    Invalid lines are not published: the command lists them and ends with exit code 2. The valid lines are published.
    """
    from streaming.clients import command_clients
    from streaming.topics.requests import publish_lines

    settings = settings_of(config)
    if file != "-" and not Path(file).is_file():
        raise ConfigError(f"there is no file {file}")
    with command_clients(settings) as clients, sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
        report = publish_lines(settings, clients.pulsar.admin, lines, unchecked=unchecked)
    say(f"{report.published} requests published to {settings.topics.requests[0]}", err=True)
    if report.invalid:
        shown = "\n".join(f"  line {number}: {why}" for number, why in report.invalid[:_SHOWN])
        more = f"\n  … and {len(report.invalid) - _SHOWN} more" if len(report.invalid) > _SHOWN else ""
        raise ConfigError(f"{len(report.invalid)} lines are not valid requests and were not published:\n{shown}{more}")
