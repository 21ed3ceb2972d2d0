"""A topic with marks, in memory, and a sweep that at once deletes ledgers that the topic's list does not name."""

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

from streaming.adapters.memory.properties import MemoryTopicProperties
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree, NoNodeError, parent_of
from streaming.phase_one.deletable_ledgers import DeletableLedgers, SweepAccess
from streaming.phase_one.receipts_by_message import Receipt
from tests.builders import NOW_MS, ROOT, TOPIC, UUID
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedLedgerInfo,
    OffloadState,
    parse_managed_ledger,
    serialize_managed_ledger,
)
from udfs.paths import Layout, ledger_path, managed_ledger_path
from udfs.phase_one.marks import PREFIX, Upload
from udfs.records import LedgerType, Outcome, PendingDelete, Reason

OFFLOAD = OffloadState(uuid=UUID, complete=True, driver_name="aws-s3", driver_properties={"bucket": "b"})
OURS = {"owner": "a team"}


@dataclass
class Topic:
    """A topic's list in a MemoryTree, its ledgers, and a sweep that at once deletes ledgers not in the list."""

    name: str = TOPIC
    tree: MemoryTree = field(default_factory=MemoryTree)
    sent: list[PendingDelete] = field(default_factory=list)
    objects: set[Upload] = field(default_factory=set)
    sweeps: bool = True
    looked_since: list[int] = field(default_factory=list)  # the start of the receipts that each check read
    sends: Callable[[], None] = lambda: None
    now_ms: Callable[[], int] = lambda: NOW_MS
    refuses: bool = False  # each request ends as a dead letter
    letters: set[str] = field(default_factory=set)  # the message ids of those

    def __post_init__(self) -> None:
        self.properties = MemoryTopicProperties(self.tree)
        self.store = MemoryStore(self.tree)

    def api(self) -> DeletableLedgers:
        sweep = SweepAccess(self._send, lambda: None, self._look, self._finished, self.now_ms)
        return DeletableLedgers(self.store, self.properties, sweep, Layout.HIERARCHICAL, ROOT)

    def lists(self, *ledgers: LedgerInfo | int) -> None:
        """Let the list name these; ledgers that it names, or named, exist."""
        infos = [LedgerInfo(ledger_id=each, entries=10) if isinstance(each, int) else each for each in ledgers]
        for each in infos:
            self.make(ledger_path(Layout.HIERARCHICAL, ROOT, each.ledger_id))
            if each.offload is not None and each.offload.uuid:
                self.objects.add((each.ledger_id, each.offload.uuid))
        path = managed_ledger_path(self.name)
        known = self.info().properties if path in self.tree.paths() else OURS
        self.make(path)
        self.tree.write(path, serialize_managed_ledger(ManagedLedgerInfo(tuple(infos), known)))

    def make(self, path: str) -> None:
        if path not in self.tree.paths():
            if parent_of(path) != "/":
                self.make(parent_of(path))
            self.tree.create(path, b"")

    def info(self) -> ManagedLedgerInfo:
        return parse_managed_ledger(self.tree.read(managed_ledger_path(self.name)).data)

    def exists(self, ledger_id: int) -> bool:
        return ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id) in self.tree.paths()

    def keys(self) -> set[str]:
        return {key for key in self.info().properties if key.startswith(PREFIX)}

    def delete_topic(self) -> None:
        self.tree.remove(managed_ledger_path(self.name))

    def _send(self, request: PendingDelete) -> "Future[str]":
        self.sends()
        self.sent.append(request)
        message_id = f"1:{len(self.sent)}:0"
        if self.refuses:
            self.letters.add(message_id)
        elif self.sweeps:
            self._sweep(request)
        answer: Future[str] = Future()
        answer.set_result(message_id)
        return answer

    def _look(self, message_ids: Collection[str], _since_ms: int) -> dict[str, Receipt]:
        return {
            each: Receipt(
                message_id=each,
                ledger_id=None,
                ledger_type=None,
                topic=None,
                outcome=Outcome.DEAD_LETTER,
                reason=Reason.NOT_PULSARS,
                detail="",
                attempt=0,
                at_ms=self.now_ms(),
            )
            for each in self.letters.intersection(message_ids)
        }

    def _sweep(self, request: PendingDelete) -> None:
        """As the real sweep: ledgers that the list names at this moment stay."""
        try:
            listed = self.info().ledgers
        except NoNodeError:
            listed = ()
        if request.ledger_type is LedgerType.OFFLOAD_LEDGER and request.offload_context is not None:
            assert request.offload_context.driver_properties == {"bucket": "b"}
            named = {(each.ledger_id, each.offload.uuid) for each in listed if each.offload}
            if (request.ledger_id, request.offload_context.uuid) not in named:
                self.objects.discard((request.ledger_id, request.offload_context.uuid))
        elif request.ledger_id not in {each.ledger_id for each in listed} and self.exists(request.ledger_id):
            self.tree.remove(ledger_path(Layout.HIERARCHICAL, ROOT, request.ledger_id))

    def _finished(self, uploads: Collection[Upload], since_ms: int) -> set[Upload]:
        self.looked_since.append(since_ms)
        return set(uploads) - self.objects
