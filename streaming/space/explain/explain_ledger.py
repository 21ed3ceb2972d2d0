"""`ledger-reaper explain N`: shows one ledger, and the topic, cursor or schema that needs it.

streaming/audit/explain.py finds the owners; this module reads what they know of the ledger, and loads no topic.
"""

from collections.abc import Iterator, Sequence

from streaming.audit.explain import explained_fields, owners_of, read_explained, show_explained
from streaming.clients import broker_for, command_clients
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.ports import LoadedTopicStats, MetadataStore
from streaming.space.explain.explain_missing import (
    StateFault,
    headline,
    journal_of,
    missing_fields,
    missing_lines,
    needed_fields,
    needed_lines,
    settings_fields,
    settings_line,
)
from streaming.space.explain.explain_topic import VERSION, recovery_of
from streaming.space.reading.ledger_reading import LedgerReading
from streaming.space.reading.needs import needed_others, needed_schemas
from streaming.space.reading.owner_reading import OwnerReading
from streaming.space.reading.policy_reading import PolicyReading
from streaming.space.reading.topic_division import TopicDivision
from streaming.space.reading.unread import Unread
from streaming.sweep.pace import Pace
from streaming.terminal import say_json
from udfs.paths import managed_ledger_path, schema_id_of, schema_path
from udfs.records import LedgerComponent
from udfs.space.ledger_table import TableBuilder
from udfs.space.needed import needed_data
from udfs.space.space_report import NeededLedger


def explain_ledger(
    settings: Settings, ledger_id: int, *, as_json: bool, reads_per_second: float, state_fault: StateFault
) -> None:
    """Print the facts about a ledger and its owners. Raises UnavailableError, ConfigError."""
    explained = read_explained(settings, ledger_id, reads_per_second=reads_per_second)
    stats = broker_for(settings) if settings.safety.ask_broker else None
    with command_clients(settings) as clients:
        root = settings.zookeeper.ledgers_root
        needs, unread = needs_of(clients.store, stats, root, ledger_id, owners_of(explained))
        is_missing = explained.referring is not None and bool(needs)
        journal = journal_of(settings, clients, [ledger_id] if is_missing else [], state_fault)
    recovery, detail = recovery_of(settings) if is_missing else (None, "")
    if as_json:
        fields = explained_fields(settings, explained) | {"format": VERSION, "missing": is_missing}
        fields["needed"] = [
            missing_fields(need, recovery, journal) if is_missing else needed_fields(need) for need in needs
        ]
        fields["owners_not_read"] = unread
        if is_missing:
            fields["broker_settings"] = settings_fields(recovery)
        say_json(fields)
        return
    lines: list[str] = []
    for need in needs:
        lines += missing_lines(need, recovery, journal) if is_missing else _lines(need)
    if is_missing:
        lines.append(settings_line(recovery, detail))
    lines += [f"not known: {each}" for each in unread]
    show_explained(settings, explained, [f"  {line}" for line in lines])


def _lines(need: NeededLedger) -> Iterator[str]:
    yield headline(need)
    yield from needed_lines(need)


def needs_of(
    store: MetadataStore,
    stats: LoadedTopicStats | None,
    ledgers_root: str,
    ledger_id: int,
    owners: Sequence[tuple[str, str]],
) -> tuple[list[NeededLedger], list[str]]:
    """Return what owners know of a ledger, and what of the owners could not be read.

    Raises UnavailableError, ConfigError.

    Args:
        store: the metadata store.
        stats: of the brokers; None: brokers are not asked.
        ledgers_root: the path of BookKeeper's metadata.
        ledger_id: the ledger.
        owners: (component, managed ledger) of those that refer to it.
    """
    unread, pace, needs = Unread(), Pace(0), list[NeededLedger]()
    reading = OwnerReading(store, pace)
    division = TopicDivision(
        table=TableBuilder().build(),  # `confirmed` reads which ledgers of the topic's list exist
        ledgers=LedgerReading(store, ledgers_root, read_layout(store, ledgers_root), pace),
        owners=reading,
        stats=stats,
        policies=PolicyReading(None, None, {}),  # retention does not matter here
        unread=unread,
        now_ms=lambda: 0,
    )
    batch = reading.read(sorted({_path(component, owner) for component, owner in owners}))
    for topic in division.confirmed(division.read(batch.topics)):
        needs += needed_data(topic.facts, [ledger_id]) + needed_others(topic, {ledger_id})
    for path, node in batch.schemas:
        needs += needed_schemas(path, node, {ledger_id})
    unread.add_migration(store)
    return needs, [f"{each.what}: {each.detail}" for each in unread.unknown()]


def _path(component: str, owner: str) -> str:
    if component == LedgerComponent.SCHEMA_STORAGE:
        return schema_path(schema_id_of(owner))
    return managed_ledger_path(owner)
