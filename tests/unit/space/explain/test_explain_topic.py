"""`ledger-reaper explain --topic`: the document, the text, and what can't be known."""

from io import StringIO
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.space.explain.explain_missing import RestorableLedgers, journal_of, missing_lines, settings_line
from streaming.space.explain.explain_topic import is_found, print_topic, topic_document
from streaming.space.explain.outlook import outlook_of
from streaming.space.output.document import document
from streaming.space.output.space_tables import Shown
from streaming.terminal import Terminal
from streaming.undo.undo_report import GONE, HALF_STORED, NOT_CHECKED, STORED, Undone, UndoResult
from tests.builders import SCHEMA, TOPIC, locator_znode, put
from tests.services import command_clients_of
from tests.unit.space.cluster import Cluster
from tests.unit.undo.test_restore_ledgers import World
from udfs.paths import topic_of
from udfs.records import LedgerComponent
from udfs.space.space_report import NeededBy, NeededLedger, RecoverySettings
from udfs.space.view import Filters, View, selected

NAMED = topic_of(TOPIC)
DEFAULTS = RecoverySettings(False, False, False)
SKIPPING = RecoverySettings(True, False, False)
NOT_IN_JOURNAL = RestorableLedgers({}, "the journal in /s keeps the deletes of this service for 7 days")


def in_journal(
    ledger_id: int,
    status: Undone = Undone.WOULD_PUT_BACK,
    detail: str = NOT_CHECKED,
    *,
    has_entries: bool | None = None,
) -> RestorableLedgers:
    result = UndoResult(
        ledger_id=ledger_id,
        path="/l",
        owner=NAMED,
        deleted_ms=1_700_000_000_000,
        status=status,
        detail=detail,
        has_entries=has_entries,
    )
    return RestorableLedgers({ledger_id: result})


def shown_of(cluster: Cluster, topic: str = NAMED) -> Shown:
    filters = Filters(topic=topic)
    return Shown(report=selected(cluster.measure(topic=topic), filters), filters=filters, by=View.CAUSE)


def lossy() -> Cluster:
    cluster = Cluster()
    cluster.topic(1, 2, 3, missing=[2])
    cluster.cursor("billing", (1, 4))
    return cluster


def text_of(shown: Shown, recovery: RecoverySettings | None, journal: RestorableLedgers, detail: str = "") -> str:
    out = StringIO()
    print_topic(Terminal(file=out, width=200), shown, recovery, detail, journal)
    return out.getvalue()


def test_the_causes_are_those_of_space() -> None:
    shown = shown_of(lossy())
    fields, space = topic_document(shown, DEFAULTS, NOT_IN_JOURNAL), document(shown)
    assert fields["version"] == 1
    for name in ("at_ms", "cluster", "topics", "complete", "unknown", "totals", "causes"):
        assert fields[name] == space[name]


def test_the_subscriptions_are_named_with_what_they_keep() -> None:
    shown = shown_of(lossy())
    fields = topic_document(shown, DEFAULTS, NOT_IN_JOURNAL)["subscriptions"]
    assert fields
    assert {row["subscription"] for row in fields} == {each.name for each in shown.report.subscriptions}
    text = text_of(shown, DEFAULTS, NOT_IN_JOURNAL)
    assert "By subscription (bytes of one copy)" in text
    for each in shown.report.subscriptions:
        assert f"{each.topic}  {each.name}\n" in text


def test_a_missing_ledger_has_its_facts_and_what_can_be_done() -> None:
    fields = topic_document(shown_of(lossy()), DEFAULTS, in_journal(2))
    assert fields["broker_settings"] == {
        "autoSkipNonRecoverableData": False,
        "managedLedgerForceRecovery": False,
        "schemaLedgerForceRecovery": False,
    }
    (missing,) = fields["missing"]
    assert (missing["ledger"], missing["component"], missing["entries"], missing["bytes"]) == (
        2,
        "MANAGED_LEDGER",
        10,
        1_000,
    )
    assert missing["needed_by"] == [
        {"subscription": "billing", "of_broker": False, "unread": 10, "later": 10, "exact": True}
    ]
    assert missing["broker"]["stops_reads"]
    assert missing["undo"]["possible"] is True
    assert missing["undo"]["command"] == "ledger-reaper undo --ledger 2"
    assert missing["commands"][0]["command"] == (
        f"pulsar-admin topics reset-cursor --messageId 3:0 --subscription=billing {NAMED}"
    )


def test_the_text_has_the_same() -> None:
    text = text_of(shown_of(lossy()), DEFAULTS, in_journal(2))
    for words in (
        "By cause",
        "Missing: 1 ledger",
        "ledger 2, messages, of 'persistent://public/default/orders'",
        "10 entries, 1000 B of one copy",
        "subscription 'billing' needs it: 10 unread there, and 10 after it",
        "    ledger-reaper undo --ledger 2",
        f"    pulsar-admin topics reset-cursor --messageId 3:0 --subscription=billing {NAMED}",
        "autoSkipNonRecoverableData false",
    ):
        assert words in text, text


