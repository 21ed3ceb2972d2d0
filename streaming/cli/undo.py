"""`ledger-reaper undo`, and its advice about checks that only the operator can make."""

from dataclasses import asdict
from typing import Annotated

import typer

from streaming.cli.history import Unchanged, Why, record
from streaming.cli.options import (
    Config,
    DryRun,
    Json,
    OneLedger,
    Yes,
    confirm,
    require_terminal,
    settings_with_state,
    utc,
)
from streaming.clock import SystemClock
from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError, RefusedError, SafetyError
from streaming.terminal import count_of, say, say_json
from streaming.undo.undo_report import NOT_READ, Undone, UndoReport, UndoResult, UndoSelection
from udfs.paths import SEGMENT_DOMAIN

_SHOWN = 100


def undo(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    ledger: OneLedger = None,
    topic: Annotated[str, typer.Option("--topic", help="All ledgers of this topic, for example shop/prod/carts")] = "",
    since: Annotated[str, typer.Option("--since", help="All ledgers deleted within this time, for example 2h")] = "",
    objects: Annotated[
        bool, typer.Option("--objects", help="Restore objects of tiered storage, if the bucket keeps versions")
    ] = False,
    dry_run: DryRun = False,
    why: Why = "",
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Restore the metadata of deleted ledgers, and check whether the bookies still have the data.

    Several options together select the ledgers that meet all of them.

    The exit code is 4 if the ledger of --ledger exists, 2 if the journal does not have it, and 1 if a ledger or object
    could not be restored or its data are gone.
    """
    from streaming.clients import command_clients
    from streaming.undo.restore_ledgers import selected_ledgers, undo_ledgers
    from streaming.undo.restore_objects import selected_objects, undo_objects

    since_ms = SystemClock().now_ms() - seconds_of(since, "--since") * 1000 if since else 0
    selection = UndoSelection(ledger, topic, since_ms)
    if selection.is_empty:
        raise ConfigError("nothing was selected: give --ledger, --topic or --since")
    settings = settings_with_state(config)
    asks = ledger is None and not dry_run and not yes
    undo_selected = undo_objects if objects else undo_ledgers
    if asks:
        (selected_objects if objects else selected_ledgers)(settings, selection)  # raises if there are none
        require_terminal(yes=yes)
    with command_clients(settings) as clients:
        if asks:
            would = undo_selected(settings, clients, selection, dry_run=True)
            if not would.count(Undone.WOULD_PUT_BACK):
                _show(would, objects=objects, json_lines=json_lines)
                _raise_fault(would, None)
                return
            confirm(_question(would, topic, since, objects=objects), yes=yes)
        report = undo_selected(settings, clients, selection, dry_run=dry_run)
        if not dry_run:
            kind = "objects" if objects else "ledgers"
            chosen = f"ledger {ledger}" if ledger is not None else f"{kind}{_selected(topic, since)}"
            what = ", ".join(f"{report.count(status)} {status}" for status in Undone if report.count(status))
            done = f"{chosen}: {what}"
            may_differ = any(report.count(status) for status in (Undone.PUT_BACK, Undone.UNREADABLE, Undone.FAILED))
            record(settings, "undo", done if may_differ else Unchanged(done), why=why, store=clients.store)
    _show(report, objects=objects, json_lines=json_lines)
    _raise_fault(report, None if objects else ledger)


def _show(report: UndoReport, *, objects: bool, json_lines: bool) -> None:
    for result in report.results if json_lines else report.results[:_SHOWN]:
        if json_lines:
            say_json(asdict(result))
        else:
            say(_line(result))
    for line in (advice_on_objects(report) if objects else advice(report)).splitlines():
        say(line, err=True)


def _question(would: UndoReport, topic: str, since: str, *, objects: bool) -> str:
    count = count_of(would.count(Undone.WOULD_PUT_BACK), "object" if objects else "ledger")
    others = len(would.results) - would.count(Undone.WOULD_PUT_BACK)
    rest = f" ({count_of(others, 'other')} can't be restored; --dry-run lists all)" if others else ""
    return f"Restore {count}{_selected(topic, since)}{rest}?"


def _selected(topic: str, since: str) -> str:
    return f" of {topic}" * bool(topic) + f" deleted in the last {since}" * bool(since)


def _raise_fault(report: UndoReport, ledger: int | None) -> None:
    if report.count(Undone.FAILED):
        raise RefusedError(
            f"{report.count(Undone.FAILED)} of {len(report.results)} could not be restored: the results FAILED show why"
        )
    if report.count(Undone.TOO_LATE):
        raise RefusedError(f"{report.count(Undone.TOO_LATE)} of {len(report.results)} came too late: the data are gone")
    if report.count(Undone.UNREADABLE):
        raise RefusedError(
            f"{report.count(Undone.UNREADABLE)} of {len(report.results)} can't be read now: start the bookies that are "
            "away, and then read them as described above"
        )
    if ledger is not None and report.count(Undone.EXISTS):
        raise SafetyError(f"ledger {ledger} exists: undo never overwrites the metadata of an existing ledger")


def _line(result: UndoResult) -> str:
    detail = f": {result.detail}" if result.detail else ""
    about = f"ledger {result.ledger_id} of {result.owner or '?'}, deleted {utc(result.deleted_ms)}"
    return f"{result.status:<14} {about}{detail}"


def advice_on_objects(report: UndoReport) -> str:
    """Return the advice about restored objects."""
    lines = _counted(report)
    if report.count(Undone.PUT_BACK):
        lines += [
            "The objects can be read again. But no topic refers to them: the next request for them deletes them again",
            "once they are safety.min_age_seconds old. So run `ledger-reaper pause` before you continue.",
        ]
    return "\n".join(lines)


def advice(report: UndoReport) -> str:
    """Return the advice about restored ledgers, and the checks that only the operator can make."""
    lines = _counted(report)
    restored = [result for result in report.results if result.status in (Undone.PUT_BACK, Undone.UNREADABLE)]
    unread = [result for result in restored if result.status is Undone.UNREADABLE or NOT_READ in result.detail]
    for result in (unread or restored)[:1]:
        last = f" -le {result.last_entry_id}" if result.last_entry_id >= 0 else ""
        lines += [
            "A bookie drops the entries of a deleted ledger in its next garbage collection (gcWaitTime; 15 minutes by",
            "default). A collection that started before this undo may still drop them. So read the ledger after it:",
            f"  bin/bookkeeper shell readledger -ledgerid {result.ledger_id} -fe 0{last}",
            "If BookKeeper finds no such entries, the undo came too late: the metadata points to nothing, and neither",
            "`explain` nor an audit reports the ledger as missing.",
        ]
    if restored:
        lines += [
            "If no topic refers to a ledger, the next request for it (audits send requests too) deletes it again once",
            "it is safety.min_age_seconds old. So run `ledger-reaper pause` before you continue, and make sure that no",
            "client requests its deletion.",
        ]
    if any(result.owner.startswith(f"{SEGMENT_DOMAIN}://") for result in restored):
        lines += [
            "Nothing restores a segment of a scalable topic that a broker has deleted (its list of ledgers and its",
            "subscriptions): no topic will refer to these ledgers, and only BookKeeper's tools can read them.",
        ]
    if report.waiting:
        some = ", ".join(map(str, report.waiting[:20]))
        lines.append(f"WARNING: requests in the retry topic will delete these ledgers again: {some}")
    return "\n".join(lines)


def _counted(report: UndoReport) -> list[str]:
    lines = [f"{report.count(status)} {status}" for status in Undone if report.count(status)]
    if len(report.results) > _SHOWN:
        lines.append(f"(the first {_SHOWN} are shown; --json lists all)")
    return lines
