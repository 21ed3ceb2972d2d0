"""`audit --verify-only --before-removing BOOKIE`: what would be lost, or have too few copies, without the bookie.

Reads the metadata of every ledger, without Spark, and asks no bookie what it really stores. The rule is in
udfs/space/survival.py.
"""

from collections.abc import Iterator
from shlex import quote
from typing import Any

from rich.table import Table
from rich.text import Text

from streaming.clients import command_clients
from streaming.config.settings import Settings
from streaming.errors import SafetyError
from streaming.space.removal_search import Autorecovery, RemovalReport, report_of, some
from streaming.sweep.pace import Pace
from streaming.terminal import Terminal, cell, count_of, new_table, say, say_json, size_text
from udfs.space.survival import UNSAFE, Effect

_TOPICS_SHOWN = 40
_PROBLEMS_SHOWN = 5
_MEANING = {
    Effect.LOST: "some entries have no copy on another running bookie",
    Effect.UNRECOVERABLE: "open, and too few bookies are left to close it after a failure",
    Effect.BELOW_ACK_QUORUM: "fewer copies than its ack quorum until they are replicated again",
    Effect.UNDER_REPLICATED: "fewer copies than its write quorum until they are replicated again",
}


def before_removing(settings: Settings, bookie: str, *, as_json: bool, reads_per_second: float) -> None:
    """Print what would happen without the bookie.

    Raises SafetyError if something would be lost or could not be read, ConfigError for an unknown bookie,
    UnavailableError.
    """
    root = settings.zookeeper.ledgers_root
    with command_clients(settings) as clients:
        report = report_of(clients.store, clients.bookies, root, bookie, Pace(reads_per_second))
    conclude(report, as_json=as_json)


def conclude(report: RemovalReport, *, as_json: bool) -> None:
    """Print the result. Raises SafetyError if something would be lost or could not be read."""
    if as_json:
        for fields in documents(report):
            say_json(fields)
    else:
        _show(Terminal(), report)
    if not report.is_safe:
        raise SafetyError(_verdict(report))


def documents(report: RemovalReport) -> Iterator[dict[str, Any]]:
    """Yield the objects of --json: the affected topics, and last the totals."""
    for topic in report.topics:
        yield {
            "effect": str(topic.effect),
            "topic": topic.topic,
            "ledgers": topic.ledgers,
            "bytes": topic.size_bytes,
            "open_ledgers": topic.open_ledgers,
            "written_now": topic.written,
            "not_copied": topic.not_copied,
            "examples": topic.examples,
        }
    totals = {str(effect): sum(row.ledgers for row in report.topics if row.effect is effect) for effect in Effect}
    yield {
        "bookie": report.bookie,
        "registered": report.is_registered,
        "safe": report.is_safe,
        "ledgers_read": report.ledgers,
        "ledgers_on_bookie": report.affected,
        "ledgers_by_effect": totals,
        "remaining_bookies": list(report.remaining),
        "read_only_bookies": list(report.read_only),
        "absent_bookies": list(report.absent),
        "writable_bookies": report.writable,
        "largest_ensemble": report.largest_ensemble,
        "missing_bookies": report.missing_bookies,
        "autorecovery": str(report.autorecovery),
        "unread": report.unread,
        "problems": [{"path": path, "detail": detail} for path, detail in report.problems],
        "commands": commands(report),
    }


def commands(report: RemovalReport) -> list[str]:
    """Return what the operator does, in order, so that the bookie can be removed without a loss."""
    if not report.affected:
        return [_decommission(report)] if not report.is_registered else [_stop(report), _decommission(report)]
    steps = []
    if missing := max(report.missing_bookies, report.largest_ensemble - report.writable):
        writable = f", or make read-only bookies writable again ({some(report.read_only)})" if report.read_only else ""
        steps.append(
            f"start {count_of(missing, 'more bookie')}{writable}: new ledgers need as many writable bookies as their "
            "ensemble has, and new copies a writable bookie outside their ensemble"
        )
    if report.autorecovery is Autorecovery.DISABLED:
        steps.append("bookkeeper shell autorecovery -enable")
    elif report.autorecovery is Autorecovery.NO_AUDITOR:
        steps.append(
            "start autorecovery: autoRecoveryDaemonEnabled=true in bookkeeper.conf, or `bookkeeper autorecovery`"
        )
    if any(topic.effect in UNSAFE for topic in report.topics):
        # recover reads from the bookie as long as it runs; decommissionbookie refuses a bookie that runs
        if report.absent:
            steps.append(f"start the bookies that do not run, if they still have their data: {some(report.absent)}")
        if not report.is_registered:
            steps.append(f"start {report.bookie} again: only its disks have the data")
        steps.append(
            'make it read-only, so that no new ledger is placed there: PUT {"readOnly": true} to its HTTP API, '
            "/api/v1/bookie/state/readonly"
        )
        steps.append(
            f"bookkeeper shell recover -f {quote(report.bookie)}   (while it runs: it copies the bookie's ledgers to "
            "others, and closes those that clients are writing to; their clients then write to new ones)"
        )
        steps.append("repeat this command")
    return [*steps, *([_stop(report)] if report.is_registered else []), _decommission(report)]


