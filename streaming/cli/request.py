"""`ledger-reaper request`."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.history import Unchanged, record
from streaming.cli.options import Config, Json, refuse_ignored, settings_of
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.terminal import count_of, say, say_json, some_of
from udfs.requests.lanes import Lanes

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.phase_one.receipts_by_message import Receipt
    from streaming.topics.requests import PublishReport

_SHOWN = 20
_SHOWN_TOPICS = 3
_WAIT_SECONDS = 900


def request(  # noqa: PLR0913, PLR0917  typer reads each option from a parameter
    context: typer.Context,
    config: Config,
    file: Annotated[str, typer.Argument(help="File with one JSON object per line; - is standard input")] = "-",
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Publish every line as it is, even if it is not a valid request")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the final receipt of every request, and print the receipts")
    ] = False,
    timeout: Annotated[
        int, typer.Option("--timeout", min=0, help="With --wait: give up after this many seconds")
    ] = _WAIT_SECONDS,
    json_lines: Json = False,
) -> None:
    """Publish deletion requests.

    Invalid lines are not published: the command lists them and ends with exit code 2. The valid lines are published.
    Requests of a tenant whose lane can't be used are not published either: the exit code is 1, or 3 if Pulsar does not
    answer.
    With --wait, the exit code is 3 if a request has no final receipt in time, and 4 if a request became a dead letter.
    """
    why = "receipts are awaited and printed with --wait only. Add --wait"
    refuse_ignored(context, (not wait, ("--timeout", "--json"), why))
    if wait:
        load_datasets()
        from streaming.phase_one.lines import publish_and_wait
        from streaming.phase_one.services import services_of
    else:
        from streaming.clients import command_clients
        from streaming.topics.requests import publish_lines

    settings = settings_of(config)
    if file != "-" and not Path(file).is_file():
        raise ConfigError(f"there is no file {file}")
    receipts: list[Receipt] = []
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as lines:
        if wait:
            services = services_of(settings)
            report, receipts = publish_and_wait(settings, services, lines, timeout, unchecked=unchecked)
        else:
            with command_clients(settings) as clients:
                report = publish_lines(settings, clients.pulsar.admin, lines, unchecked=unchecked)
    done = f"{count_of(report.published, 'request')} published to {_shown_topics(settings, report)}"
    say(done, err=True)
    record(settings, "request", done if report.published else Unchanged(done))
    dead = _shown(receipts, json_lines=json_lines)
    faults = report.unsent_texts()
    if report.invalid:
        shown = "\n".join(f"  line {number}: {why}" for number, why in report.invalid[:_SHOWN])
        more = f"\n  … and {len(report.invalid) - _SHOWN} more" if len(report.invalid) > _SHOWN else ""
        lines = count_of(len(report.invalid), "line is not a valid request", "lines are not valid requests")
        was = "was" if len(report.invalid) == 1 else "were"
        raise ConfigError("\n".join((f"{lines} and {was} not published:\n{shown}{more}", *faults)))
    if faults:
        of_code = UnavailableError if report.exit_code == UnavailableError.exit_code else RefusedError
        raise of_code("\n".join(faults))
    if dead:
        letters = count_of(dead, "request became a dead letter", "requests became dead letters")
        raise SafetyError(f"{letters}; `ledger-reaper dlq list` shows why")


def _shown_topics(settings: "Settings", report: "PublishReport") -> str:
    if settings.topics.lanes is Lanes.ONE:
        return settings.topics.requests[0]
    return some_of(sorted(report.topics), _SHOWN_TOPICS) or "no topic"


def _shown(receipts: "Sequence[Receipt]", *, json_lines: bool) -> int:
    """Print receipts; return how many requests became dead letters."""
    dead = 0
    for receipt in receipts:
        dead += receipt.outcome == "DEAD_LETTER"
        if json_lines:
            say_json(asdict(receipt))
        else:
            what = f"ledger {receipt.ledger_id}" if receipt.ledger_id is not None else "no request"
            say(f"{what}: {receipt.outcome} {receipt.reason} {receipt.detail}".rstrip())
    return dead
