"""`ledger-reaper dlq`: lists dead letters, publishes them again, or closes them."""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.arrow import load_datasets
from streaming.cli.history import Unchanged, Why, record
from streaming.cli.options import Config, DryRun, Json, Yes, completes, confirm, require_terminal, settings_of, utc
from streaming.clock import SystemClock
from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError, SafetyError
from streaming.terminal import Terminal, cell, count_of, new_table, say, say_json
from udfs import records

if TYPE_CHECKING:
    from streaming.dlq.letters import DeadLetterFilters

app = typer.Typer(no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Message ids, of dead letters or of their original requests")]
Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        "--dead-reason",
        help="Only dead letters with this reason",
        autocompletion=completes(records.Reason),
    ),
]
Owner = Annotated[str, typer.Option("--owner", help="Only this topic, namespace (tenant/ns) or tenant")]
OlderThan = Annotated[str, typer.Option("--older-than", help="Only dead letters older than this: 30m, 6h, 2d")]
Every = Annotated[bool, typer.Option("--all", help="All waiting dead letters; needed without other filters")]

_NOTHING_SELECTED = "nothing was selected: give message ids, --reason, --owner, --older-than, or --all"


@app.callback()
def dlq() -> None:
    """Dead letters are requests that the service gave up: list them, publish them again, or close them."""


@app.command("list")
def list_groups(
    config: Config, json_lines: Json = False, reason: Reason = "", owner: Owner = "", older_than: OlderThan = ""
) -> None:
    """Count dead letters by their state (waiting, replayed, written off), reason, owner and age."""
    load_datasets()
    from streaming.clients import command_clients
    from streaming.dlq.letters import filters, groups

    chosen = filters((), reason, owner, _older_than_ms(older_than))
    settings = settings_of(config)
    with command_clients(settings) as clients:
        letter_groups = groups(settings, clients.pulsar, chosen, SystemClock().now_ms())
    if json_lines:
        for group in letter_groups:
            say_json(asdict(group))
        return
    if not letter_groups:
        say("no dead letters")
        return
    shown = new_table("", "state", "reason", "messages", "age", "owner", numbers=("messages",))
    for group in letter_groups:
        owner = group.owner.removeprefix("persistent://")
        shown.add_row(*map(cell, (group.state, group.reason, group.messages, group.age, owner)))
    Terminal().print(shown)


@app.command()
def show(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    ids: Ids = None,
    json_lines: Json = False,
    reason: Reason = "",
    owner: Owner = "",
    older_than: OlderThan = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many")] = 20,
) -> None:
    """Show individual dead letters: decoded, as raw bytes, and with the receipts of their requests."""
    load_datasets()
    from streaming.clients import command_clients
    from streaming.dlq.letters import described, filters, selected
    from streaming.state.settlements import SettlementFolder

    settings = settings_of(config)
    chosen = filters(ids or (), reason, owner, _older_than_ms(older_than))
    settled = SettlementFolder(settings.state_dir).settled()
    shown = 0
    with command_clients(settings) as clients:
        letters = selected(settings, clients.pulsar, chosen, SystemClock().now_ms(), settled)
        for letter, state in islice(letters, limit):
            facts = described(settings, letter, state)
            if json_lines:
                say_json(facts)
            for line in () if json_lines else _lines(facts):
                say(line)
            shown += 1
    if not shown and ids:
        raise ConfigError(f"no dead letter has the id {', '.join(ids)}; `dlq list` counts those that exist")