def _stop(report: RemovalReport) -> str:
    return f"stop {report.bookie}, and keep its disks"


def _decommission(report: RemovalReport) -> str:
    command = f"bookkeeper shell decommissionbookie -bookieid {quote(report.bookie)}"
    return f"{command}   (waits until its ledgers are on other bookies)"


def _verdict(report: RemovalReport) -> str:
    unsafe = sum(topic.ledgers for topic in report.topics if topic.effect in UNSAFE)
    faults = []
    if unsafe:
        faults.append(f"{count_of(unsafe, 'ledger')} would lose data, or could not be closed, without {report.bookie}")
    if report.unread:
        path, detail = report.problems[0]
        faults.append(f"{count_of(report.unread, 'path')} could not be read, such as {path}: {detail}")
    return "; ".join(faults)


def _show(console: Terminal, report: RemovalReport) -> None:
    state = "" if report.is_registered else " (it does not run)"
    say(
        f"This is what removing bookie {report.bookie}{state} now would do, by the metadata of {report.ledgers:,} "
        "ledgers."
    )
    say("Nothing was changed, and no bookie was asked whether it still has its entries.")
    if report.affected:
        console.print(_effects(report))
        for line in _topics(report):
            console.print(cell(line), soft_wrap=True)
        say(_recovery_text(report))
        if written := sum(topic.written for topic in report.topics):
            say(f"Clients write to {count_of(written, 'open ledger')} on it now; the sizes leave out open ledgers.")
    else:
        say("No ledger has an entry on it.")
    for line in _bookies(report):
        say(line)
    for path, detail in report.problems[:_PROBLEMS_SHOWN]:
        say(f"Not read: {path}: {detail}")
    say("To remove it without a loss:")
    for number, command in enumerate(commands(report), start=1):
        say(f"  {number}. {command}")


def _bookies(report: RemovalReport) -> Iterator[str]:
    if report.read_only:
        yield f"These bookies are read-only: their copies count, and they take no new ones: {some(report.read_only)}"
    if report.writable < report.largest_ensemble:
        yield (
            f"{count_of(report.writable, 'writable bookie')} would be left: topics with ensembles of "
            f"{report.largest_ensemble} could not be written, and brokers could not load them."
        )
    if report.absent:
        yield f"These bookies share ledgers with it and do not run; their copies do not count: {some(report.absent)}"


def _recovery_text(report: RemovalReport) -> str:
    """Return what BookKeeper does once the bookie is gone."""
    if report.autorecovery is Autorecovery.DISABLED:
        return "Autorecovery is disabled: BookKeeper copies nothing by itself."
    if report.autorecovery is Autorecovery.NO_AUDITOR:
        return "No autorecovery runs (no auditor is registered): BookKeeper copies nothing by itself."
    not_copied = sum(topic.not_copied for topic in report.topics)
    unsafe = sum(topic.ledgers for topic in report.topics if topic.effect in UNSAFE)
    copied = f"copies {count_of(report.affected - not_copied, 'ledger')} to other bookies"
    subject = "Autorecovery" if report.autorecovery is Autorecovery.RUNS else "Autorecovery, if it runs,"
    text = f"{subject} then {copied}; it closes open ledgers first, which fences their writers"
    if unsafe:
        text += f". It can't copy {count_of(unsafe, 'ledger')}, tries for ever, and decommissionbookie waits for it"
    if without_place := not_copied - unsafe:
        text += f". It leaves {count_of(without_place, 'ledger')} as they are until there are more writable bookies"
    return f"{text}."


def _effects(report: RemovalReport) -> Table:
    numbers = ("ledgers", "bytes of one copy")
    effects = new_table("Ledgers on it", "effect", *numbers, "meaning", numbers=numbers, whole=("effect",))
    for effect in Effect:
        rows = [topic for topic in report.topics if topic.effect is effect]
        if rows:
            ledgers, size = sum(row.ledgers for row in rows), sum(row.size_bytes for row in rows)
            shown = Text(str(effect), style="bold red" if effect in UNSAFE else "yellow")
            effects.add_row(shown, f"{ledgers:,}", size_text(size), _MEANING[effect])
    return effects


def _topics(report: RemovalReport) -> Iterator[str]:
    """Yield a line for each topic, whose name is last and never cut."""
    more = f" (the first {_TOPICS_SHOWN}; --json has all)" if len(report.topics) > _TOPICS_SHOWN else ""
    yield f"Topics with ledgers on it{more}"
    for row in report.topics[:_TOPICS_SHOWN]:
        counts = f"{count_of(row.ledgers, 'ledger')}, {row.open_ledgers:,} open, {size_text(row.size_bytes)}"
        yield f"{row.effect}: {counts}, such as {', '.join(map(str, row.examples))}: {row.topic or '(no topic)'}"
