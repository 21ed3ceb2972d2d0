"""Describes how brokers treat a missing ledger, and names the commands that give up what it contained.

Seen on a 4.0.8 broker with default settings, with each of SETTINGS alone, and with all of them
(tests/integration/test_missing_settings.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streaming.space.output.space_texts import command
from streaming.terminal import count_of
from udfs.owners.references import COMPACTION_CURSOR
from udfs.records import LedgerComponent
from udfs.space.space_report import NeededBy, NeededLedger, RecoverySettings

SKIPS, FORCES_LEDGERS, FORCES_SCHEMAS = SETTINGS = (
    "autoSkipNonRecoverableData",
    "managedLedgerForceRecovery",
    "schemaLedgerForceRecovery",
)
# seen with the only bookie killed: a request for a version deleted a schema whose ledgers all exist
FORCES_SCHEMAS_WARNING = (
    f"WARNING: while {FORCES_SCHEMAS} is true, a request for a schema whose ledgers exist deletes the schema, too, if "
    "its bookies do not answer at that moment: set it to false"
)
_UNCHANGED = f"{SKIPS}, {FORCES_LEDGERS} and {FORCES_SCHEMAS} do not change that"


@dataclass(frozen=True, slots=True)
class LastResort:
    """A command that the operator may run instead of `undo`."""

    command: str
    loses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOutlook:
    """The behaviour of a broker without the ledger."""

    text: str
    stops_reads: bool | None  # whether any client gets less than it should, or nothing; None: unknown
    helped_by: tuple[str, ...] = ()  # the settings that let clients read on; they lose what is missing
    remedies: tuple[LastResort, ...] = ()


def outlook_of(need: NeededLedger, settings: RecoverySettings | None) -> BrokerOutlook:
    """Return what brokers do about a missing ledger.

    Args:
        need: the ledger.
        settings: of the brokers; None: unknown.
    """
    return _BY_COMPONENT[need.component](need, settings)


def _data(need: NeededLedger, settings: RecoverySettings | None) -> BrokerOutlook:
    if need.is_last and not need.is_loaded:
        return BrokerOutlook(
            text="It is the last ledger of the topic's list. The broker that loads the topic removes it from the list, "
            "and all subscriptions continue after it: what it contained is lost, and the evidence, too. "
            f"{_UNCHANGED}. So restore it before a client uses the topic",
            stops_reads=None if need.is_loaded is None else False,
        )
    waiting = [each for each in need.needed_by if each.unread != 0]
    if not waiting:
        return BrokerOutlook(
            text="Every subscription has acknowledged it, so none stops there. Only readers, consumers of new "
            "subscriptions and resets to earlier messages would need it. A broker that has loaded the topic removes it "
            "from the list once retention allows",
            stops_reads=False,
        )
    if settings is not None and settings.skips_data:
        text = (
            f"{SKIPS} is true: brokers skip the missing messages, and the subscriptions continue in the next ledger. "
            "The skipped messages count as acknowledged, so a later `undo` does not bring them back to these "
            "subscriptions"
        )
        return BrokerOutlook(text=text, stops_reads=False, helped_by=(SKIPS,), remedies=_skip_each(need, waiting))
    reads = "Subscriptions stop at the first missing message, and get no later message"
    known = (
        f"while {SKIPS} is false"
        if settings is not None and settings.skips_data is False
        else (f"unless {SKIPS} is true, which could not be read")
    )
    return BrokerOutlook(
        text=f"{reads}, {known}. Readers stop there, too",
        stops_reads=None if settings is None or settings.skips_data is None else True,
        helped_by=(SKIPS,),
        remedies=(*_skip_each(need, waiting), _skip_all(SKIPS)),
    )


def _skip_each(need: NeededLedger, waiting: list[NeededBy]) -> tuple[LastResort, ...]:
    """Return the commands that move each subscription to the next ledger."""
    if need.next_id is None:
        return ()
    return tuple(
        LastResort(
            command(
                ["pulsar-admin", "topics", "reset-cursor", "--messageId", f"{need.next_id}:0"],
                [f"--subscription={each.subscription}", need.topic],
            ),
            f"what {each.subscription!a} has not acknowledged before ledger {need.next_id}"
            + (f": {count_of(each.unread, 'message')} of this ledger" if each.unread is not None else "")
            + "; later messages that it acknowledged one by one come again",
        )
        for each in waiting
        if not each.is_of_broker
    )


def _skip_all(setting: str) -> LastResort:
    return LastResort(
        command(["pulsar-admin", "brokers", "update-dynamic-config", "--config", setting, "--value", "true"]),
        "this, and whatever else brokers can't read, of all topics of the cluster",
    )


def _cursor(need: NeededLedger, _settings: RecoverySettings | None) -> BrokerOutlook:
    if need.is_loaded:
        return BrokerOutlook(
            text=f"The broker that has loaded the topic still knows the position of {need.cursor!a}. An unload writes "
            "it into ZooKeeper, and loses nothing. If the broker dies before, the subscription falls back to the "
            "position in its znode",
            stops_reads=False,
            remedies=(LastResort(command(["pulsar-admin", "topics", "unload"], [need.topic]), "nothing"),),
        )
    fall_back = (
        f"{need.cursor!a} falls back to the position in its znode, that of the moment when this ledger was created. "
        f"Messages that it acknowledged since come again if the topic still has them, and no message is lost. "
        f"{_UNCHANGED}"
    )
    loads = "When a broker loads the topic" if need.is_loaded is False else "Unless a broker has loaded the topic"
    return BrokerOutlook(text=f"{loads}, {fall_back}", stops_reads=False)


def _schema(need: NeededLedger, _settings: RecoverySettings | None) -> BrokerOutlook:
    newest = "fails" if need.is_last else "succeeds"
    return BrokerOutlook(
        text=f"Messages are delivered, and a request for the newest version {newest}. When a client with a schema "
        "connects, or a client requests a version by its number, or all versions (`schemas get --version`, "
        "`--all-version`), brokers delete the schema with all its versions, also those that exist, and the next schema "
        f"becomes version 0. {_UNCHANGED}. Messages that name an earlier version can then not be decoded, or are "
        "decoded with another schema. So restore the ledger before",
        stops_reads=False,
    )


def _compacted(need: NeededLedger, _settings: RecoverySettings | None) -> BrokerOutlook:
    return BrokerOutlook(
        text="Readers and consumers with readCompacted get no message, not even a later message, and each compaction "
        f"ends with a timeout. Other clients get all messages that the topic still has. {_UNCHANGED}",
        stops_reads=True,
        remedies=(
            LastResort(
                command(
                    ["pulsar-admin", "topics", "unsubscribe", "--force"],
                    [f"--subscription={COMPACTION_CURSOR}", need.topic],
                ),
                "the compacted messages, and each message that only compaction held",
            ),
        ),
    )


def _bucket(_need: NeededLedger, _settings: RecoverySettings | None) -> BrokerOutlook:
    return BrokerOutlook(
        text="The ledger only lists which messages are delayed, and until when. The broker reads the messages again "
        "and delays them as before; no message is lost",
        stops_reads=False,
    )


_BY_COMPONENT: Mapping[LedgerComponent, Callable[[NeededLedger, RecoverySettings | None], BrokerOutlook]] = {
    LedgerComponent.MANAGED_LEDGER: _data,
    LedgerComponent.MANAGED_CURSOR: _cursor,
    LedgerComponent.SCHEMA_STORAGE: _schema,
    LedgerComponent.COMPACTED_LEDGER: _compacted,
    LedgerComponent.DELAYED_INDEX_BUCKET: _bucket,
}
