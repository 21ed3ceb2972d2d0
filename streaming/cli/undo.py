"""`ledger-reaper undo`, and the advice it prints about what only the operator can find out."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import Config, DryRun, Json, OneLedger, Yes, confirm, require_terminal, settings_of, utc
from streaming.cli.state import require_state
from streaming.clock import SystemClock
from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError, RefusedError, SafetyError
from streaming.terminal import count_of, say, say_json

if TYPE_CHECKING:
    from streaming.undo.ledgers import Result, UndoReport

_SHOWN = 100


def undo(  # noqa: PLR0913  one parameter an option: that is what typer reads
    config: Config,
    *,
    ledger: OneLedger = None,
    topic: Annotated[str, typer.Option("--topic", help="All ledgers of this topic, as in shop/prod/carts")] = "",
    since: Annotated[str, typer.Option("--since", help="All ledgers deleted in this last time, as in 2h")] = "",
    objects: Annotated[
        bool, typer.Option("--objects", help="Put back objects of tiered storage, if the bucket keeps versions")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Put back the metadata of deleted ledgers, and ask the bookies whether they still have the data.

    Several options together choose the ledgers that meet all of them.

    The exit code is 4 if the one ledger that you named exists, 2 if the journal does not have it, and 1 if something
    could not be put back or its data are gone.
    """
    from streaming.clients import command_clients
    from streaming.undo.ledgers import UndoSelection, undo_ledgers
    from streaming.undo.objects import undo_objects

    since_ms = SystemClock().now_ms() - seconds_of(since, "--since") * 1000 if since else 0
    wanted = UndoSelection(ledger, topic, since_ms)
    if wanted.is_empty:
        raise ConfigError("nothing was chosen: give --ledger, --topic or --since")
    settings = settings_of(config)
    require_state(settings, config)
    asks = ledger is None and not dry_run and not yes
    if asks:
        require_terminal(yes=yes)
    undo_selected = undo_objects if objects else undo_ledgers
    with command_clients(settings) as clients:
        if asks:
            would = undo_selected(settings, clients, wanted, dry_run=True)
            confirm(_question(would, topic, since, objects=objects), yes=yes)
        report = undo_selected(settings, clients, wanted, dry_run=dry_run)
    _show(report, objects=objects, json_lines=json_lines)
    _raise_fault(report, None if objects else ledger)


def _show(report: "UndoReport", *, objects: bool, json_lines: bool) -> None:
    for each in report.results if json_lines else report.results[:_SHOWN]:
        if json_lines:
            say_json(asdict(each))
        else:
            say(_line(each))
    for line in (advice_on_objects(report) if objects else advice(report)).splitlines():
        say(line, err=True)


def _question(would: "UndoReport", topic: str, since: str, *, objects: bool) -> str:
    from streaming.undo.ledgers import Undone

    back = count_of(would.count(Undone.WOULD_PUT_BACK), "object" if objects else "ledger")
    others = len(would.results) - would.count(Undone.WOULD_PUT_BACK)
    rest = f" ({count_of(others, 'other')} can't be put back; --dry-run lists all)" if others else ""
    return f"Put back {back} that {_chosen(topic, since)}{rest}?"


def _chosen(topic: str, since: str) -> str:
    return " and ".join([f"belonged to {topic}"] * bool(topic) + [f"was deleted in the last {since}"] * bool(since))


def _raise_fault(report: "UndoReport", ledger: int | None) -> None:
    from streaming.undo.ledgers import Undone

    if report.count(Undone.FAILED):
        raise RefusedError(f"{report.count(Undone.FAILED)} of {len(report.results)} could not be put back")
    if report.count(Undone.TOO_LATE):
        raise RefusedError(f"{report.count(Undone.TOO_LATE)} of {len(report.results)} came too late: the data are gone")
    if report.count(Undone.UNREADABLE):
        raise RefusedError(
            f"{report.count(Undone.UNREADABLE)} of {len(report.results)} can't be read while a bookie is away"
        )
    if ledger is not None and report.count(Undone.EXISTS):
        raise SafetyError(f"ledger {ledger} exists: undo never overwrites the metadata of an existing ledger")


def _line(each: "Result") -> str:
    detail = f": {each.detail}" if each.detail else ""
    return f"{each.status:<14} ledger {each.ledger_id} of {each.owner or '?'}, deleted {utc(each.deleted_ms)}{detail}"


def advice_on_objects(report: "UndoReport") -> str:
    """What the operator must know about the objects that were put back."""
    from streaming.undo.ledgers import Undone

    lines = _counted(report)
    if report.count(Undone.PUT_BACK):
        lines += [
            "The objects can be read again. But no topic refers to them: the next request for them deletes them again",
            "once they are safety.min_age_seconds old. So run `ledger-reaper pause` before you go on.",
        ]
    return "\n".join(lines)


def advice(report: "UndoReport") -> str:
    """What the operator must know about the ledgers that were put back, and what only the operator can do now."""
    from streaming.undo.ledgers import NOT_READ, Undone

    lines = _counted(report)
    back = [each for each in report.results if each.status in (Undone.PUT_BACK, Undone.UNREADABLE)]
    unread = [each for each in back if each.status is Undone.UNREADABLE or each.detail == NOT_READ]
    for each in (unread or back)[:1]:
        last = f" -le {each.last_entry_id}" if each.last_entry_id >= 0 else ""
        lines += [
            "A bookie drops the entries of a deleted ledger in its next garbage collection (gcWaitTime; 15 minutes by",
            "default). A collection that began before this undo may still drop them. To be sure, read the ledger then:",
            f"  bin/bookkeeper shell readledger -ledgerid {each.ledger_id} -fe 0{last}",
            "If BookKeeper finds no such entries, the undo came too late: the metadata points to nothing, and the next",
            "audit will say so.",
        ]
    if back:
        lines += [
            "No topic refers to these ledgers: the next request for one (an audit sends such, too) deletes it again",
            "once it is safety.min_age_seconds old. So run `ledger-reaper pause` before you go on, and see to it that",
            "nobody requests their deletion.",
        ]
    if report.waiting:
        some = ", ".join(map(str, report.waiting[:20]))
        lines.append(f"WARNING: requests in the retry topic will delete these ledgers again: {some}")
    return "\n".join(lines)


def _counted(report: "UndoReport") -> list[str]:
    from streaming.undo.ledgers import Undone

    lines = [f"{report.count(status)} {status}" for status in Undone if report.count(status)]
    if len(report.results) > _SHOWN:
        lines.append(f"(the first {_SHOWN} are shown; --json lists all)")
    return lines
