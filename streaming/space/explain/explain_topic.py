"""`ledger-reaper explain --topic`: what a topic stores, by cause, and what can be done about its missing ledgers."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from rich.text import Text

from streaming.clients import command_clients, open_retention_policies
from streaming.config.settings import Settings
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.space.explain.explain_missing import (
    RestorableLedgers,
    StateFault,
    journal_of,
    missing_fields,
    missing_lines,
    missing_title,
    settings_fields,
    settings_line,
)
from streaming.space.output.document import document
from streaming.space.output.space_tables import Shown, show_causes
from streaming.space.reading.measure import space_of
from streaming.terminal import Terminal, cell, count_of, say_json
from udfs.space.space_report import RecoverySettings, SpaceReport
from udfs.space.view import Filters, View, selected

VERSION = 1
_SHOWN = 100  # missing ledgers, of about ten lines each
_OF_SPACE = ("at_ms", "cluster", "topics", "complete", "unknown", "totals", "causes")


def explain_topic(
    settings: Settings, topic: str, *, as_json: bool, reads_per_second: float, state_fault: StateFault
) -> None:
    """Print what a topic, or a partitioned topic with all partitions, stores and misses.

    Raises SafetyError if a ledger is missing or something could not be read, UnavailableError, ConfigError.
    """
    filters = Filters(topic=topic)
    report = space_of(settings, reads_per_second=reads_per_second, filters=filters)
    if not is_found(report, filters):
        raise ConfigError(f"{topic!a}: there is no such topic, and no ledger names it: check the name")
    shown = Shown(report=selected(report, filters), filters=filters, by=View.CAUSE)
    recovery, detail = recovery_of(settings)
    with command_clients(settings) as clients:
        journal = journal_of(settings, clients, {need.ledger_id for need in report.missing}, state_fault)
    if as_json:
        say_json(topic_document(shown, recovery, journal))
    else:
        print_topic(Terminal(), shown, recovery, detail, journal)
    _raise_fault(report, topic)


def is_found(report: SpaceReport, filters: Filters) -> bool:
    """Whether the report has anything about its topic, which may also be a schema without a topic."""
    return bool(report.topics or report.unknown or report.missing or selected(report, filters).shares)


def recovery_of(settings: Settings) -> tuple[RecoverySettings | None, str]:
    """Return the brokers' settings; None: unknown, for the reason in the text."""
    if not settings.safety.ask_broker:
        return None, "brokers are not asked (safety.ask_broker)"
    with closing(open_retention_policies(settings)) as policies:
        try:
            return policies.recovery(), ""
        except (UnavailableError, RefusedError) as error:
            return None, str(error)


def topic_document(shown: Shown, recovery: RecoverySettings | None, journal: RestorableLedgers) -> Mapping[str, Any]:
    """Return what --json prints (docs/json.md)."""
    space = document(shown)
    return {
        "version": VERSION,
        "topic": shown.filters.topic,
        **{name: space[name] for name in _OF_SPACE},
        "subscriptions": document(replace(shown, by=View.SUBSCRIPTION))["rows"],
        "broker_settings": settings_fields(recovery),
        "missing": [missing_fields(need, recovery, journal) for need in shown.report.missing],
    }


def print_topic(
    console: Terminal, shown: Shown, recovery: RecoverySettings | None, detail: str, journal: RestorableLedgers
) -> None:
    """Print what the topic stores, and its missing ledgers.

    Args:
        console: where to print.
        shown: the topic's report.
        recovery: the brokers' settings; None: unknown.
        detail: why they are unknown.
        journal: the ledgers that `undo` can restore.
    """
    missing = shown.report.missing
    show_causes(console, shown)
    console.print()
    console.print(Text(missing_title(missing), "bold red" if missing else "bold"))
    for need in missing[:_SHOWN]:
        for line in missing_lines(need, recovery, journal):
            console.print(cell(line), soft_wrap=True)
    if len(missing) > _SHOWN:
        console.print(f"(the first {_SHOWN} are shown; --json lists all)")
    if missing:
        console.print(cell(settings_line(recovery, detail)), soft_wrap=True)


def _raise_fault(report: SpaceReport, topic: str) -> None:
    faults = [f"{count_of(len(report.missing), 'ledger')} missing"] * bool(report.missing)
    faults += [f"{count_of(len(report.unknown), 'fact')} could not be read"] * (not report.is_complete)
    if faults:
        raise SafetyError(f"{topic!a}: {' and '.join(faults)}: see the result")