def test_the_first_hundred_missing_ledgers_are_shown_and_all_are_in_json() -> None:
    cluster = Cluster()
    cluster.topic(*range(1, 102), 900, missing=range(1, 102))
    shown = shown_of(cluster)
    text = text_of(shown, DEFAULTS, NOT_IN_JOURNAL)
    assert "Missing: 101 ledgers" in text
    assert "ledger 100, messages" in text
    assert "ledger 101, messages" not in text
    assert "(the first 100 are shown; --json lists all)" in text
    assert len(topic_document(shown, DEFAULTS, NOT_IN_JOURNAL)["missing"]) == 101


def test_a_topic_is_found_if_anything_names_it_and_a_schema_that_misses_all_its_ledgers_does() -> None:
    cluster, filters = Cluster(), Filters(topic=NAMED)
    assert not is_found(cluster.measure(topic=NAMED), filters)
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(23))
    assert is_found(cluster.measure(topic=NAMED), filters)


def test_a_topic_that_misses_nothing_says_so() -> None:
    cluster = Cluster()
    cluster.topic(1, 2)
    shown = shown_of(cluster)
    assert "Missing: no ledger" in text_of(shown, DEFAULTS, NOT_IN_JOURNAL)
    assert topic_document(shown, DEFAULTS, NOT_IN_JOURNAL)["missing"] == []


@pytest.mark.parametrize("forces_schemas", [True, False, None])
def test_the_setting_that_deletes_schemas_while_bookies_are_away_is_warned_of(forces_schemas: bool | None) -> None:
    line = settings_line(RecoverySettings(False, False, forces_schemas), "")
    assert ("WARNING: while schemaLedgerForceRecovery is true" in line) is (forces_schemas is True)


