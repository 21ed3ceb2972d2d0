"""Makes storage leak only through faults of a real cluster, and reads what the broker still uses."""

from dataclasses import dataclass

from streaming.sandbox import ledger_list, offloaded_ledgers, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.demo.screen import console, short, step
from streaming.sandbox.demo.traffic import LIVE
from streaming.sandbox.offloaded_ledgers import Offloads
from streaming.sandbox.orphans import orphan_everything
from streaming.sandbox.parts import part_clients
from streaming.terminal import count_of
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import LedgerState

CLICKS = "persistent://public/default/clicks"
ORDERS = "persistent://public/default/orders"
INVOICES = "persistent://public/default/invoices"
FORGOTTEN = "persistent://public/default/forgotten"
ARCHIVE = "persistent://public/default/archive"
REPORTS = "persistent://public/default/old-reports"
SENSORS = "persistent://public/default/sensors"
_WITH_MESSAGES = (INVOICES, ARCHIVE, SENSORS)
_LISTED = (CLICKS, ORDERS, INVOICES, ARCHIVE, SENSORS, LIVE)


@dataclass(frozen=True, slots=True)
class Leaks:
    """The leaks of the demo, and the messages that must survive."""

    leaked: dict[int, str]  # id -> topic of the CLOSED ledgers without references
    still_open: frozenset[int]  # ids of the OPEN ledgers without references
    offloads: Offloads
    messages: dict[str, list[bytes]]  # topic -> all messages that could be read before any delete


def leak(cluster: Cluster) -> Leaks:
    """Create topics, and make storage of every kind leak. Takes about a minute and a half."""
    with step("create topics with small ledgers, cursors and schemas, beside live traffic"):
        topics.fill(cluster, INVOICES, 12, ["archive"], entry_bytes=500)
        topics.post_schema_versions(cluster, INVOICES, 2)
        topics.fill(cluster, FORGOTTEN, 8, ["nobody"], entry_bytes=2000)
    with step("the broker trims, can't delete, and is killed with -9: ledgers leak"):
        orphans = orphan_everything(cluster, [CLICKS, ORDERS], ledgers=30, entry_bytes=2000)
    with step("an operator deletes a topic's metadata by hand"):
        topics.unload(cluster, FORGOTTEN)
        orphans[FORGOTTEN] = ledger_list.owned(cluster, FORGOTTEN)
        part_clients.delete_znode(cluster.addresses.zookeeper, managed_ledger_path(managed_ledger_name(FORGOTTEN)))
    with step("S3 is down while a topic is deleted, and an upload fails at its last step: objects leak"):
        offloaded = offloaded_ledgers.leak_offloads(cluster, kept=ARCHIVE, deleted=REPORTS, retried=SENSORS)
    for topic, lost in orphans.items():
        console.print(
            f"    {short(topic)}: leaked [bold]{len(lost.data)}[/] data, {len(lost.cursors)} cursor "
            f"and {len(lost.schemas)} schema ledgers"
        )
    console.print(
        f"    {short(ARCHIVE)}: the BookKeeper copies of [bold]{len(offloaded.copies)}[/] offloaded ledgers; "
        f"{short(REPORTS)}: [bold]{len(offloaded.leaked)}[/] offloaded ledgers; "
        f"{short(SENSORS)}: the objects of [bold]{count_of(len(offloaded.stale), 'failed upload')}[/]"
    )
    owners = {ledger_id: topic for topic, lost in orphans.items() for ledger_id in lost.every}
    owners |= dict.fromkeys(offloaded.copies, ARCHIVE)
    metadata = ledger_list.every_ledger(cluster)
    still_open = frozenset(i for i in owners if metadata[i].state is not LedgerState.CLOSED)
    leaked = {ledger_id: topic for ledger_id, topic in owners.items() if ledger_id not in still_open}
    return Leaks(leaked, still_open, offloaded, {topic: topics.read_all(cluster, topic) for topic in _WITH_MESSAGES})


def ledgers_in_use(cluster: Cluster, leaks: Leaks) -> set[int]:
    """Return the ids of the ledgers in BookKeeper that the broker itself refers to now."""
    in_use: set[int] = set()
    for topic in _LISTED:
        in_use |= {*topics.data_ledgers(cluster, topic), *topics.schema_ledgers(cluster, topic)}
        in_use |= {ledger_id for ledger_id in topics.cursor_ledgers(cluster, topic).values() if ledger_id >= 0}
    return in_use - set(leaks.offloads.copies) - _only_in_s3(leaks)


def objects_in_use(leaks: Leaks) -> set[str]:
    """Return the keys of the objects that the broker's lists name."""
    return {key for attempt in leaks.offloads.in_use for key in attempt.keys}


def _only_in_s3(leaks: Leaks) -> set[int]:
    return {attempt.ledger_id for attempt in leaks.offloads.in_use}
