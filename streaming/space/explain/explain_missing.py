"""Describes a missing ledger for `explain`: its contents, who needs it, what brokers do, and how to repair it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streaming.clients import CommandClients
from streaming.clock import utc_text
from streaming.config.settings import Settings
from streaming.errors import ConfigError, ReaperError, SafetyError, UnavailableError
from streaming.space.explain.outlook import FORCES_SCHEMAS_WARNING, SETTINGS, BrokerOutlook, outlook_of
from streaming.terminal import count_of, size_text
from streaming.undo.restore_ledgers import restorable
from streaming.undo.undo_report import Undone, UndoResult
from udfs.records import LedgerComponent
from udfs.space.space_report import NeededBy, NeededLedger, RecoverySettings

KINDS = {
    LedgerComponent.MANAGED_LEDGER: "messages",
    LedgerComponent.MANAGED_CURSOR: "position of a subscription",
    LedgerComponent.SCHEMA_STORAGE: "schema",
    LedgerComponent.COMPACTED_LEDGER: "compacted messages",
    LedgerComponent.DELAYED_INDEX_BUCKET: "index of delayed messages",
}


@dataclass(frozen=True, slots=True)
class RestorableLedgers:
    """The ledgers that `undo` can restore."""

    entries: dict[int, UndoResult] | None  # None: unknown
    detail: str = ""  # why it is unknown, or where it was searched


StateFault = Callable[[], ReaperError | None]  # why the state directory can't be read; None if it exists


def journal_of(
    settings: Settings, clients: CommandClients, ledger_ids: Collection[int], state_fault: StateFault
) -> RestorableLedgers:
    """Search the journal for ledgers. If it can't be read, the error becomes the detail."""
    # the journal of a directory that does not exist would be read as empty
    if ledger_ids and (fault := state_fault()):
        return RestorableLedgers(None, str(fault))
    try:
        found = restorable(settings, clients, ledger_ids) if ledger_ids else {}
    except (ConfigError, SafetyError, UnavailableError) as error:
        return RestorableLedgers(None, str(error))
    where = (
        f"the journal in {settings.state.dir} keeps the deletes of this service for {settings.state.journal_days} days"
    )
    return RestorableLedgers(found, where)


def missing_fields(need: NeededLedger, settings: RecoverySettings | None, journal: RestorableLedgers) -> dict[str, Any]:
    """Return a missing ledger as --json prints it (docs/json.md)."""
    outlook = outlook_of(need, settings)
    return needed_fields(need) | {
        "broker": {
            "stops_reads": outlook.stops_reads,
            "helps": {setting: setting in outlook.helped_by for setting in SETTINGS},
            "text": outlook.text,
        },
        "undo": _undo_fields(need, journal),
        "commands": [asdict(remedy) for remedy in outlook.remedies],
    }


def needed_fields(need: NeededLedger) -> dict[str, Any]:
    """Return what is known of a ledger that a topic needs, as --json prints it."""
    return {
        "ledger": need.ledger_id,
        "component": str(need.component),
        "topic": need.topic,
        "subscription": need.cursor or None,
        "of_broker": need.is_of_broker,
        "entries": need.entries,
        "bytes": need.length,
        "after_ms": need.after_ms,
        "until_ms": need.until_ms,
        "last": need.is_last,
        "loaded": need.is_loaded,
        "needed_by": [
            {
                "subscription": each.subscription,
                "of_broker": each.is_of_broker,
                "unread": each.unread,
                "later": each.later,
                "exact": each.is_exact,
            }
            for each in need.needed_by
        ],
    }


def settings_fields(settings: RecoverySettings | None) -> dict[str, bool | None]:
    """Return the brokers' settings as --json prints them."""
    values = (None,) * len(SETTINGS) if settings is None else _values(settings)
    return dict(zip(SETTINGS, values, strict=True))


def _undo_fields(need: NeededLedger, journal: RestorableLedgers) -> dict[str, Any]:
    found = None if journal.entries is None else journal.entries.get(need.ledger_id)
    can = None if journal.entries is None else found is not None and found.status is Undone.WOULD_PUT_BACK
    return {
        "possible": can,
        "deleted_ms": None if found is None else found.deleted_ms,
        "has_entries": None if found is None else found.has_entries,
        "command": _undo_command(need.ledger_id) if can else None,
        "detail": journal.detail if found is None else found.detail,
    }