def test_without_a_state_directory_it_is_unknown_whether_the_journal_has_a_ledger(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    clients = command_clients_of(world.store, world.pulsar)

    found = journal_of(world.settings, clients, [5, 6], lambda: None)
    assert found.entries is not None
    assert [*found.entries] == [5]
    elsewhere = journal_of(world.settings, clients, [5], lambda: ConfigError("it does not exist on this machine"))
    assert elsewhere == RestorableLedgers(None, "it does not exist on this machine")


@pytest.mark.parametrize(
    ("status", "detail", "has_entries", "words"),
    [
        pytest.param(Undone.WOULD_PUT_BACK, STORED, True, f"{STORED}. So this restores it, at once:", id="stored"),
        pytest.param(Undone.WOULD_PUT_BACK, HALF_STORED, False, f"{HALF_STORED}. This restores the rest:", id="half"),
        pytest.param(
            Undone.WOULD_PUT_BACK, NOT_CHECKED, None, f"{NOT_CHECKED}. This restores it if they", id="unknown"
        ),
        pytest.param(Undone.TOO_LATE, GONE, False, f"can't restore it: {GONE}", id="gone"),
    ],
)
def test_whether_a_restored_ledger_has_readable_entries_is_stated(
    status: Undone, detail: str, has_entries: bool | None, words: str
) -> None:
    shown, journal = shown_of(lossy()), in_journal(2, status, detail, has_entries=has_entries)
    assert words in text_of(shown, DEFAULTS, journal)
    undo = topic_document(shown, DEFAULTS, journal)["missing"][0]["undo"]
    assert (undo["has_entries"], undo["detail"]) == (has_entries, detail)


@pytest.mark.parametrize(
    ("journal", "possible", "words"),
    [
        pytest.param(in_journal(2), True, "ledger-reaper undo --ledger 2", id="the journal has it"),
        pytest.param(NOT_IN_JOURNAL, False, "is not among them", id="the journal does not have it"),
        pytest.param(in_journal(2, Undone.FAILED, "no metadata"), False, "no metadata", id="it can't be restored"),
        pytest.param(
            RestorableLedgers(None, "no state"), None, "not known whether the journal has it: no state", id="unread"
        ),
    ],
)
def test_only_a_ledger_in_the_journal_gets_an_undo_command(
    journal: RestorableLedgers, possible: bool | None, words: str
) -> None:
    shown = shown_of(lossy())
    undo = topic_document(shown, DEFAULTS, journal)["missing"][0]["undo"]
    assert undo["possible"] is possible
    assert (undo["command"] is not None) is (possible is True)
    text = text_of(shown, DEFAULTS, journal)
    assert words in text
    assert ("ledger-reaper undo" in text) is (possible is True)


def test_settings_that_cannot_be_read_are_unknown_and_not_guessed() -> None:
    shown = shown_of(lossy())
    fields = topic_document(shown, None, NOT_IN_JOURNAL)
    assert set(fields["broker_settings"].values()) == {None}
    assert fields["missing"][0]["broker"]["stops_reads"] is None
    text = text_of(shown, None, NOT_IN_JOURNAL, "401")
    assert "which could not be read" in text
    assert "brokers' settings are not known: 401" in text
    assert "schemaLedgerForceRecovery not known" in settings_line(RecoverySettings(True, False, None), "")


def test_all_partitions_are_explained_and_one_partition_alone() -> None:
    cluster = Cluster()
    for number in (0, 1):
        name = f"public/default/persistent/p-partition-{number}"
        cluster.topic(10 * number + 1, 10 * number + 2, name=name, missing=[10 * number + 1])
    whole = topic_document(shown_of(cluster, "persistent://public/default/p"), DEFAULTS, NOT_IN_JOURNAL)
    assert [each["ledger"] for each in whole["missing"]] == [1, 11]
    part = topic_document(shown_of(cluster, "persistent://public/default/p-partition-1"), DEFAULTS, NOT_IN_JOURNAL)
    assert [each["ledger"] for each in part["missing"]] == [11]


@pytest.mark.parametrize("name", ["public/us-west/ns/persistent/v1", "public/default/persistent/a%27b%0Ac+%24HOME"])
def test_names_are_quoted_in_text_and_commands(name: str) -> None:
    cluster = Cluster()
    cluster.topic(1, 2, 3, name=name, missing=[2])
    cluster.cursor("it%27s", (1, 4), name=name)
    text = text_of(shown_of(cluster, topic_of(name)), DEFAULTS, NOT_IN_JOURNAL)
    (command,) = [line for line in text.splitlines() if "reset-cursor" in line]
    assert text.isprintable() or set(text) - {"\n"} == {each for each in text if each.isprintable()}
    assert "--messageId 3:0" in command
    if "HOME" in name:
        assert "$HOME" in command
        assert r"\x0a" in command


def need(component: LedgerComponent, **facts: object) -> NeededLedger:
    return NeededLedger(ledger_id=7, component=component, topic=NAMED, **facts)  # type: ignore[arg-type]


WAITING = (
    NeededBy(subscription="billing", unread=3, later=5),
    NeededBy(subscription="pulsar.dedup", is_of_broker=True, unread=3, later=5),
)
DATA = LedgerComponent.MANAGED_LEDGER


def test_reads_stop_at_a_data_ledger_that_a_subscription_needs() -> None:
    outlook = outlook_of(need(DATA, next_id=9, needed_by=WAITING), DEFAULTS)
    assert outlook.stops_reads
    assert outlook.helped_by == ("autoSkipNonRecoverableData",)
    # a broker's own cursor is not the operator's to move
    assert [each.command.split()[2] for each in outlook.remedies] == ["reset-cursor", "update-dynamic-config"]
    assert "3 messages" in outlook.remedies[0].loses


def test_brokers_that_skip_do_not_stop() -> None:
    outlook = outlook_of(need(DATA, next_id=9, needed_by=WAITING), SKIPPING)
    assert outlook.stops_reads is False
    assert "skip" in outlook.text


def test_a_data_ledger_that_all_have_acknowledged_stops_nobody() -> None:
    read = NeededBy(subscription="billing", unread=0, later=5)
    for needed_by in ((), (read,)):
        outlook = outlook_of(need(DATA, next_id=9, needed_by=needed_by), DEFAULTS)
        assert outlook.stops_reads is False
        assert not outlook.remedies


@pytest.mark.parametrize(("is_loaded", "stops"), [(False, False), (None, None)])
def test_the_last_ledger_leaves_the_list_at_a_load(is_loaded: bool | None, stops: bool | None) -> None:
    outlook = outlook_of(need(DATA, is_last=True, is_loaded=is_loaded, needed_by=WAITING), DEFAULTS)
    assert "removes it from the list" in outlook.text
    assert outlook.stops_reads is stops
    assert not outlook.remedies


def test_a_broker_that_has_the_position_writes_it_at_an_unload() -> None:
    outlook = outlook_of(need(LedgerComponent.MANAGED_CURSOR, cursor="billing", is_loaded=True), DEFAULTS)
    assert [each.command for each in outlook.remedies] == [f"pulsar-admin topics unload {NAMED}"]
    assert outlook.remedies[0].loses == "nothing"


@pytest.mark.parametrize("is_loaded", [False, None])
def test_without_that_broker_a_subscription_falls_back(is_loaded: bool | None) -> None:
    outlook = outlook_of(need(LedgerComponent.MANAGED_CURSOR, cursor="billing", is_loaded=is_loaded), SKIPPING)
    assert "falls back to the position in its znode" in outlook.text
    assert not outlook.remedies
    assert not outlook.helped_by


@pytest.mark.parametrize("component", LedgerComponent)
def test_every_component_has_an_outlook_and_a_name(component: LedgerComponent) -> None:
    if component in {
        LedgerComponent.MANAGED_LEDGER,
        LedgerComponent.MANAGED_CURSOR,
        LedgerComponent.SCHEMA_STORAGE,
        LedgerComponent.COMPACTED_LEDGER,
        LedgerComponent.DELAYED_INDEX_BUCKET,
    }:
        lines = list(missing_lines(need(component), DEFAULTS, NOT_IN_JOURNAL))
        assert len(lines) > 2
        assert outlook_of(need(component), DEFAULTS).text