@app.command()
def replay(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    ids: Ids = None,
    reason: Reason = "",
    owner: Owner = "",
    older_than: OlderThan = "",
    every: Every = False,
    to: Annotated[
        str, typer.Option("--to", help="Request topic for dead letters whose own request topic is in no receipt")
    ] = "",
    dry_run: DryRun = False,
    why: Why = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Publish dead letters as new requests, each exactly once. An interrupted replay is finished first."""
    load_datasets()
    from streaming.clients import command_clients
    from streaming.dlq import replay as work
    from streaming.dlq.letters import filters

    settings = settings_of(config)
    chosen = filters(ids or (), reason, owner, _older_than_ms(older_than))
    _refuse_all_and_some(chosen, every=every)
    only_finish = chosen.are_empty and not every
    if only_finish and not work.is_interrupted(settings):
        raise ConfigError(_NOTHING_SELECTED)
    asks = not (only_finish or ids or dry_run or yes)
    if asks:
        require_terminal(yes=yes)
    with command_clients(settings) as clients:
        if asks:
            would = work.replay(settings, clients, chosen, to=to, dry_run=True)
            confirm(f"Publish {count_of(would.settled, 'dead letter')} again as requests?", yes=yes)
        report = work.replay(settings, clients, None if only_finish else chosen, to=to, dry_run=dry_run)
        if not dry_run:
            record(settings, "dlq replay", _done("replayed", report), why=why, store=clients.store)
    _say("replayed", report, dry_run=dry_run, as_json=as_json)


@app.command("write-off")
def write_off(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    why: Annotated[str, typer.Option("--why", help="Your reason, for the receipts", show_default=False)],
    ids: Ids = None,
    reason: Reason = "",
    owner: Owner = "",
    older_than: OlderThan = "",
    every: Every = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Close dead letters for good: each gets a receipt DEAD_LETTER / WRITTEN_OFF with your reason (--why)."""
    load_datasets()
    from streaming.clients import command_clients
    from streaming.dlq import replay as work
    from streaming.dlq.letters import filters

    settings = settings_of(config)
    chosen = filters(ids or (), reason, owner, _older_than_ms(older_than))
    _refuse_all_and_some(chosen, every=every)
    if chosen.are_empty and not every:
        raise ConfigError(_NOTHING_SELECTED)
    asks = not (ids or dry_run or yes)
    if asks:
        require_terminal(yes=yes)
    with command_clients(settings) as clients:
        if asks:
            would = work.write_off(settings, clients, chosen, why, dry_run=True)
            confirm(f"Write off {count_of(would.settled, 'dead letter')}?", yes=yes)
        report = work.write_off(settings, clients, chosen, why, dry_run=dry_run)
        if not dry_run:
            record(settings, "dlq write-off", _done("written off", report), why=why, store=clients.store)
    _say("written off", report, dry_run=dry_run, as_json=as_json)


def _refuse_all_and_some(chosen: "DeadLetterFilters", *, every: bool) -> None:
    if every and not chosen.are_empty:
        raise ConfigError("--all can't be combined with other filters: leave out --all, or these filters")


def _older_than_ms(text: str) -> int:
    return seconds_of(text, "--older-than") * 1000 if text else 0


def _say(done: str, report: Any, *, dry_run: bool, as_json: bool) -> None:
    facts = {"done": done, "dry_run": dry_run, **asdict(report)}
    if as_json:
        say_json(facts)
    for line in () if as_json else _summary(done, report, dry_run=dry_run):
        say(line)
    if report.stays:
        letters = count_of(sum(report.stays.values()), "dead letter")
        raise SafetyError(
            f"{letters} can't be published: {'; '.join(report.stays)}. "
            "`dlq show` shows them, and `dlq write-off` closes them"
        )


def _done(done: str, report: Any) -> str:
    """Return the entry of the history."""
    text = "; ".join(line.strip() for line in _summary(done, report, dry_run=False))
    return text if report.resumed or report.settled else Unchanged(text)


def _summary(done: str, report: Any, *, dry_run: bool) -> Iterable[str]:
    would = "would be " if dry_run else ""
    if report.resumed:
        yield f"{count_of(report.resumed, 'message')} of an interrupted replay {would}published"
    yield f"{count_of(report.settled, 'dead letter')} {would}{done}"
    for topic, messages in report.to.items():
        yield f"  {messages:,} to {topic}"
    for state, letters in report.skipped.items():
        yield f"{letters:,} skipped: {state}"
    for why, letters in report.stays.items():
        yield f"{letters} can't be published: {why}"


def _lines(facts: dict[str, Any]) -> Iterable[str]:
    lines = [f"{facts['id']}  {facts['state']}  {facts['reason_text'] or facts['reason']}"]
    lines.append(f"  given up {utc(facts['publish_ms'])} after {facts['attempt']} tries, in {facts['partition']}")
    decoded = facts["request"] or facts["rejection"]
    lines += [f"  {name}: {value}" for name, value in decoded.items() if value is not None]
    lines.append(f"  payload: {facts['payload_utf8'][:_SHOWN]!r}")
    lines.append(f"  payload (hex): {facts['payload_hex'][: 2 * _SHOWN]}")
    lines += [f"  property {name}: {value!r}" for name, value in sorted(facts["properties"].items())]
    lines += [
        f"  {utc(row['at_ms'])}  {row['outcome']} {row['reason']} (try {row['attempt']}) {row['detail'] or ''}"
        for row in facts["history"]
    ]
    lines += [f"  replayed as {copy['message_id']} ({copy['run']})" for copy in facts["replayed_as"]]
    return lines


_SHOWN = 2000