def missing_lines(need: NeededLedger, settings: RecoverySettings | None, journal: RestorableLedgers) -> Iterator[str]:
    """Yield a missing ledger as text: a headline, and indented lines."""
    yield headline(need)
    yield from needed_lines(need)
    outlook = outlook_of(need, settings)
    yield f"  the broker: the topic loads. {outlook.text}."
    yield from _undo_lines(need, journal)
    yield from _remedy_lines(outlook)


def headline(need: NeededLedger) -> str:
    """Return a ledger's id, what it contains, and its topic, as a line."""
    of = f" of {need.cursor!a}" if need.cursor else ""
    return f"ledger {need.ledger_id}, {KINDS[need.component]}{of}, of {need.topic!a}"


def needed_lines(need: NeededLedger) -> Iterator[str]:
    """Yield what is known about a ledger from the topic's list, and who needs it."""
    if need.component is not LedgerComponent.MANAGED_LEDGER:
        if need.component is LedgerComponent.SCHEMA_STORAGE:
            yield f"  {'the newest version' if need.is_last else 'an older version'} of the schema"
        return
    size = "its entries and bytes are not known"
    if need.entries is not None and need.length is not None:
        size = f"{count_of(need.entries, 'entry', 'entries')}, {size_text(need.length)} of one copy"
    yield f"  {size}; written {_time_text(need.after_ms, need.until_ms)}"
    for each in need.needed_by:
        yield f"  {_needed_text(each)}"
    if not need.needed_by:
        yield "  every subscription of the topic has acknowledged it"


def settings_line(settings: RecoverySettings | None, detail: str) -> str:
    """Return the brokers' settings as text."""
    if settings is None:
        return f"brokers' settings are not known: {detail}"
    words = {True: "true", False: "false", None: "not known"}
    named = ", ".join(f"{name} {words[value]}" for name, value in zip(SETTINGS, _values(settings), strict=True))
    warning = f". {FORCES_SCHEMAS_WARNING}" if settings.forces_schemas else ""
    return f"settings of the broker that answered: {named}{warning}"


def _values(settings: RecoverySettings) -> tuple[bool | None, ...]:
    return settings.skips_data, settings.forces_ledgers, settings.forces_schemas


def _needed_text(each: NeededBy) -> str:
    name = f"{'cursor' if each.is_of_broker else 'subscription'} {each.subscription!a}"
    if each.unread is None and not each.is_exact:
        return f"{name} may need it: its position is not known"
    unread = "its unread messages there are not known" if each.unread is None else f"{each.unread:,} unread there"
    return f"{name} needs it: {unread}, and {each.later or 0:,} after it"


def _time_text(after_ms: int | None, until_ms: int | None) -> str:
    if until_ms is None:
        return "at a time that is not known" if after_ms is None else f"after {utc_text(after_ms)}"
    return f"until {utc_text(until_ms)}" if after_ms is None else f"from {utc_text(after_ms)} to {utc_text(until_ms)}"


def _undo_lines(need: NeededLedger, journal: RestorableLedgers) -> Iterator[str]:
    found = None if journal.entries is None else journal.entries.get(need.ledger_id)
    if journal.entries is None:
        yield f"  undo: not known whether the journal has it: {journal.detail}"
    elif found is None:
        yield f"  undo: can't restore it: {journal.detail}, and this ledger is not among them"
    elif found.status is not Undone.WOULD_PUT_BACK:
        yield f"  undo: can't restore it: {found.detail}"
    else:
        effect = "So this restores it, at once" if found.has_entries else "This restores the rest"
        if found.has_entries is None:
            effect = "This restores it if they do"
        yield (
            f"  undo: the service deleted it at {utc_text(found.deleted_ms)}, and the journal has its metadata; "
            f"{found.detail}. {effect}:"
        )
        yield f"    {_undo_command(need.ledger_id)}"


def _undo_command(ledger_id: int) -> str:
    return f"ledger-reaper undo --ledger {ledger_id}"


def _remedy_lines(outlook: BrokerOutlook) -> Iterator[str]:
    for number, remedy in enumerate(outlook.remedies):
        yield f"  {'or' if number else 'without undo'}, which loses {remedy.loses}:"
        yield f"    {remedy.command}"


def missing_title(missing: Sequence[NeededLedger]) -> str:
    """Return how many ledgers are missing."""
    return f"Missing: {count_of(len(missing), 'ledger')}" if missing else "Missing: no ledger"
